"""The choice: which candidate, with which rate and strength, and who does better alone.

Each is judged on folds that it was not made on.

What is ours: all choices are made on the other folds; each client's gain is drawn towards the mean of all, as far as
clients cannot be told apart (empirical Bayes), so that the largest of many gains is not the luckiest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.advice.candidates import HEADS
from fedkin.analysis.intervals import components, normal
from fedkin.analysis.paired import Outcomes, enough
from fedkin.tasks import Task

Values = npt.NDArray[np.float64]

# The squared error of a model that has diverged: worse than any other, and of a finite variance, so that its rate loses
# against one at which models do not diverge.
_DIVERGED = 1e100


# Intervals are of this level. A client takes a shared model if it is at least SURE that it gains, where all that could
# share gain on average with at least SURELY; elsewhere only if it is SURELY sure itself.
LEVEL, SURE, SURELY = 0.9, 0.8, 0.95
# Folds share training samples, and the models of the end are others than those of the folds: the variance within
# folds alone is too small. Chosen on 25 simulated federations, not on those whose coverage docs/advise.md reports.
INFLATED = 1.35


class Estimate(NamedTuple):
    """A mean difference in the task's metric, above 0 if it is better, and the variance of this mean."""

    value: float
    variance: float

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)

    def trained_on_all(self, share: float) -> Estimate:
        """The same for models of all samples, if those that were judged had seen this share of them.

        What a client gains by others' samples falls in first order as 1 / its own: a gain is overstated by 1 / share.
        A loss does not come from too few samples, and stays.
        """
        return self._replace(value=share * self.value) if self.value > 0 else self

    @property
    def low(self) -> float:
        """The lower end of the interval of level LEVEL."""
        return self.value - normal(LEVEL) * self.deviation

    @property
    def high(self) -> float:
        """The upper end."""
        return self.value + normal(LEVEL) * self.deviation

    def gains(self, sure: float) -> bool:
        """Whether the gain is above 0 with at least this probability."""
        return self.value > normal(2 * sure - 1) * self.deviation

    @property
    def hurt(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high < 0


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


def enough_for_verdict(task: Task, targets: Tensor) -> tuple[bool, str]:
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


def gain_over(mine: Sequence[Marks], theirs: Sequence[Marks]) -> Estimate | None:
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
    return Estimate(float(value), float(variance))


def _weight(part: tuple[Values, ...]) -> float:
    return float(len(part[0]) if len(part) == 1 else len(part[0]) * len(part[1]) / (len(part[0]) + len(part[1])))


def shrunk(gains: Mapping[str, Estimate | None]) -> dict[str, Estimate]:
    """Each client's gain, drawn towards what clients of its size gain, by as much as chance explains their spread.

    Clients with few samples have both the least sure gain and the most to gain: what is expected of a client is a line
    in its variance. The spread about the line is estimated by moments (DerSimonian and Laird), the weights and
    variances are those of Morris (JASA 1983) for few clients. Fewer than 4 are drawn towards nothing, fewer than 6
    towards their mean. Clients whose gain is not known (None) are left out.

    >>> found = shrunk({name: Estimate(value, 1.0) for name, value in zip("abcde", [2, 2.5, 3, 3.5, 4])})
    >>> [round(one.value, 2) for one in found.values()]
    [2.5, 2.75, 3.0, 3.25, 3.5]
    """
    by_id = {id: gain for id, gain in sorted(gains.items()) if gain is not None}
    g, v = _known(by_id)
    v, m = INFLATED * np.maximum(v, 1e-12), len(by_id)
    if m < 4:
        return _by_id(by_id, g, v)
    x = np.ones((m, 1)) if m < 6 or np.ptp(v) <= 1e-9 * v.max() else np.column_stack([np.ones(m), v / v.mean()])
    r = x.shape[1]
    between = _between(g, v, x)
    weight = 1 / (v + between)
    inverse = np.linalg.inv((x * weight[:, None]).T @ x)
    expected = x @ (inverse @ (x.T @ (weight * g)))
    pull = (m - r - 2) / (m - r) * v / (v + between)
    rest = g - expected
    typical = float((weight * v).sum() / weight.sum())
    extra = 2 / (m - r - 2) * pull**2 * (typical + between) / (v + between) * np.square(rest)
    # How much of the line's own error is in each client's estimate.
    leverage = weight * np.einsum("ij,jk,ik->i", x, inverse, x)
    return _by_id(by_id, expected + (1 - pull) * rest, v * (1 - (1 - leverage) * pull) + extra)


def _by_id(ids: Iterable[str], values: Values, variances: Values) -> dict[str, Estimate]:
    return {id: Estimate(float(g), float(v)) for id, g, v in zip(ids, values, variances, strict=True)}


def _between(g: Values, v: Values, x: Values) -> float:
    """The variance of gains about the line, beyond chance."""
    w = 1 / v
    inverse = np.linalg.inv((x * w[:, None]).T @ x)
    rest = g - x @ (inverse @ (x.T @ (w * g)))
    scale = float(w.sum() - np.trace(inverse @ ((x * np.square(w)[:, None]).T @ x)))
    return max(0.0, (float((w * np.square(rest)).sum()) - (len(g) - x.shape[1])) / scale) if scale > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Trials:
    """What all models did.

    did[candidate][option][id] lists what the models of a client did, one for each fold (None: not known). Options: the
    rates; or each rate with each strength, for heads of clients' own. candidates: from simple to complex, the first is
    local training. shares: of each candidate but the first, the ids of clients that share a model in it.
    """

    candidates: Sequence[str]
    did: Mapping[str, Sequence[Mapping[str, Sequence[Marks | None]]]]
    shares: Mapping[str, frozenset[str]]
    folds: int

    @property
    def ids(self) -> list[str]:
        """All clients."""
        return sorted(self.did[self.candidates[0]][0])

    def gain(
        self, mine: Sequence[tuple[str, int]], theirs: Sequence[tuple[str, int]], id: str, folds: Sequence[int]
    ) -> Estimate | None:
        """The gain of one (candidate, option) of each fold over another."""
        first, second = list[Marks](), list[Marks]()
        for fold, (name, option), (other, its) in zip(folds, mine, theirs, strict=True):
            one, two = self.did[name][option][id][fold], self.did[other][its][id][fold]
            if one is not None and two is not None:
                first.append(one)
                second.append(two)
        return gain_over(first, second)

    def gains(
        self, mine: tuple[str, int], theirs: tuple[str, int], ids: Iterable[str], folds: Sequence[int]
    ) -> dict[str, Estimate | None]:  # fmt: skip
        """The gain of each of these clients with one candidate and option over another, on all these folds."""
        return {id: self.gain([mine] * len(folds), [theirs] * len(folds), id, folds) for id in sorted(ids)}

    def option(self, candidate: str, folds: Sequence[int]) -> int:
        """The option with the best mean over clients on these folds; a client counts by how sure its gain is."""
        totals = []
        for option in range(len(self.did[candidate])):
            g, v = _known(self.gains((candidate, option), (self.candidates[0], 0), self.ids, folds))
            # One part of the weight is the spread between clients, so that no large client decides alone.
            weight = 1 / (v + v.mean() + 1e-12) if len(v) else v
            totals.append(float((weight * g).sum() / weight.sum()) if len(v) else 0.0)
        return int(np.argmax(totals))

    def best(self, folds: Sequence[int]) -> tuple[str, int]:
        """The collaboration (not the first candidate) with its option that is best for clients that may decline it.

        Of those that cannot be told from the best (one standard error), the first one.
        """
        local = (self.candidates[0], self.option(self.candidates[0], folds))
        ratings: dict[str, tuple[int, frozenset[str], float]] = {}
        for name in self.candidates[1:]:
            option = self.option(name, folds)
            gains = self.gains((name, option), local, self.shares[name], folds)
            taken = frozenset(id for id, one in shrunk(gains).items() if one.value > 0)
            ratings[name] = option, taken, self._worth((name, option), local, taken, folds)[0]
        top = max(ratings, key=lambda name: ratings[name][2])
        return next(
            (name, ratings[name][0]) for name in self.candidates[1:]
            if name == top or self._level(ratings, name, top, local, folds)
        )  # fmt: skip

    def _worth(
        self, mine: tuple[str, int], theirs: tuple[str, int], ids: Collection[str], folds: Sequence[int]
    ) -> tuple[float, float]:
        """The gain over these clients, and its variance; a client counts by how sure its gain is, to a degree."""
        g, v = _known(self.gains(mine, theirs, ids, folds))
        if not len(v):
            return 0.0, 0.0
        v = INFLATED * v
        weight = 1 / (v + v.mean() + 1e-12)
        weight = weight / weight.sum() * len(v)
        return float((weight * g).sum()), float((np.square(weight) * v).sum())

    def _level(
        self, ratings: Mapping[str, tuple[int, frozenset[str], float]], name: str, top: str, local: tuple[str, int],
        folds: Sequence[int],
    ) -> bool:  # fmt: skip
        """Whether a candidate is at most one standard error below the best, with all that do better alone."""
        behind, variance = 0.0, 0.0
        first, second = (top, ratings[top][0]), (name, ratings[name][0])
        both = ratings[top][1] & ratings[name][1]
        for mine, theirs, ids in (
            (first, second, both), (first, local, ratings[top][1] - both), (local, second, ratings[name][1] - both),
        ):  # fmt: skip
            value, error = self._worth(mine, theirs, ids, folds)
            behind, variance = behind + value, variance + error
        return behind <= math.sqrt(variance)


@dataclass(frozen=True, eq=False)
class Judged:
    """What was chosen, and what it is worth.

    candidate, option, local_option: chosen on all folds. gains: the gain of each client that shares a model in it over
    training alone, on folds whose choice, made on the others, was this candidate, with or without heads of clients'
    own. takes: who should take it. whole: the gains of one model for all, on all folds. stable: how many folds that
    are; if fewer than two, the gains are of all folds.
    """

    candidate: str
    option: int
    local_option: int
    gains: Mapping[str, Estimate]
    takes: frozenset[str]
    whole: Mapping[str, Estimate]
    stable: int

    @classmethod
    def of(cls, trials: Trials, share: float, whole: str = "all") -> Judged:
        """Judge all candidates: on all folds for what is recommended, fold by fold for what it is worth.

        share: of a client's samples, those that the models of a fold were trained on.
        """
        every = list(range(trials.folds))
        candidate, option = trials.best(every)
        first = trials.candidates[0]
        without = {fold: [other for other in every if other != fold] for fold in every}
        base = HEADS.get(candidate, candidate)
        chosen = {fold: trials.best(without[fold])[0] for fold in every}
        agreed = [fold for fold, name in chosen.items() if HEADS.get(name, name) == base]

        def gains(name: str, folds: Sequence[int]) -> tuple[dict[str, Estimate], frozenset[str]]:
            mine = [(name, trials.option(name, without[fold])) for fold in folds]
            alone = [(first, trials.option(first, without[fold])) for fold in folds]
            raw = {id: trials.gain(mine, alone, id, folds) for id in sorted(trials.shares[name])}
            estimates = {id: one.trained_on_all(share) for id, one in shrunk(raw).items()}
            sure = SURE if _mean(raw).gains(SURELY) else SURELY
            return estimates, frozenset(id for id, one in estimates.items() if one.gains(sure))

        estimates, takes = gains(candidate, agreed if len(agreed) > 1 else every)
        local = trials.option(first, every)
        return cls(candidate, option, local, estimates, takes, gains(whole, every)[0], len(agreed))


def _mean(gains: Mapping[str, Estimate | None]) -> Estimate:
    """The mean gain of these clients, each by how sure it is."""
    g, v = _known(gains)
    if not len(g):
        return Estimate(0.0, 0.0)
    v = INFLATED * np.maximum(v, 1e-12)
    weight = 1 / (v + _between(g, v, np.ones((len(g), 1))))
    return Estimate(float((weight * g).sum() / weight.sum()), 1 / float(weight.sum()))


def _known(gains: Mapping[str, Estimate | None]) -> tuple[Values, Values]:
    """(the gains that are known, their variances)."""
    known = [gain for gain in gains.values() if gain is not None]
    return np.array([one.value for one in known]), np.array([one.variance for one in known])
