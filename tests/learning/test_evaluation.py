"""One model on many clients' samples: the marks are those of each client alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.errors import FedkinError, MethodError
from fedkin.federation import Samples
from fedkin.learning.metrics import NO_MARKS, marks, score
from fedkin.learning.net import Net
from fedkin.learning.sgd import infer, outputs
from fedkin.tasks import Task

SIZES = (20, 1, 40, 0, 3, 17, 20, 128, 129, 300, 31, *(20, 33) * 3)
CLASSES, IMAGES = Task(10, (6,)), Task(10, (3, 8, 8))


class Of(nn.Module):
    """A module of a function of the batch."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def dense(*between: nn.Module) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 9), *between), nn.Linear(9, 10)


def convolution() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()), nn.Linear(180, 10)


def given(task: Task, sizes: tuple[int, ...] = SIZES, shared: bool = False, seed: int = 0) -> list[Samples]:
    """Samples of clients: normal inputs, in an array of each or in one of all."""
    make = torch.Generator().manual_seed(seed)
    pixels = task.target_shape if task.kind == "segmentation" else ()
    x = torch.randn(sum(sizes), *task.shapes["x"], generator=make)
    y = torch.randint(0, task.classes or 2, (len(x), *pixels), generator=make)
    if task.kind == "regression":
        y = torch.randn(len(x), task.targets, generator=make)
    where = torch.split(torch.randperm(len(x), generator=make), list(sizes))
    return [Samples(x, y, rows) if shared else Samples(x[rows], y[rows]) for rows in where]


def both(make: Callable[[], tuple[nn.Module, nn.Module]], task: Task, sets: list[Samples]) -> tuple[Any, Any, Net]:
    """Marks of all sets at once, and of each set in a call of its own."""
    net = Net.build(make, 3)
    module = net.scratch()
    together = score(net, module, net.initial, iter(sets), task)
    return together, [score(net, module, net.initial, [samples], task)[0] for samples in sets], net


NETS: dict[str, tuple[Callable[[], tuple[nn.Module, nn.Module]], Task]] = {
    "relu": (lambda: dense(nn.ReLU()), CLASSES),
    "convolution": (convolution, IMAGES),
    "one output": (lambda: (nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)), Task.regression(1, (8,))),
    # These give a row another value in another batch.
    "statistics of the batch": (lambda: dense(nn.BatchNorm1d(9, track_running_stats=False)), CLASSES),
    "a branch on the batch": (lambda: dense(Of(lambda x: x / 255 if x.max() > 3 else x)), CLASSES),
}


@pytest.mark.parametrize("shared", [False, True], ids=["own arrays", "one array"])
@pytest.mark.parametrize("name", NETS)
def test_marks_are_those_of_each_client_alone_bit_by_bit(name: str, shared: bool) -> None:
    make, task = NETS[name]
    sizes = tuple(n + (n % 128 == 1 and name == "statistics of the batch") for n in SIZES)  # of one row it has none
    together, alone, _ = both(make, task, given(task, sizes, shared))
    assert together == [mark if n else NO_MARKS for mark, n in zip(alone, SIZES, strict=True)]
    each = 1 if task.labels else 4  # bytes of an outcome
    assert [len(mark.outcomes) for mark in together] == [each * n for n in sizes]


def test_marks_are_those_of_a_plain_loop() -> None:
    net = Net.build(lambda: dense(nn.ReLU()), 3)
    sets = given(CLASSES)
    found = score(net, net.scratch(), net.initial, sets, CLASSES)
    plain = net.scratch().eval()
    for samples, mark in zip(sets, found, strict=True):
        if not len(samples):
            assert mark is NO_MARKS
            continue
        out = plain(samples.x).detach()
        assert mark.loss == pytest.approx(float(F.cross_entropy(out, samples.y)), abs=1e-6)
        assert mark.right == int((out.argmax(1) == samples.y).sum())
        assert mark.outcomes == bytes((out.argmax(1) == samples.y).int().tolist())


@pytest.mark.parametrize(
    "task",
    [Task(2, (6,), "risk"), Task.regression(1, (6,)), Task.regression(20, (6,)), Task(3, (1, 6, 5), "segmentation")],
    ids=lambda t: t.kind,
)
def test_every_kind_of_task(task: Task) -> None:
    def make() -> tuple[nn.Module, nn.Module]:
        if task.kind == "segmentation":
            return nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        return nn.Sequential(nn.Linear(6, 9), nn.ReLU()), nn.Linear(9, task.outputs)

    together, alone, _ = both(make, task, given(task))
    assert repr(together) == repr(alone)


def test_token_ids_and_several_arrays_go_alone() -> None:
    ids = [Samples(torch.randint(0, 5, (20, 7)), torch.arange(20) % 4) for _ in range(3)]
    task = Task(4, (7,), codes=("x",))
    together, alone, _ = both(lambda: (nn.EmbeddingBag(5, 6), nn.Linear(6, 4)), task, ids)
    assert together == alone

    class Sum(nn.Module):
        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return x["a"] + x["b"]

    sets = [Samples({"a": torch.randn(20, 6), "b": torch.randn(20, 6)}, torch.arange(20) % 4) for _ in range(3)]
    together, alone, _ = both(lambda: (Sum(), nn.Linear(6, 4)), Task(4, {"a": (6,), "b": (6,)}), sets)
    assert together == alone


@pytest.mark.parametrize("task", [CLASSES, Task(2, (6,), "risk"), Task.regression(1, (6,))], ids=lambda t: t.kind)
def test_outputs_that_are_not_finite_have_no_score(task: Task) -> None:
    sets = given(task, (20, 20))
    assert isinstance(sets[1].x, Tensor)
    sets[1].x[3:5] = math.nan
    net = Net.build(lambda: (nn.Linear(6, 9), nn.Linear(9, task.outputs)), 3)
    assert score(net, net.scratch(), net.initial, sets[:1], task)[0].loss > 0
    with pytest.raises(MethodError, match="not finite for 2 of 20 test samples"):
        score(net, net.scratch(), net.initial, sets, task)


def test_samples_that_do_not_fit_the_net_raise_an_error() -> None:
    net = Net.build(lambda: dense(nn.ReLU()), 3)
    sets = [*given(CLASSES, (20, 20)), Samples(torch.zeros(20, 5), torch.zeros(20, dtype=torch.int64))]
    with pytest.raises((RuntimeError, FedkinError)):
        score(net, net.scratch(), net.initial, sets, CLASSES)


class Viewed(nn.Module):
    """Convolutions and a view of their feature map, which cannot have channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        return x.view(x.size(0), -1)


def flat() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 4, 3), nn.Flatten())


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("body", [Viewed, flat])
def test_a_score_is_the_first_job_of_a_module(body: Callable[[], nn.Module], last: bool) -> None:
    net = Net.build(lambda: (body(), nn.Linear(64, 10)), 3)
    net.channels_last = None if last else False
    samples, fresh = given(IMAGES, (20,))[0], net.scratch()
    mark = score(net, fresh, net.initial, [samples], IMAGES)[0]
    assert fresh.channels_last is net.channels_last is (last and body is flat)
    alone = infer(net, net.scratch(), net.initial, "logits", samples)
    assert torch.equal(outputs(net, fresh, "logits", samples), alone)
    assert mark == marks(IMAGES, alone, samples.labels())
