"""FLT with more clients than all distances between them fit into memory: each has only its neighbours.

Groups and gamma are those of some clients, drawn by the run's seed, whose distances are all computed; the others join
the group whose drawn members are nearest on average, as newcomers do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedkin import graph
from fedkin.keys import rng
from fedkin.methods.flt.relatedness import Array, Labels, RelatednessSettings, Sets, adjacency, distances, embedded

__all__ = ["LARGEST", "NEAR", "Near", "drawn", "joining", "linked", "neighbours", "placed", "spread", "to_groups"]

LARGEST = 5000  # clients up to which all distances are computed, and how many are drawn of more
NEAR = 16  # neighbours of a client
_CANDIDATES = 12  # times so many are compared by their true distance
_DIRECTIONS = 32  # on which centres are projected to find candidates
_MEMBERS = 10  # of each group with which a client is compared
_ROWS = 2000  # clients that are compared with these at a time
_CHECKED = 32  # clients whose true neighbours are found, to state the recall

Rows = npt.NDArray[np.int64]


class Near(NamedTuple):
    """columns, distances [rows, k]: each row's nearest others, at inf where there are fewer.

    recall: the share of the true ones that were found, measured on some rows; None if it was not asked for.
    """

    columns: Rows
    distances: Array
    recall: float | None


def drawn(clients: int, seed: int) -> Rows:
    """The rows of the clients that make the groups."""
    return np.sort(rng(seed, "drawn").permutation(clients)[:LARGEST])


def joining(places: Sets, known: Sets, labels: Labels, settings: RelatednessSettings, seed: int) -> tuple[Labels, Rows]:
    """For each of these clients: the group of `known` that is nearest, and its nearest client of `known`.

    Both are found from at most ten members of each group; the group's distance is the mean of theirs.
    """
    draw = rng(seed, "members")
    groups = np.unique(labels)
    some = np.concatenate([draw.permutation(np.flatnonzero(labels == one))[:_MEMBERS] for one in groups])
    others = [known[row] for row in some.tolist()]
    joins, near = [], []
    for at in range(0, len(places), _ROWS):
        between = distances(places[at : at + _ROWS], settings, others)
        joins.append(groups[to_groups(between, labels[some]).argmin(1)])
        near.append(some[between.argmin(1)])
    return np.concatenate(joins), np.concatenate(near)


def to_groups(between: Array, labels: Labels) -> Array:
    """The mean of the distances [m, n] over the members of each group that there is, in the order of their labels."""
    groups, member = np.unique(labels, return_inverse=True)
    n = len(labels)
    belongs = sp.csr_array((np.ones(n), (np.arange(n), member)), shape=(n, len(groups)))
    total: Any = belongs.T @ between.T
    return np.asarray(total.T / np.bincount(member))


def spread(
    signed: Sets, some: Sets, labels: Labels, rows: Rows, gamma: float, settings: RelatednessSettings, seed: int
) -> tuple[sp.csr_array, Labels, float | None]:
    """(weights between neighbours, groups, recall) of all clients, from the groups of `some`, those at `rows`."""
    places, known = placed(signed, some, rows, settings, seed)
    groups = np.empty(len(signed), dtype=np.int64)
    groups[rows] = labels
    rest = np.setdiff1d(np.arange(len(signed)), rows)
    groups[rest], _ = joining([places[row] for row in rest.tolist()], known, labels, settings, seed)
    near = neighbours(places, settings, seed)
    return linked(near, np.arange(len(signed)), len(signed), gamma, settings), groups, near.recall


def placed(every: Sets, some: Sets, rows: Rows, settings: RelatednessSettings, seed: int) -> tuple[Sets, Sets]:
    """All clients, and `some`, those at `rows`, in an embedding that is fitted on these and leaves them in place."""
    known = embedded(some, settings, seed)
    places = list(embedded(some, settings, seed, every))
    for row, one in zip(rows.tolist(), known, strict=True):
        places[row] = one
    return places, known


def linked(near: Near, rows: Rows, clients: int, gamma: float, settings: RelatednessSettings) -> sp.csr_array:
    """Line 17 for neighbours only: weights [clients, clients], symmetric; a pair is linked if one is near the other."""
    weight = np.where(np.isfinite(near.distances), adjacency(near.distances, gamma, settings), 0.0).ravel()
    row, column = np.repeat(rows, near.columns.shape[1]), near.columns.ravel()
    kept = (weight > 0) & (row != column)
    one_way = sp.csr_array((weight[kept], (row[kept], column[kept])), shape=(clients, clients))
    return sp.csr_array(graph.symmetrise(one_way))


def neighbours(places: Sets, settings: RelatednessSettings, seed: int, rows: Rows | None = None) -> Near:
    """The `NEAR` nearest clients of each (or of these rows) by the distance of lines 15 and 16."""
    wanted = np.arange(len(places)) if rows is None else rows
    count = min(NEAR, len(places) - 1)
    if settings.distance == "min" and not isinstance(places[0], graph.Signature):
        columns, apart = _by_centres(places, wanted, count, seed, rows is None)
    else:
        points, noise = _points(places, seed)
        found = graph.closest(points, _CANDIDATES * count, rows=rows, seed=seed)
        if noise is not None:
            squares = np.square(found.distances) - noise[wanted][:, None] - noise[found.columns]
            apart = np.sqrt(np.maximum(squares, 0.0))
        else:
            pairs = np.repeat(wanted, found.columns.shape[1])
            apart = graph.matching_of(places, pairs, found.columns.ravel()).reshape(found.columns.shape)
            apart[~np.isfinite(found.distances)] = np.inf
        columns, apart = _nearest(found.columns, apart, count)
    return Near(columns, apart, _recall(places, settings, apart, seed) if rows is None else None)


def _points(places: Sets, seed: int) -> tuple[Array, Array | None]:
    """Points whose distances are, about, those of the clients, and the noise of signatures of moments.

    Of sets of centres these are sorted projections, whose distances are a sliced form of the best matching's.
    """
    if isinstance(places[0], graph.Signature):
        return graph.coordinates(places)
    sizes = {len(one) for one in places}
    if sizes == {1}:
        return np.concatenate(places), None
    most = max(sizes)
    axes = rng(seed, "directions").normal(size=(places[0].shape[1], _DIRECTIONS))
    axes /= np.linalg.norm(axes, axis=0)
    points = np.empty((len(places), most * _DIRECTIONS))
    for row, one in enumerate(places):
        # Of fewer centres, each stands for several places in the order.
        at = np.arange(most) * len(one) // most
        points[row] = np.sort(one @ axes, axis=0)[at].ravel()
    return points, None


def _nearest(columns: Rows, apart: Array, count: int) -> tuple[Rows, Array]:
    order = np.lexsort((columns, apart), axis=1)[:, :count]
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(apart, order, axis=1)


def _by_centres(places: Sets, rows: Rows, count: int, seed: int, every: bool) -> tuple[Rows, Array]:
    """By the nearest two centres of two clients: the owners of the centres that are nearest to a client's own."""
    owner = np.repeat(np.arange(len(places)), [len(one) for one in places])
    own = np.flatnonzero(np.isin(owner, rows))
    most = max(len(one) for one in places)
    found = graph.closest(np.concatenate(places), 2 * count + most, rows=None if every else own, seed=seed)
    there = found.columns.shape[1]
    one, two, apart = np.repeat(owner[own], there), owner[found.columns.ravel()], found.distances.ravel()
    order = np.lexsort((apart, two, one))
    one, two, apart = one[order], two[order], apart[order]
    # The nearest pair of centres of two clients comes first; a client is no neighbour of its own.
    first = np.ones(len(one), dtype=bool)
    first[1:] = (one[1:] != one[:-1]) | (two[1:] != two[:-1])
    first &= (one != two) & np.isfinite(apart)
    one, two, apart = one[first], two[first], apart[first]
    order = np.lexsort((two, apart, one))
    one, two, apart = one[order], two[order], apart[order]
    place = np.searchsorted(rows, one)
    rank = np.arange(len(one)) - np.searchsorted(one, one)
    kept = rank < count
    columns, best = np.repeat(rows[:, None], count, axis=1), np.full((len(rows), count), np.inf)
    columns[place[kept], rank[kept]], best[place[kept], rank[kept]] = two[kept], apart[kept]
    return columns, best


def _recall(places: Sets, settings: RelatednessSettings, apart: Array, seed: int) -> float:
    """The share of some clients' true neighbours that were found; of equally near ones, any counts."""
    rows = np.sort(rng(seed, "recall").permutation(len(places))[:_CHECKED])
    hits = 0.0
    for row in rows.tolist():
        true = distances(places[row : row + 1], settings, places)[0]
        true[row] = np.inf
        furthest = np.partition(true, apart.shape[1] - 1)[apart.shape[1] - 1]
        hits += float((apart[row] <= furthest * (1 + 1e-6) + 1e-9).mean())
    return hits / len(rows)
