"""The rows that are nearest to some rows, by blocks of products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import as_vectors
from fedkin.graph.similarity import unit

__all__ = ["as_directions", "as_neighbours", "best_of"]

_COLUMNS = 8192  # of a block of scores: with 1,024 rows, 32 MB in single precision


def as_directions(x: Any) -> Any:
    """Return the rows of `x` [n, d] with length 1, in float32 if that is what they are, else in float64."""
    checked = _vectors(x)
    u = np.empty(checked.shape, checked.dtype)
    # A few rows at a time: on the way to length 1 there are several copies of them.
    for start in range(0, len(u), _COLUMNS):
        u[start : start + _COLUMNS] = unit(checked[start : start + _COLUMNS])
    return u


def as_neighbours(k: Any, rows: int) -> int:
    """Check a number of neighbours, and return no more than other rows there are (1 if there are none)."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise GraphError(f"k: expected a whole number of neighbours of at least 1, got {k!r}")
    return max(1, min(int(k), rows - 1))


def _vectors(x: Any) -> Any:
    """Check `x`, without a float64 copy of a large float32 table."""
    if not (isinstance(x, np.ndarray) and x.dtype == np.float32 and x.ndim == 2 and x.size):
        return as_vectors(x)
    good = np.isfinite(x).all(axis=1)
    if not good.all():
        raise GraphError(f"X: row {int(np.argmin(good))} is not all finite; expected numbers")
    return x


def best_of(u: Any, rows: Any, k: int) -> tuple[Any, Any, Any]:
    """Return (row, column, cosine) of the k best columns of these rows of unit vectors `u`, by row, best first."""
    mine = u[rows]
    row = np.empty(0, dtype=np.int64)
    column, score = row, np.empty(0, dtype=u.dtype)
    # A column can only enter if it beats the row's k-th best so far; ties stay with the earlier column.
    bar = np.zeros(len(mine), dtype=u.dtype)
    left, width = 0, max(4 * k, 256)
    buffer = np.empty(len(mine) * min(max(_COLUMNS, width), len(u)), dtype=u.dtype)
    while left < len(u):
        right = min(left + width, len(u))
        scores = buffer[: len(mine) * (right - left)].reshape(len(mine), right - left)
        np.matmul(mine, u[left:right].T, out=scores)
        inside = np.flatnonzero((rows >= left) & (rows < right))
        scores[inside, rows[inside] - left] = 0.0
        # This is several times faster than nonzero on two axes, because nearly all entries are False.
        at, offset = np.divmod(np.flatnonzero(scores > bar[:, None]), right - left)
        row = np.concatenate([row, at])
        column = np.concatenate([column, offset + left])
        score = np.concatenate([score, scores[at, offset]])
        row, column, score, bar = _keep_best(row, column, score, bar, k)
        # The steps widen: a narrow first block sets the bar before most columns are seen.
        left, width = right, min(4 * width, _COLUMNS)
    return rows[row], column, score


def _keep_best(row: Any, column: Any, score: Any, bar: Any, k: int) -> tuple[Any, Any, Any, Any]:
    order = np.lexsort((column, -score, row))
    row, column, score = row[order], column[order], score[order]
    first = np.searchsorted(row, np.arange(len(bar)))
    rank = np.arange(len(row)) - first[row]
    last = rank == k - 1
    bar[row[last]] = score[last]
    keep = rank < k
    return row[keep], column[keep], score[keep], bar
