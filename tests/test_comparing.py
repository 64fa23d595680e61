"""Comparisons and sweeps from Python: the runs of the command line, with methods from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedkin
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Federation
from fedkin.graph import Graph
from fedkin.methods.blocks.stage_settings import ControlledGraph
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.records.comparison import comparison_rows, csv_row
from fedkin.records.run import find_runs, read_run
from fedkin.report.collect import collect
from fedkin.report.ranks import entries
from fedkin.running.experiment import Experiment, load, read_table
from fedkin.running.grid import Choice, Runs
from fedkin.running.grid import compare as by_command
from fedkin.running.grid import sweep as sweep_by_command
from fedkin.settings import flat
from graph.strategies import dense
from support import present, small_federation
from tiny import TABLE, written

pytestmark = pytest.mark.usefixtures("forgotten")
FEW: dict[str, Any] = {"rounds": 1, "training": {"local_steps": 2, "lr": 0.1}}


class Halved(FedAvg):
    """A method of a notebook, with a setting of its own."""

    name: ClassVar[str] = "halved"
    title: ClassVar[str] = "Halved"

    share: float = 0.5


class Linked(FedAvg):
    """A method of a notebook with a graph: everybody is near to everybody, as far as the server can tell."""

    name: ClassVar[str] = "linked"
    title: ClassVar[str] = "Linked"
    kind: ClassVar[str] = "personalised"  # type: ignore[assignment]

    graph: ControlledGraph = ControlledGraph()

    def round(self, server: Any, sampled: Any) -> Any:
        yield from super().round(server, sampled)
        ids = sorted(sampled)
        near = np.ones((len(ids), len(ids))) - np.eye(len(ids))
        server.graph = Graph(tuple(ids), self.graph.controlled(server, ids, near), round=server.round)


def test_a_graph_of_ones_own_has_the_controls_of_a_graph(federation: Federation) -> None:
    planted = present(federation.planted)
    found = fedkin.compare(federation, [Linked], controls=True, seeds=[0], **FEW)
    assert list(found) == ["linked", "linked@self", "linked@one", "linked@random", "linked@oracle"]
    weights = {name: runs[0].graph for name, runs in found.items()}
    ids = sorted(federation)
    expected = [[a != b and planted[a] == planted[b] for b in ids] for a in ids]
    assert np.array_equal(dense(present(weights["linked@oracle"]).weights), expected)


@pytest.mark.slow
def test_names_classes_objects_and_controls_on_a_federation(federation: Federation, tmp_path: Path) -> None:
    methods = ["local", "fedavg", FedProx(mu=0.5), Halved, "fedavg@self", "halved@self"]
    found = fedkin.compare(federation, methods, seeds="0-1", **FEW, out=tmp_path / "c")
    assert list(found) == ["local", "fedavg", "fedprox", "halved", "fedavg@self", "halved@self"]
    assert found["halved@self"][0].rounds != found["halved"][0].rounds
    alone = fedkin.run(FedProx(mu=0.5), federation, seed=1, **FEW)
    assert found["fedprox"][1].rounds == alone.rounds
    assert found["halved"][0].rounds == found["fedavg"][0].rounds
    assert found["fedavg@self"][0].values == found["local"][0].values
    assert [*found.table["method"]] == list(found)
    (row,) = [row for row in found.rows if row["method"] == "fedavg"]
    assert found.difference("fedavg", "local").value == pytest.approx(row["gain"][0])
    assert set(found.intervals()) == set(found) - {"local"}
    assert repr(found).startswith("Comparison(accuracy, 2 seeds: local 0.")
    assert found.report == tmp_path / "c" / "report.html"
    assert "halved" in found.report.read_text()
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("*/rounds.jsonl")}
    again = fedkin.compare(federation, methods, seeds=[0, 1], **FEW, out=tmp_path / "c")
    assert again.rows == found.rows
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("*/rounds.jsonl")}
    with pytest.raises(RunError, match=r"plan.json differs from what to compare: it has seeds \[0, 1\], not \[0\]"):
        fedkin.compare(federation, methods, seeds=[0], **FEW, out=tmp_path / "c")


@pytest.mark.slow
def test_an_experiment_gives_what_the_command_gives(tmp_path: Path) -> None:
    plan = load(written(tmp_path / "e.toml", training={**TABLE["training"], "rounds": 2}))
    wanted = by_command(Runs(plan, tmp_path), ["local", "fedavg"], [0, 1])
    made = fedkin.compare(tmp_path / "e.toml", ["local", FedAvg()], seeds=[0, 1])
    for mine, row in zip(made.rows, comparison_rows(wanted), strict=True):
        assert {**mine, "seconds": 0} == {**row, "seconds": 0}
    own = fedkin.compare(plan, [Halved(share=0.25)], changes={"training.lr": 0.2}, rounds=1, out=tmp_path / "own")
    assert own["halved"][0].summary["rounds"] == 1
    kept = Experiment.of(read_table(tmp_path / "own" / "experiment.toml"))
    assert kept.for_method("halved").method == Halved(share=0.25)
    assert kept.training.lr == 0.2


@pytest.mark.slow
def test_one_method_with_several_settings_has_labels(tmp_path: Path) -> None:
    plan = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 1}})
    labelled = {"mu=0": FedProx(mu=0.0), "mu=9": FedProx(mu=9.0)}
    found = fedkin.compare(plan, labelled, seeds=3, out=tmp_path / "c")
    assert found["mu=0"][3].rounds != found["mu=9"][3].rounds
    assert (tmp_path / "c" / "mu=9-seed3").is_dir()
    swept = fedkin.sweep(plan, FedProx, {"method.mu": [0.0, 9.0]}, seeds=3)
    figures = [one.results[3].summary["accuracy"]["mean"] for one in swept.grid]
    means = [f"fedprox mu={mu} {figure:.3f}" for mu, figure in zip((0.0, 9.0), figures, strict=True)]
    assert repr(swept) == f"Comparison(accuracy, 1 seed: {', '.join(means)})"
    assert [one.results[3].rounds for one in swept.grid] == [by_seed[3].rounds for by_seed in found.values()]
    choices = [Choice("method.mu", (0.0, 9.0))]
    command = sweep_by_command(Runs(plan, tmp_path), ["fedprox"], choices, [3], tmp_path / "s")
    assert [one.results[3].rounds for one in command] == [one.results[3].rounds for one in swept.grid]
    assert [flat(csv_row(row))["method.mu"] for row in swept.rows] == [0.0, 9.0]


def test_a_sweep_on_a_federation(tmp_path: Path) -> None:
    found = fedkin.sweep(
        lambda seed: small_federation(), ["local", FedProx()], {"training.lr": [0.1], "fedprox:method.mu": [0.0, 1.0]},
        rounds=1, training={"local_steps": 2}, out=tmp_path / "s",
    )  # fmt: skip
    assert [(one.method, dict(one.settings)) for one in found.grid] == [
        ("local", {"training.lr": 0.1}), *(("fedprox", {"training.lr": 0.1, "method.mu": mu}) for mu in (0.0, 1.0)),
    ]  # fmt: skip
    alone = fedkin.run("fedprox", small_federation(), mu=1.0, **FEW)
    assert found.grid[2].results[0].rounds == alone.rounds
    assert present(found.report).exists()
    assert len(found.table) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"methods": []}, "methods: at least one is needed"),
        ({"methods": [FedProx(mu=0.1), FedProx(mu=1.0)]}, "methods: 'fedprox' twice; give each a label"),
        ({"methods": {"a/b": "local"}}, "methods: 'a/b' cannot name a folder"),
        ({"methods": ["fedavg@one"]}, "fedavg@one: fedavg has no control 'one'"),
        ({"methods": ["local"], "seeds": [-1]}, "seeds: expected whole numbers from 0 up"),
        ({"methods": ["local"], "seeds": "4-0"}, "seeds 4-0: expected the smaller number first"),
        ({"methods": ["local"], "seeds": None}, "or a text such as '0-4', got None"),
        ({"methods": ["local"], "seeds": []}, "seeds: at least one is needed"),
        ({"methods": ["local"], "seeds": [0, 0]}, "seeds: 0 is named twice; expected each once"),
        ({"methods": ["local"], "seeds": [0, True]}, "or a text such as '0-4', got True"),
        ({"methods": ["local"], "seeds": 0.5}, "or a text such as '0-4', got 0.5"),
        ({"methods": ["local"], "seeds": np.array([0, -1])}, "or a text such as '0-4', got "),
        ({"methods": ["local"], "changes": {"training.lr": 1}}, "changes: they are for an experiment"),
        ({"methods": ["local"], "training": {"lrr": 1}}, "training.lrr: no such setting; did you mean 'lr'"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        fedkin.compare(small_federation(), **arguments)
    assert "--" not in str(refused.value)


class Choosy(FedAvg):
    """A method that takes no net."""

    name: ClassVar[str] = "choosy"

    def equip(self, net: Any, task: Any, key: int) -> Any:
        raise ConfigError("choosy: it takes no net")


@pytest.mark.parametrize("on", [small_federation(), Experiment.of(TABLE)])
def test_a_net_that_does_not_fit_one_method_is_said_before_anything_runs(on: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choosy: it takes no net"):
        fedkin.compare(on, ["local", Choosy], out=tmp_path)
    assert not list(tmp_path.rglob("summary.json"))


def test_arguments_of_a_wrong_kind_are_said_in_one_line() -> None:
    federation, preset = small_federation(), "presets/digits-rotated.toml"
    every: dict[str, Callable[[], Any]] = {
        "on: expected a Federation, .*, got 3": lambda: fedkin.compare(3, "local"),  # type: ignore[arg-type]
        "changes: expected": lambda: fedkin.compare(preset, "local", changes=3),  # type: ignore[arg-type]
        "out: expected a path, got 3": lambda: fedkin.compare(federation, "local", out=3),  # type: ignore[arg-type]
        "data_root: expected a path": lambda: fedkin.compare(preset, "local", data_root=3),  # type: ignore[arg-type]
        "grid: expected": lambda: fedkin.sweep(federation, "local", 3),  # type: ignore[arg-type]
        "grid: expected names": lambda: fedkin.sweep(federation, "local", {3: [1]}),  # type: ignore[dict-item]
        "federation: expected a Federation": lambda: fedkin.run("local", 3),  # type: ignore[arg-type]
        "training: expected a Training": lambda: fedkin.run("local", federation, training=3),  # type: ignore[arg-type]
        "settings: expected a dict": lambda: fedkin.run("local", federation, settings=3),  # type: ignore[arg-type]
        "faults: expected a Faults": lambda: fedkin.run("local", federation, faults=3),  # type: ignore[arg-type]
        "trackers: expected a list": lambda: fedkin.run("local", federation, trackers=3),  # type: ignore[arg-type]
        "source: expected a name": lambda: fedkin.federate(3, "iid"),  # type: ignore[arg-type]
        "scenario: expected a name": lambda: fedkin.federate("digits", 3),  # type: ignore[arg-type]
        "run: expected a path": lambda: fedkin.load(3),  # type: ignore[arg-type]
    }  # fmt: skip
    for words, call in every.items():
        with pytest.raises(ConfigError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_an_experiment_has_its_own_settings_and_names_stay_one_methods() -> None:
    with pytest.raises(ConfigError, match="training: of an experiment, set changes="):
        fedkin.compare(Experiment.of(TABLE), "local", training={"lr": 1})

    class Average(FedAvg):
        name: ClassVar[str] = "fedavg"

    with pytest.raises(ConfigError, match="Average is 'fedavg', and there is a method 'fedavg' already"):
        fedkin.compare(Experiment.of(TABLE), [Average])


def test_a_method_in_a_file_keeps_its_records_inside_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "compared_own.py"
    file.write_text("from fedkin.methods.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    name = title = 'mine'\n")
    before = set(tmp_path.iterdir())
    found = fedkin.compare(small_federation(), [f"{file}:Mine", f"{file}:Mine@self"], **FEW, out=tmp_path / "c")
    assert list(found) == ["mine", "mine@self"]
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "c", tmp_path / "__pycache__"}
    assert {path.name for path in (tmp_path / "c").iterdir() if path.is_dir()} == {"mine-seed0", "mine@self-seed0"}
    mine = {"m": f"{file}:Mine"}
    swept = fedkin.sweep(small_federation(), mine, {"training.lr": [0.1]}, rounds=1, out=tmp_path / "s")
    assert [one.method for one in swept.grid] == ["m"]
    with pytest.raises(ConfigError, match="methods: 'mine' twice"):
        fedkin.compare(small_federation(), [f"{file}:Mine", f"{file.parent}/./compared_own.py:Mine"])


class Outside(FedAvg):
    """Its name is a path."""

    name: ClassVar[str] = "../outside"


class Nameless(fedkin.ServerMethod):
    """It has no name."""

    offer: ClassVar[Any] = FedAvg.offer
    round: ClassVar[Any] = FedAvg.round
    use: ClassVar[Any] = FedAvg.use


@pytest.mark.parametrize("on", [small_federation(), Experiment.of(TABLE)])
@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ([Outside], r"methods: '../outside' cannot name a folder"),
        ([Outside()], r"methods: '../outside' cannot name a folder"),
        ({"": "fedavg"}, "methods: '' cannot name a folder"),
        ({"local": "fedavg"}, "methods: 'local' is the name of another method: give 'fedavg' another label"),
        ({"local": FedProx()}, "methods: 'local' is the name of another method: give 'fedprox' another label"),
        ({"x": "fedavg@self"}, "methods: 'fedavg@self' is named after its method: label that"),
        (["fedagv"], "methods: no 'fedagv'; did you mean 'fedavg'"),
        (3, "methods: expected names, method classes or method objects, got 3"),
        (None, "methods: expected names, method classes or method objects, got None"),
        (fedkin.ServerMethod, "methods: ServerMethod lacks what a method needs: "),
        (Nameless, "methods: Nameless has no name: give it one"),
        ({"x": fedkin.PeerMethod}, "methods: PeerMethod lacks what a method needs: "),
    ],
)
def test_methods_that_cannot_be_used_are_refused(on: Any, methods: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        fedkin.compare(on, methods, controls=True, out=tmp_path / "c")
    assert "--" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_errors_name_arguments_and_not_options_of_the_command() -> None:
    for grid, words in (
        ({}, "grid: at least one"), ({"method.mu": [-1.0]}, r"grid for fedprox: method\.mu"),
        ({"method.mu": []}, r"grid method\.mu: at least one"), ({"run.seed": [1, 2]}, r"grid run\.seed: every comb"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^{words}"):
            fedkin.sweep(small_federation(), "fedprox", grid)
    with pytest.raises(ConfigError, match=r"^changes: 'lr' is a value"):
        fedkin.compare(Experiment.of(TABLE), "local", changes={"training.lr.x": 1})


def test_seeds_may_be_whole_numbers_of_any_kind() -> None:
    for seeds, wanted in ((np.arange(2), [0, 1]), (np.int64(3), [3]), (np.array(3), [3])):
        found = fedkin.compare(small_federation(), "local", seeds=seeds, rounds=0)  # type: ignore[arg-type]
        assert list(found["local"]) == wanted
        assert all(type(seed) is int for seed in found["local"])


def test_labels_of_names_are_what_the_names_are(tmp_path: Path) -> None:
    own = {"fedprox": {"method": {"mu": 0.9}, "training": {"lr": 0.05}}}
    plan = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 1}, "methods": own})
    names = {"prox": "fedprox", "x": "fedavg"}
    fedkin.compare(plan, names, out=tmp_path / "e")
    for label, name in names.items():
        run = read_table(tmp_path / "e" / f"{label}-seed0" / "experiment.toml")
        assert run["run"].pop("label") == label
        assert run == plan.for_method(name).resolved()
        assert run["method"].get("mu", 0.9) == 0.9
    federation = small_federation()
    fedkin.compare(federation, {"x": FedProx(mu=1)}, **FEW, out=tmp_path / "f")
    with pytest.raises(RunError, match=r"differs from the experiment .* method.mu: 1.0 there, 2.0 here"):
        fedkin.compare(federation, {"x": FedProx(mu=2)}, **FEW, out=tmp_path / "f")


@pytest.mark.slow
def test_labels_are_methods_of_their_own_in_the_report(tmp_path: Path) -> None:
    labelled = {"base": "local", "weak": FedProx(mu=0.0), "strong": FedProx(mu=9.0)}
    more: dict[str, Any] = {**FEW, "seeds": [0, 1], "controls": True}
    found = fedkin.compare(small_federation(), labelled, **more, out=tmp_path / "c")
    for_report = collect([tmp_path / "c"])
    ranked = {one.method for one in entries([read_run(folder) for folder in find_runs([tmp_path / "c"])])}
    assert ranked == {one["title"] for one in for_report["methods"]}
    titles = {name: f"FedProx ({name})" for name in ("strong", "strong@self", "weak", "weak@self")}
    titles["base"] = "Local training (base)"
    assert {one["label"]: one["title"] for one in for_report["methods"]} == titles
    rows = {row["label"]: row for row in for_report["table"]}
    for name in ("weak", "strong"):
        alone = found.difference(name, f"{name}@self")
        assert rows[name]["seeds"] == 2
        mean = next(row for row in found.rows if row["method"] == name)["mean"][0]
        assert rows[name]["mean"][0] == pytest.approx(mean)
        assert rows[name]["adds"][0] == pytest.approx(alone.value)
        assert rows[name]["gain"][0] == pytest.approx(found.difference(name, "base").value)
    assert for_report["runs"][for_report["shown"]]["label"] in ("weak", "strong")
    assert for_report["chosen"] == "the test samples"
    assert for_report["rerun"]["command"] == ""
    plan = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 1}})
    fedkin.compare(plan, {"prox": "fedprox"}, controls=True, out=tmp_path / "e")
    assert [one["label"] for one in collect([tmp_path / "e"])["methods"]] == ["prox", "prox@self"]


def test_the_report_of_samples_that_were_handed_over_prints_no_command_that_cannot_run(tmp_path: Path) -> None:
    found = fedkin.compare(small_federation(), ["local", "fedavg"], seeds="0-1", out=tmp_path / "c", **FEW)
    page = present(found.report).read_text()
    assert 'id="command"' not in page
    assert "The samples came from a Python program, so no command can read them" in page
    assert "[training]" in page
    assert collect([tmp_path / "c" / "local-seed0"])["rerun"]["command"] == ""
