"""A Ray cluster of several nodes: lost nodes change no bit, and nodes read files for themselves."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data import federate
from fedkin.engines import Envelope, LocalEngine, Observer
from fedkin.engines.ray import RayEngine
from fedkin.errors import ConfigError, DataError, RunError
from fedkin.federation import Federation, Samples
from fedkin.methods import METHODS
from fedkin.running.compare import run_experiment
from fedkin.running.experiment import Experiment
from support import local_site, small_federation, small_setup

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedkin[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TABLE = {
    "name": "on-a-cluster",
    "data": {"source": "digits"},
    "scenario": {"name": "iid", "clients": 6, "train_per_client": 20, "test_per_client": 10},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 4, "batch_size": 10, "per_round": 4},
    "method": {"name": "fedavg"},
    "run": {"seed": 3, "checkpoint_every": 2},
}


_NUMBERS = itertools.count()


class Nodes:
    """Two nodes with a core each, beside a head without one; each is a raylet of its own that can be killed."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        # Ray may still count the nodes of an earlier test for a while: each has a name of its own.
        self.names = {name: f"{name}-{next(_NUMBERS)}" for name in ("one", "two")}
        self.up = {name: cluster.add_node(num_cpus=1, node_name=self.names[name]) for name in ("one", "two")}

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
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick}
        made = Cluster(initialize_head=True, head_node_args=head)
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
    plain = Experiment.of(TABLE)
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
    setup = small_setup(METHODS["sfmtl-graph"](), per_round=5)
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
    with pytest.raises(DataError, match=r"Ray node one-.* \(.*\): client 'a' has other samples here .* copy the same"):
        RayEngine(setup)
    (tmp_path / "samples.npz").unlink()
    with pytest.raises(DataError, match=rf"Ray node one-.* \({_host()}\): .*{tmp_path}/samples\.npz"):
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
