"""Folds: which training samples of a client are held out together, so that each of them is validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedkin.federation import Samples, Task
from fedkin.keys import rng

__all__ = ["LATEST", "Folds", "Rows", "folds_of"]

# The share of a client's samples, the latest, that is validated where times are known.
LATEST = 0.25

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """What is known of a client's training samples beside their values.

    together [n]: samples with one number are never split (the stays of one patient); None: each is by itself.
    when [n]: their times; the latest are held out. None: held out at random.
    """

    together: Labels | None = None
    when: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Folds:
    """Of one client: the fold of each training sample, [n] from 0; -1 for samples that are always trained on."""

    fold: Labels
    count: int
    by_time: bool = False

    @property
    def splits(self) -> int:
        """How many models are trained for this client: one that all folds validate with time, else one for each."""
        return 1 if self.by_time else self.count

    @property
    def share(self) -> float:
        """The share of the samples that a model is trained on."""
        return float((self.fold < 0).mean()) if self.by_time else 1 - 1 / self.count

    def trained(self, split: int) -> Labels:
        """Rows on which the model of this split is trained."""
        return np.flatnonzero(self.fold < 0) if self.by_time else np.flatnonzero(self.fold != split)

    def validated(self, split: int) -> Labels:
        """Rows on which it is validated."""
        return np.flatnonzero(self.fold >= 0) if self.by_time else np.flatnonzero(self.fold == split)


def folds_of(
    samples: Samples, task: Task, count: int, name: str, seed: int, rows: Rows | None = None, share: float = LATEST
) -> Folds:
    """The folds of one client's training samples: with classes, each class is dealt evenly.

    name: keys the draw; samples with the same name, seed and values have the same folds. share: with times, the share
    of samples, the latest, that are validated; the folds are then stretches of time.
    """
    n = len(samples)
    rows = rows or Rows()
    if rows.when is not None:
        return Folds(_latest(rows.when, rows.together, count, share), count, by_time=True)
    draw = rng(seed, name, "folds")
    together = np.arange(n) if rows.together is None else rows.together
    labels = samples.labels().numpy() if task.labels else np.zeros(n, np.int64)
    unit = np.unique(together, return_inverse=True)[1].reshape(-1)
    units = int(unit.max()) + 1
    # A unit is of its rarest class: of all samples of a patient, it is the event that must be dealt evenly.
    rare = np.bincount(labels, minlength=int(labels.max()) + 1)[labels]
    order = np.lexsort([rare, unit])
    first = order[np.searchsorted(unit[order], np.arange(units))]
    sizes = np.bincount(unit, minlength=units)
    shuffled = draw.permutation(units)
    ranked = shuffled[np.lexsort([-sizes[shuffled], labels[first[shuffled]]])]
    if rows.together is None:
        dealt = np.empty(units, np.int64)
        dealt[ranked] = (np.arange(units) + int(draw.integers(count))) % count
        return Folds(dealt[unit], count)
    return Folds(_even(ranked, sizes, labels[first], count)[unit], count)


def _even(ranked: Labels, sizes: Labels, kind: Labels, count: int) -> Labels:
    """Units of unlike sizes, dealt one after another to the fold with fewest samples of their class, then of all."""
    dealt = np.empty(len(sizes), np.int64)
    held: Mapping[int, Labels] = {int(value): np.zeros(count, np.int64) for value in np.unique(kind)}
    every = np.zeros(count, np.int64)
    for one in ranked:
        own = held[int(kind[one])]
        fold = int(np.lexsort([every, own])[0])
        dealt[one], own[fold], every[fold] = fold, own[fold] + sizes[one], every[fold] + sizes[one]
    return dealt


def _latest(when: npt.NDArray[np.float64], together: Labels | None, count: int, share: float) -> Labels:
    """The latest `share` of the samples, in `count` stretches of time; a unit is as late as its latest sample."""
    if together is not None:
        unit = np.unique(together, return_inverse=True)[1].reshape(-1)
        latest = np.full(int(unit.max()) + 1, -np.inf)
        np.maximum.at(latest, unit, when)
        when = latest[unit]
    n = len(when)
    order = np.argsort(when, kind="stable")
    fold = np.full(n, -1, np.int64)
    held = order[n - min(n - 1, max(round(share * n), min(count, n - 1))) :]
    if len(held):
        fold[held] = np.arange(len(held)) * count // len(held)
    if together is not None:
        # Nothing of a unit is trained on if a part of it is validated.
        top = np.full(int(unit.max()) + 1, -1, np.int64)
        np.maximum.at(top, unit, fold)
        fold = top[unit]
    return fold
