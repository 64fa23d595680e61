"""Nets that are not written out say why, and are trained in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MethodType

import pytest
import torch
from torch import Tensor, nn

from fedkin.engines import LocalEngine
from fedkin.learning import Net
from fedkin.learning.written import program_of
from fedkin.methods.local import Local
from support import small_setup


def hooked() -> nn.Module:
    module = nn.Linear(5, 6)
    module.register_forward_hook(lambda module, given, made: 2 * made)
    return module


def doubling(module: nn.Module, name: str) -> nn.Module:
    """The module with a method of its instance that gives twice as much."""
    setattr(module, name, MethodType(lambda self, x: 2 * getattr(type(self), name)(self, x), module))
    return module


def replaced(name: str) -> nn.Module:
    return doubling(nn.Linear(5, 6), name)


def whole() -> nn.Module:
    return doubling(nn.Sequential(nn.Linear(5, 6)), "forward")


def still() -> nn.Module:
    """Dropout that stays in evaluation mode."""
    module = nn.Dropout(0.5).eval()
    module.train = MethodType(lambda self, mode=True: self, module)  # type: ignore[method-assign]
    return module


class Doubling(nn.Sequential):
    """A sequence that does more than its parts do."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)  # type: ignore[no-any-return, no-untyped-call]


def tied() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(5, 6))


def normalised_twice() -> nn.Module:
    norm = nn.BatchNorm1d(5, affine=False)
    return nn.Sequential(norm, nn.Linear(5, 5), norm, nn.Linear(5, 6))


UNWRITTEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "softmax": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Softmax(1)), "body.1 is a Softmax"),
    "alpha": (lambda: nn.Sequential(nn.Linear(5, 6), nn.AlphaDropout(0.3)), "body.1 is a AlphaDropout"),
    "all dropped": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Dropout(1.0)), "body.1 is a Dropout"),
    "mean of all": (lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=None)), "a BatchNorm1d"),
    "frozen": (lambda: nn.Sequential(nn.Linear(5, 6).requires_grad_(False), nn.Linear(6, 6)), "body.0.bias is frozen"),
    "tied": (tied, "shared by two layers"),
    "norm twice": (normalised_twice, "body.2 is a BatchNorm1d that was applied before"),
    "hook": (lambda: nn.Sequential(hooked(), nn.ReLU()), "body.0 has a hook"),
    "own forward": (lambda: Doubling(nn.Linear(5, 6)), "body is a Doubling"),
    "replaced forward": (lambda: nn.Sequential(replaced("forward"), nn.ReLU()), "body.0 has a forward of its own"),
    "replaced call": (lambda: nn.Sequential(nn.Sequential(replaced("_call_impl"))), "body.0.0 has a _call_impl of"),
    "replaced train": (lambda: nn.Sequential(nn.Linear(5, 6), still()), "body.1 has a train of its own"),
    "replaced in body": (whole, "body has a forward of its own"),
    "below 0": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(-0.1)), "negative slope"),
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_a_net_that_is_not_written_out_takes_another_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of itself, and that the mode "stacked" still has the numbers of one client after another."""
    make, why = UNWRITTEN[name]
    net = Net(make(), nn.Linear(6, 4), torch.float64)
    told = program_of(net)
    assert isinstance(told, str)
    assert why in told
    monkeypatch.setattr("fedkin.engines.executors.stacked.fit_dense", None)
    setup = replace(small_setup(Local(), dtype=torch.float64, batch_size=8, local_steps=3), net=net)
    one, other = LocalEngine(setup), LocalEngine(setup.having(mode="stacked"))
    one.round(1), other.round(1)
    for id in setup.federation:
        torch.testing.assert_close(dict(other.model(id)), dict(one.model(id)), rtol=1e-9, atol=1e-9)
