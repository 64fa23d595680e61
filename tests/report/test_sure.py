"""The page and the terminal say how sure a gain is and how good risks are, as the outcomes give it."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats
from sklearn.metrics import brier_score_loss, roc_auc_score

import fedkin
from fedkin.analysis.calibration import decision_curve
from fedkin.analysis.paired import VERDICTS, difference, verdict
from fedkin.analysis.ranking import diagram
from fedkin.errors import RunError
from fedkin.records.comparison import comparison_rows
from fedkin.records.files import write_bytes, write_seal
from fedkin.records.reading import VALIDATION
from fedkin.records.run import Result, find_runs, read_run
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.page import _comparison
from fedkin.report.ranks import Entry, entries, ranking, svg
from fedkin.report.sections import over_seeds
from fedkin.report.sentence import validation_in
from fedkin.report.tables import comparison, left_out, one_run
from report.fake_runs import make_comparison, make_run
from support import changed, present, printed, small_federation
from task_kinds import federation_of

PLAN = {"local_steps": 3, "batch_size": 8, "lr": 0.05}
METHODS = ("local", "fedavg", "ifca")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of a risk task and of a classification, by kind."""
    home = tmp_path_factory.mktemp("sure")
    federations = {"risk": federation_of("risk"), "classification": small_federation()}
    for (kind, federation), method in itertools.product(federations.items(), METHODS):
        options: dict[str, Any] = {"clusters": 2} if method == "ifca" else {}
        fedkin.run(method, federation, rounds=2, training=PLAN, out=home / kind / method, **options)
    return {kind: home / kind for kind in federations}


def results_of(place: Path) -> dict[str, dict[int, Result]]:
    return {method: {0: read_run(place / method)} for method in METHODS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["risk", "classification"])
def test_counts_agree_in_sentence_table_bars_and_terminal(places: dict[str, Path], kind: str) -> None:
    data = collect([places[kind]])
    results = results_of(places[kind])
    local = results["local"][0]
    for row, run in zip(data["table"], data["runs"], strict=True):
        assert row["label"] == run["label"]
        mine = results[run["label"]][0]
        ids = data["federations"][run["federation"]]["ids"]
        if run["label"] == "local":
            assert row["gained"] is None
            assert run["sure"]["verdict"] == [None] * len(ids)
            continue
        seen = {id: one for id, one in mine.outcomes.items() if id not in mine.unseen}
        words = {id: verdict(difference(mine.metric.name, one, local.outcomes[id])) for id, one in seen.items()}
        assert run["sure"]["verdict"] == [words.get(id) for id in ids]
        counts = [list(words.values()).count(word) for word in VERDICTS]
        assert [row[name][0] for name in ("gained", "lost", "apart", "few")] == counts
        sure = next(line for line in comparison_rows(results) if line["method"] == run["label"])["surely"]
        assert list(sure.values()) == counts
        shown = printed(comparison(comparison_rows(results)), 80)
        assert "/".join(map(str, counts if counts[-1] else counts[:-1])) in shown
    if kind == "risk":
        assert "with too few events" in data["sentence"]
        events = data["runs"][0]["sure"]["events"]
        known = [one.events for id, one in sorted(local.outcomes.items()) if id not in local.unseen]
        assert [n for n in events if n is not None] == known


def test_what_was_told_stands_in_sentence_table_and_terminal(places: dict[str, Path]) -> None:
    data = collect([places["classification"]])
    told = {row["label"]: row["given"] for row in data["table"]}
    assert told == {"local": [], "fedavg": [], "ifca": ["2 groups, given"]}
    assert "(2 groups, given)" in data["sentence"]
    results = results_of(places["classification"])
    text = " ".join(printed(comparison(comparison_rows(results)), 80).split())
    assert "*given: ifca: 2 groups, given" in text
    assert "(2 groups, given)" in " ".join(printed(one_run(results["ifca"][0]), 80).split())


@pytest.mark.slow
def test_warnings_stand_at_the_top_of_the_page(tmp_path: Path) -> None:
    federation = small_federation()
    fedkin.run("mapl", federation, rounds=2, training=PLAN, out=tmp_path / "run", warmup=9)
    assert collect([tmp_path / "run"])["warnings"][0].startswith("MAPL, seed 0: the warm-up of 9 rounds")
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.index("Warning: MAPL, seed 0: the warm-up of 9") < page.index("<main")


def unsealed(place: Path, folder: Path) -> None:
    """Copies of these runs in which a file may be changed."""
    shutil.copytree(place, folder, ignore=shutil.ignore_patterns("seal.json"))


def without_outcomes(place: Path, folder: Path, engine: str) -> Path:
    """Copies of these runs as a server leaves them: with counts, without outcomes of single samples."""
    unsealed(place, folder)
    for path in folder.rglob("outcomes.parquet"):
        path.unlink()
    for path in folder.rglob("summary.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "engine": engine}))
    return folder


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("network", "no per-sample outcomes leave a client over a network"),
        ("peer", "no per-sample outcomes leave a client over a network"),
        ("local", "no per-sample outcomes were kept"),
    ],
)
def test_accuracies_without_outcomes_have_the_intervals_of_their_counts(
    places: dict[str, Path], tmp_path: Path, engine: str, why: str
) -> None:
    known = collect([places["classification"]])
    data = collect([without_outcomes(places["classification"], tmp_path / "counts", engine)])
    for run, full in zip(data["runs"], known["runs"], strict=True):
        assert any(run["sure"]["own"])
        assert run["sure"]["own"] == full["sure"]["own"]
        assert run["sure"]["verdict"] == run["sure"]["gain"] == [None] * len(full["sure"]["own"])
        assert run["sure"]["withheld"] == ("" if run["label"] == "local" else why)
        assert full["sure"]["withheld"] == ""
    assert "significantly" not in data["sentence"]
    assert all(row["gained"] is None for row in data["table"])


def test_outcomes_of_other_samples_are_refused(places: dict[str, Path], tmp_path: Path) -> None:
    unsealed(places["classification"], tmp_path / "mixed")
    path = tmp_path / "mixed/fedavg/outcomes.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(RunError, match="not of the same samples"):
        collect([tmp_path / "mixed"])


def test_means_over_seeds_are_whole_clients_so_that_the_table_fits_a_terminal(places: dict[str, Path]) -> None:
    rows = comparison_rows(results_of(places["classification"]))
    for row in rows:
        row["seeds"] = [0, 1, 2]
        if row["surely"]:
            row["surely"] = {"gained": 0.3333, "lost": 0.0, "apart": 39.6667, "few": 0.0}
    shown = printed(comparison(rows), 80)
    assert "0/0/40" in shown
    assert "neither (means over seeds, rounded)" in " ".join(shown.split())
    assert "…" not in shown


def test_the_table_has_means_weighted_and_pooled_and_the_least_events(places: dict[str, Path]) -> None:
    rows = {row["label"]: row for row in collect([places["risk"]])["table"]}
    for label, row in rows.items():
        result = read_run(places["risk"] / label)
        each = [result.outcomes[id] for id in result.values]
        means = np.average(list(result.values.values()), weights=list(map(len, each)))
        assert row["weighted"][0] == pytest.approx(means)
        scores = np.concatenate([one.values for one in each])
        classes = [np.asarray(one.labels) for one in each]
        labels = np.concatenate(classes)
        assert row["pooled"][0] == pytest.approx(roc_auc_score(labels, scores))
        assert row["events"][0] == min(min(labels.sum(), (1 - labels).sum()) for labels in classes)
    rows = {row["label"]: row for row in collect([places["classification"]])["table"]}
    for label, row in rows.items():
        right = np.concatenate([one.values for one in read_run(places["classification"] / label).outcomes.values()])
        assert row["weighted"] == row["pooled"]
        assert row["pooled"][0] == pytest.approx(right.mean())
        assert row["events"] is None


# -- calibration and decision curves, against scikit-learn and counts over the runs' own outcomes ------------------


def pooled(folder: Path) -> tuple[Any, Any]:
    """Scores and labels of all clients that take part."""
    result = read_run(folder)
    known = [one for id, one in result.outcomes.items() if id not in result.unseen]
    return np.concatenate([one.values for one in known]), np.concatenate([one.labels for one in known])


@pytest.mark.slow
def test_figures_are_those_of_the_pooled_outcomes(places: dict[str, Path]) -> None:
    for run in collect([places["risk"]])["runs"]:
        scores, labels = pooled(places["risk"] / run["label"])
        risks, found = 1 / (1 + np.exp(-scores)), run["risks"]
        assert (found["n"], found["events"]) == (len(labels), labels.sum())
        assert found["brier"] == pytest.approx(brier_score_loss(labels, risks))
        assert found["none"] == pytest.approx(brier_score_loss(labels, np.full(len(labels), labels.mean())))
        assert found["slope"][1] < found["slope"][0] < found["slope"][2]
        assert sum(one[4] for one in found["bins"]) == len(labels)
        assert found["net"] == pytest.approx(decision_curve(risks, labels), abs=1e-6)


def test_more_seeds_on_the_same_samples_do_not_narrow_an_interval() -> None:
    one = [1.2, 0.7, 1.7]
    assert over_seeds([one])[1] == pytest.approx(one[1:])
    assert over_seeds([one] * 5)[1] == pytest.approx(one[1:])
    mean, wide = over_seeds([[1.0, 0.5, 1.5], [1.4, 0.9, 1.9]])
    # By hand: within (0.5 / 1.96)^2, between 0.08, times 1.5; Rubin's degrees of freedom for 2 seeds.
    within, between = (0.5 / 1.959964) ** 2, 1.5 * 0.08
    half = stats.t((1 + within / between) ** 2).ppf(0.975) * np.sqrt(within + between)
    assert (mean, wide.low, wide.high) == pytest.approx((1.2, 1.2 - half, 1.2 + half))


def test_small_errors_are_not_shown_as_0(tmp_path: Path) -> None:
    """Targets of about 1e-4 have squared errors of 1e-8."""
    made = federation_of("regression", unseen=0)
    for id, client in made.items():
        train, test = (replace(part, y=1e-4 * part.y) for part in (client.train, client.test))
        made = changed(made, id, train=train, test=test)
    found = fedkin.compare(made, ["local", "fedavg"], rounds=1, model="linear", training=PLAN, out=tmp_path / "runs")
    data = collect([tmp_path / "runs"])
    run, gains = data["runs"][1], found["fedavg"][0].gains(found["local"][0])
    assert run["gain"] == pytest.approx(list(gains.values()), rel=1e-5, abs=0)
    assert run["curve"]["mean"] == pytest.approx([found["fedavg"][0].value], rel=1e-5, abs=0)
    ends = found["fedavg"][0].intervals()["s0"]
    assert run["sure"]["own"][0] == pytest.approx(list(ends), rel=1e-5, abs=0)
    value = f"{found['fedavg'][0].value:.3g}"
    for text in (printed(comparison(found.rows), 80), repr(found), found._repr_html_()):
        assert value in text
    assert f"{found['fedavg'][0].value:.4g}" in printed(one_run(found["fedavg"][0]), 80)
    row = _comparison(data)["rows"][1]
    assert row[1] == f"{found['fedavg'][0].value:.4g}".replace("-", "−")


# -- tables in a terminal ------------------------------------------------------------------------------------------


def test_groups_may_have_the_names_of_other_columns(tmp_path: Path) -> None:
    methods = ("local", "fedavg")
    runs = {method: {0: read_run(make_run(tmp_path / method, method))} for method in methods}
    table = left_out(dict.fromkeys(("method", "mean", "north"), runs))
    assert [column.header for column in table.columns] == ["method", "method", "mean", "north", "mean"]
    assert tuple(table.columns[0].cells) == methods


# -- methods are tested over what was said, and not at all over too little -----------------------------------------


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


def test_all_methods_that_share_the_best_rank_are_named() -> None:
    runs = [one for one in made(1, 30) if one.method != "flt"]
    best = max({one.method for one in runs}, key=LEVEL.__getitem__)
    twins = [one._replace(method="twin") for one in runs if one.method == best]
    assert present(ranking([*runs, *twins], higher=True)).line().startswith(f"best mean rank: {best} and twin, ")


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


def test_of_a_tuning_that_was_killed_before_it_wrote_its_results_there_are_none(tmp_path: Path) -> None:
    stamp = write_bytes(tmp_path / VALIDATION, b"{}")
    write_seal(tmp_path / "seal.json", {VALIDATION: stamp})
    (tmp_path / VALIDATION).unlink()
    assert validation_in(tmp_path) is None
