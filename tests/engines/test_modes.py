"""Every mode of the local engine gives the same numbers; workers give the same bits."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedkin.engines import LocalEngine, Setup
from fedkin.errors import MethodError, RunError
from fedkin.flow import ClientFlow, Fit, Infer, Message
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.tasks import Task
from fedkin.testing import small_setup
from support import NET_METHODS, PATTERNS, by_pattern, default_method, same, trained_models, with_settings

MODES = ["one-by-one", "fast", pytest.param("workers", marks=pytest.mark.slow)]


def after(setup: Setup, mode: str, rounds: int = 3, workers: int = 1) -> tuple[dict[str, dict[str, Tensor]], Any]:
    with closing(LocalEngine(with_settings(setup, mode=mode, workers=workers))) as engine:
        return trained_models(engine, rounds), engine.evaluate()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in PATTERNS),
     *(pytest.param(*each.values, torch.float64, marks=each.marks) for each in by_pattern(NET_METHODS))],
)  # fmt: skip
def test_stacked_agrees_with_one_by_one(name: str, dtype: torch.dtype) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    setup = small_setup(default_method(name), dtype=dtype, clients_per_round=5)
    reference, scores = after(setup, "one-by-one")
    models, other = after(setup, "fast")
    torch.testing.assert_close(models, reference, rtol=tolerance, atol=tolerance)
    for id in reference:
        assert other[id].right == scores[id].right
        assert other[id].loss == pytest.approx(scores[id].loss, rel=1e-3)


def gives_the_bits_of_one_by_one(setup: Setup, workers: int = 1) -> None:
    reference, scores = after(setup, "one-by-one", rounds=2)
    models, other = after(setup, "workers", rounds=2, workers=workers)
    assert same(reference, models)
    assert other == scores


@pytest.mark.slow
@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_jobs_and_results_of_every_method_cross_as_bytes(name: str, workers_here: None) -> None:
    gives_the_bits_of_one_by_one(small_setup(default_method(name), clients_per_round=5))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "workers"), [(METHODS["mapl"](), 1), (SfmtlGraph(lam=0.5, anchors="mean"), 2)])
def test_workers_give_the_bits_of_one_by_one_however_many_there_are(method: Any, workers: int) -> None:
    gives_the_bits_of_one_by_one(small_setup(method, clients_per_round=5), workers)


def test_stacks_are_the_same_bits_each_time() -> None:
    one, other = (after(small_setup(FedAvg()), "fast")[0] for _ in range(2))
    assert same(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_an_error_names_the_client_in_every_mode(mode: str, workers_here: None) -> None:
    setup = small_setup(Local(), lr=1e30)
    with pytest.raises(MethodError, match=r"client 'site-.', phase 'train': the training loss became"):
        after(setup, mode)


@pytest.mark.parametrize("written", [True, False])
def test_buffers_and_dropout_are_stacked_or_fall_back_to_one_by_one(written: bool) -> None:
    middle = nn.Tanh() if written else nn.Softsign()

    def make() -> tuple[nn.Module, nn.Module]:
        first = nn.Linear(5, 6, bias=False)  # before a normalisation a bias has no gradient but rounding
        return nn.Sequential(first, nn.BatchNorm1d(6), middle, nn.Dropout(0.3)), nn.Linear(6, 4)

    setup = replace(small_setup(Local()), net=Net.build(make, 1))
    one, other = (after(setup, mode)[0] for mode in ("one-by-one", "fast"))
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert same(one, other) != written  # stacked steps have bits of their own


class Chatty(FedAvg):
    """Several requests a phase, on part of the samples, with a function to infer, and with another net."""

    other: ClassVar[Net] = Net.build(lambda: Mlp(hidden=(3, 6)).build(Task(4, (5,))), 5)

    def train(self, client: Any, message: Message) -> ClientFlow[Message]:
        half = client.train.take(list(range(client.size // 2)))
        first = yield Fit(message["params"], data=half)
        features = yield Infer(first.params, "features")
        labels = yield Infer(first.params, labels_of, data=half)
        second = yield Fit(first.params, training=client.training.model_copy(update={"lr": 0.01}))
        another = yield Fit(self.other.initial, net=self.other, data=half)
        client.state["logits"] = yield Infer(another.params, net=self.other, data=half)
        assert features.shape == (client.size, 7)
        assert torch.equal(labels, half.labels())
        return Message(params=second.params, n=client.size)


def labels_of(model: Any, batch: Any) -> Tensor:
    return batch.y  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", MODES[1:])
def test_phases_with_many_requests(mode: str, workers_here: None) -> None:
    found = []
    for each in ("one-by-one", mode):
        with closing(LocalEngine(with_settings(small_setup(Chatty()), mode=each, workers=1))) as engine:
            found.append((trained_models(engine), {id: state["logits"] for id, state in engine.states.items()}))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_that_says_so() -> None:
    with closing(LocalEngine(with_settings(small_setup(FedAvg()), mode="workers", workers=1))) as engine:
        executor: Any = engine.site.executor
        engine.round(1)
        for pid in executor.pool._processes:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"a worker process has ended: .*; if memory ran out, lower run.workers"):
            engine.round(2)
    assert not Path(executor.folder.name).exists()


class _Unreadable:
    """A loss that can be sent, and not be read."""

    def __call__(self, model: Any, batch: Any, extras: Any, carry: Any, /) -> Tensor:
        return torch.nn.functional.cross_entropy(model(batch.x), batch.y)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class WithLoss(FedAvg):
    """FedAvg with a loss of its own."""

    loss: Any

    def train(self, client: Any, message: Message) -> ClientFlow[Message]:
        fitted = yield Fit(message["params"], self.loss)
        return Message(params=fitted.params, n=client.size)


@pytest.mark.slow
def test_a_worker_says_what_it_cannot_read(workers_here: None) -> None:
    setup = small_setup(WithLoss(loss=_Unreadable()))
    after(setup, "one-by-one", rounds=1)
    with pytest.raises(RunError, match=r"client 'site-.' \(ValueError: invalid literal.*'no number'\).*'one-by-one'"):
        after(setup, "workers")


class _NotOverStacks:
    """A loss that looks into the body, which only a module has."""

    def __call__(self, model: Any, batch: Any, extras: Any, carry: Any, /) -> Tensor:
        weights = next(iter(model.body.parameters()))
        loss: Tensor = torch.nn.functional.cross_entropy(model(batch.x), batch.y) + 0.0 * weights.sum()
        return loss


def test_a_loss_that_cannot_be_stacked_runs_one_by_one() -> None:
    setup = small_setup(WithLoss(loss=_NotOverStacks()))
    models, scores = after(setup, "fast")
    reference, expected = after(setup, "one-by-one")
    assert scores == expected
    assert same(reference, models)
