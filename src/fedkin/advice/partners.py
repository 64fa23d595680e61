"""What each partner adds to each client: an estimate from models of coalitions, on held-out samples.

The value of a coalition to a member is the metric of its one shared model (FedAvg) on the member's held-out samples;
that of the member alone is the metric of its local model, which has a learning rate of its own.
What a partner adds to a client is its Shapley value (1953) in the game in which the partner and the client's group may
join the client: the gain of a coalition with the partner over the coalition without it, averaged over coalitions of one
size, then over sizes. Thus the members of a group share its gain, and a partner and its copy share what either would
add. For a group of up to EXACT clients, all coalitions are trained. For a larger group, the coalitions are the first
members of ORDERS random orders, and partners outside the group join each member alone and the complete group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedkin.advice.candidates import Shape
from fedkin.advice.choice import INFLATED, LEVEL, Estimate, Marks, gain_over
from fedkin.analysis.intervals import normal
from fedkin.federation.arrays import Floats
from fedkin.keys import rng

EXACT, ORDERS, MOST = 10, 12, 40

Coalition = frozenset[str]


def coalitions_of(groups: Iterable[Coalition], ids: Sequence[str], seed: int) -> list[Coalition]:
    """All coalitions to train, each of two clients or more.

    >>> ["".join(sorted(each)) for each in coalitions_of([frozenset("ab"), frozenset("c")], ["a", "b", "c"], 0)]
    ['abc', 'ab', 'ac', 'bc']
    """
    coalitions = {frozenset(ids)}
    for group in set(groups):
        members = sorted(group)
        if len(members) > EXACT:
            coalitions |= _drawn(members, seed)
            base = [group, *(frozenset({id}) for id in members)]
        else:
            base = [frozenset(some) for size in range(1, len(members) + 1) for some in combinations(members, size)]
        coalitions |= {coalition | {id} for coalition in base for id in ids}
    return sorted((each for each in coalitions if len(each) > 1), key=lambda each: (-len(each), sorted(each)))


def _drawn(members: Sequence[str], seed: int) -> set[Coalition]:
    """The first members of random orders, and the group without each member."""
    draw = rng(seed, "partners", *members)
    coalitions = {frozenset(members) - {id} for id in members}
    for _ in range(ORDERS):
        order = [members[index] for index in draw.permutation(len(members))]
        coalitions |= {frozenset(order[:size]) for size in range(2, len(members))}
    return coalitions


def coalition_shapes(coalitions: Iterable[Coalition]) -> list[Shape]:
    """Pack coalitions into shapes; those in one shape have no common member."""
    packed: list[list[Coalition]] = []
    for each in coalitions:
        beside = next((some for some in packed if all(map(each.isdisjoint, some))), None)
        if beside is None:
            packed.append(beside := [])
        beside.append(each)
    return [Shape(tuple(sorted(tuple(sorted(each)) for each in beside))) for beside in packed]


@dataclass(frozen=True)
class PartnerValues:
    """Estimates of what partners add to clients, in the task's metric.

    adds: {client: {partner: what it adds}}. last: what the partner adds to the client's complete group. groups: each
    client's gain from its group over training alone. everybody: its gain from all other clients. exact: whether all
    coalitions were trained.
    """

    adds: Mapping[str, Mapping[str, Estimate]]
    last: Mapping[str, Mapping[str, Estimate]]
    groups: Mapping[str, Estimate]
    everybody: Mapping[str, Estimate]
    exact: bool

    @property
    def edges(self) -> int:
        """The number of pairs of a client and a partner; verdicts on pairs are corrected for this number."""
        return sum(len(partners) for partners in self.adds.values())

    def verdict(self, client: str, partner: str) -> str:
        """Return "helps" or "hurts", or an empty text if the corrected interval contains 0."""
        low, high = interval(self.adds[client][partner], self.edges)
        return "helps" if low > 0 else "hurts" if high < 0 else ""

    def of_partner(self, partner: str) -> tuple[Estimate, Estimate]:
        """(what a partner adds on average to another client, over coalitions; what it adds to the complete group)."""
        means = []
        for adds in (self.adds, self.last):
            each = [partners[partner] for client, partners in sorted(adds.items()) if client != partner]
            variance = sum(one.variance for one in each) / len(each) ** 2
            means.append(Estimate(sum(one.value for one in each) / len(each), variance))
        return means[0], means[1]


def interval(one: Estimate, comparisons: int) -> tuple[float, float]:
    """The ends of an interval such that this many intervals hold simultaneously at level LEVEL (Bonferroni)."""
    reach = normal(1 - (1 - LEVEL) / comparisons) * one.deviation
    return one.value - reach, one.value + reach


def worth_of(
    marks: Mapping[str, Sequence[Mapping[Coalition, Marks]]], groups: Mapping[str, Coalition]
) -> PartnerValues:
    """Compute what partners add, from the marks of the coalitions' models.

    marks: {client: for each fold that determines its metric, the marks of the model of each of its coalitions}. groups:
    for each client, itself and its partners in the chosen candidate.
    """
    everybody = frozenset(marks)
    adds, last = dict[str, dict[str, Estimate]](), dict[str, dict[str, Estimate]]()
    of_group, of_all = dict[str, Estimate](), dict[str, Estimate]()
    for id in sorted(marks):
        alone, group = frozenset({id}), groups[id]
        folds = _Folds(marks[id])
        if not folds.determined:
            continue
        adds[id], last[id] = {}, {}
        for partner in sorted(everybody - alone):
            players = group | {partner}
            drawn = partner in group and len(group) > EXACT
            adds[id][partner] = folds.added(partner, players, drawn)
            last[id][partner] = folds.gain(players, players - {partner})
        if len(group) > 1:
            of_group[id] = folds.gain(group, alone)
        of_all[id] = folds.gain(everybody, alone)
    return PartnerValues(adds, last, of_group, of_all, max(map(len, groups.values())) <= EXACT)


class _Folds:
    """The marks of a client's models in each fold: [coalitions, samples] for each side of the metric (see `Marks`)."""

    def __init__(self, folds: Sequence[Mapping[Coalition, Marks]]) -> None:
        self.number = {coalition: index for index, coalition in enumerate(folds[0] if folds else ())}
        self.stacks = [
            [np.stack(side) for side in zip(*(fold[coalition].sides for coalition in self.number), strict=True)]
            for fold in folds
        ]
        self.units = [next(iter(fold.values())).units for fold in folds]
        self.kind = next((one.kind for fold in folds for one in fold.values()), "")
        self.determined = bool(folds) and self._sum(np.zeros(len(self.number))) is not None

    def gain(self, one: Coalition, other: Coalition) -> Estimate:
        """The gain of one coalition over another."""
        return self._mean([[(self.number[one], self.number[other])]], drawn=False)

    def added(self, partner: str, players: Coalition, drawn: bool) -> Estimate:
        """What a partner adds in coalitions of these players; drawn: whether the coalitions are a random sample."""
        by_size: dict[int, list[tuple[int, int]]] = {}
        for coalition, index in self.number.items():
            without = self.number.get(coalition - {partner})
            if partner in coalition and coalition <= players and without is not None:
                by_size.setdefault(len(coalition), []).append((index, without))
        return self._mean(list(by_size.values()), drawn)

    def _mean(self, by_size: Sequence[Sequence[tuple[int, int]]], drawn: bool) -> Estimate:
        """The mean over sizes of the mean gain of each size."""
        weights = np.zeros(len(self.number))
        for pairs in by_size:
            with_partner, without = np.array(pairs).T
            np.add.at(weights, with_partner, 1 / (len(by_size) * len(pairs)))
            np.add.at(weights, without, -1 / (len(by_size) * len(pairs)))
        gain = self._sum(weights)
        assert gain is not None
        return Estimate(gain.value, INFLATED * gain.variance + (self._drawn(by_size) if drawn else 0.0))

    def _sum(self, weights: Floats) -> Estimate | None:
        """The mean over samples of the models' weighted sum, and its variance; None if not determined."""
        sums = [
            Marks(self.kind, tuple(weights @ side for side in sides), units=units)
            for sides, units in zip(self.stacks, self.units, strict=True)
        ]
        zeros = [Marks(self.kind, tuple(np.zeros_like(side) for side in one.sides)) for one in sums]
        return gain_over(sums, zeros)

    def _drawn(self, by_size: Sequence[Sequence[tuple[int, int]]]) -> float:
        """The variance due to the random sample of coalitions, if gains of all sizes vary about one mean."""
        values = np.mean([side.mean(axis=1) for sides in self.stacks for side in sides], axis=0)
        with_partner, without = np.array([pair for pairs in by_size for pair in pairs]).T
        gains = values[with_partner] - values[without]
        if len(gains) < 2:
            return 0.0
        return float(gains.var(ddof=1)) * sum(1 / len(pairs) for pairs in by_size) / len(by_size) ** 2
