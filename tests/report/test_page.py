"""The page is one file: nothing to load, nothing to inject, not too large; and figures for a paper."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedkin.cli.results import report
from fedkin.errors import ConfigError, RunError
from fedkin.graph.picture import embedded
from fedkin.records.files import json_bytes, read_json
from fedkin.records.run import read_run
from fedkin.report import collect as collecting
from fedkin.report import graphs, write_report
from fedkin.report.collect import collect
from fedkin.report.features import FeatureBudget
from fedkin.report.page import _notes
from fedkin.report.paper import _gains_caption, method_table, write_paper
from fedkin.running.experiment import load
from fedkin.running.grid import Runs, compare
from report.fake_runs import data_in, make_comparison, make_run

EVIL = '<script>alert("x")</script>&\u2028'


class Outside(HTMLParser):
    """Collects what a page would load or lead to, and its script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A comparison whose first client has a name made of markup."""
    folder = tmp_path_factory.mktemp("page")
    make_comparison(folder / "made", names={0: EVIL})
    return write_report([folder / "made"], folder / "report.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(html: str) -> None:
    outside = Outside()
    outside.feed(html)
    assert outside.links
    assert all(link.startswith("#") for link in outside.links)
    assert not re.search(r"https?://|//cdn|@import|url\(", html)
    assert "default-src 'none'" in html


def test_names_cannot_become_markup(html: str) -> None:
    outside = Outside()
    outside.feed(html)
    assert outside.scripts == 4
    assert EVIL not in html
    assert EVIL in data_in(html)["federations"][0]["ids"]


def test_embedded_json_has_no_markup() -> None:
    assert embedded({"</script>": "<!--&\u2029"}) == '{"\\u003c/script\\u003e":"\\u003c!--\\u0026\\u2029"}'


def test_tables_stand_in_the_page_without_the_script(html: str) -> None:
    for text in ("worst 10 %", "Jain&#39;s index", "SFMTL-Graph", "fedkin compare experiment.toml", "server to client"):
        assert text in html


def test_the_same_records_give_the_same_page(html: str, tmp_path: Path) -> None:
    make_comparison(tmp_path / "made", names={0: EVIL})
    assert write_report([tmp_path / "made"], tmp_path / "report.html").read_text(encoding="utf-8") == html


def test_command(tmp_path: Path) -> None:
    make_comparison(tmp_path / "made")
    report([tmp_path / "made"], None, None)
    assert (tmp_path / "made" / "report.html").is_file()
    report([tmp_path / "made" / "local-seed0"], tmp_path / "one" / "local.html", None)
    assert (tmp_path / "one" / "local.html").is_file()
    with pytest.raises(RunError, match="a folder; name the file"):
        report([tmp_path / "made"], tmp_path, None)
    with pytest.raises(RunError, match="no such run folder"):
        report([tmp_path / "none"], None, None)


@pytest.mark.parametrize(("key", "named"), [("gpu", True), ("cores", False)])
def test_a_gpu_is_named(key: str, named: bool, tmp_path: Path) -> None:
    make_run(tmp_path / "made")
    kept = tmp_path / "made" / "summary.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"machine": {key: "H200"}}))
    text = write_report([tmp_path / "made"], tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("on the same GPU" in text) == named


def test_a_table_s_one_split_is_said_beside_the_intervals_over_seeds(tmp_path: Path) -> None:
    rows = [f"{'ab'[n % 2]},{n * 37 % 91},{n // 2 % 2}" for n in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["h,age,died", *rows]) + "\n")
    (tmp_path / "e.toml").write_text(
        'name = "t"\n[data]\nsource = "csv"\npath = "t.csv"\ntarget = "died"\nclient = "h"\n'
        '[scenario]\nname = "natural"\n[model]\nname = "linear"\n[method]\nname = "fedavg"\n[training]\nrounds = 1\n'
    )
    results = compare(Runs(load(tmp_path / "e.toml"), tmp_path), ["local", "fedavg"], [0, 1], tmp_path / "runs")
    folders = [run.folder for by_seed in results.values() for run in by_seed.values() if run.folder is not None]
    page = write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "All seeds have the same test rows (data.seed)" in page


# -- figures and tables for a paper: what the page says, in files that LaTeX takes ---------------------------------


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("paper")
    return make_comparison(home / "made", seeds=tuple(range(6)), clients=6, rounds=3, names={0: "a_b & 50 %"})


@pytest.mark.slow
def test_without_matplotlib_one_line_says_what_to_install(
    comparison_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedkin\[paper\]'"):
        write_paper([comparison_folder / "nothing"], tmp_path / "out")
    written = write_paper([comparison_folder], tmp_path / "out", "table")
    assert [path.name for path in written] == ["table.tex", "all.tex"]
    with pytest.raises(ConfigError, match="did you mean 'table'"):
        write_paper([comparison_folder], tmp_path / "out", "tabel")


def test_a_table_over_fewer_clients_says_so(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    assert "figures are over" not in method_table(data)
    assert "figures are over 2 of 6 clients" in method_table(
        {**data, "partial": "ROC-AUC: figures are over 2 of 6 clients"}
    )


def test_fewer_than_half_a_client_that_loses_are_not_none(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    counts = {"gained": [3.5, 1.0], "lost": [0.4, 0.2], "apart": [4.1, 1.0], "few": [0.0, 0.0]}
    assert "$3.5$ & $0.4$ &" in method_table({**data, "table": [{**row, **counts} for row in data["table"]]})


def test_methods_with_other_seeds_are_named(comparison_folder: Path) -> None:
    folders = [comparison_folder / name for name in ("local-seed0", "local-seed1", "fedavg-seed1")]
    found = " ".join(_notes(collect(folders)))
    assert "Not all methods have the same seeds" in found
    assert "Local training 0, 1; FedAvg 1." in found
    assert "same seeds" not in " ".join(_notes(collect([comparison_folder])))


def test_a_table_of_methods_has_the_figures_of_the_page(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    lines = method_table(data).splitlines()
    first = lines.index(r"\toprule")
    assert lines[first - 1] == rf"\begin{{tabular}}{{l{'r' * lines[first + 1].count('&')}}}"
    assert r"$\pm$: half of Student's 95 \% interval over seeds" in lines[2]
    rows = {row["label"]: row for row in data["table"]}
    local = next(line for line in lines if line.startswith("Local training"))
    mean, spread = rows["local"]["mean"]
    assert f"${100 * mean:.1f} \\pm {100 * spread:.1f}$" in local
    body = [line for line in lines if line.endswith(r"\\")]
    assert len({line.count("&") for line in body}) == 1


def test_a_caption_names_only_intervals_and_verdicts_that_are_drawn(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    run = next(run for run in data["runs"] if run["label"] == "fedavg")
    judged = {**run, "sure": {"verdict": ["gained"] * 6}}
    assert "Not judged" in _gains_caption(data, run, 6)
    assert "grey" not in _gains_caption(data, run, 6)
    assert "Lines: 95 % intervals" in _gains_caption(data, judged, 150)
    assert "Lines" not in _gains_caption(data, judged, 151)


def test_figures_are_vectors_and_all_of_it_compiles(comparison_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install -e .[paper]")
    assert {path.name for path in write_paper([comparison_folder], tmp_path / "two")} == {
        "table.tex", "curves.svg", "curves.pdf", "curves.tex", "all.tex",
    }  # fmt: skip
    parts = "table,curves,gains,graph"
    written = write_paper([comparison_folder], tmp_path / "out", parts)
    names = {path.name for path in written}
    for figure in ("curves", "gains-fedavg", "gains-sfmtl-graph", "graph-sfmtl-graph"):
        assert {f"{figure}.svg", f"{figure}.pdf", f"{figure}.tex"} <= names
        assert ElementTree.parse(tmp_path / f"out/{figure}.svg").getroot().tag.endswith("svg")
        assert "<image" not in (tmp_path / f"out/{figure}.svg").read_text(encoding="utf-8")
        assert (tmp_path / f"out/{figure}.pdf").read_bytes().startswith(b"%PDF")
    assert {"table.tex", "all.tex"} <= names
    assert "95 % interval" in (tmp_path / "out/curves.tex").read_text(encoding="utf-8").replace("\\%", "%")
    again = write_paper([comparison_folder], tmp_path / "again", parts)
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]
    if (latex := shutil.which("pdflatex")) is not None:
        done = subprocess.run(
            [latex, "-interaction=nonstopmode", "-halt-on-error", "all.tex"], cwd=tmp_path / "out", capture_output=True,
            timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]


# -- a page stays small enough to send, whatever the number of clients and runs ------------------------------------


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("size") / "run", clients=1000, rounds=2, groups=12)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients stand at random: their places take as many bytes as those that springs find, and less time."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(graphs, "places", lambda links, seed: rng.uniform(-1, 1, (links.shape[0], 2)))


@pytest.mark.slow
@pytest.mark.usefixtures("anywhere")
def test_many_runs_of_a_thousand_clients_stay_below_15_mb(
    thousand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """19 graph methods and 3 seeds, each with clients of its own; all runs have the records of one."""
    for seed in range(3):
        # Values of a thousand clients are made into text once for a seed.
        federation = read_json(thousand / "federation.json") | {"name": f"made {seed}"}
        for facts in federation["clients"].values():
            facts["n_train"] += seed
        summary = json_bytes(read_json(thousand / "summary.json") | {"method": "its name", "seed": seed})
        clients = json_bytes(federation)
        for method in range(19):
            folder = tmp_path / "many" / f"m{method}-seed{seed}"
            shutil.copytree(thousand, folder, copy_function=os.link)
            changed = summary.replace(b'"its name"', f'"m{method}"'.encode())
            for name, data in (("summary.json", changed), ("federation.json", clients)):
                (folder / name).unlink()
                (folder / name).write_bytes(data)
    # The same records give the same graphs: once is enough.
    for name in ("graph_of", "sharing_of"):
        real = getattr(collecting, name)
        once = cache(lambda *more, real=real: real(read_run(thousand), sorted(read_run(thousand).client_facts), *more))
        monkeypatch.setattr(collecting, name, lambda run, ids, *more, once=once: once(*more))
    out = write_report([tmp_path / "many"], tmp_path / "report.html")
    data = data_in(out.read_text(encoding="utf-8"))
    assert len(data["runs"]) == 57
    assert len(data["federations"]) == 3
    assert all(run["graph"]["frames"][-1]["round"] == 2 for run in data["runs"])
    # Half a megabyte for the heads and as much for the points in feature space, which these runs do not have.
    assert out.stat().st_size < 14_000_000


@pytest.mark.parametrize("count", [1, 5, 15, 57, 200])
def test_all_runs_share_the_page(count: int) -> None:
    side, rounds = graphs.matrix_side(count), graphs.rounds_kept(1000, count)
    assert count * rounds * side**2 <= 40 * 200 * 200
    assert count * rounds * 1000 <= 100_000 or rounds == 1
    runs: Any = [SimpleNamespace(seed=0, features=dict.fromkeys(range(8)))] * count
    features = FeatureBudget.shared(runs)
    assert count * features.rounds * features.heads**2 <= 400_000
    if count == 1:
        assert (rounds, side, features.rounds, features.heads) == (40, 200, 6, 100)


@pytest.mark.slow
def test_graphs_of_too_many_clients_are_not_read_into_matrices_and_the_page_says_where_they_are(
    thousand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LARGEST", 999)
    monkeypatch.setattr(graphs, "dense", lambda matrix: pytest.fail("a matrix of all pairs"))
    text = write_report([thousand], tmp_path / "report.html").read_text(encoding="utf-8")
    run = data_in(text)["runs"][0]
    assert run["graph"] is None
    assert run["sharing"] is None
    assert "The graphs of so many clients are not drawn here" in text
