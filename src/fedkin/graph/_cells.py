"""Rows in cells around k-means centres: each cell is compared, by a product of matrices, with the cells nearest to it.

An inverted file (Jegou, Douze and Schmid, 2011). How many cells it takes is read off a sample of rows whose neighbours
are known exactly; the share that is stated is that of other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedkin.graph._threads import spread

__all__ = ["Found", "Space", "best_in", "found_in_cells"]

Floats = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.int64]

_SAMPLE = 256  # rows whose neighbours are found exactly, to choose the number of cells, and as many to state the recall
_FOR_EACH = 32  # rows for each centre when centres are placed
_STEPS = 6  # of k-means: more do not change the recall
_ROWS, _SCORES = 1024, 1 << 21  # rows, and scores, that a thread computes at a time: at most 16 MB, near the cache
_WIDE, _NARROW = 32, 4  # scores of which only the highest is looked at first; fewer do not pay


class Space(NamedTuple):
    """Points, and what near means among them: the score of i with j is asks(point i) @ told(point j), high = near.

    points [n, d]. centre(sums, counts, old): k-means centres. exact(rows, k): (row, column, score) of the k best of
    each row. floor: a score that is no neighbour's.
    """

    points: Floats
    asks: Callable[[Floats], Floats]
    told: Callable[[Floats], Floats]
    centre: Callable[[Floats, Floats, Floats], Floats]
    exact: Callable[[Rows, int], tuple[Rows, Rows, Floats]]
    floor: float


class Found(NamedTuple):
    """columns, scores [n, k]: the best of each row in any order, `floor` where there are fewer; recall, cells."""

    columns: Rows
    scores: Floats
    recall: float | None
    cells: tuple[int, int]


def found_in_cells(space: Space, k: int, recall: float, draw: np.random.Generator) -> Found:
    """The k best of each row, with this share of the true ones or more."""
    u = space.points
    centres = _centres(space, draw)
    cell = _nearest_centre(space, u, centres)
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(len(centres) + 1))
    closest = np.argsort(-(space.asks(centres) @ space.told(centres).T), axis=1, kind="stable")
    known = draw.permutation(len(u))[: 2 * _SAMPLE]
    rank = _ranks(space, k, known, cell, closest)
    probes = _enough(rank[::2], recall, len(centres))
    columns, scores = _joined(space, order, starts, closest[:, :probes], k)
    shares = _shares(rank[1::2], probes)
    share = float(shares.mean()) if len(shares) else float("nan")
    return Found(columns, scores, None if probes == len(centres) else share, (len(centres), probes))


def _centres(space: Space, draw: np.random.Generator) -> Floats:
    """Return about 2 sqrt(n) centres [cells, d], by k-means on some rows."""
    u = space.points
    count = max(1, min(int(2 * len(u) ** 0.5), len(u)))
    some = u[np.sort(draw.permutation(len(u))[: _FOR_EACH * count])]
    centres = some[np.sort(draw.permutation(len(some))[:count])].copy()
    for _ in range(_STEPS):
        cell = _nearest_centre(space, some, centres)
        belongs = sp.csr_array((np.ones(len(some), u.dtype), cell, np.arange(len(some) + 1)), (len(some), count))
        sizes = np.bincount(cell, minlength=count)[:, None].astype(u.dtype)
        centres = space.centre(np.asarray(belongs.T @ some), sizes, centres).astype(u.dtype)
    return centres


def _nearest_centre(space: Space, u: Floats, centres: Floats) -> Rows:
    told = space.told(centres).T
    cell = np.empty(len(u), np.int64)

    def block(start: int) -> None:
        cell[start : start + _ROWS] = (space.asks(u[start : start + _ROWS]) @ told).argmax(axis=1)

    spread(block, range(0, len(u), _ROWS))
    return cell


def _ranks(space: Space, k: int, known: Rows, cell: Rows, closest: Rows) -> list[Rows]:
    """For each of these rows: of its true neighbours, which place their cells have among those closest to its own."""
    place = np.argsort(closest, axis=1, kind="stable")
    row, column, _ = space.exact(known, k)
    rank = place[cell[row], cell[column]]
    return [rank[row == one] for one in known]


def _shares(ranks: list[Rows], probes: int) -> Floats:
    """Return for each row that has neighbours the share of them in so many cells."""
    return np.array([(rank < probes).mean() for rank in ranks if len(rank)])


def _enough(ranks: list[Rows], recall: float, cells: int) -> int:
    """Return the smallest number of cells that have this share of the neighbours, two standard errors above it."""
    for probes in (np.unique(np.concatenate(ranks)) + 1).tolist() if ranks else []:
        shares = _shares(ranks, probes)
        if shares.mean() - 2 * shares.std() / len(shares) ** 0.5 >= recall:
            return int(probes)
    return cells


def _joined(space: Space, order: Rows, starts: Rows, probed: Rows, k: int) -> tuple[Rows, Floats]:
    """Return (columns, scores) [n, k] of the best in the probed cells; order: rows in the order of their cells."""
    points = space.points[order]
    asks, told = space.asks(points), space.told(points)
    size = len(order)
    columns, scores = np.zeros((size, k), np.int64), np.full((size, k), space.floor, asks.dtype)

    def join(at: int) -> None:
        left, right = int(starts[at]), int(starts[at + 1])
        if left == right:
            return
        cells = [slice(int(starts[cell]), int(starts[cell + 1])) for cell in probed[at]]
        others = np.concatenate([told[cell] for cell in cells])
        there = np.concatenate([order[cell] for cell in cells])
        # Of equal centres, a cell's own can be the second: then it is not always among those probed.
        own = np.flatnonzero(probed[at] == at)
        before = sum(cell.stop - cell.start for cell in cells[: own[0]]) - left if len(own) else None
        step = max(1, min(_ROWS, _SCORES // len(there)))
        for low in range(left, right, step):
            high = min(low + step, right)
            rows = order[low:high]
            score = asks[low:high] @ others.T
            if before is not None:
                score[np.arange(high - low), np.arange(low, high) + before] = space.floor
            columns[rows], scores[rows] = best_in(score, there, k, space.floor)

    spread(join, range(len(starts) - 1))
    return columns, scores


def best_in(score: Floats, column: Rows, k: int, floor: float) -> tuple[Rows, Floats]:
    """Return (columns, scores) [rows, k] of the k best of each row; of equal scores, any.

    Where there are fewer, the score is `floor`.
    """
    most = min(k, score.shape[1])
    top = _top(score, most)
    found, value = np.zeros((len(score), k), np.int64), np.full((len(score), k), floor, score.dtype)
    found[:, :most], value[:, :most] = column[top], np.take_along_axis(score, top, axis=1)
    return found, value


def _top(score: Floats, k: int) -> Rows:
    """Return the places [rows, k] of the k highest scores of each row.

    The k-th highest of the maxima of disjoint sets is no higher than the k-th highest of all: nearly all scores are
    below it, and a comparison is several times cheaper than a partition.
    """
    rows, width = score.shape
    together = min(_WIDE, width // (8 * k))
    if together < _NARROW:
        return np.argpartition(score, width - k, axis=1)[:, -k:]
    sets = width // together
    highest = score[:, : sets * together].reshape(rows, together, sets).max(axis=1)
    bar = np.partition(highest, sets - k, axis=1)[:, sets - k, None]
    high = score >= bar
    count = high.sum(axis=1)
    # Many are equal (the same vector many times), or none can be compared (NaN).
    odd = np.flatnonzero((count > _WIDE * k) | (count < k))
    high[odd] = False
    count[odd] = 0
    row, place = np.divmod(np.flatnonzero(high), width)
    order = np.lexsort((-score[row, place], row))
    top = np.empty((rows, k), np.int64)
    top[odd] = np.argpartition(score[odd], width - k, axis=1)[:, -k:]
    even = np.flatnonzero(count)
    first = np.cumsum(count)[even] - count[even]
    top[even] = place[order[first[:, None] + np.arange(k)]]
    return top
