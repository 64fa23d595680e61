"""How much better one model is than another on a client's validation samples, fold by fold, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.analysis.intervals import components
from fedkin.analysis.paired import Outcomes, enough
from fedkin.tasks import Task

__all__ = ["Gain", "Marks", "gain_over", "known", "marks_of", "outcomes_of"]

Values = npt.NDArray[np.float64]

# The squared error of a model that has diverged: worse than any other, and of a finite variance, so that its rate loses
# against one at which models do not diverge.
_DIVERGED = 1e100


class Gain(NamedTuple):
    """A mean difference in the task's metric, above 0 if it is better, and the variance of this mean."""

    value: float
    variance: float


class Marks(NamedTuple):
    """See `marks_of`."""

    kind: str
    sides: tuple[Values, ...]


def outcomes_of(task: Task, outputs: Tensor, targets: Tensor) -> Outcomes:
    """What a model did on each sample: right or wrong, the score of an event, or the squared error."""
    if task.kind == "regression":
        error = (outputs.double() - targets.double()).square().sum(1)
        return Outcomes("regression", torch.nan_to_num(error, _DIVERGED, _DIVERGED).clamp_max(_DIVERGED).numpy())
    if task.kind == "risk":
        margin = outputs[:, 1].double() - outputs[:, 0].double()
        return Outcomes("risk", torch.nan_to_num(margin).numpy(), targets.numpy())
    right = (outputs[:, : task.classes].argmax(1) == targets).to(torch.float64)
    return Outcomes("classification", right.numpy())


def known(task: Task, targets: Tensor) -> tuple[bool, str]:
    """Whether these validation samples are enough for a verdict (`fedkin.analysis.paired.enough`), and their number."""
    n = len(targets)
    if task.kind != "risk":
        return enough(n), f"{n} sample{'s' * (n != 1)}"
    events = int((targets == 1).sum())
    rarer, word = (events, "event") if events <= n - events else (n - events, "non-event")
    return enough(n, events), f"{rarer} {word}{'s' * (rarer != 1)}"


def marks_of(outcomes: Outcomes) -> Marks | None:
    """What a fold's samples say of one model: numbers whose mean is its metric, higher for better.

    One for each sample, or one for each event and one for each non-event, of which both have the AUC as their mean
    (DeLong's components). None where the samples do not determine the metric.
    """
    if outcomes.kind == "risk":
        labels = outcomes.labels
        if labels is None or not 0 < labels.sum() < len(labels):
            return None
        return Marks("risk", components(outcomes.values, labels))
    if not len(outcomes):
        return None
    return Marks(outcomes.kind, (-outcomes.values if outcomes.kind == "regression" else outcomes.values,))


def gain_over(mine: Sequence[Marks], theirs: Sequence[Marks]) -> Gain | None:
    """The gain over several folds, each judged by itself, as the models of two folds are on unlike scales.

    Each fold counts by its samples, or in a risk task by its pairs of an event and a non-event. The variance within
    folds is taken from all of them together. None where these samples do not determine it.
    """
    parts = [
        tuple(a - b for a, b in zip(one.sides, other.sides, strict=True))
        for one, other in zip(mine, theirs, strict=True)
    ]
    if not parts:
        return None
    weight = np.array([_weight(part) for part in parts])
    weight = weight / weight.sum()
    value = sum(w * float(np.mean([side.mean() for side in part])) for w, part in zip(weight, parts, strict=True))
    variance = 0.0
    for sides in zip(*parts, strict=True):
        free = sum(len(side) - 1 for side in sides)
        if free < 1:
            return None
        spread = sum(float(np.square(side - side.mean()).sum()) for side in sides) / free
        variance += sum(w * w * spread / len(side) for w, side in zip(weight, sides, strict=True))
    if mine[0].kind == "classification":
        # Two models that never differ on n samples may differ on the next: as if one sample more were right for one.
        variance += 1 / sum(len(part[0]) for part in parts) ** 2
    return Gain(float(value), float(variance))


def _weight(part: tuple[Values, ...]) -> float:
    return float(len(part[0]) if len(part) == 1 else len(part[0]) * len(part[1]) / (len(part[0]) + len(part[1])))
