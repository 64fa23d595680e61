"""One model on many clients' samples: the marks are those of each client alone."""

from __future__ import annotations

import math
from collections.abc import Callable

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


def dense(*between: nn.Module) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 9), *between), nn.Linear(9, 10)


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
