"""Figures against scikit-learn and by hand; pooling against all samples taken together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from fedkin.learning.losses import CrossEntropy, PixelCrossEntropy, SquaredError, default_loss, per_sample
from fedkin.learning.metrics import Marks, average_precision, marks, pooled, roc_auc
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
    mark = marks(RISK, torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([1, 1]))
    assert mark.figures == (None, None)
    assert mark.right == 2


def test_classification_counts_right_answers() -> None:
    outputs, y = drawn(CLASSES, 30, 0)
    mark = marks(CLASSES, outputs, y)
    correct = outputs.argmax(1) == y
    assert mark == Marks(mark.loss, int(correct.sum()), outcomes=bytes(correct.int().tolist()))
    assert mark.loss == pytest.approx(float(torch.nn.functional.cross_entropy(outputs.double(), y)))


def test_squared_error_sums_over_targets() -> None:
    outputs, y = drawn(NUMBERS, 20, 1)
    expected = np.mean(np.sum((outputs.double().numpy() - y.double().numpy()) ** 2, axis=1))
    mark = marks(NUMBERS, outputs, y)
    assert mark.figures == pytest.approx((expected,))
    assert mark.loss == pytest.approx(expected)


def test_dice_is_the_f1_score_of_pixels() -> None:
    outputs, y = drawn(MASKS, 4, 2)
    predicted, truth = outputs.argmax(1).reshape(-1).numpy(), y.reshape(-1).numpy()
    expected = f1_score(truth, predicted, labels=[1, 2], average="macro")
    assert marks(MASKS, outputs, y).figures == pytest.approx((expected,))
    background = torch.zeros(2, 6, 5, dtype=torch.int64)
    nothing = torch.zeros(2, 3, 6, 5)
    nothing[:, 0] = 1
    assert marks(MASKS, nothing, background).figures == (None,)


@pytest.mark.parametrize("task", [NUMBERS, MASKS], ids=lambda task: task.kind)
def test_outcomes_have_the_figure_as_their_mean(task: Task) -> None:
    mark = marks(task, *drawn(task, 30, 3))
    assert np.frombuffer(mark.outcomes, "<f4").mean() == pytest.approx(mark.figures[0], rel=1e-5)


def test_the_parts_of_dice_vary_as_dice_does_when_samples_are_drawn_again() -> None:
    outputs, y = drawn(MASKS, 60, 4)
    outputs += 2 * torch.nn.functional.one_hot(y, 3).movedim(-1, 1) * (torch.arange(60) % 3)[:, None, None, None]
    rng = np.random.default_rng(0)
    again = [marks(MASKS, outputs[at], y[at]).figures[0] for at in (rng.integers(0, 60, 60) for _ in range(300))]
    parts = np.frombuffer(marks(MASKS, outputs, y).outcomes, "<f4")
    assert parts.std() / np.sqrt(60) == pytest.approx(np.std(np.array(again, dtype=float)), rel=0.15)


@pytest.mark.parametrize("task", [CLASSES, RISK, NUMBERS, MASKS], ids=lambda task: task.kind)
def test_pooled_is_all_samples_taken_together(task: Task) -> None:
    parts = [drawn(task, n, seed) for seed, n in enumerate((3, 9, 14))]
    together = marks(task, *(torch.cat(which) for which in zip(*parts, strict=True)))
    found = pooled(task, [(len(y), marks(task, outputs, y)) for outputs, y in parts])
    expected = together.figures or (together.right / 26,)
    assert found == pytest.approx(expected)


class Echo(torch.nn.Module):
    """A model whose outputs are its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("task", [CLASSES, RISK, NUMBERS, MASKS], ids=lambda task: task.kind)
def test_the_default_loss_is_the_mean_per_sample_and_heeds_padding(task: Task) -> None:
    from fedkin.learning.losses import Batch

    outputs, y = drawn(task, 7, 5)
    each = per_sample(task)(outputs, y)
    assert each.shape == (7,)
    loss = default_loss(task)
    whole = loss(Echo(), Batch(outputs, y, torch.ones(7), True), {}, {})  # type: ignore[arg-type]
    torch.testing.assert_close(whole, each.mean())
    padded = Batch(outputs, y, torch.tensor([1.0, 1, 1, 1, 1, 0, 0]))
    torch.testing.assert_close(loss(Echo(), padded, {}, {}), each[:5].mean())  # type: ignore[arg-type]


def test_losses_by_task_and_equality() -> None:
    assert default_loss(CLASSES) == default_loss(RISK) == CrossEntropy()
    assert default_loss(NUMBERS) == SquaredError()
    assert default_loss(MASKS) == PixelCrossEntropy()
