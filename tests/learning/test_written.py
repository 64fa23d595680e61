"""Nets that are not written out say why, and are trained in another way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.engines import LocalEngine
from fedkin.federation import Task
from fedkin.learning import Net
from fedkin.learning.whole import parted
from fedkin.learning.written import Program, program_of
from fedkin.methods.local import Local
from own_nets import CHAINS, OTHERS
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
    "own forward": (lambda: Doubling(nn.Linear(5, 6)), "body, a Doubling, computes with the output of 0"),
    "unknown": (lambda: Doubling(nn.Linear(5, 6), nn.Softmax(1)), "body.1 is a Softmax"),
    "replaced forward": (lambda: nn.Sequential(replaced("forward"), nn.ReLU()), "body.0 has a forward of its own"),
    "replaced call": (lambda: nn.Sequential(nn.Sequential(replaced("_call_impl"))), "body.0.0 has a _call_impl of"),
    "replaced train": (lambda: nn.Sequential(nn.Linear(5, 6), still()), "body.1 has a train of its own"),
    "replaced in body": (whole, "body has a forward of its own"),
    **OTHERS,
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


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_in_a_class_is_read_without_a_trace(name: str) -> None:
    """The module keeps its state, and nothing is drawn from torch's generator."""
    torch.manual_seed(3)
    net = Net(CHAINS[name](), nn.Linear(7, 4))
    before, state = torch.get_rng_state(), held(net)
    program = program_of(net)
    assert isinstance(program, Program)
    assert torch.equal(torch.get_rng_state(), before)
    assert held(net) == state
    assert net.module.training


def held(net: Net) -> dict[str, tuple[int, int]]:
    return {name: (id(t), t._version) for name, t in net.module.state_dict(keep_vars=True).items()}


def test_what_a_class_does_is_read_once() -> None:
    """Also if it is a whole net, whose last layer is the head."""
    body, head = parted(Whole(), Task(4, (5,)), head="last")
    program = program_of(Net(body, head))
    assert isinstance(program, Program)
    assert [name for name, _ in program.parts] == ["body.first", "body.relu", "body.dropout"]


def test_it_is_read_when_the_plan_is_equipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, other threads of the process may draw random numbers."""
    body = nn.Sequential(nn.Flatten(), CHAINS["looped"]())
    setup = replace(small_setup(Local()), net=Net(body, nn.Linear(7, 4))).equipped()
    monkeypatch.setattr("fedkin.learning.written._read", None)
    assert isinstance(program_of(setup.net), Program)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.relu(self.first(x)), training=self.training))  # type: ignore[no-any-return]


def test_no_compiler_is_loaded() -> None:
    """torch._dynamo takes a second to import."""
    lines = (
        "import sys; from torch import nn; from own_nets import CHAINS; from fedkin.learning import Net",
        "from fedkin.learning.written import Program, program_of",
        "written = program_of(Net(CHAINS['plain'](), nn.Linear(7, 4)))",
        "print(isinstance(written, Program), 'torch._dynamo' in sys.modules)",
    )
    command, here = [sys.executable, "-c", "\n".join(lines)], Path(__file__).parents[1]
    said = subprocess.run(command, check=True, cwd=here, capture_output=True, text=True).stdout
    assert said.split() == ["True", "False"]
