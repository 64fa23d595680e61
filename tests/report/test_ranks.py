"""Methods are tested over what was said, and not at all over too little; figures against scipy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedkin.analysis.ranking import diagram
from fedkin.records.run import find_runs, read_run
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.ranks import Entry, entries, ranking, svg
from report.fake_runs import make_comparison, make_run
from support import present

LEVEL = {"kin": 0.9, "flt": 0.85, "local": 0.5}


def made(federations: int, seeds: int) -> list[Entry]:
    rng = np.random.default_rng(0)
    return [
        Entry(method, f"f{place}", seed, float(rng.normal(level, 0.03)))
        for place in range(federations) for seed in range(seeds) for method, level in LEVEL.items()
    ]  # fmt: skip


def test_seeds_are_the_blocks_of_one_federation_and_clients_are_not() -> None:
    runs = made(1, 7)
    found = present(ranking(runs, higher=True))
    drawn = present(found.diagram)
    assert drawn.methods[-1] == "local"
    assert found.what.startswith("over 7 seeds: each seed is a block")
    table = [[one.mean or 0.0 for one in runs if one.method == name] for name in drawn.methods]
    assert drawn.friedman == pytest.approx(stats.friedmanchisquare(*table).pvalue)


def test_federations_are_blocks_with_the_mean_over_their_seeds() -> None:
    runs = made(6, 3)
    found = present(ranking(runs, higher=True))
    means = {
        name: [np.mean([o.mean for o in runs if (o.method, o.federation) == (name, f"f{i}")]) for i in range(6)]
        for name in LEVEL
    }
    known = diagram(means)
    assert present(found.diagram)[:2] == (known.methods, known.ranks)
    assert found.what.startswith("over 6 federations: each is a mean over its seeds")


def test_too_few_blocks_give_no_test() -> None:
    found = present(ranking(made(1, 3), higher=True))
    assert found.diagram is None
    assert found.line() == "no test of the methods over 3 seeds: 6 are needed (--seeds 0-5)"
    why = present(ranking(made(2, 9), higher=True)).why
    assert why == "no test of the methods over 2 federations: 6 are needed"


def test_blocks_that_a_method_lacks_are_left_out_and_counted() -> None:
    runs = [one for one in made(1, 8) if (one.method, one.seed) != ("flt", 3)]
    found = present(ranking(runs, higher=True))
    assert found.what.startswith("over 7 seeds that all methods have (1 left out):")
    assert ranking([one for one in runs if one.method == "flt"], higher=True) is None


def test_runs_of_other_settings_on_one_federation_are_other_methods(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        for method in ("local", "fedavg"):
            folder = make_run(tmp_path / f"lr={lr}" / f"{method}-seed0", method)
            with (folder / "experiment.toml").open("a") as file:
                file.write(f"[training]\nlr = {lr}\n")
    found = entries([read_run(folder) for folder in find_runs([tmp_path])])
    names = {f"{title} (lr={lr})" for title in ("Local training", "FedAvg") for lr in (0.1, 0.2)}
    assert {one.method for one in found} == names
    (unlike,) = collect([tmp_path])["unlike"]
    assert unlike.startswith("learning rates differ (")
    assert len({one.federation for one in found}) == 1


@pytest.mark.slow
def test_the_page_has_the_diagram_or_says_why_not(tmp_path: Path) -> None:
    make_comparison(tmp_path / "many", seeds=tuple(range(6)), clients=4, rounds=2)
    html = write_report([tmp_path / "many"], tmp_path / "many.html").read_text(encoding="utf-8")
    assert 'href="#ranks"' in html
    assert "Critical-difference diagram" in html
    assert "not for other data" in html
    make_comparison(tmp_path / "few", seeds=(0, 1), clients=4, rounds=2)
    html = write_report([tmp_path / "few"], tmp_path / "few.html").read_text(encoding="utf-8")
    assert 'id="ranks"' not in html
    assert "No test of the methods over 2 seeds: 6 are needed" in html


def test_a_drawing_has_every_method_and_bar_and_no_markup_of_names() -> None:
    found = diagram({"<a>": [3.0, 3, 3, 2, 3, 3], "b": [2.0, 2, 2, 3, 2, 2], "c": [1.0, 1, 1, 1, 1, 1]})
    picture = svg(found)
    assert "&lt;a&gt; 1.17" in picture
    assert "<a>" not in picture
    assert picture.count('stroke-width="4"') == len(found.groups)
    assert all(f"{name} {rank:.2f}" in picture for name, rank in zip("bc", found.ranks[1:], strict=True))
