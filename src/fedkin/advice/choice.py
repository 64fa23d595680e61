"""The choice of a candidate, its rate and strength, and the clients that do better alone.

Our own design: each choice is judged on folds that it was not made on; each client's gain is shrunk towards the mean of
all by the part of the spread that chance explains (empirical Bayes), so that the largest of many gains is not too high.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkin.advice.candidates import HEADS
from fedkin.analysis.intervals import components, normal, unit_counts, variance_of_units
from fedkin.analysis.paired import Outcomes, enough
from fedkin.federation import Samples
from fedkin.federation.arrays import Floats, Ints
from fedkin.learning.losses import per_sample
from fedkin.methods.kin import clearly_better
from fedkin.tasks import Task

# How a candidate is trained: (number of the learning rate, number of the client's model). Model 0 is the shared one,
# each other one has a head of the client's own.
Option = tuple[int, int]
Pick = tuple[str, Option]  # a candidate with one of its options
# The chosen candidate, whose clients also train bodies of their own; model 0 then has the shared head.
OWN_BODIES = "own bodies"
_LOCAL: Pick = ("local", (0, 0))  # local training with the first rate, as a reference for rates

# The loss of a diverged model: worse than any other, but with a finite variance, so that its rate loses against rates
# without divergence.
_DIVERGED = 1e100


# LEVEL: of all intervals. A client takes a shared model if it gains with probability SURE or more, provided that the
# mean gain of all that could share is above 0 with probability SURELY or more; else only if it itself reaches SURELY.
LEVEL, SURE, SURELY = 0.9, 0.8, 0.95
# Folds share training samples, and the final models are not those of the folds, so the variance within folds alone is
# too small. Chosen on 25 simulated federations, other than those whose coverage docs/advise.md reports.
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
        """The estimate for models trained on all samples, if the judged models were trained on this share of them.

        To first order, a client's gain from others' samples falls as 1 / its own samples, so a gain is overstated by
        1 / share. A loss does not come from too few samples, and stays unchanged.
        """
        return self._replace(value=share * self.value) if self.value > 0 else self

    @property
    def low(self) -> float:
        """The lower end of the interval of level LEVEL."""
        return self.value - normal(LEVEL) * self.deviation

    @property
    def high(self) -> float:
        """The upper end of the interval of level LEVEL."""
        return self.value + normal(LEVEL) * self.deviation

    def gains(self, sure: float) -> bool:
        """Whether the gain is above 0 with at least this probability."""
        return self.value > normal(2 * sure - 1) * self.deviation

    @property
    def hurt(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high < 0


class Marks(NamedTuple):
    """The numbers of a fold whose means are a model's metric, for one kind of task; higher is better.

    sides: the numbers of all samples; in a risk task, those of events and those of non-events. loss: the mean loss.
    units: for each side the person of each number; None: each sample is independent.
    """

    kind: str
    sides: tuple[Floats, ...]
    loss: float = math.nan
    units: tuple[Ints, ...] | None = None


# The marks of a candidate's models by option and id, one for each fold (None: unknown).
Marked = Mapping[Option, Mapping[str, Sequence[Marks | None]]]


def outcomes_of(task: Task, outputs: Tensor, targets: Tensor) -> Outcomes:
    """The outcome of a model on each sample: right or wrong, the score of an event, or the squared error."""
    if task.kind == "regression":
        error = (outputs.double() - targets.double()).square().sum(1)
        return Outcomes("regression", torch.nan_to_num(error, _DIVERGED, _DIVERGED).clamp_max(_DIVERGED).numpy())
    if task.kind == "risk":
        margin = outputs[:, 1].double() - outputs[:, 0].double()
        return Outcomes("risk", torch.nan_to_num(margin).numpy(), targets.numpy())
    right = (outputs[:, : task.classes].argmax(1) == targets).to(torch.float64)
    return Outcomes("classification", right.numpy())


def losses_of(task: Task, outputs: Tensor, targets: Tensor) -> Floats:
    """The loss of a model on each sample."""
    losses = per_sample(task)(outputs.double(), targets).double()
    return torch.nan_to_num(losses, _DIVERGED, _DIVERGED).clamp_max(_DIVERGED).numpy()


def units_of(samples: Samples) -> Ints | None:
    """The number of each sample's person; None if persons are not known: each sample is independent."""
    return None if samples.person is None else samples.units()


def enough_for_verdict(task: Task, samples: Samples) -> tuple[bool, str]:
    """Whether these validation samples are enough for a verdict (`fedkin.analysis.paired.enough`), and their number.

    Each person counts once, as an event if any of its samples is one.
    """
    units, alone = samples.units(), samples.person is None
    n = len(np.unique(units))
    if task.kind != "risk":
        return enough(n), f"{n} {'sample' if alone else 'person'}{'s' * (n != 1)}"
    events = len(np.unique(units[samples.labels().numpy() == 1]))
    rarer, word, which = (events, "event", "with") if events <= n - events else (n - events, "non-event", "without")
    many = "s" * (rarer != 1)
    return enough(n, events), f"{rarer} {word}{many}" if alone else f"{rarer} person{many} {which} an event"


def marks_of(outcomes: Outcomes, loss: float = math.nan, units: Ints | None = None) -> Marks | None:
    """Turn a fold's outcomes into numbers whose mean is the model's metric; higher is better. loss: its mean loss.

    One number for each sample; in a risk task one for each event and one for each non-event, and both means are the AUC
    (DeLong's components). None if the samples do not determine the metric. units: the unit of each sample.
    """
    if outcomes.kind == "risk":
        labels = outcomes.labels
        if labels is None or not 0 < labels.sum() < len(labels):
            return None
        by_side = None if units is None else (units[labels == 1], units[labels == 0])
        return Marks("risk", components(outcomes.values, labels), loss, by_side)
    if not len(outcomes):
        return None
    sides = (-outcomes.values if outcomes.kind == "regression" else outcomes.values,)
    return Marks(outcomes.kind, sides, loss, None if units is None else (units,))


def gain_over(mine: Sequence[Marks], theirs: Sequence[Marks]) -> Estimate | None:
    """The gain over several folds; each fold is judged by itself, because models of two folds have different scales.

    A fold's weight is its number of samples, or in a risk task that of its pairs of an event and a non-event. The
    variance within folds is estimated from all folds together; samples of one unit are not independent, so deviations
    are summed within units (cluster-robust; Obuchowski, Biometrics 1997). None if these samples do not determine it.
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
    units = [one.units for one in mine if one.units is not None]
    variance = variance_of_units(parts, weight, units) if units else _variance_within(parts, weight)
    if variance is None:
        return None
    if mine[0].kind == "classification":
        # Two models that agree on n samples may differ on the next one: as if one more sample were right for only one.
        n = unit_counts(units)[0] if units else sum(len(part[0]) for part in parts)
        variance += 1 / n**2
    return Estimate(float(value), float(variance))


def _variance_within(parts: Sequence[tuple[Floats, ...]], weight: Floats) -> float | None:
    """The variance of a weighted mean over folds, from the spread within folds; None if a side has no spread."""
    variance = 0.0
    for sides in zip(*parts, strict=True):
        free = sum(len(side) - 1 for side in sides)
        if free < 1:
            return None
        spread = sum(float(np.square(side - side.mean()).sum()) for side in sides) / free
        variance += sum(w * w * spread / len(side) for w, side in zip(weight, sides, strict=True))
    return variance


def _weight(part: tuple[Floats, ...]) -> float:
    return float(len(part[0]) if len(part) == 1 else len(part[0]) * len(part[1]) / (len(part[0]) + len(part[1])))


def shrunk(gains: Mapping[str, Estimate | None]) -> dict[str, Estimate]:
    """Shrink each client's gain towards that of clients of its size, by the part of their spread that chance explains.

    Clients with few samples have gains of the largest variance and gain most, so the expected gain is linear in the
    variance of a client's gain. The spread about this line is estimated by moments (DerSimonian and Laird); the weights
    and variances are those of Morris (JASA 1983) for few clients. With fewer than 4 clients nothing is shrunk; with
    fewer than 6, gains are shrunk towards their mean. Clients with an unknown gain (None) are left out.

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
    # The part of the line's own error in each client's estimate.
    leverage = weight * np.einsum("ij,jk,ik->i", x, inverse, x)
    return _by_id(by_id, expected + (1 - pull) * rest, v * (1 - (1 - leverage) * pull) + extra)


def _by_id(ids: Iterable[str], values: Floats, variances: Floats) -> dict[str, Estimate]:
    return {id: Estimate(float(g), float(v)) for id, g, v in zip(ids, values, variances, strict=True)}


def _between(g: Floats, v: Floats, x: Floats) -> float:
    """The variance of gains about the line that chance does not explain."""
    w = 1 / v
    inverse = np.linalg.inv((x * w[:, None]).T @ x)
    rest = g - x @ (inverse @ (x.T @ (w * g)))
    scale = float(w.sum() - np.trace(inverse @ ((x * np.square(w)[:, None]).T @ x)))
    return max(0.0, (float((w * np.square(rest)).sum()) - (len(g) - x.shape[1])) / scale) if scale > 0 else 0.0


class _Rating(NamedTuple):
    """A candidate with its best option: the clients that would take it, and their total gain over local training."""

    pick: Pick
    taken: frozenset[str]
    worth: float


@dataclass(frozen=True, eq=False)
class Trials:
    """The marks of all models.

    marks: by candidate. shares: for each candidate except "local", from simple to complex, the ids of clients that
    share a model in it.
    """

    marks: Mapping[str, Marked]
    shares: Mapping[str, frozenset[str]]
    folds: int

    def gain(self, mine: Sequence[Pick], theirs: Sequence[Pick], id: str, folds: Sequence[int]) -> Estimate | None:
        """A client's gain of `mine` over `theirs`, each with one (candidate, option) per fold."""
        first, second = list[Marks](), list[Marks]()
        for fold, (name, option), (other, its) in zip(folds, mine, theirs, strict=True):
            one, two = self.marks[name][option][id][fold], self.marks[other][its][id][fold]
            if one is not None and two is not None:
                first.append(one)
                second.append(two)
        return gain_over(first, second)

    def gains(self, mine: Pick, theirs: Pick, ids: Iterable[str], folds: Sequence[int]) -> dict[str, Estimate | None]:
        """The gain of each of these clients with `mine` (candidate, option) over `theirs`, on all these folds."""
        return {id: self.gain([mine] * len(folds), [theirs] * len(folds), id, folds) for id in sorted(ids)}

    def without(self, fold: int) -> list[int]:
        """The other folds."""
        return [other for other in range(self.folds) if other != fold]

    def judged(self, name: str, folds: Sequence[int], share: float) -> tuple[dict[str, Estimate], frozenset[str]]:
        """Return (the shrunk gains of a candidate over local training, the clients that should take it).

        Options are chosen on the other folds. share: as for `Judged.of`.
        """
        mine = [self.pick(name, self.without(fold)) for fold in folds]
        alone = [("local", self.option("local", self.without(fold))) for fold in folds]
        raw = {id: self.gain(mine, alone, id, folds) for id in sorted(self.shares[name])}
        estimates = {id: one.trained_on_all(share) for id, one in shrunk(raw).items()}
        sure = SURE if _mean(raw).gains(SURELY) else SURELY
        return estimates, frozenset(id for id, one in estimates.items() if one.gains(sure))

    def pick(self, name: str, folds: Sequence[int]) -> Pick:
        """The candidate with its best option on these folds, or with own bodies if their loss is clearly smaller."""
        best = self.option(name, folds)
        options = [option for option in self.marks[name] if option[0] == best[0]]
        if options[0] not in self.marks.get(OWN_BODIES, ()):
            return name, best
        mine, sizes = self._costs(OWN_BODIES, options, self.shares[name], folds)
        theirs, _ = self._costs(name, options, self.shares[name], folds)
        index = clearly_better(mine, theirs, sizes)
        return (name, best) if index is None else (OWN_BODIES, options[index])

    def _costs(
        self, name: str, options: Sequence[Option], ids: Iterable[str], folds: Sequence[int]
    ) -> tuple[dict[str, Floats], dict[str, int]]:
        """Clients' mean losses on these folds, {id: [1, options]}, and numbers of samples; without unknown clients."""
        costs, sizes = dict[str, Floats](), dict[str, int]()
        for id in sorted(ids):
            known = [[one for fold in folds if (one := self.marks[name][option][id][fold])] for option in options]
            if known[0]:
                costs[id] = np.array([[np.mean([one.loss for one in each]) for each in known]])
                sizes[id] = sum(len(side) for one in known[0] for side in one.sides)
        return costs, sizes

    def option(self, candidate: str, folds: Sequence[int]) -> Option:
        """The option with the best mean over clients on these folds; gains of less variance have more weight."""
        options, totals = self.marks[candidate], list[float]()
        for option, by_id in options.items():
            g, v = _known(self.gains((candidate, option), _LOCAL, by_id, folds))
            # The mean variance limits the weights, so that no large client decides alone.
            weight = 1 / (v + v.mean() + 1e-12) if len(v) else v
            totals.append(float((weight * g).sum() / weight.sum()) if len(v) else 0.0)
        return list(options)[int(np.argmax(totals))]

    def best(self, folds: Sequence[int]) -> Pick:
        """The best (candidate, option) other than local training, if clients may use local models instead.

        Among candidates within one standard error of the best, take the first one.
        """
        local = "local", self.option("local", folds)
        ratings = []
        for name, ids in self.shares.items():
            pick = name, self.option(name, folds)
            gains = self.gains(pick, local, ids, folds)
            taken = frozenset(id for id, one in shrunk(gains).items() if one.value > 0)
            ratings.append(_Rating(pick, taken, self._worth(pick, local, taken, folds)[0]))
        top = max(ratings, key=lambda rating: rating.worth)
        return next(one.pick for one in ratings if one is top or self._nearly_as_good(one, top, local, folds))

    def _worth(self, mine: Pick, theirs: Pick, ids: Collection[str], folds: Sequence[int]) -> tuple[float, float]:
        """The total gain over these clients, and its variance; weights fall with a gain's variance, within limits."""
        g, v = _known(self.gains(mine, theirs, ids, folds))
        if not len(v):
            return 0.0, 0.0
        v = INFLATED * v
        weight = 1 / (v + v.mean() + 1e-12)
        weight = weight / weight.sum() * len(v)
        return float((weight * g).sum()), float((np.square(weight) * v).sum())

    def _nearly_as_good(self, one: _Rating, top: _Rating, local: Pick, folds: Sequence[int]) -> bool:
        """Whether a candidate is at most one standard error below `top`, if clients may use local models."""
        behind, variance = 0.0, 0.0
        comparisons = (
            (top.pick, one.pick, top.taken & one.taken), (top.pick, local, top.taken - one.taken),
            (local, one.pick, one.taken - top.taken),
        )  # fmt: skip
        for mine, theirs, ids in comparisons:
            value, error = self._worth(mine, theirs, ids, folds)
            behind, variance = behind + value, variance + error
        return behind <= math.sqrt(variance)


@dataclass(frozen=True, eq=False)
class Judged:
    """The choice and its gains.

    candidate, option, own_body, local_option: chosen on all folds. gains: the gain over training alone of each client
    that shares a model in the candidate, on agreeing folds. A fold agrees if the choice on the other folds was this
    candidate, with or without own heads. takes: clients that should take it. whole: the gains of one model for all, on
    all folds. stable: number of agreeing folds; if fewer than two, the gains are of all folds.
    """

    candidate: str
    option: Option
    own_body: bool
    local_option: Option
    gains: Mapping[str, Estimate]
    takes: frozenset[str]
    whole: Mapping[str, Estimate]
    stable: int

    def renamed(self, names: Mapping[str, str]) -> Judged:
        """The same with other ids of clients."""
        gains, whole = ({names[id]: gain for id, gain in each.items()} for each in (self.gains, self.whole))
        return replace(self, gains=gains, takes=frozenset(names[id] for id in self.takes), whole=whole)

    @classmethod
    def of(cls, trials: Trials, share: float, own_bodies: Marked | None = None) -> Judged:
        """Judge all candidates: choose the recommended one on all folds, and estimate its gains fold by fold.

        share: the share of a client's samples that a fold's models were trained on. own_bodies: marks of the
        recommended candidate with own bodies, if tried.
        """
        every = range(trials.folds)
        candidate, _ = trials.best(every)
        base = HEADS.get(candidate, candidate)
        chosen = {fold: trials.best(trials.without(fold))[0] for fold in every}
        agreed = [fold for fold, name in chosen.items() if HEADS.get(name, name) == base]
        tried = replace(trials, marks={**trials.marks, OWN_BODIES: own_bodies or {}})
        name, option = tried.pick(candidate, every)
        estimates, takes = tried.judged(candidate, agreed if len(agreed) > 1 else every, share)
        local, (whole, _) = trials.option("local", every), trials.judged("all", every, share)
        return cls(candidate, option, name == OWN_BODIES, local, estimates, takes, whole, len(agreed))


def _mean(gains: Mapping[str, Estimate | None]) -> Estimate:
    """The mean gain of these clients; gains of less variance have more weight."""
    g, v = _known(gains)
    if not len(g):
        return Estimate(0.0, 0.0)
    v = INFLATED * np.maximum(v, 1e-12)
    weight = 1 / (v + _between(g, v, np.ones((len(g), 1))))
    return Estimate(float((weight * g).sum() / weight.sum()), 1 / float(weight.sum()))


def _known(gains: Mapping[str, Estimate | None]) -> tuple[Floats, Floats]:
    """(known gains, their variances)."""
    known = [gain for gain in gains.values() if gain is not None]
    return np.array([one.value for one in known]), np.array([one.variance for one in known])
