"""Distances between sets of centres: low = alike.

Each client sends one set, for instance its k-means centres. Sets are an array [n, k, d], or a sequence of arrays
[k_i, d] if their sizes differ. With one argument the result is [n, n], symmetric, with a zero diagonal. With two
arguments it is [n, m], the distances between the two collections (for instance newcomers and known clients).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, as_sets

__all__ = ["hausdorff", "matching", "matching_of", "minimum"]

# Number of squared distances between centres in memory at once: 2^24 numbers take 128 MB.
_BLOCK = 1 << 24
_PAIRS = 1 << 13  # of `matching_of` at a time: they fit the cache
# Up to 10 centres, the table of subsets (2^k rows) is faster than an assignment solver called for each pair.
_LARGEST_TABLE = 10


def minimum(u: Any, v: Any = None) -> Array:
    """Return the minimum over pairs of centres of |u_r - v_s|_2 (FLT, Algorithm 1).

    >>> minimum([[[0.0], [5.0]], [[6.0], [9.0]]])
    array([[0., 1.],
           [1., 0.]])
    """
    return _between(u, v, lambda cost: np.sqrt(cost.min(axis=(0, 1))))


def hausdorff(u: Any, v: Any = None) -> Array:
    """Return max(max_r min_s |u_r - v_s|_2, max_s min_r |u_r - v_s|_2): the farthest centre from the other set.

    >>> hausdorff([[[0.0], [5.0]], [[6.0], [9.0]]])
    array([[0., 6.],
           [6., 0.]])
    """
    return _between(u, v, lambda cost: np.sqrt(np.maximum(cost.min(axis=1).max(axis=0), cost.min(axis=0).max(axis=0))))


def matching(u: Any, v: Any = None) -> Array:
    """Return sqrt(min over matchings of sum_r |u_r - v_pi(r)|_2^2) / k (FLT, released code).

    If sizes differ, the smaller set is matched into the larger, and k is the smaller size. Unmatched centres are
    ignored, so that a client with few centres can be near a client with more. The result is exact for any k;
    computation is fastest up to k = 10.

    >>> matching([[[0.0], [5.0]], [[6.0], [0.0]]])
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    return _between(u, v, lambda cost: np.sqrt(_assign(cost)) / min(cost.shape[:2]))


def matching_of(u: Any, rows: Any, columns: Any) -> Array:
    """Return the `matching` distance of the pairs (rows[p], columns[p]) of sets `u`: [p], without all other pairs.

    >>> matching_of([[[0.0], [5.0]], [[6.0], [0.0]], [[9.0], [9.0]]], [0, 1], [1, 1])
    array([0.5, 0. ])
    """
    sets = as_sets(u, "U")
    rows, columns = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
    sizes = np.array([len(one) for one in sets])
    place = np.empty(len(sets), dtype=np.int64)
    stacked = {}
    for k, members in _by_size(sets).items():
        place[members], stacked[k] = np.arange(len(members)), np.stack([sets[row] for row in members], axis=1)
    out = np.empty(len(rows))
    of = sizes[rows] * (sizes.max() + 1) + sizes[columns]
    for k, m in {(int(sizes[rows[at]]), int(sizes[columns[at]])) for at in np.unique(of, return_index=True)[1]}:
        pairs = np.flatnonzero((sizes[rows] == k) & (sizes[columns] == m))
        for start in range(0, len(pairs), _PAIRS):
            some = pairs[start : start + _PAIRS]
            a, b = stacked[k][:, place[rows[some]]], stacked[m][:, place[columns[some]]]
            cost = np.array([[np.square(one - other).sum(axis=1) for other in b] for one in a])
            out[some] = np.sqrt(_assign(cost)) / min(k, m)
    return out


def _between(u: Any, v: Any, measure: Callable[[Array], Array]) -> Array:
    """Apply `measure` to costs [k_u, k_v, rows, columns] (squared distances of centres), block by block."""
    one = as_sets(u, "U")
    two = one if v is None else as_sets(v, "V")
    if one[0].shape[1] != two[0].shape[1]:
        raise GraphError(f"V: expected centres of width {one[0].shape[1]} as in U, got {two[0].shape[1]}")
    out = np.zeros((len(one), len(two)))
    for rows, columns in _blocks(one, two, symmetric=v is None):
        block = measure(_costs([one[i] for i in rows], [two[j] for j in columns]))
        out[np.ix_(rows, columns)] = block
        if v is None:
            out[np.ix_(columns, rows)] = block.T
    if v is None:
        # The two directions of a pair sum its costs in different orders, so they may differ in the last bit.
        out = np.triu(out, 1)
        out += out.T
    return out


def _blocks(one: list[Array], two: list[Array], *, symmetric: bool) -> Iterator[tuple[list[int], list[int]]]:
    """Yield rows and columns of pairs of sets of equal sizes that fit in memory; if symmetric, each pair once."""
    sizes = [_by_size(one), _by_size(two)]
    for k, members in sizes[0].items():
        for m, others in sizes[1].items():
            if symmetric and m < k:
                continue
            step = max(1, int((_BLOCK / (k * m)) ** 0.5))
            for start in range(0, len(members), step):
                rows = members[start : start + step]
                first = start if symmetric and m == k else 0
                for from_ in range(first, len(others), step):
                    yield rows, others[from_ : from_ + step]


def _by_size(sets: list[Array]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, one in enumerate(sets):
        found.setdefault(len(one), []).append(row)
    return found


def _costs(one: list[Array], two: list[Array]) -> Array:
    """Return squared distances [k, m, one, two], from differences: equal centres are at exactly 0."""
    from scipy.spatial.distance import cdist

    a, b = np.stack(one, axis=1), np.stack(two, axis=1)
    out = np.empty((len(a), len(b), len(one), len(two)))
    for r in range(len(a)):
        for s in range(len(b)):
            cdist(a[r], b[s], "sqeuclidean", out=out[r, s])
    return out


def _assign(cost: Array) -> Array:
    """Return the least total cost of matching the smaller side into the larger, for every pair: [rows, columns]."""
    if len(cost) > cost.shape[1]:
        cost = cost.swapaxes(0, 1)
    k, m = cost.shape[:2]
    if m > _LARGEST_TABLE:
        return _assign_one_by_one(cost)
    # best[subset]: the least cost of matching the first |subset| centres to exactly this subset of the other side.
    best: dict[int, Array] = {0: np.zeros(cost.shape[2:])}
    for r in range(k):
        grown: dict[int, Array] = {}
        for subset in _subsets(m, r + 1):
            members = [s for s in range(m) if subset >> s & 1]
            total = best[subset ^ (1 << members[0])] + cost[r, members[0]]
            other = np.empty_like(total)
            for s in members[1:]:
                np.add(best[subset ^ (1 << s)], cost[r, s], out=other)
                np.minimum(total, other, out=total)
            grown[subset] = total
        best = grown
    return np.asarray(np.minimum.reduce(list(best.values())))


@cache
def _subsets(m: int, size: int) -> tuple[int, ...]:
    return tuple(sum(1 << s for s in chosen) for chosen in combinations(range(m), size))


def _assign_one_by_one(cost: Array) -> Array:
    from scipy.optimize import linear_sum_assignment

    out = np.empty(cost.shape[2:])
    for i, j in np.ndindex(out.shape):
        row, column = linear_sum_assignment(cost[:, :, i, j])
        out[i, j] = cost[row, column, i, j].sum()
    return out
