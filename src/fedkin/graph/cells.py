"""Approximate nearest neighbours of very many clients, with a recall that is measured.

Rows are put into cells around k-means centres (an inverted file: Jegou, Douze and Schmid, 2011), and each cell is
compared, by one product of matrices, with the cells nearest to it. How many cells that takes is read off a sample of
rows whose neighbours are known exactly; the recall that is stated is that of other rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._nearest import as_directions, as_neighbours, best_of
from fedkin.graph.neighbours import nearest
from fedkin.keys import rng

__all__ = ["Approximate", "approximate_nearest"]

Floats = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.int64]

_SAMPLE = 256  # rows whose neighbours are found exactly, to choose the number of cells, and as many to state the recall
_FOR_EACH = 32  # rows for each centre when centres are placed
_STEPS = 6  # of k-means: more do not change the recall
_ROWS, _SCORES = 1024, 1 << 23  # rows, and scores, that are computed at a time: at most 64 MB


class Approximate(NamedTuple):
    """Directed neighbours of each row, a csr_array of cosines, and the share of the true ones that were found.

    recall: None if all rows were compared; nan if none of the rows on which it is measured has a neighbour. cells: how
    many there are, and with how many each row was compared.

    >>> approximate_nearest(np.eye(3) + 1, 2, recall=1).graph.nnz
    6
    """

    graph: sp.csr_array
    recall: float | None
    cells: tuple[int, int]


def approximate_nearest(x: Any, k: int, *, recall: float = 0.95, seed: int = 0) -> Approximate:
    """Return `nearest(x, k)` of `x` [n, d] with this share of the neighbours or more, in time of order n^1.5 at best.

    recall: in (0, 1]; 1 compares all. The recall in the answer is measured on 256 rows (fewer if n is smaller) that had
    no part in choosing the number of cells, which vectors without any structure make large. Of equal cosines, any may
    be taken. The same seed gives the same graph.

    >>> x = np.random.default_rng(0).normal(size=(3000, 8))
    >>> found = approximate_nearest(x, 5)
    >>> found.graph.shape, found.recall > 0.9, found.cells[0] > found.cells[1]
    ((3000, 3000), True, True)
    """
    if not 0 < recall <= 1:
        raise GraphError(f"recall: expected a share above 0 and at most 1, got {recall!r}")
    if recall == 1:
        return Approximate(nearest(x, k), None, (1, 1))
    u = as_directions(x)
    k = as_neighbours(k, len(u))
    draw = rng(seed, "cells")
    centres = _centres(u, draw)
    cell = _nearest_centre(u, centres)
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(len(centres) + 1))
    closest = np.argsort(-(centres @ centres.T), axis=1, kind="stable")
    known = draw.permutation(len(u))[: 2 * _SAMPLE]
    rank = _ranks(u, k, known, cell, closest)
    probes = _enough(rank[::2], recall, len(centres))
    graph = _joined(u[order], order, starts, closest[:, :probes], k)
    shares = _shares(rank[1::2], probes)
    found = float(shares.mean()) if len(shares) else float("nan")
    return Approximate(graph, None if probes == len(centres) else found, (len(centres), probes))


def _centres(u: Floats, draw: np.random.Generator) -> Floats:
    """Return about 2 sqrt(n) unit vectors [cells, d], by k-means on directions of some rows."""
    count = max(1, min(int(2 * len(u) ** 0.5), len(u)))
    some = u[np.sort(draw.permutation(len(u))[: _FOR_EACH * count])]
    centres = some[np.sort(draw.permutation(len(some))[:count])].copy()
    for _ in range(_STEPS):
        cell = _nearest_centre(some, centres)
        belongs = sp.csr_array((np.ones(len(some), u.dtype), cell, np.arange(len(some) + 1)), (len(some), count))
        total = np.asarray(belongs.T @ some)
        length = np.sqrt(np.square(total).sum(axis=1, keepdims=True))
        centres = np.where(length > 0, total / np.where(length > 0, length, 1), centres).astype(u.dtype)
    return centres


def _nearest_centre(u: Floats, centres: Floats) -> Rows:
    blocks = (u[start : start + _ROWS] @ centres.T for start in range(0, len(u), _ROWS))
    return np.concatenate([block.argmax(axis=1) for block in blocks]).astype(np.int64)


def _ranks(u: Floats, k: int, known: Rows, cell: Rows, closest: Rows) -> list[Rows]:
    """For each of these rows: of its true neighbours, which place their cells have among those closest to its own."""
    place = np.argsort(closest, axis=1, kind="stable")
    row, column, _ = best_of(u, known, k)
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


def _joined(u: Floats, order: Rows, starts: Rows, probed: Rows, k: int) -> sp.csr_array:
    """Return the neighbours in the probed cells; u: rows in the order of cells. Lists are sorted by column."""
    size = len(u)
    columns, scores = np.zeros((size, k), np.int64), np.zeros((size, k), u.dtype)
    for at, (left, right) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if left == right:
            continue
        there = np.concatenate([np.arange(starts[cell], starts[cell + 1]) for cell in probed[at].tolist()])
        others = u[there]
        step = max(1, min(_ROWS, _SCORES // len(there)))
        for low in range(left, right, step):
            high = min(low + step, right)
            rows = order[low:high]
            columns[rows], scores[rows] = _best(u[low:high] @ others.T, order[there], rows, k)
    kept = scores > 0
    counted = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    made = sp.csr_array((np.minimum(scores[kept].astype(np.float64), 1.0), columns[kept], counted), shape=(size, size))
    made.sort_indices()
    return made


def _best(score: Floats, column: Rows, row: Rows, k: int) -> tuple[Rows, Floats]:
    """Return (columns, scores) [rows, k] of the k best of each row; of equal scores, any; 0 where there are fewer."""
    score[column[None, :] == row[:, None]] = 0.0
    most = min(k, score.shape[1])
    top = np.argpartition(score, score.shape[1] - most, axis=1)[:, -most:]
    found, value = np.zeros((len(row), k), np.int64), np.zeros((len(row), k), score.dtype)
    found[:, :most], value[:, :most] = column[top], np.take_along_axis(score, top, axis=1)
    return found, value
