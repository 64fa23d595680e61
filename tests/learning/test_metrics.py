"""Figures against scikit-learn and by hand; pooling against all samples taken together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.errors import MethodError
from fedkin.federation import Samples
from fedkin.learning.losses import Batch, default_loss, per_sample
from fedkin.learning.metrics import NO_SCORES, average_precision, pooled, roc_auc, score, scores_of
from fedkin.learning.net import Net
from fedkin.tasks import Task

CLASSES, RISK = Task(4, (5,)), Task(2, (5,), "risk")
NUMBERS, MASKS = Task.regression(3, (5,)), Task(3, (1, 6, 5), "segmentation")


def drawn(task: Task, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets."""
    make = torch.Generator().manual_seed(seed)
    pixels = task.target_shape if task.kind == "segmentation" else ()
    outputs = torch.randn(n, task.outputs, *pixels, generator=make)
    if task.kind == "regression":
        return outputs, torch.randn(n, task.outputs, generator=make)
    return outputs, torch.randint(0, task.classes, (n, *pixels), generator=make)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=40))
def test_ranking_against_sklearn(pairs: list[tuple[int, bool]]) -> None:
    scores, labels = np.array([s for s, _ in pairs], dtype=float), np.array([y for _, y in pairs], dtype=np.int64)
    assume(0 < labels.sum() < len(labels))
    assert roc_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores))


def test_one_class_has_no_ranking() -> None:
    scores = np.array([0.3, 0.1])
    for labels in (np.zeros(2, np.int64), np.ones(2, np.int64)):
        assert math.isnan(roc_auc(scores, labels))
        assert math.isnan(average_precision(scores, labels))
    of_one_class = scores_of(RISK, torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([1, 1]))
    assert of_one_class.figures == (None, None)
    assert of_one_class.right == 2


def test_squared_error_sums_over_targets() -> None:
    outputs, y = drawn(NUMBERS, 20, 1)
    expected = np.mean(np.sum((outputs.double().numpy() - y.double().numpy()) ** 2, axis=1))
    scores = scores_of(NUMBERS, outputs, y)
    assert scores.figures == pytest.approx((expected,))
    assert scores.loss == pytest.approx(expected)


def test_dice_is_the_f1_score_of_pixels() -> None:
    outputs, y = drawn(MASKS, 4, 2)
    predicted, truth = outputs.argmax(1).reshape(-1).numpy(), y.reshape(-1).numpy()
    expected = f1_score(truth, predicted, labels=[1, 2], average="macro")
    assert scores_of(MASKS, outputs, y).figures == pytest.approx((expected,))
    background = torch.zeros(2, 6, 5, dtype=torch.int64)
    nothing = torch.zeros(2, 3, 6, 5)
    nothing[:, 0] = 1
    assert scores_of(MASKS, nothing, background).figures == (None,)


@pytest.mark.parametrize("task", [NUMBERS, MASKS], ids=lambda task: task.kind)
def test_outcomes_have_the_figure_as_their_mean(task: Task) -> None:
    scores = scores_of(task, *drawn(task, 30, 3))
    assert np.frombuffer(scores.outcomes, "<f4").mean() == pytest.approx(scores.figures[0], rel=1e-5)


def test_the_parts_of_dice_vary_as_dice_does_when_samples_are_drawn_again() -> None:
    outputs, y = drawn(MASKS, 60, 4)
    outputs += 2 * torch.nn.functional.one_hot(y, 3).movedim(-1, 1) * (torch.arange(60) % 3)[:, None, None, None]
    rng = np.random.default_rng(0)
    again = [scores_of(MASKS, outputs[at], y[at]).figures[0] for at in (rng.integers(0, 60, 60) for _ in range(300))]
    parts = np.frombuffer(scores_of(MASKS, outputs, y).outcomes, "<f4")
    assert parts.std() / np.sqrt(60) == pytest.approx(np.std(np.array(again, dtype=float)), rel=0.15)


@pytest.mark.parametrize("task", [CLASSES, RISK, NUMBERS, MASKS], ids=lambda task: task.kind)
def test_pooled_is_all_samples_taken_together(task: Task) -> None:
    parts = [drawn(task, n, seed) for seed, n in enumerate((3, 9, 14))]
    together = scores_of(task, *(torch.cat(which) for which in zip(*parts, strict=True)))
    found = pooled(task, [(len(y), scores_of(task, outputs, y)) for outputs, y in parts])
    expected = together.figures or (together.right / 26,)
    assert found == pytest.approx(expected)


class Echo(torch.nn.Module):
    """A model whose outputs are its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("task", [CLASSES, RISK, NUMBERS, MASKS], ids=lambda task: task.kind)
def test_the_default_loss_is_the_mean_per_sample_and_heeds_padding(task: Task) -> None:
    outputs, y = drawn(task, 7, 5)
    each = per_sample(task)(outputs, y)
    assert each.shape == (7,)
    loss = default_loss(task)
    whole = loss(Echo(), Batch(outputs, y, torch.ones(7), True), {}, {})  # type: ignore[arg-type]
    torch.testing.assert_close(whole, each.mean())
    padded = Batch(outputs, y, torch.tensor([1.0, 1, 1, 1, 1, 0, 0]))
    torch.testing.assert_close(loss(Echo(), padded, {}, {}), each[:5].mean())  # type: ignore[arg-type]


# -- one model on many clients' samples: the scores are those of each client alone ------------------------------------


SIZES = (20, 1, 40, 0, 3, 17, 20, 128, 129, 300, 31, *(20, 33) * 3)
CLASSES = Task(10, (6,))


def dense(*between: nn.Module) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 9), *between), nn.Linear(9, 10)


def sets_of(task: Task, sizes: tuple[int, ...] = SIZES, shared: bool = False, seed: int = 0) -> list[Samples]:
    """Samples of clients: normal inputs, in an array of each or in one of all."""
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), *task.shapes["x"], generator=make)
    _, y = drawn(task, len(x), seed)
    where = torch.split(torch.randperm(len(x), generator=make), list(sizes))
    return [Samples(x, y, rows) if shared else Samples(x[rows], y[rows]) for rows in where]


def test_marks_are_those_of_a_plain_loop() -> None:
    net = Net.build(lambda: dense(nn.ReLU()), 3)
    sets = sets_of(CLASSES)
    found = score(net, net.scratch(), net.initial, sets, CLASSES)
    plain = net.scratch().eval()
    for samples, scores in zip(sets, found, strict=True):
        if not len(samples):
            assert scores is NO_SCORES
            assert (math.isnan(scores.loss), scores.right) == (True, 0)
            continue
        out = plain(samples.x).detach()
        assert scores.loss == pytest.approx(float(F.cross_entropy(out, samples.y)), abs=1e-6)
        assert scores.right == int((out.argmax(1) == samples.y).sum())
        assert scores.outcomes == bytes((out.argmax(1) == samples.y).int().tolist())


@pytest.mark.parametrize("task", [CLASSES, Task(2, (6,), "risk"), Task.regression(1, (6,))], ids=lambda t: t.kind)
def test_outputs_that_are_not_finite_have_no_score(task: Task) -> None:
    sets = sets_of(task, (20, 20))
    assert isinstance(sets[1].x, Tensor)
    sets[1].x[3:5] = math.nan
    net = Net.build(lambda: (nn.Linear(6, 9), nn.Linear(9, task.outputs)), 3)
    assert score(net, net.scratch(), net.initial, sets[:1], task)[0].loss > 0
    with pytest.raises(MethodError, match="not finite for 2 of 20 test samples"):
        score(net, net.scratch(), net.initial, sets, task)
