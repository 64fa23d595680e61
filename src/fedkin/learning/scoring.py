"""Scoring of outputs: the figures of a task on one client's samples, and the data for pooled figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.learning.losses import per_sample
from fedkin.tasks import Task

__all__ = ["NO_MARKS", "Figures", "Marks", "average_precision", "marks", "marks_of", "pooled", "roc_auc"]

Values = npt.NDArray[np.float64]
Figures = tuple[float | None, ...]


class Marks(NamedTuple):
    """The scores of outputs on a set of samples.

    loss: mean over samples. right: number of correct class labels (0 for tasks without labels). figures: those of
    `task.figures`, None where these samples do not determine a figure; empty for classification, which has `right`.
    digest: the data from which figures over several clients are computed. outcomes: a number for each sample, 1 or 0
    for a right or wrong label (uint8), or a squared error or part of Dice (float32, little-endian); empty for risk
    tasks, whose digest has all that is known of a sample.
    """

    loss: float
    right: int
    figures: Figures = ()
    digest: tuple[tuple[float, ...], ...] = ()
    outcomes: bytes = b""


NO_MARKS = Marks(math.nan, 0)


def marks(task: Task, outputs: Tensor, targets: Tensor) -> Marks:
    """Score outputs [n, ...] against targets [n, ...], n at least 1.

    classification   right: the number of samples with the largest output at the label
    risk             figures: ROC-AUC and average precision of output 1 minus output 0 (None with one class only);
                     digest: these scores, and the labels
    regression       figures: squared error, summed over the targets of a sample, mean over samples
    segmentation     figures: Dice; digest: for each class except the background, the number of pixels in both
                     prediction and truth, and the sum of the numbers of pixels in each, over all samples; outcomes:
                     how the Dice of all samples depends on each one, so that their mean is it and their variance that
                     of the linearised Dice
    """
    return marks_of(task, outputs, targets, [len(targets)])[0]


def marks_of(task: Task, outputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> list[Marks]:
    """Return the `marks` of sets of these sizes, whose samples lie one set after another; no set is empty."""
    each = per_sample(task)(outputs.double(), targets).tolist()
    places = list(pairwise(accumulate(sizes, initial=0)))
    losses = [_mean(each[start:end]) for start, end in places]
    if not task.labels:
        score = _regression if task.kind == "regression" else _segmentation
        pairs = [(outputs[start:end], targets[start:end]) for start, end in places]
        return [score(task, loss, *pair) for loss, pair in zip(losses, pairs, strict=True)]
    found = (outputs.argmax(1) == targets).to(torch.uint8).numpy().tobytes()
    correct = [found[start:end] for start, end in places]
    if task.kind == "classification":
        return [Marks(loss, own.count(1), outcomes=own) for loss, own in zip(losses, correct, strict=True)]
    margins, labels = (outputs[:, 1].double() - outputs[:, 0].double()).numpy(), targets.numpy()
    made = []
    for loss, own, (start, end) in zip(losses, correct, places, strict=True):
        margin, y = margins[start:end], labels[start:end]
        digest = tuple(margin.tolist()), tuple(y.astype(np.float64).tolist())
        made.append(Marks(loss, own.count(1), _ranked(margin, y), digest))
    return made


def _mean(values: Sequence[float]) -> float:
    """Return the mean, which does not depend on the order of values or on the machine."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.inf


def _regression(task: Task, loss: float, outputs: Tensor, targets: Tensor) -> Marks:
    errors = (outputs.double() - targets.double()).square().sum(1)
    return Marks(loss, 0, (float(errors.mean()),), outcomes=_bytes(errors.numpy()))


def _segmentation(task: Task, loss: float, outputs: Tensor, targets: Tensor) -> Marks:
    each = _overlap(outputs.argmax(1), targets, task.classes)
    both, either = (counts.sum(0) for counts in each)
    digest = tuple(both.tolist()), tuple(either.tolist())
    return Marks(loss, 0, _known(_dice(both, either)), digest, _bytes(_parts(*each)))


def pooled(task: Task, parts: Sequence[tuple[int, Marks]]) -> Figures:
    """Return `task.figures` over the samples of several clients together, from (samples, marks) of each client.

    Each client has at least one sample. A figure that needs a client's digest is None where there is none: over a
    network, the scores of single samples stay at the client.
    """
    total = sum(n for n, _ in parts)
    if task.kind == "classification":
        return (sum(mark.right for _, mark in parts) / total,)
    if task.kind == "regression":
        return (sum(n * (mark.figures[0] or 0.0) for n, mark in parts) / total,)
    if not all(mark.digest for _, mark in parts):
        return (None,) * len(task.figures)
    if task.kind == "segmentation":
        both, either = (np.sum([mark.digest[i] for _, mark in parts], axis=0) for i in (0, 1))
        return _known(_dice(both, either))
    margin, labels = (np.concatenate([mark.digest[i] for _, mark in parts]) for i in (0, 1))
    return _ranked(margin, labels)


def roc_auc(scores: Values, labels: npt.NDArray[np.generic]) -> float:
    """Return P(score of a 1 > score of a 0), with half of the ties (Mann and Whitney); nan without both classes.

    >>> roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return math.nan
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2  # the mean rank of each value's ties, from 1
    return float((rank[place][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def average_precision(scores: Values, labels: npt.NDArray[np.generic]) -> float:
    """Return sum_k (R_k - R_{k-1}) P_k over the thresholds, from high to low; nan without both classes.

    P and R are precision and recall; equal scores share one threshold.

    >>> round(average_precision(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])), 4)
    0.8333
    """
    positive = labels == 1
    if positive.all() or not positive.any():
        return math.nan
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    gained = np.diff(hits[last], prepend=0)
    return float((gained / hits[-1] * (hits[last] / (last + 1))).sum())


def _ranked(scores: Values, labels: npt.NDArray[np.generic]) -> Figures:
    return _known(roc_auc(scores, labels), average_precision(scores, labels))


def _known(*values: float) -> Figures:
    """Replace nan by None, which equals itself and which JSON can hold."""
    return tuple(None if math.isnan(value) else value for value in values)


def _bytes(values: Values) -> bytes:
    return values.astype("<f4").tobytes()


def _overlap(predicted: Tensor, truth: Tensor, classes: int) -> tuple[Values, Values]:
    """Return [samples, classes but 0]: the number of pixels in both, and the sum of the numbers in each."""
    n = len(truth)
    # Each sample counts in classes of its own.
    own = (torch.arange(n) * classes).reshape(-1, *[1] * (truth.ndim - 1))

    def counts(labels: Tensor) -> Tensor:
        return torch.bincount(labels, minlength=n * classes).reshape(n, classes)[:, 1:].double()

    p, t = (counts((labels + own).reshape(-1)) for labels in (predicted, truth))
    return counts((truth + own)[predicted == truth]).numpy(), (p + t).numpy()


def _parts(both: Values, either: Values) -> Values:
    """Return each sample's part in `_dice` of all: their mean is it; of none if no class occurs."""
    total = either.sum(0)
    there = total > 0
    if not there.any():
        return np.zeros(0)
    dice = 2 * both.sum(0)[there] / total[there]
    gap = 2 * both[:, there] - dice * either[:, there]
    return np.asarray((dice + len(both) * gap / total[there]).mean(1))


def _dice(both: Values, either: Values) -> float:
    """Return the mean of 2 |A and B| / (|A| + |B|) over the classes that occur; nan if no class occurs."""
    there = either > 0
    return float((2 * both[there] / either[there]).mean()) if there.any() else math.nan
