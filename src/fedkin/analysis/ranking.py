"""Comparison of methods over several federations or seeds: ranks, tests, and groups of methods not told apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

# With fewer federations or seeds, Wilcoxon's p-value cannot be 5 % or less, whatever the figures are, and the
# approximations behind Friedman's and Nemenyi's tests are poor.
LEAST_BLOCKS = 6
ALPHA = 0.05  # the level of all tests


class Diagram(NamedTuple):
    """The numbers of a critical-difference diagram (Demsar, 2006).

    methods: names, best mean rank first. ranks: their mean ranks, 1 is best. friedman: p-value of the test of all.
    difference: Nemenyi's critical difference of mean ranks. groups: neighbouring methods that are not told apart, each
    group of at least 2 and none inside another. p: Wilcoxon's p-values of pairs after Holm's correction, [k, k] in the
    order of `methods`. For two methods, friedman and difference are None and the groups are by p.
    """

    methods: tuple[str, ...]
    ranks: tuple[float, ...]
    friedman: float | None
    difference: float | None
    groups: tuple[tuple[str, ...], ...]
    p: npt.NDArray[np.float64]


def holm(p: Any) -> list[float]:
    """P-values after Holm's correction (1979), in the given order: reject where they are at most alpha.

    >>> [round(one, 3) for one in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    corrected, most = [0.0] * len(p), 0.0
    for rank, at in enumerate(order):
        most = max(most, min(1.0, (len(p) - rank) * float(p[at])))
        corrected[int(at)] = most
    return corrected


def mean_ranks(values: Any, higher: bool = True) -> npt.NDArray[np.float64]:
    """Mean ranks of methods over rows [blocks, methods]; 1 is best, equal values share a rank.

    >>> mean_ranks([[0.9, 0.8, 0.7], [0.9, 0.9, 0.1]]).tolist()
    [1.25, 1.75, 3.0]
    """
    table = np.asarray(values, dtype=np.float64)
    return np.asarray(scipy.stats.rankdata(-table if higher else table, axis=1).mean(0))


def friedman(values: Any) -> float:
    """The p-value of Friedman's test (1937) of "all methods have equal ranks"; values [blocks, 3 methods or more].

    >>> round(friedman([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0]]), 3)
    0.097
    """
    table = np.asarray(values, dtype=np.float64)
    if all(len(set(row)) == 1 for row in table.tolist()):
        return 1.0
    return float(scipy.stats.friedmanchisquare(*table.T).pvalue)


def critical_difference(methods: int, blocks: int, alpha: float = ALPHA) -> float:
    """Nemenyi's critical difference of mean ranks: q_alpha sqrt(k (k + 1) / (6 N)) (Demsar, 2006, section 3.2.2).

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    q = float(scipy.stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def wilcoxon_holm(values: Any) -> npt.NDArray[np.float64]:
    """P-values [k, k] of Wilcoxon's signed-rank test of each pair of methods, after Holm's correction; 1 with itself.

    values: [blocks, methods]. Differences of 0 are left out; a pair with only such differences has p-value 1.
    """
    table = np.asarray(values, dtype=np.float64)
    pairs = list(combinations(range(table.shape[1]), 2))
    gaps = [table[:, a] - table[:, b] for a, b in pairs]
    raw = [float(scipy.stats.wilcoxon(gap[gap != 0]).pvalue) if gap.any() else 1.0 for gap in gaps]
    p_values = np.ones((table.shape[1], table.shape[1]))
    for (a, b), p in zip(pairs, holm(raw), strict=True):
        p_values[a, b] = p_values[b, a] = p
    return p_values


def groups_within(ranks: Sequence[float], apart: Any) -> list[tuple[int, ...]]:
    """The longest sequences of at least 2 methods, in the order of their ranks, in which no two are told apart.

    apart: [k, k], whether two methods, in the order of `ranks`, are told apart.

    >>> groups_within([1.0, 1.5, 3.0], [[False, False, True], [False, False, False], [True, False, False]])
    [(0, 1), (1, 2)]
    """
    order, split = sorted(range(len(ranks)), key=lambda at: ranks[at]), np.asarray(apart, dtype=bool)
    groups: list[tuple[int, ...]] = []
    for start in range(len(order)):
        stop = start + 1
        while stop < len(order) and not split[order[stop], [order[at] for at in range(start, stop)]].any():
            stop += 1
        run = tuple(order[start:stop])
        if len(run) > 1 and not (groups and set(run) <= set(groups[-1])):
            groups.append(run)
    return groups


def diagram(values: Mapping[str, Any], higher: bool = True) -> Diagram:
    """Compare methods over the same federations or seeds: Friedman and Nemenyi; for two methods Wilcoxon.

    values: numbers of each method, in the same order of federations or seeds; with the same 12 digits they are equal.
    If Friedman's test does not reject, all methods are in one group, whatever Nemenyi's critical difference says.

    >>> found = diagram({"a": [0.9, 0.8, 0.9, 0.7], "b": [0.5, 0.4, 0.5, 0.6], "c": [0.4, 0.5, 0.3, 0.1]})
    >>> found.methods, found.groups
    (('a', 'b', 'c'), (('a', 'b'), ('b', 'c')))
    """
    # Means of the same fractions in another order differ in their last bits, which would rank them.
    table = np.array([[float(f"{value:.12g}") for value in row] for row in values.values()]).T
    ranks = mean_ranks(table, higher)
    order = sorted(range(len(ranks)), key=lambda at: (ranks[at], list(values)[at]))
    table, ranks = table[:, order], ranks[order]
    methods, p = tuple(list(values)[at] for at in order), wilcoxon_holm(table)
    if len(methods) == 2:
        tested, gap, apart = None, None, p <= ALPHA
    else:
        tested, gap = friedman(table), critical_difference(len(methods), len(table), ALPHA)
        apart = np.abs(ranks[:, None] - ranks[None, :]) > (gap if tested <= ALPHA else np.inf)
    groups = tuple(tuple(methods[at] for at in run) for run in groups_within(ranks.tolist(), apart))
    return Diagram(methods, tuple(ranks.tolist()), tested, gap, groups, p)
