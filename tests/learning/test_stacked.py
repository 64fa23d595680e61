"""A stack of clients gives the numbers of one client after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.errors import MethodError
from fedkin.federation import Samples, Task
from fedkin.learning import CrossEntropy, Loss, Net, Training
from fedkin.learning import stacked as module
from fedkin.learning.batches import Member, Plan
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.models import CnnMnist, Mlp
from fedkin.learning.sgd import fit
from fedkin.learning.stackable import stackable
from fedkin.learning.stacked import fit_stacked
from fedkin.methods.sfmtl_graph import AnchoredCrossEntropy
from own_nets import OTHERS
from support import small_federation

PLANS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "local_epochs": 2},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2},
    "clip": {"lr": 0.5, "clip": 0.3, "local_steps": 7},
    "adam": {"lr": 0.01, "optimiser": "adam", "weight_decay": 0.01, "local_epochs": 2},
    "whole": {"lr": 0.1, "batch_size": "all", "local_epochs": 3},
}


def members(net: Net, seed: int = 0) -> list[Member]:
    draw = np.random.default_rng(seed)
    made = []
    for number, client in enumerate(small_federation().values()):
        params = {k: t + 0.01 * torch.from_numpy(draw.normal(size=t.shape)).to(t.dtype) for k, t in net.initial.items()}
        anchors = torch.from_numpy(draw.normal(size=(4, 7))).to(net.dtype)
        carry = {"anchors": anchors, "known": torch.tensor([True, False, number % 2 == 0, False])}
        made.append(Member(params, client.train, {}, carry, 100 + number))
    return made


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("loss", [CrossEntropy(), AnchoredCrossEntropy(0.1, 0.5), AnchoredCrossEntropy(0.1, None)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_stacked_equals_one_by_one(plan: str, loss: Loss, dtype: torch.dtype, tolerance: float) -> None:
    """Clients of unlike sizes, so that batches are padded and some clients end before others."""
    net = Net.build(lambda: Mlp(hidden=(7,)).build(Task(4, (5,))), 1, dtype)
    training = Training.model_validate({"batch_size": 8, **PLANS[plan]})
    stack = members(net)
    together = fit_stacked(net, net.scratch(), loss, training, stack)
    for member, got in zip(stack, together, strict=True):
        want = fit(net, net.scratch(), member.params, loss, member.samples, training, member.extras, member.carry,
                   np.random.default_rng(member.key))  # fmt: skip
        assert (got.steps, got.samples) == (want.steps, want.samples)
        assert got.loss == pytest.approx(want.loss, rel=1e-5)
        for name in net.initial:
            torch.testing.assert_close(got.params[name], want.params[name], rtol=tolerance, atol=tolerance)
        for name in want.carry:
            torch.testing.assert_close(got.carry[name], want.carry[name], rtol=tolerance, atol=tolerance)


def test_convolutions_on_one_shared_array() -> None:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 255, (60, 1, 8, 8), dtype=np.uint8))
    y = torch.from_numpy(draw.integers(0, 3, 60))
    net = Net.build(lambda: CnnMnist(features=9).build(Task(3, (1, 8, 8))), 2, torch.float64)
    parts = torch.split(torch.from_numpy(draw.permutation(60)), [10, 25, 25])
    training = Training(batch_size=6, local_epochs=1, lr=0.05)
    stack = [Member(net.initial, Samples(x, y, rows), {}, {}, k) for k, rows in enumerate(parts)]
    for member, got in zip(stack, fit_stacked(net, net.scratch(), CrossEntropy(), training, stack), strict=True):
        want = fit(net, net.scratch(), net.initial, CrossEntropy(), member.samples, training, {}, {},
                   np.random.default_rng(member.key))  # fmt: skip
        for name in net.initial:
            torch.testing.assert_close(got.params[name], want.params[name], rtol=1e-9, atol=1e-9)


def test_nets_with_buffers_or_dropout_are_not_stacked() -> None:
    assert stackable(Net(nn.Flatten(), nn.Linear(5, 4)))
    assert not stackable(Net(nn.BatchNorm1d(5), nn.Linear(5, 4)))
    assert not stackable(Net(nn.Dropout(0.5), nn.Linear(5, 4)))


def test_a_diverging_member_is_an_error() -> None:
    net = Net.build(lambda: Mlp(hidden=(7,)).build(Task(4, (5,))), 1)
    with pytest.raises(MethodError, match="training loss became"):
        fit_stacked(net, net.scratch(), CrossEntropy(), Training(lr=1e30, local_steps=5), members(net))


def alike(net: Net, loss: Loss, training: Training, stack: list[Member]) -> list[bool]:
    """Of each member, whether the stack's result is that of the member alone."""

    def near(a: Any, b: Any) -> bool:
        return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=1e-9, atol=1e-9) for name in a)

    found = []
    for member, got in zip(stack, fit_stacked(net, net.scratch(), loss, training, stack), strict=True):
        want = fit(net, net.scratch(), member.params, loss, member.samples, training, member.extras, member.carry,
                   np.random.default_rng(member.key))  # fmt: skip
        found.append(near(got.params, want.params) and near(got.carry, want.carry))
    return found


@pytest.mark.parametrize("own", [False, True], ids=["one array", "own arrays"])
def test_stacks_that_fit_the_cache_change_nothing(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    widths: list[int] = []

    def noting(training: Training, some: list[Member]) -> Plan:
        widths.append(len(some))
        return Plan(training, some)

    monkeypatch.setattr(module, "_CACHE", 0)
    monkeypatch.setattr(module, "_LEAST", 2)
    monkeypatch.setattr(module, "Plan", noting)
    net = Net.build(lambda: (OTHERS["skip"][0](), nn.Linear(6, 4)), 1, torch.float64)
    stack = [replace(m, carry={}, samples=m.samples.own() if own else m.samples) for m in members(net)]
    assert alike(net, CrossEntropy(), Training(batch_size=8, local_epochs=2, lr=0.1), stack) == [True] * len(stack)
    assert widths == [2, 2, 2]


@dataclass(frozen=True)
class Before:
    """Its carry, which is empty at first, keeps the batch of the step before."""

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> tuple[Tensor, Any]:
        each = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        last = carry.get("last", 0.0 * batch.x)
        return masked_mean(each, batch) * (1 + (batch.x - last).square().mean()), {"last": batch.x}


def test_a_carry_that_begins_with_the_first_batch() -> None:
    net = Net.build(lambda: (OTHERS["skip"][0](), nn.Linear(6, 4)), 1, torch.float64)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(72, 5, generator=draw).double(), torch.randint(0, 4, (72,), generator=draw)
    stack = [Member(net.initial, Samples(x[at : at + 24], y[at : at + 24]), {}, {}, at) for at in (0, 24, 48)]
    assert alike(net, Before(), Training(batch_size=8, local_epochs=2, lr=0.1), stack) == [True] * 3
