"""Floating-point operations are those of each client's own net, loss and inference."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import fedkin
from fedkin.engines import LocalEngine, Setup
from fedkin.engines.accounting import Operations, counting
from fedkin.engines.executors.jobs import FitJob, InferJob
from fedkin.learning.losses import CrossEntropy
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.methods.mapl import Mapl
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.testing import small_federation, small_setup
from learning.test_devices import is_mine
from methods.mapl_toys import MAPL, setup_of, two_groups
from support import NET_METHODS, after, by_pattern, changed, default_method, play, same, trained_models, with_settings

FORWARD = 2 * (5 * 7 + 7 * 4)  # of the small MLP
STEP = FORWARD + 2 * 5 * 7 + 2 * 2 * 7 * 4  # the first layer needs no gradient of its input


def flops_of(setup: Setup, rounds: int = 1) -> list[float]:
    with closing(LocalEngine(setup)) as engine:
        return [engine.round(number).flops for number in range(1, rounds + 1)]


def test_training_of_a_dense_net() -> None:
    setup = small_setup(FedAvg(), local_steps=None, local_epochs=2)
    assert flops_of(setup, 2) == [STEP * 2 * sum(setup.federation.sizes.values())] * 2


def test_inference_counts_what_is_run() -> None:
    engine, outcome = after(SfmtlGraph(anchors="mean"), 1)
    features = 2 * 5 * 7
    assert outcome.inferred == sum(engine.setup.federation.sizes.values())
    assert outcome.flops == STEP * sum(outcome.samples.values()) + features * outcome.inferred


def test_two_views_a_projection_and_prototypes_are_counted() -> None:
    federation = two_groups()
    setup = setup_of(MAPL(warmup=9), federation, local_steps=3)
    views, d, hidden, classes = 2 * 16, 12, 8 * 12, 6
    both = 3 * 2  # forward, and gradients of both factors; a multiply-add is two operations
    batch = (
        views * 8 * d * 4 + views * d * classes * both + views * 2 * d * hidden * both
        + views * views * d * both + views * classes * d * both + classes * classes * d * both
    )  # fmt: skip
    samples = sum(_taken(size, 3, 16) for size in federation.sizes.values())
    assert flops_of(setup) == [pytest.approx(batch / 16 * samples)]


def _taken(size: int, steps: int, batch: int) -> int:
    """Samples of so many steps: the last batch of a pass may be smaller."""
    passes = [min(batch, size - start) for start in range(0, size, batch)] * steps
    return sum(passes[:steps])


def test_each_client_counts_with_its_own_net() -> None:
    setup = small_setup(Local(), local_steps=None)
    federation = setup.federation
    wide = Net.build(lambda: Mlp(hidden=(9,)).build(federation.task), 11)
    first = federation.seen[0]
    unlike = replace(setup, nets={id: wide if id == first else setup.net for id in federation})
    more = (2 * 5 * 2 + 3 * 4 * 2) * 2  # two more features: two products with the first weight, three with the second
    assert flops_of(unlike)[0] - flops_of(setup)[0] == more * federation.sizes[first]


@pytest.mark.parametrize("mode", ["fast", pytest.param("workers", marks=pytest.mark.slow)])
def test_every_mode_counts_the_same(mode: str, workers_here: None) -> None:
    setup = setup_of(MAPL(warmup=9), two_groups())
    assert flops_of(with_settings(setup, mode=mode, workers=1)) == flops_of(setup)


@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_a_kind_of_work_is_counted_once(name: str) -> None:
    engine = LocalEngine(small_setup(default_method(name)))
    assert play(engine, 1, 2, 3).flops > 0
    assert len(engine.site.operations.known) <= 4


@pytest.mark.slow
def test_counting_changes_nothing_and_asks_nobody_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of(Mapl(warmup=0), two_groups())
    counted, uncounted = LocalEngine(setup), LocalEngine(setup)
    monkeypatch.setattr(uncounted.site.operations, "per_sample", lambda job: 0.0)
    assert same(trained_models(counted, 2), trained_models(uncounted, 2))


def test_a_client_with_few_samples_counts_as_one_with_many() -> None:
    federation, net = small_federation(), small_setup(FedAvg()).net
    few, *_, many = sorted(federation, key=federation.sizes.__getitem__)
    for id, size in ((few, 500), (many, 500), (few, "all")):
        job = FitJob(id, net.initial, CrossEntropy(), Training.model_validate({"batch_size": size}), {}, {}, 0)
        assert Operations(net, federation).per_sample(job) == STEP


def test_a_function_is_known_by_its_code() -> None:
    federation, net = small_federation(), small_setup(FedAvg()).net
    operations = Operations(net, federation)
    for _ in range(3):  # each time another function
        job = InferJob(federation.seen[0], net.initial, lambda model, batch: model(batch.x))
        assert operations.per_sample(job) == FORWARD
    assert len(operations.known) == 1


def test_a_run_reports_the_operations_of_its_rounds() -> None:
    result = fedkin.run("fedavg", small_federation(), rounds=3, training={"local_steps": 2})
    assert result.summary["flops"] == {"local_training": sum(row["flops"] for row in result.rounds)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(12, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]  # type: ignore[no-any-return]


NETS = {
    "dense": lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "convolutions": lambda: nn.Sequential(nn.Conv1d(6, 4, 3, groups=2), nn.ReLU(), nn.ConvTranspose1d(4, 2, 3)),
    "attention": lambda: nn.TransformerEncoderLayer(12, 2, 16, batch_first=True),
    "recurrent": Recurrent,
}


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("trains", [True, False])
def test_counts_are_those_of_torch_s_own_counter(kind: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = NETS[kind](), torch.randn(5, 6, 12)
    net.train(trains)

    def work() -> None:
        with torch.set_grad_enabled(trains):
            value = net(x).square().sum()
            if trains:
                value.backward()

    with counting() as ours:
        work()
    assert torch.backends.mha.get_fastpath_enabled()
    with FlopCounterMode(display=False) as theirs:
        monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)  # it counts no fused layers
        work()
    assert ours.total == theirs.get_total_flops() > 0


def test_one_thread_counts_at_a_time_as_all_share_torchs_setting() -> None:
    with counting():
        assert is_mine()
        assert not torch.backends.mha.get_fastpath_enabled()
    assert not is_mine()
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.slow
def test_a_run_does_not_import_the_compiler() -> None:
    code = (
        "import sys, fedkin, numpy as np\n"
        "x, y = np.random.default_rng(0).normal(size=(80, 4)).astype('f4'), np.arange(80) % 2\n"
        "federation = fedkin.Federation.from_arrays(x, y, np.array(['a', 'b']).repeat(40))\n"
        "for mode in ('one-by-one', 'fast'):\n"
        "    fedkin.run('mapl', federation, rounds=1, settings={'mode': mode})\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr == ""


# -- scores that are computed once for what is the same --------------------------------------------------------------


def test_a_metric_is_computed_once_for_a_model_and_test_set() -> None:
    happened: list[Any] = []

    @fedkin.metric(higher=True)
    def mean_output(outputs: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> float:
        happened.append("computed")
        return float(outputs.mean())

    clients = small_federation()
    first, second, *_ = sorted(clients)
    federation = changed(clients, second, test=clients[first].test)
    engine = LocalEngine(replace(small_setup(FedAvg(), federation), measures=(mean_output,)))
    for number in (1, 2):
        engine.round(number)
        assert engine.evaluate() == engine.evaluate()
        assert len(happened) == number * (len(federation) - 1)
    found = engine.evaluate()
    assert found[first].further == found[second].further
    with torch.no_grad():
        x = federation[first].test.inputs(slice(None))
        values = torch.func.functional_call(engine.setup.net.scratch(), dict(engine.model(first)), (x,))
    np.testing.assert_allclose(np.array(found[first].further, float), [values.double().mean().item()], rtol=1e-6)
