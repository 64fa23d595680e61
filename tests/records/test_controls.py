"""Controls of methods as rows of a comparison, and what communication adds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedkin.analysis.intervals import added
from fedkin.errors import ConfigError
from fedkin.flow import PeerMethod
from fedkin.methods import METHODS
from fedkin.records.comparison import added_by_exchange, table
from fedkin.records.controls import controls_of, with_controls
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.tables import comparison
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Runs, compare
from fedkin.running.loop import run_experiment
from tiny import TABLE, CutAt, assert_equal_runs

SMALL: dict[str, Any] = {**TABLE, "training": {**TABLE["training"], "rounds": 3}}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_control_without_exchange_that_its_settings_allow(name: str) -> None:
    experiment = Experiment.of(SMALL)
    for control in controls_of(METHODS[name]):
        made = experiment.for_method(f"{name}@{control}")
        assert made.method.name == name
        assert made.resolved() != experiment.for_method(name).resolved() or isinstance(made.method, PeerMethod)
    assert ("self" in controls_of(METHODS[name])) == (name != "local")


def test_a_control_has_its_methods_settings_then_its_own() -> None:
    sections = {"fedu": {"training.lr": 0.3, "method.lam": 0.2}, "fedu@self": {"training.lr": 0.7}}
    experiment = Experiment.of({**SMALL, "methods": sections})
    one, other = experiment.for_method("fedu@self"), experiment.for_method("fedu@random")
    assert (one.training.lr, one.method.lam, one.method.graph.control) == (0.7, 0.2, "self")  # type: ignore[union-attr]
    assert (other.training.lr, other.method.graph.control) == (0.3, "random")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "words"),
    [("flt@slef", "did you mean 'self'"), ("fltt@self", "did you mean 'flt'"), ("local@self", "exchanges nothing")],
)
def test_a_wrong_name_is_refused_with_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Experiment.of(SMALL).for_method(name)
    with pytest.raises(ConfigError, match=words):
        Experiment.of({**SMALL, "methods": {name: {"training.lr": 0.1}}})


def test_controls_stand_behind_their_method() -> None:
    assert with_controls(["mapl", "local"], planted=True) == [
        "mapl",
        "mapl@self",
        "mapl@one",
        "mapl@random",
        "mapl@oracle",
        "local",
    ]
    assert with_controls(["ifca", "ifca@one"], planted=False) == ["ifca", "ifca@self", "ifca@one"]


def test_what_communication_adds_by_hand(tmp_path: Path) -> None:
    names = ["local", "fedavg", "fedavg@self", "sfmtl-graph", "sfmtl-graph@self", "tfl"]
    results = compare(Runs(Experiment.of(SMALL)), names, [0, 1, 2], tmp_path / "c")
    rows = {row["method"]: row for row in table(results)}
    # FedAvg without exchange is local training, bit for bit, as both have one rate here.
    for seed in (0, 1, 2):
        one, other = results["fedavg@self"][seed].scores, results["local"][seed].scores
        assert {id: score.right for id, score in one.items()} == {id: score.right for id, score in other.items()}
    assert rows["fedavg"]["adds"]["mean"] == pytest.approx(rows["fedavg"]["gain"][0])
    expected = added({s: results["fedavg"][s].gains(results["fedavg@self"][s]) for s in (0, 1, 2)})
    assert expected is not None
    assert (rows["fedavg"]["adds"]["low"], rows["fedavg"]["adds"]["high"]) == (expected.low, expected.high)
    assert rows["local"]["adds"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert rows["fedavg@self"]["adds"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert rows["tfl"]["adds"] is None
    with (tmp_path / "c" / "compare.csv").open(newline="") as file:
        line = next(line for line in csv.DictReader(file) if line["method"] == "fedavg")
    assert float(line["adds.mean"]) == rows["fedavg"]["adds"]["mean"]
    console = Console(width=80)
    with console.capture() as printed:
        console.print(comparison(table(results)))
    assert " adds " in printed.get()
    folders = [r.folder for by_seed in results.values() for r in by_seed.values() if r.folder is not None]
    page = collect(folders)
    shown = {row["label"]: row["adds"] for row in page["table"]}
    assert shown["fedavg"] == pytest.approx([expected.value, expected.high - expected.value])  # type: ignore[operator]
    assert shown["tfl"] is None
    assert "@" not in page["sentence"]
    assert "exchange adds" in write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_comparison_with_controls_is_gone_on_with(tmp_path: Path) -> None:
    one = compare(Runs(Experiment.of(SMALL)), ["fedavg", "fedavg@self"], [0], tmp_path / "c")
    again = compare(Runs(Experiment.of(SMALL)), ["fedavg", "fedavg@self"], [0], tmp_path / "c")
    assert table(one) == table(again)
    assert table(one)[0]["adds"]["low"] is None  # one seed


def test_nothing_exchanged_adds_exactly_nothing(tmp_path: Path) -> None:
    """SFMTL-Graph with lam = 0 and anchors that never pull mixes nothing."""
    still = {**SMALL, "method": {"name": "sfmtl-graph", "lam": 0.0, "anchor_weight": 0.0}}
    results = compare(Runs(Experiment.of(still)), ["sfmtl-graph", "sfmtl-graph@self"], [0, 1])
    found = added_by_exchange("sfmtl-graph", results)
    assert found is not None
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_names_of_clients_do_not_matter() -> None:
    by_seed = {0: {"a": 0.3, "b": -0.1}, 1: {"a": 0.2, "b": 0.1}}
    turned = {seed: {{"a": "z", "b": "y"}[id]: value for id, value in found.items()} for seed, found in by_seed.items()}
    one, other = added(by_seed), added(turned)
    assert one is not None
    assert other is not None
    assert one == pytest.approx(other)
    assert added({0: {}, 1: {"a": 0.1}}) is None
    alone = added({0: {"a": 0.1}})
    assert alone is not None
    assert alone.word == "one seed"


@pytest.mark.parametrize("name", ["ifca", "tfl", "mapl-plus"])
def test_a_control_that_was_cut_ends_the_same(tmp_path: Path, name: str) -> None:
    """The states of all the clients' servers are in the checkpoint."""
    experiment = Experiment.of({**SMALL, "training": {**SMALL["training"], "rounds": 5}}).for_method(f"{name}@self")
    whole = run_experiment(experiment, Path(), tmp_path / "whole")
    with pytest.raises(RuntimeError, match="cut"):
        run_experiment(experiment, Path(), tmp_path / "cut", watcher=CutAt(3))
    run_experiment(experiment, Path(), tmp_path / "cut")
    assert whole.folder is not None
    assert_equal_runs(whole.folder, tmp_path / "cut")
