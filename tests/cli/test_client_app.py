"""A client on Flower without `fedkin flower node`: its configuration, consent, and the numbers of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import pytest
import tomli_w

from fedkin.cli.flower_app import answered
from fedkin.errors import ConfigError, DataError, MethodError, RunError
from fedkin.learning.metrics import MEASURES
from fedkin.network.calls import AnsweringLink, Mailbox
from fedkin.running import plugins
from fedkin.running.experiment import Experiment, load
from fedkin.running.flowered import simulated as for_simulation
from fedkin.running.plugins import files_of
from fedkin.running.shared_metrics import sendable
from fedkin.untrusted import toml_of
from network.called import CalledNetwork
from network.federations import experiment, served, simulated, with_own_metric, write_samples
from network.memory import MemoryNetwork


@dataclass
class Context:
    """As Flower's."""

    node_config: dict[str, Any] = field(default_factory=dict)
    run_config: dict[str, Any] = field(default_factory=dict)


class App:
    """The program that Flower starts for each message; it is given its context."""

    turn = Lock()

    def __init__(self, experiment: Path, context: Context) -> None:
        self.experiment, self.context = experiment, context

    def answer(self, letter: bytes) -> bytes:
        with self.turn:
            return answered(self.experiment, letter, self.context)


def network_of(apps: dict[str, App]) -> MemoryNetwork:
    network = CalledNetwork()
    for name, app in apps.items():
        network.known.add(name)
        network.ends[name] = cast(AnsweringLink, app)
    return cast(MemoryNetwork, network)


def written(folder: Path, table: dict[str, Any]) -> Path:
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(table))
    return path


LETTER = Mailbox("server", "ann").letter()


def test_tables_at_nodes_give_the_numbers_of_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    for name in ("ann", "bob"):
        rows = [f"{a:.3f},{b:.3f},{int(a > 0) + int(b > 0)}" for a, b in draw.normal(size=(40, 2))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *rows]))
    table = {
        "name": "tables", "data": {"source": "csv", "path": str(tmp_path), "target": "y"},
        "scenario": {"name": "natural"}, "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "local_steps": 2, "batch_size": 8, "lr": 0.1}, "method": {"name": "fedavg"},
        "network": {"clients": ["ann", "bob"], "deadline": 60.0},
    }  # fmt: skip
    plan, path = Experiment.of(table), written(tmp_path, table)
    simulated(plan, tmp_path / "here")
    apps = {
        name: App(path, Context({
            "fedkin-data": str(tmp_path / f"{name}.csv"), "fedkin-state": str(tmp_path / f"{name}-state"),
            "fedkin-yes": True,
        }))
        for name in ("ann", "bob")
    }  # fmt: skip
    assert served(plan, network_of(apps), tmp_path / "there") is not None
    assert (tmp_path / "there" / "rounds.jsonl").read_bytes() == (tmp_path / "here" / "rounds.jsonl").read_bytes()
    # Each client tells of its table and of its messages once, not at each message.
    assert capsys.readouterr().out.count("what leaves this client") == 4


@pytest.mark.usefixtures("forgotten")
def test_a_metric_from_the_nodes_own_file_gives_the_numbers_of_a_simulation(tmp_path: Path) -> None:
    plan = with_own_metric(tmp_path, clients=2, rounds=2)
    simulated(plan, tmp_path / "here")
    federation = plan.federation(Path())
    path = written(tmp_path, toml_of(sendable(plan, "")))
    apps = {}
    for name, client in federation.items():
        write_samples(tmp_path, name, client)
        apps[name] = App(path, Context({
            "fedkin-data": str(tmp_path / f"{name}.npz"), "fedkin-state": str(tmp_path / f"{name}-state"),
            "fedkin-yes": True, "fedkin-metric": f"{tmp_path}/own_wrong.py:wrong_share",
        }))  # fmt: skip
    MEASURES.pop("wrong-share")
    plugins._FILES.clear()
    with pytest.raises(ConfigError, match=r"run\.metrics: no 'wrong-share'"):
        load(path)
    with pytest.raises(ConfigError, match=r"fedkin-metric: own\.py:wrong is not absolute"):
        App(path, Context({**apps["c00"].context.node_config, "fedkin-metric": "own.py:wrong"})).answer(LETTER)
    apps["c00"].answer(Mailbox("server", "c00").letter())
    assert plan.table["own"] == files_of([MEASURES["wrong-share"]])
    assert served(plan, network_of(apps), tmp_path / "there") is not None
    assert (tmp_path / "there" / "rounds.jsonl").read_bytes() == (tmp_path / "here" / "rounds.jsonl").read_bytes()


@pytest.mark.slow
def test_a_simulation_has_the_clients_of_the_scenario(tmp_path: Path) -> None:
    plan = experiment("sfmtl-graph", clients=3, rounds=2)
    federation = plan.federation(Path())
    path = written(tmp_path, dict(plan.table))
    run = {"simulation": True, "out": str(tmp_path / "there"), "data-root": str(tmp_path)}
    apps = {id: App(path, Context({"partition-id": k}, run)) for k, id in enumerate(sorted(federation))}
    assert [apps[id].answer(b"").decode() for id in apps] == sorted(federation)
    simulated(plan, tmp_path / "here")
    assert served(for_simulation(plan, federation), network_of(apps), tmp_path / "there") is not None
    assert (tmp_path / "there" / "rounds.jsonl").read_bytes() == (tmp_path / "here" / "rounds.jsonl").read_bytes()
    with pytest.raises(DataError, match="partition 3: expected a whole number from 0 to 2"):
        App(path, Context({"partition-id": 3}, run)).answer(b"")


@pytest.mark.parametrize(
    ("node", "letter", "error", "words"),
    [
        ({}, LETTER, ConfigError, "has no fedkin-socket of fedkin flower node, and no fedkin-data"),
        ({"fedkin-data": "x.csv"}, LETTER, ConfigError, "state"),
        ({"fedkin-data": "/x", "fedkin-state": "s"}, LETTER, ConfigError, "fedkin-state: s is not absolute"),
        ({"fedkin-data": "x.csv", "fedkin-state": "/s"}, LETTER, ConfigError, "fedkin-data: x.csv is not absolute"),
        ({"fedkin-data": "x", "fedkin-stat": "/s"}, LETTER, ConfigError, "stat: .*did you mean 'state'"),
        ({"fedkin-data": "/x", "fedkin-state": "/s"}, b"", MethodError, "not a letter"),
        ({"fedkin-data": "mine:read", "fedkin-state": "/s"}, b"", MethodError, "not a letter"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(
    node: dict[str, Any], letter: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, dict(experiment(clients=2).table))
    with pytest.raises(error, match=words):
        answered(path, letter, Context(node))


@pytest.mark.parametrize(
    "node",
    [
        {}, {"fedkin-socket": "/s", "partition-id": 0}, {"partition-id": 0, "fedkin-data": "/x", "fedkin-state": "/s"},
        {"fedkin-data": "/x", "fedkin-state": "/s"},
    ],
)  # fmt: skip
def test_a_simulation_is_refused_at_the_node_of_a_site(node: dict[str, Any], tmp_path: Path) -> None:
    """What a run says of consent, samples and folders does not count there."""
    path = written(tmp_path, dict(experiment(clients=2).table))
    run = {"simulation": True, "out": str(tmp_path / "there"), "data-root": str(tmp_path)}
    for letter in (b"", LETTER):
        with pytest.raises(ConfigError, match="an app for Flower's simulation, and this is the node of a site"):
            answered(path, letter, Context(node, run))
    assert [each.name for each in tmp_path.iterdir()] == ["experiment.toml"]


def test_nothing_leaves_before_its_owner_has_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = experiment(clients=1, rounds=1, network={"clients": ["ann"], "classes": 10, "shape": [1, 8, 8]})
    path = written(tmp_path, dict(plan.table))
    np.savez(tmp_path / "ann.npz", x=np.zeros((20, 1, 8, 8), np.uint8), y=np.arange(20) % 10)
    state = tmp_path / "state"
    app = App(path, Context({"fedkin-data": str(tmp_path / "ann.npz"), "fedkin-state": str(state)}))
    network = network_of({"ann": app})
    stop = Stopping(lambda: any("set fedkin-yes=true" in line for line in cast(CalledNetwork, network).said))
    with pytest.raises(RunError, match="stopped while clients were awaited"):
        served(plan, network, tmp_path / "there", watcher=stop)
    assert "fedkin: what leaves this client" in capsys.readouterr().out
    assert not list(state.glob("*/round-*"))


class Stopping:
    """Stops a run once something has happened."""

    def __init__(self, when: Callable[[], bool]) -> None:
        self.stopping = when

    def started(self, rounds: int, done: int) -> None:
        """Nothing to show."""

    def round_done(self, row: Any) -> None:
        """No round is done."""
        raise AssertionError
