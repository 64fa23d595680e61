"""Comparisons and sweeps from Python: the runs of the command line, with methods from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import tomli_w

import fedkin
from fedkin.errors import ConfigError, RunError
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.records.tables import flat
from fedkin.running.compare import compare as by_command
from fedkin.running.compared import line, table
from fedkin.running.experiment import Experiment, read_table
from fedkin.running.sweep import sweep as sweep_by_command
from fedkin.running.tuning import Choice
from support import small_federation
from tiny import TABLE

pytestmark = pytest.mark.usefixtures("forgotten")
FEW: dict[str, Any] = {"rounds": 1, "training": {"local_steps": 2, "lr": 0.1}}


class Halved(FedAvg):
    """A method of a notebook, with a setting of its own."""

    name: ClassVar[str] = "halved"
    title: ClassVar[str] = "Halved"

    share: float = 0.5


def test_names_classes_objects_and_controls_on_a_federation(tmp_path: Path) -> None:
    federation = small_federation()
    methods = ["local", "fedavg", FedProx(mu=0.5), Halved, "fedavg@self"]
    found = fedkin.compare(federation, methods, seeds="0-1", **FEW, out=tmp_path / "c")
    assert list(found) == ["local", "fedavg", "fedprox", "halved", "fedavg@self"]
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
    with pytest.raises(RunError, match=r"plan.json differs from what to compare"):
        fedkin.compare(federation, methods, seeds=[0], **FEW, out=tmp_path / "c")


def test_an_experiment_gives_what_the_command_gives(tmp_path: Path) -> None:
    few = {**TABLE, "training": {**TABLE["training"], "rounds": 2}}
    (tmp_path / "e.toml").write_text(tomli_w.dumps(few))
    plan = Experiment.of(few)
    wanted = by_command(plan, ["local", "fedavg"], [0, 1], tmp_path)
    made = fedkin.compare(tmp_path / "e.toml", ["local", FedAvg()], seeds=[0, 1])
    timeless = [{name: each for name, each in row.items() if name != "seconds"} for row in made.rows]
    assert timeless == [{name: each for name, each in row.items() if name != "seconds"} for row in table(wanted)]
    own = fedkin.compare(plan, [Halved(share=0.25)], changes={"training.lr": 0.2}, rounds=1, out=tmp_path / "own")
    assert own["halved"][0].summary["rounds"] == 1
    kept = Experiment.of(read_table(tmp_path / "own" / "experiment.toml"))
    assert kept.for_method("halved").method == Halved(share=0.25)
    assert kept.training.lr == 0.2


def test_one_method_with_several_settings_has_labels(tmp_path: Path) -> None:
    plan = Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 1}})
    labelled = {"mu=0": FedProx(mu=0.0), "mu=9": FedProx(mu=9.0)}
    found = fedkin.compare(plan, labelled, seeds=3, out=tmp_path / "c")
    assert found["mu=0"][3].rounds != found["mu=9"][3].rounds
    assert (tmp_path / "c" / "mu=9-seed3").is_dir()
    swept = fedkin.sweep(plan, FedProx, {"method.mu": [0.0, 9.0]}, seeds=3)
    assert [one.results[3].rounds for one in swept] == [by_seed[3].rounds for by_seed in found.values()]
    command = sweep_by_command(plan, ["fedprox"], [Choice("method.mu", (0.0, 9.0))], [3], tmp_path, tmp_path / "s")
    assert [one.results[3].rounds for one in command] == [one.results[3].rounds for one in swept]
    assert [flat(line(row))["method.mu"] for row in swept.rows] == [0.0, 9.0]


def test_a_sweep_on_a_federation(tmp_path: Path) -> None:
    found = fedkin.sweep(
        lambda seed: small_federation(), ["local", FedProx()], {"training.lr": [0.1], "fedprox:method.mu": [0.0, 1.0]},
        rounds=1, training={"local_steps": 2}, out=tmp_path / "s",
    )  # fmt: skip
    assert [(one.method, dict(one.settings)) for one in found] == [
        ("local", {"training.lr": 0.1}),
        ("fedprox", {"training.lr": 0.1, "method.mu": 0.0}),
        ("fedprox", {"training.lr": 0.1, "method.mu": 1.0}),
    ]
    alone = fedkin.run("fedprox", small_federation(), mu=1.0, **FEW)
    assert found[2].results[0].rounds == alone.rounds
    assert found.report is not None
    assert found.report.exists()
    assert len(found.table) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"methods": []}, "methods: at least one is needed"),
        ({"methods": [FedProx(mu=0.1), FedProx(mu=1.0)]}, "methods: 'fedprox' twice; give each a label"),
        ({"methods": ["fedagv"]}, "methods: no 'fedagv'; did you mean 'fedavg'"),
        ({"methods": {"a/b": "local"}}, "methods: 'a/b' cannot name a folder"),
        ({"methods": [3]}, "methods: expected names, method classes or method objects, got 3"),
        ({"methods": ["fedavg@one"]}, "fedavg@one: fedavg has no control 'one'"),
        ({"methods": ["local"], "seeds": [-1]}, "seeds: expected whole numbers from 0 up"),
        ({"methods": ["local"], "seeds": "4-0"}, "seeds 4-0: expected the smaller number first"),
        ({"methods": ["local"], "changes": {"training.lr": 1}}, "changes: they are for an experiment"),
        ({"methods": ["local"], "training": {"lrr": 1}}, "training.lrr: no such setting; did you mean 'lr'"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedkin.compare(small_federation(), **arguments)


def test_an_experiment_has_its_own_settings_and_names_stay_one_methods() -> None:
    with pytest.raises(ConfigError, match="training: of an experiment, set changes="):
        fedkin.compare(Experiment.of(TABLE), "local", training={"lr": 1})

    class Average(FedAvg):
        name: ClassVar[str] = "fedavg"

    with pytest.raises(ConfigError, match="Average is 'fedavg', and there is a method 'fedavg' already"):
        fedkin.compare(Experiment.of(TABLE), [Average])
