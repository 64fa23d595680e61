"""The written-out training of fully connected nets gives the numbers of one client after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.engines import LocalEngine
from fedkin.engines.executors.jobs import FitJob, OneByOne
from fedkin.engines.executors.stacked import Stacked
from fedkin.errors import MethodError
from fedkin.federation import Samples, Scale, Task
from fedkin.learning import CrossEntropy, Loss, Net, Proximal, SquaredError, Training, dense
from fedkin.learning.batches import Member
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.models import Linear, Mlp
from fedkin.learning.sgd import fit
from fedkin.learning.written import NotWritten, Program, program_of
from fedkin.methods.fedproto import PrototypeRegularised
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import AnchoredCrossEntropy
from own_nets import CHAINS
from support import small_federation, small_setup

PLANS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "local_epochs": 2},
    "decay": {"lr": 0.1, "weight_decay": 0.05, "local_epochs": 2},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2},
    "clip": {"lr": 0.5, "clip": 0.3, "local_steps": 7},
    "adam": {"lr": 0.01, "optimiser": "adam", "weight_decay": 0.01, "local_epochs": 2},
    "whole": {"lr": 0.1, "batch_size": "all", "local_epochs": 3},
    "many": {"lr": 0.05, "batch_size": 1, "local_steps": 70},
}
Pair = tuple[nn.Module, nn.Module]
NETS: dict[str, Callable[[], Pair]] = {
    "linear": lambda: Linear().build(Task(4, (5,))),
    "mlp": lambda: Mlp(hidden=(7, 6)).build(Task(4, (5,))),
    "no bias": lambda: (
        nn.Sequential(nn.Flatten(), nn.Linear(5, 6, bias=False), nn.Linear(6, 3), nn.ReLU()),
        nn.Linear(3, 4, bias=False),
    ),
}


def deep() -> Pair:
    """Without Flatten, parts inside parts, and one ReLU in two places."""
    act = nn.ReLU()
    inner = nn.Sequential(nn.Linear(7, 6), act, nn.Identity(), nn.Sequential(nn.Linear(6, 6), nn.Flatten()))
    return nn.Sequential(nn.Linear(5, 7), act, inner, nn.Linear(6, 3)), nn.Linear(3, 4)


def around(*parts: nn.Module) -> Callable[[], Pair]:
    """These layers after a first Linear, and before a second."""
    return lambda: (nn.Sequential(nn.Linear(5, 6), *parts, nn.Linear(6, 7), nn.Tanh()), nn.Linear(7, 4))


# What a user may write in place of Flatten, Linear and ReLU. Some layers come before the first Linear, or twice.
LAYERS: dict[str, Callable[[], Pair]] = {
    "deep": deep,
    "one linear": lambda: (nn.Linear(5, 7), nn.Linear(7, 4)),
    "leaky": around(nn.LeakyReLU(0.1), nn.LeakyReLU(0.0)),
    "sigmoid": around(nn.Sigmoid(), nn.Sigmoid()),
    "gelu": around(nn.GELU(), nn.GELU("tanh")),
    "silu": around(nn.ReLU(), nn.SiLU()),
    "dropout": lambda: (
        nn.Sequential(nn.Dropout(0.2), nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.5), nn.Dropout(0.0)), nn.Linear(6, 4)
    ),
    "layer norm": lambda: (
        nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 6), nn.LayerNorm(6, bias=False), nn.ReLU(), nn.Linear(6, 7),
                      nn.LayerNorm(7, elementwise_affine=False), nn.ReLU()), nn.Linear(7, 4)
    ),
    # A shift before it would have no gradient but rounding, of which Adam makes whole steps.
    "batch norm": lambda: (
        nn.Sequential(nn.BatchNorm1d(5, affine=False), nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6, momentum=0.3),
                      nn.Tanh(), nn.Linear(6, 7, bias=False), nn.BatchNorm1d(7, track_running_stats=False), nn.Tanh()),
        nn.Linear(7, 4)
    ),
    "tabular": around(nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3)),
    **{f"class: {name}": lambda make=make: (make(), nn.Linear(7, 4)) for name, make in CHAINS.items()},  # type: ignore[misc]
}  # fmt: skip


@dataclass(frozen=True)
class Binary:
    """A loss of a user's own: binary cross-entropy of each output, and a penalty on the features."""

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> Tensor:
        z = model.features(batch.x)
        each = F.binary_cross_entropy_with_logits(model.head(z), F.one_hot(batch.y, 4).to(z.dtype), reduction="none")
        return masked_mean(each.sum(1) + 0.1 * z.square().sum(1), batch)


LOSSES: dict[str, Loss] = {"cross-entropy": CrossEntropy(), "proximal": Proximal(CrossEntropy(), 0.7)}
OTHERS: dict[str, Loss] = {
    "anchors": AnchoredCrossEntropy(0.1, 0.5), "prototypes": PrototypeRegularised(0.5), "binary": Binary(),
    "proximal binary": Proximal(Binary(), 0.7),
}  # fmt: skip


def members(net: Net) -> list[Member]:
    draw = np.random.default_rng(0)

    def near() -> dict[str, Tensor]:
        return {
            k: t + 0.1 * torch.from_numpy(abs(draw.normal(size=t.shape))).to(t.dtype) if t.is_floating_point() else t
            for k, t in net.initial.items()
        }

    return [
        Member(near(), client.train, {"start": near()}, {"kept": number}, 100 + number)
        for number, client in enumerate(small_federation().values())
    ]


def check(
    net: Net, training: Training, stack: list[Member], tolerance: float, loss: Loss = LOSSES["cross-entropy"]
) -> None:
    program = program_of(net)
    assert isinstance(program, Program), program
    module = net.scratch()
    for member, got in zip(stack, dense.fit_dense(net, loss, program, training, stack), strict=True):
        want = fit(net, module, member.params, loss, member.samples, training, member.extras, member.carry,
                   np.random.default_rng(member.key), member.weights)  # fmt: skip
        assert (got.steps, got.samples) == (want.steps, want.samples)
        torch.testing.assert_close(got.carry, want.carry, rtol=tolerance, atol=tolerance)
        assert got.loss == pytest.approx(want.loss, rel=max(tolerance, 1e-9))
        assert got.params.keys() == want.params.keys()
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


def lone(stack: list[Member]) -> list[Member]:
    """The same members, every second one in arrays of its own without row numbers."""
    return [replace(m, samples=m.samples.own()) if k % 2 else m for k, m in enumerate(stack)]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("plan", ["decay", "momentum", "adam"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-11)])
def test_every_layer_equals_one_by_one(name: str, plan: str, dtype: torch.dtype, tolerance: float) -> None:
    """Dropout draws the same bits, and running statistics are kept.

    In float32 for one pass, and with batch normalisation to 1e-5: it enlarges rounding, that of one-by-one too
    (docs/speed.md), more on some processors than on others.
    """
    net = Net.build(LAYERS[name], 1, dtype)
    # With batches of 9, no client has a single sample in its last batch.
    training = Training.model_validate({"batch_size": 9, **PLANS[plan], "local_epochs": 1 + (dtype == torch.float64)})
    normalised = any(isinstance(part, nn.BatchNorm1d) for part in net.module.modules())
    check(
        net, training, lone(members(net)), max(tolerance, 1e-5) if normalised and dtype == torch.float32 else tolerance
    )


@pytest.mark.parametrize("name", ["mlp", "tabular"])
@pytest.mark.parametrize("plan", ["sgd", "momentum"])
@pytest.mark.parametrize("loss", OTHERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-11)])
def test_losses_on_features_and_head_equal_one_by_one(
    name: str, plan: str, loss: str, dtype: torch.dtype, tolerance: float
) -> None:
    net = Net.build({**NETS, **LAYERS}[name], 1, dtype)
    width = net.initial["head.weight"].shape[1]
    draw = torch.Generator().manual_seed(2)
    known = torch.tensor([True, False, True, True])

    def told() -> dict[str, Tensor]:
        return {"anchors": torch.randn(4, width, generator=draw).to(dtype), "known": known}

    stack = [
        replace(m, carry=told(), extras={**m.extras, "prototypes": told()["anchors"], "known": known})
        for m in members(net)
    ]
    if "binary" not in loss:
        stack = [replace(m, weights=None if k % 2 else (0.2, 3.0, 1.0, 0.7)) for k, m in enumerate(stack)]
    training = Training.model_validate({"batch_size": 9, **PLANS[plan]})
    check(net, training, stack, tolerance, OTHERS[loss])


@pytest.mark.parametrize("loss", [SquaredError(), Proximal(SquaredError(), 0.3)])
@pytest.mark.parametrize("plan", ["sgd", "adam"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-11)])
def test_squared_error(loss: Loss, plan: str, dtype: torch.dtype, tolerance: float) -> None:
    net = Net.build(lambda: (nn.Sequential(nn.Linear(5, 6), nn.SiLU()), nn.Linear(6, 2)), 1, dtype)
    stack = [
        replace(m, samples=Samples(own.x, torch.stack([own.x[:, 0], own.y.float()], 1)))
        for m in members(net) for own in [m.samples.own()] if isinstance(own.x, Tensor)
    ]  # fmt: skip
    check(net, Training.model_validate({"batch_size": 8, **PLANS[plan]}), stack, tolerance, loss)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cache", [0, 1 << 10])
def test_chunks_change_nothing(cache: int, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    monkeypatch.setattr(dense, "_CACHE", cache)
    net = Net.build(NETS["mlp"], 1, torch.float64)
    check(net, Training(batch_size=8, local_epochs=2), members(net), 1e-11, LOSSES[loss])


def test_bytes_in_one_array_behind_all_clients_or_in_several() -> None:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 255, (60, 3, 4, 4), dtype=np.uint8))
    y = torch.from_numpy(draw.integers(0, 3, 60))
    net = Net.build(lambda: Mlp(hidden=(9,)).build(Task(3, (3, 4, 4))), 2, torch.float64)
    parts = torch.split(torch.from_numpy(draw.permutation(60)), [10, 25, 25])
    scale = Scale((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    stack = [Member(net.initial, Samples(x, y, rows, scale), {}, {}, k) for k, rows in enumerate(parts)]
    check(net, Training(batch_size=6, local_epochs=2), stack, 1e-11)
    check(net, Training(batch_size=6, local_epochs=2), lone(stack), 1e-11)


@dataclass(frozen=True)
class Twice:
    """A loss that looks at other inputs than the batch's, at the weights, or twice at the features."""

    what: str

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> Tensor:
        value = masked_mean(F.cross_entropy(model(batch.x), batch.y, reduction="none"), batch)
        if self.what == "params":
            return value + torch.stack([w.square().sum() for w in model.params.values()]).sum()
        z = model.features(batch.x + 1 if self.what == "other" else batch.x)
        return value + masked_mean(z.square().sum(1), batch)


@pytest.mark.parametrize(("what", "name"), [("params", "mlp"), ("other", "mlp"), ("again", "tabular")])
def test_a_loss_that_is_not_written_out_takes_another_way(what: str, name: str) -> None:
    net = Net.build({**NETS, **LAYERS}[name], 1, torch.float64)
    program, stack = program_of(net), members(net)
    assert isinstance(program, Program)
    with pytest.raises(NotWritten, match="the loss asks"):
        dense.fit_dense(net, Twice(what), program, Training(batch_size=9, lr=0.1), stack)


@pytest.mark.parametrize("what", ["again", "params", "other"])
@pytest.mark.parametrize("name", ["mlp", "tabular"])
def test_losses_of_any_kind_have_the_numbers_of_one_by_one(what: str, name: str) -> None:
    net = Net.build({**NETS, **LAYERS}[name], 1, torch.float64)
    federation, training = small_federation(), Training(batch_size=8, lr=0.1, local_steps=3)
    jobs = [FitJob(name, net.initial, Twice(what), training, {}, {}, 7) for name in federation]
    want = {id(job): result for job, result in OneByOne(net, federation).run(jobs)}
    stacked = Stacked(net, federation)
    for _ in range(2):
        for job, got in stacked.run(jobs):
            torch.testing.assert_close(dict(got.params), dict(want[id(job)].params), rtol=1e-9, atol=1e-9)


def test_a_batch_of_one_is_the_error_of_batch_normalisation() -> None:
    net = Net.build(LAYERS["tabular"], 1)
    engine = LocalEngine(replace(small_setup(Local(), batch_size=1), net=net).having(mode="stacked"))
    with pytest.raises(MethodError, match="Expected more than 1 value per channel"):
        engine.round(1)


def test_images_without_flatten_are_left_to_others() -> None:
    net = Net(nn.Sequential(nn.Linear(4, 6), nn.Flatten(), nn.Linear(24, 5)), nn.Linear(5, 3))
    program = program_of(net)
    assert isinstance(program, Program)
    stack = [Member(net.initial, Samples(torch.ones(3, 4, 4), torch.arange(3)), {}, {}, 1)]
    with pytest.raises(NotWritten, match="no rows of numbers"):
        dense.fit_dense(net, CrossEntropy(), program, Training(batch_size=8), stack)


def test_a_diverging_member_is_an_error() -> None:
    net = Net.build(NETS["mlp"], 1)
    program = program_of(net)
    assert isinstance(program, Program)
    with pytest.raises(MethodError, match="training loss became"):
        dense.fit_dense(net, CrossEntropy(), program, Training(lr=1e30, local_steps=5), members(net))
