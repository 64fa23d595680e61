"""A Ray cluster of several nodes: lost nodes change no bit, and nodes read files for themselves."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data import federate
from fedkin.engines import Envelope, LocalEngine, Observer
from fedkin.engines.executors.ray import Cluster
from fedkin.engines.simulation import RayEngine
from fedkin.errors import ConfigError, DataError, RunError
from fedkin.federation import Federation, Samples
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from support import ON_RAY, local_site, small_federation, small_setup

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedkin[ray]'")
pytestmark = ON_RAY
TABLE = {
    "name": "on-a-cluster",
    "data": {"source": "digits"},
    "scenario": {"name": "iid", "clients": 6, "train_per_client": 20, "test_per_client": 10},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 4, "batch_size": 10, "clients_per_round": 4},
    "method": {"name": "fedavg"},
    "run": {"seed": 3, "checkpoint_every": 2},
}


_NUMBERS = itertools.count()


class Nodes:
    """Nodes beside a head without a core, two with one if not said; each is a raylet that can be killed."""

    def __init__(self, cluster: Any, cores: Mapping[str, int] | None = None) -> None:
        cores = cores or {"one": 1, "two": 1}
        self.cluster = cluster
        # Ray may still count the nodes of an earlier test for a while: each has a name of its own.
        self.names = {name: f"{name}-{next(_NUMBERS)}" for name in cores}
        self.up = {name: cluster.add_node(num_cpus=cores[name], node_name=self.names[name]) for name in cores}

    def kill(self, name: str) -> None:
        """End the node with its actors, which else outlive it for a moment, in which a short run ends."""
        node = self.up.pop(name)
        (raylet,) = node.all_processes["raylet"]
        actors = _children(raylet.process.pid)
        self.cluster.remove_node(node, allow_graceful=False)
        for pid in actors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for name in list(self.up):
            self.kill(name)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster as Started

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick}
        made = Started(initialize_head=True, head_node_args=head)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


@pytest.fixture
def nodes(cluster: Any) -> Iterator[Nodes]:
    made = Nodes(cluster)
    yield made
    made.close()


class Killing(Observer):
    """Kills a node when the first reply of a round has arrived: the other clients are still at work."""

    def __init__(self, round: int, kill: Callable[[], None]) -> None:
        self.round, self.kill = round, kill

    def travelled(self, envelope: Envelope) -> None:
        if envelope.round == self.round and envelope.receiver == "server":
            self.round = 0
            self.kill()


class AfterRound:
    """Kills a node after a round of a run."""

    def __init__(self, round: int, kill: Callable[[], None]) -> None:
        self.round, self.kill = round, kill

    def started(self, rounds: int, done: int) -> None:
        pass

    def round_done(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self.round:
            self.kill()

    def stopping(self) -> bool:
        return False


def saved(folder: Path, seed: int = 0) -> Path:
    rng, path = np.random.default_rng(seed), folder / "samples.npz"
    client = np.repeat(["a", "b", "c", "d"], 30)
    np.savez(path, x=rng.normal(size=(120, 5)).astype(np.float32), y=rng.integers(3, size=120), client=client)
    return path


def from_file(folder: Path) -> Federation:
    return federate("npz", "natural", data={"path": str(saved(folder))})


def assert_equal_models(one: Any, other: Any, ids: Any) -> None:
    for id in ids:
        assert all(torch.equal(tensor, other.model(id)[name]) for name, tensor in one.model(id).items())


def test_a_run_that_loses_a_node_has_the_results_of_one_in_one_process(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Experiment.of(TABLE).with_changes(**{"run.mode": "one-by-one"})
    alone = run_experiment(plain, tmp_path, tmp_path / "alone")
    spread = plain.with_changes(**{"run.engine": "ray"})
    with caplog.at_level(logging.WARNING, "fedkin"):
        watcher = AfterRound(2, lambda: nodes.kill("two"))
        together = run_experiment(spread, tmp_path, tmp_path / "together", watcher=watcher)
    assert [line.getMessage() for line in caplog.records if nodes.names["two"] in line.getMessage()] == [
        f"Ray node {nodes.names['two']} ({_host()}) was lost: others take its 3 clients over, with the same results"
    ]
    rows = [(folder / "rounds.jsonl").read_bytes() for folder in (tmp_path / "alone", tmp_path / "together")]
    assert rows[0] == rows[1]
    for id, params in alone.models.items():
        assert all(torch.equal(tensor, together.models[id][name]) for name, tensor in params.items())


def test_nodes_lost_within_a_round_until_none_is_left(nodes: Nodes) -> None:
    setup = small_setup(METHODS["sfmtl-graph"](), clients_per_round=5)
    local, spread = LocalEngine(setup), RayEngine(setup, observers=[Killing(2, lambda: nodes.kill("two"))])
    try:
        assert len({place.node for place in _executor(spread).places}) == 2
        for number in (1, 2, 3):
            assert local.round(number).traffic == spread.round(number).traffic
        assert local.evaluate() == spread.evaluate()
        assert_equal_models(local, spread, setup.federation)
        nodes.kill("one")
        with pytest.raises(RunError, match=r"no node with a core is left .*ray start --address=.* --resume"):
            spread.round(4)
    finally:
        spread.close()


def test_a_node_with_several_actors_is_lost_at_once(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(cluster, {"large": 3, "small": 1})
    setup = small_setup(METHODS["fedavg"]())
    try:
        local, spread = LocalEngine(setup), RayEngine(setup)
        try:
            here = [
                place for place in _executor(spread).places if "large" in _executor(spread).cluster.names[place.node]
            ]
            assert len(here) == 3
            clients = sum(len(place.ids) for place in here)
            local.round(1)
            with caplog.at_level(logging.WARNING, "fedkin"):
                nodes.kill("large")
                spread.round(1)
            node = f"{nodes.names['large']} ({_host()})"
            goes_on = f"others take its {clients} clients over, with the same results"
            told = [line.getMessage() for line in caplog.records if node in line.getMessage()]
            assert told == [f"Ray node {node} was lost: {goes_on}"]
            assert sorted(_executor(spread).places[0].ids) == sorted(setup.federation)
            assert local.evaluate() == spread.evaluate()
        finally:
            spread.close()
    finally:
        nodes.close()


class Dying:
    """Starts actors on the nodes as ever, of which the first ones end at once."""

    def __init__(self, deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deaths, self.start = deaths, Cluster.start
        monkeypatch.setattr(Cluster, "start", lambda cluster, node: self.started(cluster, node))

    def started(self, cluster: Cluster, node: str) -> Any:
        place = self.start(cluster, node)
        if self.deaths:
            self.deaths -= 1
            cluster.ray.get(place.actor.add.remote({}))
            cluster.ray.kill(place.actor)
        return place


def test_an_actor_that_ends_while_it_gets_samples_leaves_its_node_in_use(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = small_setup(METHODS["fedavg"](), from_file(tmp_path))
    Dying(1, monkeypatch)
    with caplog.at_level(logging.WARNING, "fedkin"):
        spread = RayEngine(setup)
    try:
        names = [_executor(spread).cluster.names[place.node] for place in _executor(spread).places]
        assert sorted(name.split(" ")[0] for name in names) == sorted(nodes.names.values())
        assert not [line for line in caplog.records if any(name in line.getMessage() for name in nodes.names.values())]
    finally:
        spread.close()
    Dying(100, monkeypatch)
    with pytest.raises(RunError, match=r"Ray node (one|two).* was lost more than 3 times \(.*\); if memory ran out"):
        RayEngine(setup)


@pytest.mark.parametrize("lacks", ["fedkin", "ownnet"])
def test_a_node_that_lacks_a_module_is_named(
    lacks: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ownnet.py").write_text("from torch import nn\nclass Body(nn.Sequential):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    blocking = tmp_path / "blocking"
    blocking.mkdir()
    (blocking / "sitecustomize.py").write_text(_BLOCKING.format(lacks))
    with monkeypatch.context() as there:
        there.setenv("PYTHONPATH", f"{blocking}:{os.environ.get('PYTHONPATH', '')}")
        nodes = Nodes(cluster, {"bare": 1})
    setup = small_setup(METHODS["fedavg"]())
    body = importlib.import_module("ownnet").Body

    def build() -> Any:
        first, *others = Mlp(hidden=(4,)).build(setup.federation.task)
        return (body(first), *others)

    setup = replace(setup, net=Net.build(build, 1))
    try:
        with pytest.raises(RunError, match=rf"^Ray node bare-.*: No module named '{lacks}'; every node needs the same"):
            _one_round(setup)
    finally:
        nodes.close()


_BLOCKING = """
import sys
class Blocking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{0}":
            raise ModuleNotFoundError("No module named '{0}'", name="{0}")
sys.meta_path.insert(0, Blocking())
"""


def _one_round(setup: Any) -> None:
    spread = RayEngine(setup)
    try:
        spread.round(1)
    finally:
        spread.close()


def test_samples_of_a_file_do_not_travel(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def travels(self: Samples, protocol: Any) -> Any:
        raise AssertionError("samples leave this process")

    setup = small_setup(METHODS["pfedme"](), from_file(tmp_path))
    local = LocalEngine(setup)
    monkeypatch.setattr(Samples, "__reduce_ex__", travels)
    spread = RayEngine(setup)
    try:
        for number in (1, 2):
            local.round(number)
            spread.round(number)
        assert local.evaluate() == spread.evaluate()
        assert_equal_models(local, spread, setup.federation)
    finally:
        spread.close()
    # What was made in this process has no file that a node could read.
    with pytest.raises(Exception, match="samples leave this process"):
        RayEngine(small_setup(METHODS["fedavg"](), small_federation()))


def test_files_that_a_node_lacks_or_has_otherwise(nodes: Nodes, tmp_path: Path) -> None:
    setup = small_setup(METHODS["fedavg"](), from_file(tmp_path))
    saved(tmp_path, seed=1)
    told = r"Ray node (one|two)-.* \(.*\): client '[ab]' has other samples here .* copy the same files \(npz in"
    with pytest.raises(DataError, match=told):
        RayEngine(setup)
    (tmp_path / "samples.npz").unlink()
    with pytest.raises(DataError, match=rf"Ray node (one|two)-.* \({_host()}\): .*{tmp_path}/samples\.npz"):
        RayEngine(setup)


def test_no_cluster_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at RAY_ADDRESS='nowhere' .* `ray start --head`"):
        RayEngine(small_setup(METHODS["fedavg"]()))


def _executor(engine: RayEngine) -> Any:
    return local_site(engine).executor


def _children(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if place.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(place.parent.name))
    return found


def _host() -> str:
    import socket

    return socket.gethostname()
