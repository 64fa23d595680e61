"""The Ray engine: the local engine's bits from a cluster, also when processes and nodes are lost."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedkin import Fit, Message, phase
from fedkin.engines import Envelope, LocalEngine, Observer
from fedkin.engines.simulation import RayEngine
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.flow import ClientFlow
from fedkin.forms import COUNT, NET
from fedkin.learning.losses import CrossEntropy
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from fedkin.views import ClientView
from support import ON_RAY, Ending, play, same, small_setup, started_by, with_settings

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedkin[ray]'")
pytestmark = ON_RAY
TABLE = {
    "name": "on-a-cluster",
    "data": {"source": "digits"},
    "scenario": {"name": "iid", "clients": 6, "train_per_client": 20, "test_per_client": 10},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 4, "batch_size": 10, "clients_per_round": 4},
    "method": {"name": "fedavg"},
    "run": {"seed": 3, "checkpoint_every": 2, "mode": "one-by-one"},
}
_NUMBERS = itertools.count()


class Nodes:
    """Nodes beside a head without a core, each with one core; each is a raylet that can be killed."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.up = cluster, dict[str, Any]()

    def start(self, *names: str) -> None:
        """Start those of these nodes that are not up."""
        for name in names:
            if name not in self.up:
                # Ray may still count a node that was killed for a while: each has a name of its own.
                self.up[name] = self.cluster.add_node(num_cpus=1, node_name=f"{name}-{next(_NUMBERS)}")

    def kill(self, name: str) -> None:
        """End the node with its workers, which else outlive it for a moment, in which a short run ends."""
        node = self.up.pop(name)
        (raylet,) = node.all_processes["raylet"]
        workers = started_by(raylet.process.pid)
        self.cluster.remove_node(node, allow_graceful=False)
        for pid in workers:
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


@pytest.fixture(scope="module")
def all_nodes(cluster: Any) -> Nodes:
    """The cluster's nodes: a test that kills none leaves them to the next."""
    return Nodes(cluster)


@pytest.fixture
def nodes(all_nodes: Nodes) -> Nodes:
    """Nodes "one" and "two" alone."""
    all_nodes.start("one", "two")
    return all_nodes


class Killing(Observer):
    """Kills a node when the first reply of a round has arrived: the other clients are still at work."""

    def __init__(self, round: int, nodes: Nodes) -> None:
        self.round, self.nodes = round, nodes

    def delivered(self, envelope: Envelope) -> None:
        if envelope.round == self.round and envelope.receiver == "server":
            self.round = 0
            self.nodes.kill("two")


def assert_equal(local: LocalEngine, spread: LocalEngine, rounds: int) -> None:
    """These rounds of both engines have the same bits."""
    for number in range(1, rounds + 1):
        assert local.round(number).traffic == spread.round(number).traffic
    assert local.evaluate() == spread.evaluate()
    assert same(local.models(), spread.models())


class Stepwise(FedAvg):
    """Each client goes on with the dict that it has, whose values it replaces or changes in place."""

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        params = dict(message.params)
        for step in range(4):
            fitted = yield from Fit(params)
            if step % 2:
                for name, tensor in fitted.params.items():
                    params[name].data.copy_(tensor)
            else:
                params.update(fitted.params)
        return Message(params=params, n=client.size)


@pytest.mark.parametrize("method", [METHODS["sfmtl-graph"](), Stepwise()], ids=["sfmtl-graph", "stepwise"])
def test_the_bits_of_the_local_engine(method: Any, nodes: Nodes) -> None:
    setup = with_settings(small_setup(method, clients_per_round=5), mode="one-by-one", workers=2)
    with closing(RayEngine(setup)) as spread:
        assert_equal(LocalEngine(setup), spread, 3)


def test_a_run_that_loses_a_node_has_the_results_of_one_in_one_process(nodes: Nodes, tmp_path: Path) -> None:
    plain = Experiment.of(TABLE)
    alone = run_experiment(plain, tmp_path, tmp_path / "alone")
    spread = plain.with_changes(**{"run.engine": "ray"})
    losing = Ending(then={2: lambda: nodes.kill("two")})
    together = run_experiment(spread, tmp_path, tmp_path / "together", watcher=losing)
    rows = [(folder / "rounds.jsonl").read_bytes() for folder in (tmp_path / "alone", tmp_path / "together")]
    assert rows[0] == rows[1]
    assert same(alone.models, together.models)


def test_nodes_lost_within_a_round_until_none_is_left(nodes: Nodes) -> None:
    setup = with_settings(small_setup(METHODS["sfmtl-graph"](), clients_per_round=5), mode="one-by-one")
    with closing(RayEngine(setup, observers=[Killing(2, nodes)])) as spread:
        assert_equal(LocalEngine(setup), spread, 3)
        nodes.kill("one")
        with pytest.raises(RunError, match=r"no node with a core is left .*ray start --address=.* --resume"):
            spread.round(4)


@dataclass(frozen=True)
class Dying(CrossEntropy):
    """A loss that ends its process, once if there is a file to remove, else each time."""

    marker: str = ""

    def __call__(self, *args: Any) -> Any:
        if not self.marker or Path(self.marker).exists():
            if self.marker:
                Path(self.marker).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(*args)


class Mortal(FedAvg):
    marker: str = ""

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message.params, Dying(self.marker))
        return Message(params=fitted.params, n=client.size)


def test_a_process_that_ends_is_replaced_three_times(nodes: Nodes, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes cannot import the tests
    setup = with_settings(small_setup(Mortal(marker=str(marker))), mode="one-by-one", workers=1)
    local = LocalEngine(setup)
    outcome = local.round(1)
    marker.touch()
    with closing(RayEngine(setup)) as spread:
        assert spread.round(1).traffic == outcome.traffic
        assert local.evaluate() == spread.evaluate()
    lost = pytest.raises(RunError, match=r"work of client 'site-.' was lost more than 3 times .* --resume")
    with closing(RayEngine(replace(setup, method=Mortal()))) as spread, lost:
        spread.round(1)


def test_errors_name_the_client(nodes: Nodes) -> None:
    named = pytest.raises(MethodError, match=r"client 'site-.', phase 'train': the training loss became")
    with closing(RayEngine(with_settings(small_setup(METHODS["local"](), lr=1e30), workers=2))) as spread, named:
        play(spread, 1, 2, 3)


_BLOCKING = """
import sys
class Blocking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{0}":
            raise ModuleNotFoundError("No module named '{0}'", name="{0}")
sys.meta_path.insert(0, Blocking())
"""


@pytest.mark.parametrize("lacks", ["fedkin", "ownnet"])
def test_a_node_that_lacks_a_module_is_named(
    lacks: str, all_nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ownnet.py").write_text("from torch import nn\nclass Body(nn.Sequential):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    blocking = tmp_path / "blocking"
    blocking.mkdir()
    (blocking / "sitecustomize.py").write_text(_BLOCKING.format(lacks))
    with monkeypatch.context() as there:
        there.setenv("PYTHONPATH", f"{blocking}:{os.environ.get('PYTHONPATH', '')}")
        all_nodes.close()
        all_nodes.start("bare")
    setup = small_setup(METHODS["fedavg"]())
    body = importlib.import_module("ownnet").Body

    def build() -> Any:
        first, *others = Mlp(hidden=(4,)).build(setup.federation.task)
        return (body(first), *others)

    named = pytest.raises(RunError, match=rf"^Ray node .*: No module named '{lacks}'; every node needs the same")
    with closing(all_nodes), closing(RayEngine(replace(setup, net=Net.build(build, 1)))) as spread, named:
        spread.round(1)


def test_no_cluster_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at RAY_ADDRESS='nowhere' .* `ray start --head`"):
        RayEngine(small_setup(METHODS["fedavg"]()))


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedkin\[ray\]'"):
        RayEngine(small_setup(METHODS["local"]()))
