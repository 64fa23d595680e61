"""The written-out training of dense nets gives the numbers of one client after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.errors import MethodError
from fedkin.federation import Samples, Scale, Task
from fedkin.learning import CrossEntropy, Loss, Net, Proximal, SquaredError, Training, dense
from fedkin.learning.models import CnnMnist, Linear, Mlp
from fedkin.learning.sgd import fit
from fedkin.learning.stacked import Member
from fedkin.methods.sfmtl_graph.loss import AnchoredCrossEntropy
from support import small_federation

PLANS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "local_epochs": 2},
    "decay": {"lr": 0.1, "weight_decay": 0.05, "local_epochs": 2},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2},
    "clip": {"lr": 0.5, "clip": 0.3, "local_steps": 7},
    "adam": {"lr": 0.01, "optimiser": "adam", "weight_decay": 0.01, "local_epochs": 2},
    "whole": {"lr": 0.1, "batch_size": "all", "local_epochs": 3},
    "many": {"lr": 0.05, "batch_size": 1, "local_steps": 70},
}
NETS: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "linear": lambda: Linear().build(Task(4, (5,))),
    "mlp": lambda: Mlp(hidden=(7, 6)).build(Task(4, (5,))),
    "no bias": lambda: (
        nn.Sequential(nn.Flatten(), nn.Linear(5, 6, bias=False), nn.Linear(6, 3), nn.ReLU()),
        nn.Linear(3, 4, bias=False),
    ),
}


def members(net: Net) -> list[Member]:
    draw = np.random.default_rng(0)
    made = []
    for number, client in enumerate(small_federation().values()):
        params = {k: t + 0.1 * torch.from_numpy(draw.normal(size=t.shape)).to(t.dtype) for k, t in net.initial.items()}
        start = {k: t + 0.1 * torch.from_numpy(draw.normal(size=t.shape)).to(t.dtype) for k, t in net.initial.items()}
        made.append(Member(params, client.train, {"start": start}, {"kept": number}, 100 + number))
    return made


LOSSES: dict[str, Loss] = {"cross-entropy": CrossEntropy(), "proximal": Proximal(CrossEntropy(), 0.7)}


def check(
    net: Net, training: Training, stack: list[Member], tolerance: float, loss: Loss = LOSSES["cross-entropy"]
) -> None:
    layers = dense.layers_of(net, loss)
    assert layers is not None
    for member, got in zip(stack, dense.fit_dense(net, loss, layers, training, stack), strict=True):
        want = fit(net, net.scratch(), member.params, loss, member.samples, training, member.extras, member.carry,
                   np.random.default_rng(member.key))  # fmt: skip
        assert (got.steps, got.samples, got.carry) == (want.steps, want.samples, want.carry)
        assert got.loss == pytest.approx(want.loss, rel=max(tolerance, 1e-9))
        for name in net.initial:
            torch.testing.assert_close(got.params[name], want.params[name], rtol=tolerance, atol=tolerance)
            assert got.params[name].untyped_storage().nbytes() == got.params[name].nbytes


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_dense_equals_one_by_one(plan: str, name: str, dtype: torch.dtype, tolerance: float, loss: str) -> None:
    """Clients of unlike sizes, so that batches are padded and some clients end before others."""
    net = Net.build(NETS[name], 1, dtype)
    training = Training.model_validate({"batch_size": 8, **PLANS[plan]})
    check(net, training, members(net), tolerance, LOSSES[loss])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cache", [0, 1 << 10])
def test_chunks_change_nothing(cache: int, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    monkeypatch.setattr(dense, "_CACHE", cache)
    net = Net.build(NETS["mlp"], 1, torch.float64)
    check(net, Training(batch_size=8, local_epochs=2), members(net), 1e-11, LOSSES[loss])


def test_one_array_of_bytes_behind_all_clients() -> None:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 255, (60, 3, 4, 4), dtype=np.uint8))
    y = torch.from_numpy(draw.integers(0, 3, 60))
    net = Net.build(lambda: Mlp(hidden=(9,)).build(Task(3, (3, 4, 4))), 2, torch.float64)
    parts = torch.split(torch.from_numpy(draw.permutation(60)), [10, 25, 25])
    scale = Scale((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    stack = [Member(net.initial, Samples(x, y, rows, scale), {}, {}, k) for k, rows in enumerate(parts)]
    check(net, Training(batch_size=6, local_epochs=2), stack, 1e-11)


def test_what_is_not_written_out_is_left_to_others() -> None:
    task = Task(3, (1, 8, 8))
    mlp = Net(*Mlp(hidden=(9,)).build(task))
    for loss in (AnchoredCrossEntropy(0.1, None), SquaredError(), Proximal(SquaredError(), 0.1)):
        assert dense.layers_of(mlp, loss) is None
    assert dense.layers_of(Net(*CnnMnist(features=9).build(task)), CrossEntropy()) is None
    head = nn.Linear(6, 4)
    for part in (nn.Tanh(), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Flatten(2)):
        assert dense.layers_of(Net(nn.Sequential(nn.Flatten(), nn.Linear(5, 6), part), head), CrossEntropy()) is None
    for body in (nn.Linear(5, 6), nn.Flatten(0, 1), nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(5, 6))):
        assert dense.layers_of(Net(body, head), CrossEntropy()) is None
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(5, 6).requires_grad_(False))
    assert dense.layers_of(Net(frozen, head), CrossEntropy()) is None


def test_a_diverging_member_is_an_error() -> None:
    net = Net.build(NETS["mlp"], 1)
    layers = dense.layers_of(net, CrossEntropy())
    assert layers is not None
    with pytest.raises(MethodError, match="training loss became"):
        dense.fit_dense(net, CrossEntropy(), layers, Training(lr=1e30, local_steps=5), members(net))
