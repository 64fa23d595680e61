"""A whole torch module as a net: parted so that head(body(x)) is what it gives."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models import custom, plain
from fedkin.learning.models.custom import pair_of, parted
from fedkin.learning.net import Net
from fedkin.settings import parse
from support import same

TASK = Task(3, (4,))


class Named(nn.Module):
    """A net of the usual kind: layers that are registered in another order than they are called."""

    def __init__(self, width: int = 8, last: str = "") -> None:
        super().__init__()
        self.fc = nn.Linear(width, 3)
        self.normal = nn.BatchNorm1d(width)
        self.first = nn.Linear(4, width)
        self.last = last

    def forward(self, x: Tensor) -> Any:
        out = self.fc(self.normal(self.first(x)).relu())
        return {"": out, "softmax": out.log_softmax(1), "dict": {"logits": out}}[self.last]


def test_the_parts_give_what_the_whole_gives_and_the_whole_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    custom._log_head.cache_clear()
    net, x = Named(), torch.randn(5, 4)
    net.normal.eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with caplog.at_level(logging.WARNING):
        body, head = parted(net, TASK)
        parted(net, TASK)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("model: the head of Named is its last layer, fc, Linear(in_features=8, out_features=3")
    assert said.endswith('to choose another: head="NAME"')
    assert isinstance(head, nn.Linear)
    assert same(net.state_dict(), before)
    assert body.training
    assert not body.normal.training  # type: ignore[union-attr]
    net.eval()
    body.eval()
    assert torch.equal(head(body(x)), net(x))
    assert body(x).shape == (5, 8)


def test_a_head_by_its_name_and_nets_that_are_one_layer_or_pixels() -> None:
    deep = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Dropout(), nn.Linear(6, 3)))
    body, head = parted(deep, TASK, head="2")
    assert isinstance(head, nn.Sequential)
    assert body(torch.zeros(1, 4)).shape == (1, 6)
    flat, linear = parted(nn.Linear(4, 3), TASK)
    assert isinstance(flat, nn.Identity)
    assert isinstance(linear, nn.Linear)
    pixels = nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(5, 2, 1))
    _, last = parted(pixels, Task(2, (1, 6, 6), "segmentation"))
    assert isinstance(last, nn.Conv2d)
    assert last.kernel_size == (1, 1)


class After(nn.Module):
    """A net that computes something after its head that made-up samples do not show."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self.a, self.fc, self.after = nn.Linear(4, 8), nn.Linear(8, 3), after
        self.scale = nn.Parameter(torch.ones(1))
        with torch.no_grad():
            self.fc.weight.fill_(0.05)
            self.fc.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.a(x).tanh())
        return {
            "clamp": lambda: out.clamp(-1, 1), "in place": lambda: out.clamp_(-1, 1), "scale": lambda: out * self.scale,
            "view": lambda: out.view(len(out), -1),
        }[self.after]()  # fmt: skip


@pytest.mark.parametrize("after", ["clamp", "in place", "scale"])
def test_what_a_net_computes_after_its_head_is_never_dropped(after: str) -> None:
    for head in (None, "fc"):
        with pytest.raises(ConfigError, match="After computes more after 'fc'"):
            parted(After(after), TASK, head)
    assert isinstance(parted(After("view"), TASK)[1], nn.Linear)


class Coded(nn.Module):
    """A body that reads category codes from a column of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.codes(x[:, 0].long())
        return out


def test_a_net_may_read_codes_from_numbers() -> None:
    net = Net.build(lambda: (Coded(), nn.Linear(5, 3)), 0)
    net.check(TASK)
    assert net.width(TASK) == 5


def test_initial_parameters_can_be_copied() -> None:
    initial = Net(nn.Linear(4, 3), nn.Linear(3, 2)).initial
    again = copy.deepcopy(initial)
    assert list(again) == list(initial)
    assert same(again, initial)


class Told(nn.Module):
    """A module whose error has several lines, as those of other libraries have."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("expected:\n  more\x1b[31m dimensions")


def test_an_error_of_a_net_is_said_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"\(RuntimeError: expected: more\\x1b\[31m dimensions\)"):
        Net.build(lambda: (nn.Sequential(Told(), nn.Linear(4, 4)), nn.Linear(4, 3)), 0).check(TASK)


@pytest.mark.parametrize(
    ("module", "head", "words"),
    [
        (Named(last="softmax"), None, "Named computes more after 'fc', its last layer: .*no softmax after it"),
        (Named(last="dict"), None, "Named computes more after 'fc'"),
        (Named(), "first", "Named computes more after 'first', its head"),
        (Named(), "fcc", "head: Named has no 'fcc'; did you mean 'fc'?"),
        (nn.Sequential(nn.ReLU()), None, 'has no Linear, so its head is not known: .* head="fc"'),
        (nn.Linear(7, 3), None, r"Linear does not take inputs of shape \(4,\) \(RuntimeError"),
        (lambda task: task, None, "expected a name, a torch module, .* got Task"),
        (7, None, "expected a name, a torch module, .* got 7"),
        ((nn.Identity(), nn.Linear(4, 3)), "fc", "head: 'fc': .* a pair has its head already"),
    ],
)
def test_what_cannot_be_parted_is_said_in_one_line(module: Any, head: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        pair_of(module, TASK, head)
    assert "\n" not in str(caught.value)


def test_arguments_of_a_class_are_settings() -> None:
    class Broad(nn.Module):
        """Broad net."""

        def __init__(self, width: int, task: Task, rate=0, on=True, act=nn.ReLU, shape: tuple[int, ...] = (2,)):  # type: ignore[no-untyped-def]
            super().__init__()
            self.on, self.rate = on, rate
            self.net = nn.Sequential(nn.Linear(task.shapes["x"][0], width), act(), nn.Linear(width, task.outputs))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)  # type: ignore[no-any-return]

    kind = plain(Broad)
    assert kind is plain(Broad)
    made = parse(kind, {"width": 5, "rate": 0.5, "on": False}, "model")
    assert made.model_dump() == {
        "name": "Broad", "head": None, "width": 5, "rate": 0.5, "on": False, "shape": (2,),
    }  # fmt: skip
    body, head = made.build(TASK)
    assert isinstance(head, nn.Linear)
    assert (head.in_features, head.out_features) == (5, 3)
    assert body(torch.zeros(2, 4)).shape == (2, 5)
    with pytest.raises(ConfigError, match=r"model\.width: missing, and it has no default"):
        parse(kind, {}, "model")
    with pytest.raises(ConfigError, match=r"model\.widht: no such setting; did you mean 'width'"):
        parse(kind, {"width": 5, "widht": 5}, "model")


def test_classes_whose_arguments_cannot_be_settings() -> None:
    class Odd(nn.Module):
        def __init__(self, head: int = 3) -> None:
            super().__init__()

    class Hidden(nn.Module):
        def __init__(self, _width: int = 3) -> None:
            super().__init__()

    class Failing(nn.Module):
        def __init__(self, text: str = "one\ntwo\x1b[31m") -> None:
            super().__init__()
            raise ValueError(text)

    class Typed(nn.Module):
        def __init__(self, json: int = 3) -> None:
            super().__init__()

    with pytest.raises(ConfigError, match="Odd: its argument 'head' cannot be a setting: rename it"):
        plain(Odd)
    with pytest.raises(ConfigError, match="Hidden: its argument '_width' cannot be a setting"):
        plain(Hidden)
    with pytest.raises(ConfigError, match=r"^model: Failing: ValueError: one two\\x1b\[31m$"):
        parse(plain(Failing), {}, "model").build(TASK)
    with pytest.raises(ConfigError, match="Typed: its arguments cannot be settings: ") as caught:
        plain(Typed)
    assert "\n" not in str(caught.value)
