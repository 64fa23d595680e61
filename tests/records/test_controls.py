"""Controls of methods as rows of a comparison, and what communication adds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fedkin.analysis.intervals import added
from fedkin.errors import ConfigError
from fedkin.flow import PeerMethod
from fedkin.methods import METHODS
from fedkin.records.comparison import comparison_rows, unequal_conditions
from fedkin.records.controls import controls_of, with_controls
from fedkin.report import write_report
from fedkin.report.collect import collect
from fedkin.report.tables import comparison
from fedkin.running.experiment import Experiment, load
from fedkin.running.grid import Runs, compare
from fedkin.running.loop import run_experiment
from support import present, printed
from tiny import TABLE, assert_equal_runs, cut

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
    names = ["mapl", "mapl@self", "mapl@one", "mapl@random", "mapl@oracle", "local"]
    assert with_controls(["mapl", "local"], planted=True) == names
    assert with_controls(["ifca", "ifca@one"], planted=False) == ["ifca", "ifca@self", "ifca@one"]


@pytest.mark.slow
def test_what_communication_adds_by_hand(tmp_path: Path) -> None:
    names = ["local", "fedavg", "fedavg@self", "sfmtl-graph", "sfmtl-graph@self", "tfl"]
    results = compare(Runs(Experiment.of(SMALL)), names, [0, 1, 2], tmp_path / "c")
    rows = {row["method"]: row for row in comparison_rows(results)}
    # FedAvg without exchange is local training, bit for bit, as both have one rate here.
    for seed in (0, 1, 2):
        assert results["fedavg@self"][seed].values == results["local"][seed].values
    assert rows["fedavg"]["adds"]["mean"] == pytest.approx(rows["fedavg"]["gain"][0])
    expected = present(added({s: results["fedavg"][s].gains(results["fedavg@self"][s]) for s in (0, 1, 2)}))
    assert (rows["fedavg"]["adds"]["low"], rows["fedavg"]["adds"]["high"]) == (expected.low, expected.high)
    assert rows["local"]["adds"] == rows["fedavg@self"]["adds"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert rows["tfl"]["adds"] is None
    with (tmp_path / "c" / "compare.csv").open(newline="") as file:
        line = next(line for line in csv.DictReader(file) if line["method"] == "fedavg")
    assert float(line["adds.mean"]) == rows["fedavg"]["adds"]["mean"]
    text = " ".join(printed(comparison(comparison_rows(results)), 80).split())
    assert " adds " in text
    assert "NAME@self, in which clients exchange nothing with each other" in text
    folders = [r.folder for by_seed in results.values() for r in by_seed.values() if r.folder is not None]
    page = collect(folders)
    shown = {row["label"]: row["adds"] for row in page["table"]}
    assert shown["fedavg"] == pytest.approx([expected.value, expected.high - expected.value])  # type: ignore[operator]
    assert shown["tfl"] is None
    assert "@" not in page["sentence"]
    assert "exchange adds" in write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    # The same folder is resumed: nothing runs again.
    again = compare(Runs(Experiment.of(SMALL)), names, [0, 1, 2], tmp_path / "c")
    assert comparison_rows(again) == comparison_rows(results)


def test_names_of_clients_do_not_matter() -> None:
    by_seed = {0: {"a": 0.3, "b": -0.1}, 1: {"a": 0.2, "b": 0.1}}
    renamed = {seed: {{"a": "z", "b": "y"}[id]: gain for id, gain in gains.items()} for seed, gains in by_seed.items()}
    assert present(added(by_seed)) == pytest.approx(present(added(renamed)))


def test_of_one_seed_or_of_one_without_clients_there_is_no_interval() -> None:
    assert added({0: {}, 1: {"a": 0.1}}) is None
    assert present(added({0: {"a": 0.1}})).against() == "one seed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ifca", "tfl", "mapl-plus"])
def test_a_control_that_was_cut_ends_the_same(tmp_path: Path, name: str) -> None:
    """The states of all the clients' servers are in the checkpoint."""
    experiment = Experiment.of({**SMALL, "training": {**SMALL["training"], "rounds": 5}}).for_method(f"{name}@self")
    whole = run_experiment(experiment, Path(), tmp_path / "whole")
    cut(experiment, tmp_path / "cut", 3)
    run_experiment(experiment, Path(), tmp_path / "cut")
    assert_equal_runs(present(whole.folder), tmp_path / "cut")


# -- methods that do not run under the same conditions -------------------------------------------------------------


PRESET = Path(__file__).parents[2] / "presets" / "digits-rotated.toml"


def sentences(folder: Path, methods: list[str], *changes: str) -> list[str]:
    plan = load(PRESET, ["training.rounds=1", "training.lr=0.3", *changes])
    results = compare(Runs(plan), methods, [0], folder)
    return unequal_conditions({name: by_seed[0] for name, by_seed in results.items()})


@pytest.mark.slow
def test_unlike_settings_of_training_are_said(tmp_path: Path) -> None:
    methods = ["local", "fedavg", "fedavg@self"]
    assert sentences(tmp_path / "alike", methods) == []
    (text,) = sentences(tmp_path / "unlike", methods, "methods.fedavg.training.lr=0.7")
    assert text.startswith("learning rates differ (local: 0.3; fedavg: 0.7)")
    (text,) = sentences(tmp_path / "steps", methods, "methods.local.training.local_steps=3")
    assert text == "training.local_steps differs (local: 3; fedavg: 5)"


@pytest.mark.slow
def test_methods_that_are_told_the_number_of_groups_are_named(tmp_path: Path) -> None:
    (text,) = sentences(tmp_path / "told", ["fedavg", "ifca"], "methods.ifca.method.clusters=4")
    assert text == "not all methods are told the same (fedavg: nothing; ifca: 4 groups, given)"
