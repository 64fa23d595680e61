"""Approximate nearest neighbours of very many clients, with a recall that is measured.

Rows are put into cells around k-means centres, and each cell is compared with the cells nearest to it (`_cells.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._cells import Floats, Found, Rows, Space, best_in, found_in_cells
from fedkin.graph._check import as_vectors
from fedkin.graph._nearest import as_directions, as_neighbours, best_of
from fedkin.graph.neighbours import nearest
from fedkin.keys import rng

__all__ = ["Approximate", "Closest", "approximate_nearest", "closest"]

_ROWS = 64  # that are compared with all others at a time


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
    _share(recall)
    if recall == 1:
        return Approximate(nearest(x, k), None, (1, 1))
    u = as_directions(x)
    k = as_neighbours(k, len(u))
    space = Space(u, _itself, _itself, _directions, lambda rows, k: best_of(u, rows, k), 0.0)
    found = found_in_cells(space, k, recall, rng(seed, "cells"))
    return Approximate(_as_graph(found), found.recall, found.cells)


def _share(recall: float) -> None:
    if not 0 < recall <= 1:
        raise GraphError(f"recall: expected a share above 0 and at most 1, got {recall!r}")


def _itself(x: Floats) -> Floats:
    return x


def _directions(total: Floats, count: Floats, old: Floats) -> Floats:
    length = np.sqrt(np.square(total).sum(axis=1, keepdims=True))
    return np.where(length > 0, total / np.where(length > 0, length, 1), old)


def _as_graph(found: Found) -> sp.csr_array:
    """Return the cosines as a csr_array; lists are sorted by column."""
    kept, size = found.scores > 0, len(found.scores)
    counted = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    score = np.minimum(found.scores[kept].astype(np.float64), 1.0)
    made = sp.csr_array((score, found.columns[kept], counted), shape=(size, size))
    made.sort_indices()
    return made


class Closest(NamedTuple):
    """columns, distances [rows, k]: the rows that are nearest to each, the nearest first; recall as in `Approximate`.

    >>> closest(np.array([[0.0], [1.0], [3.0]]), 1).columns.ravel()
    array([1, 0, 1])
    """

    columns: Rows
    distances: Floats
    recall: float | None


def closest(x: Any, k: int, *, rows: Any = None, recall: float = 0.95, seed: int = 0) -> Closest:
    """The k other rows of `x` [n, d] that are nearest by Euclidean distance, this share of them or more.

    All is computed in double precision: distances below about 1e-7 of the largest length of a centred row are not told
    apart. rows: only of these, exactly. Where fewer are found than k, a row is its own neighbour, at a distance of inf.

    >>> found = closest([[0.0], [1.0], [5.0]], 1, recall=1)
    >>> found.columns.ravel(), found.distances.ravel()
    (array([1, 0, 1]), array([1., 1., 4.]))
    """
    _share(recall)
    x = as_vectors(x)
    k = as_neighbours(k, len(x))
    centred = x - x.mean(axis=0)
    # In single precision |x|^2 / 2 would swallow the small distances inside groups that are far from each other.
    asks, told = _with_ones(centred), _with_squares(centred)
    if rows is not None or recall == 1:
        wanted = np.arange(len(x)) if rows is None else np.asarray(rows, dtype=np.int64)
        return Closest(*_by_distance(centred, wanted, *_all_compared(asks, told, wanted, k)), None)

    def exact(some: Rows, k: int) -> tuple[Rows, Rows, Floats]:
        columns, scores = _all_compared(asks, told, some, k)
        return np.repeat(some, k), columns.ravel(), scores.ravel()

    space = Space(centred, _with_ones, _with_squares, _means, exact, -np.inf)
    found = found_in_cells(space, k, recall, rng(seed, "cells"))
    return Closest(*_by_distance(centred, np.arange(len(x)), found.columns, found.scores), found.recall)


def _with_ones(x: Floats) -> Floats:
    return np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)


def _with_squares(x: Floats) -> Floats:
    """|x - y|^2 / 2 is |x|^2 / 2, which is the same for all y, less the product of `_with_ones` and this."""
    return np.concatenate([x, -np.square(x).sum(axis=1, keepdims=True) / 2], axis=1)


def _means(total: Floats, count: Floats, old: Floats) -> Floats:
    return np.where(count > 0, total / np.maximum(count, 1), old)


def _all_compared(asks: Floats, told: Floats, rows: Rows, k: int) -> tuple[Rows, Floats]:
    columns, scores = np.zeros((len(rows), k), np.int64), np.zeros((len(rows), k), told.dtype)
    every = np.arange(len(told))
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        here = slice(start, start + _ROWS)
        score = asks[some] @ told.T
        score[np.arange(len(some)), some] = -np.inf
        columns[here], scores[here] = best_in(score, every, k, -np.inf)
    return columns, scores


def _by_distance(x: Floats, rows: Rows, columns: Rows, scores: Floats) -> tuple[Rows, Floats]:
    """Distances from differences, in double precision, and the columns sorted by them."""
    distances = np.empty(columns.shape)
    for start in range(0, len(rows), 1024):
        here = slice(start, start + 1024)
        distances[here] = np.sqrt(np.square(x[rows[here], None] - x[columns[here]]).sum(axis=2))
    missing = ~np.isfinite(scores)
    distances[missing] = np.inf
    columns = np.where(missing, rows[:, None], columns)
    order = np.lexsort((columns, distances), axis=1)
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(distances, order, axis=1)
