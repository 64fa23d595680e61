"""A stack of clients gives the numbers of one client after another; what cannot be stacked is told from the net."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin.errors import MethodError
from fedkin.federation import Samples
from fedkin.federation.samples import Scale
from fedkin.learning import CrossEntropy, Loss, Net, PixelCrossEntropy, Proximal, SquaredError, Training
from fedkin.learning import stacked as module
from fedkin.learning.augment import Augment
from fedkin.learning.sgd import fit
from fedkin.learning.stacked import NotStacked, StackedFit, fit_stacked, why_not
from fedkin.methods.fedproto import PrototypeRegularised
from fedkin.methods.sfmtl_graph import AnchoredCrossEntropy

SIZES = (20, 11, 34, 12)  # batches of 8 are padded, and some clients end before others
CLASSES, INPUTS, WIDTH = 4, 5, 6

LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "none": list,
    "relu": lambda: [nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)],
    "leaky": lambda: [nn.LeakyReLU(0.2)],
    "smooth": lambda: [nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False), nn.Sigmoid()],
    "gelu": lambda: [nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU("tanh"), nn.SiLU()],
    "dropout": lambda: [nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.0), nn.Identity()],
    "layer norm": lambda: [nn.LayerNorm(WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH, elementwise_affine=False)],
    "batch norm": lambda: [nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.BatchNorm1d(WIDTH, affine=False)],
    "batch norm at rest": lambda: [nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.Tanh()],
    "nested": lambda: [nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Flatten()))],
}
PLANS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "local_epochs": 2, "weight_decay": 0.01},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2},
    "clip": {"lr": 0.5, "clip": 0.3, "local_steps": 7},
    "adam": {"lr": 0.01, "optimiser": "adam", "weight_decay": 0.01, "local_epochs": 2},
    "whole": {"lr": 0.1, "batch_size": "all", "local_epochs": 3},
}
LOSSES: dict[str, Loss] = {
    "cross-entropy": CrossEntropy(), "proximal": Proximal(CrossEntropy(), 0.3), "squared error": SquaredError(),
    "anchored": AnchoredCrossEntropy(0.1, 0.5), "anchors at rest": AnchoredCrossEntropy(0.1, None),
    "prototypes": PrototypeRegularised(0.4),
}  # fmt: skip


def net_of(kind: str = "relu", dtype: torch.dtype = torch.float64) -> Net:
    return Net.build(
        lambda: (nn.Sequential(nn.Linear(INPUTS, WIDTH), *LAYERS[kind]()), nn.Linear(WIDTH, CLASSES)), 1, dtype
    )


def members(net: Net, loss: Loss, shared: bool = False) -> list[StackedFit]:
    """Clients with models of their own, in arrays of their own or in one of all."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(sum(SIZES), INPUTS))).float()
    y = torch.from_numpy(draw.integers(0, CLASSES, len(x)))
    if isinstance(loss, SquaredError):
        y = torch.from_numpy(draw.normal(size=(len(x), CLASSES)))
    made = []
    for number, rows in enumerate(torch.split(torch.from_numpy(draw.permutation(len(x))), list(SIZES))):
        params = {
            name: t + 0.01 * torch.from_numpy(draw.normal(size=t.shape)).to(t.dtype) if name in net.trainable else t
            for name, t in net.initial.items()
        }
        points = torch.from_numpy(draw.normal(size=(CLASSES, WIDTH))).to(net.dtype)
        known = torch.tensor([True, False, number % 2 == 0, False])
        extras: dict[str, Any] = {}
        carry: dict[str, Any] = {}
        if isinstance(loss, AnchoredCrossEntropy):
            carry = {"anchors": points, "known": known}
        elif isinstance(loss, PrototypeRegularised):
            extras = {"prototypes": points, "known": known.to(net.dtype)}
        elif isinstance(loss, Proximal):
            extras = {"start": {name: params[name] * 0.9 for name in net.trainable}}
        samples = Samples(x, y, rows) if shared else Samples(x[rows], y[rows])
        made.append(StackedFit(params, samples, extras, carry, 100 + number))
    return made


def assert_equal_to_one_by_one(net: Net, loss: Loss, plan: str, stack: list[StackedFit], most: float = 1e-10) -> None:
    training = Training.model_validate({"batch_size": 8, **PLANS[plan]})
    assert not why_not(net, loss, training)
    for member, got in zip(stack, fit_stacked(net, loss, training, stack), strict=True):
        want = fit(net, net.scratch(), member.params, loss, member.samples, training, member.extras, member.carry,
                   np.random.default_rng(member.key), member.class_weights)  # fmt: skip
        assert (got.steps, got.samples) == (want.steps, want.samples)
        assert got.loss == pytest.approx(want.loss, rel=max(most, 1e-12))
        assert list(got.params) == list(want.params)
        torch.testing.assert_close(got.params, want.params, rtol=most, atol=most)
        torch.testing.assert_close(got.carry, want.carry, rtol=most, atol=most)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_with_every_optimiser(kind: str, plan: str) -> None:
    net = net_of(kind)
    # Before a normalisation a bias has no gradient but rounding, of which Adam makes whole steps.
    most = 1e-3 if plan == "adam" and "batch norm" in kind else 1e-9
    assert_equal_to_one_by_one(net, CrossEntropy(), plan, members(net, CrossEntropy()), most)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_with_every_optimiser(name: str, plan: str) -> None:
    net = net_of()
    assert_equal_to_one_by_one(net, LOSSES[name], plan, members(net, LOSSES[name], shared=True))


@pytest.mark.parametrize("kind", ["relu", "dropout", "batch norm"])
def test_float32_agrees_to_rounding(kind: str) -> None:
    net = net_of(kind, torch.float32)
    most = 2e-5 if kind == "batch norm" else 2e-6  # which enlarges rounding, that of one-by-one too
    assert_equal_to_one_by_one(net, CrossEntropy(), "sgd", members(net, CrossEntropy()), most)


@pytest.mark.parametrize("loss", [CrossEntropy(), AnchoredCrossEntropy(0.1, 0.5)])
def test_class_weights(loss: Loss) -> None:
    net = net_of()
    stack = members(net, loss)
    stack[1:] = [replace(member, class_weights=(0.5, 2.0, 1e-4, 3.0)) for member in stack[1:]]
    assert_equal_to_one_by_one(net, loss, "sgd", stack)


def test_images_of_bytes_are_scaled_and_flattened() -> None:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 255, (60, 1, 3, 4), dtype=np.uint8))
    y = torch.from_numpy(draw.integers(0, 3, 60))
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU())
    net = Net.build(lambda: (body, nn.Linear(6, 3)), 1, torch.float64)
    parts = torch.split(torch.from_numpy(draw.permutation(60)), [10, 25, 25])
    stack = [
        StackedFit(net.initial, Samples(x, y, rows, Scale((0.5,), (0.2,))), {}, {}, k) for k, rows in enumerate(parts)
    ]
    assert_equal_to_one_by_one(net, CrossEntropy(), "sgd", stack)


def test_a_net_that_is_its_head() -> None:
    net = Net.build(lambda: (nn.Flatten(), nn.Linear(INPUTS, CLASSES)), 1, torch.float64)
    assert_equal_to_one_by_one(net, CrossEntropy(), "sgd", members(net, CrossEntropy()))


def test_stacks_that_fit_the_cache_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHE", 1)
    net = net_of()
    assert_equal_to_one_by_one(net, CrossEntropy(), "sgd", members(net, CrossEntropy()))


def test_a_diverging_member_is_an_error() -> None:
    net = net_of()
    with pytest.raises(MethodError, match="training loss became"):
        fit_stacked(net, CrossEntropy(), Training(lr=1e30, local_steps=5), members(net, CrossEntropy()))


class OwnReLU(nn.ReLU):
    """A class of a user's, which may compute anything."""


def with_hook() -> nn.Module:
    part = nn.ReLU()
    part.register_forward_hook(lambda *_: None)
    return part


def with_a_method() -> nn.Module:
    part = nn.ReLU()
    vars(part)["forward"] = lambda x: x
    return part


def twice() -> nn.Module:
    part = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(part, nn.ReLU(), part)


def tied() -> nn.Module:
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight = one.weight
    return nn.Sequential(one, nn.ReLU(), other)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (nn.Softmax(1), "body.1 is a Softmax"),
        (OwnReLU(), "body.1 is a OwnReLU"),
        (nn.BatchNorm1d(WIDTH, momentum=None), "body.1 is a BatchNorm1d"),
        (nn.Dropout(1.0), "body.1 is a Dropout"),
        (with_hook(), "body.1 has a hook"),
        (with_a_method(), "body.1 has a method of its own"),
        (nn.Linear(WIDTH, WIDTH).requires_grad_(False), "body.1.bias is frozen, shared, or in no layer"),
        (twice(), "body.1.2.bias is frozen, shared, or in no layer"),
        (tied(), "body.1.2.weight is frozen, shared, or in no layer"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), "body.1 is a ParametrizedLinear"),
    ],
)
def test_why_a_net_is_not_stacked(part: nn.Module, why: str) -> None:
    net = Net(nn.Sequential(nn.Linear(INPUTS, WIDTH), part), nn.Linear(WIDTH, CLASSES))
    assert why_not(net, CrossEntropy(), Training()).startswith(why)


def test_further_reasons() -> None:
    body = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU())
    net = Net(body, nn.Linear(WIDTH, CLASSES))
    assert why_not(Net(body, nn.Sequential(nn.Linear(WIDTH, 2))), CrossEntropy(), Training()) == "head is a Sequential"
    assert "precision" in why_not(Net(body, nn.Linear(WIDTH, 2), precision="bf16"), CrossEntropy(), Training())
    extra = Net(body, nn.Linear(WIDTH, 2), extra={"more": nn.Linear(2, 2)})
    assert why_not(extra, CrossEntropy(), Training()).startswith("more.bias is frozen, shared, or in no layer")
    assert why_not(net, PixelCrossEntropy(), Training()) == "the loss is a PixelCrossEntropy"
    inner = Proximal(AnchoredCrossEntropy(0.1, 0.5), 1.0)
    assert why_not(net, inner, Training()) == "the loss is a AnchoredCrossEntropy"
    assert "random" in why_not(net, CrossEntropy(), Training(augment=Augment()))

    class Scaled(CrossEntropy):
        def __call__(self, *given: Any) -> Tensor:
            return 2 * super().__call__(*given)

    assert why_not(net, Scaled(), Training()) == "the loss is a Scaled"


def test_samples_that_cannot_be_stacked() -> None:
    net = net_of("batch norm")
    stack = members(net, CrossEntropy())
    with pytest.raises(NotStacked, match="a batch of one sample"):
        fit_stacked(net, CrossEntropy(), Training(batch_size=11, local_epochs=1), stack)
    codes, labels = torch.zeros(9, INPUTS, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)
    for x in (codes, {"x": torch.zeros(9, INPUTS)}):
        odd = replace(stack[0], samples=Samples(x, labels))
        with pytest.raises(NotStacked, match="no single array of numbers"):
            fit_stacked(net, CrossEntropy(), Training(), [odd])
