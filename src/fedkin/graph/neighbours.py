"""Exact nearest neighbours of many clients, without the matrix of all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph.similarity import unit
from fedkin.graph.sparsify import symmetrise

__all__ = ["knn_graph", "nearest"]

# Size of a block of scores: 1,024 x 8,192 in single precision take 32 MB.
_ROWS, _COLUMNS = 1024, 8192


def knn_graph(x: Any, k: int, *, mutual: bool = False) -> sp.csr_array:
    """Return `knn(cosine(x), k, mutual=mutual)` of `x` [n, d] as a csr_array, in memory of order n * (d + k).

    >>> knn_graph([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], 1).toarray().round(3)
    array([[0.   , 0.995, 0.   ],
           [0.995, 0.   , 0.1  ],
           [0.   , 0.1  , 0.   ]])
    """
    found = symmetrise(nearest(x, k), mutual=mutual)
    assert not isinstance(found, np.ndarray)
    found.eliminate_zeros()
    return found


def nearest(x: Any, k: int) -> sp.csr_array:
    """Return a directed csr_array [n, n]: row i has the k largest positive cosines to other rows of `x` [n, d].

    The result is exact. It is computed by blocks of matrix products in the precision of `x` (float32 stays; every
    other type becomes float64). Of cosines that are equal in this precision, the lower row wins. Rows of zeros have
    no neighbours.

    >>> nearest([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], 1).indices
    array([1, 0, 1])
    """
    u = unit(_vectors(x)).astype(x.dtype if isinstance(x, np.ndarray) and x.dtype == np.float32 else np.float64)
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise GraphError(f"k: expected a whole number of neighbours of at least 1, got {k!r}")
    found = [_best_of(u, start, min(start + _ROWS, len(u)), int(k)) for start in range(0, len(u), _ROWS)]
    rows, columns, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    score = np.minimum(scores.astype(np.float64), 1.0)
    return sp.csr_array((score, (rows, columns)), shape=(len(u), len(u)))


def _vectors(x: Any) -> Any:
    """Check `x`, without a float64 copy of a large float32 table."""
    from fedkin.graph._check import as_vectors

    if not (isinstance(x, np.ndarray) and x.dtype == np.float32 and x.ndim == 2 and x.size):
        return as_vectors(x)
    good = np.isfinite(x).all(axis=1)
    if not good.all():
        raise GraphError(f"X: row {int(np.argmin(good))} is not all finite; expected numbers")
    return x


def _best_of(u: Any, start: int, stop: int, k: int) -> tuple[Any, Any, Any]:
    """Return (row, column, cosine) of the k best columns of rows start..stop, by row, from best to worst."""
    mine = u[start:stop]
    row = np.empty(0, dtype=np.int64)
    column, score = row, np.empty(0, dtype=u.dtype)
    # A column can only enter if it beats the row's k-th best so far; ties stay with the earlier column.
    bar = np.zeros(len(mine), dtype=u.dtype)
    left, width = 0, max(4 * k, 256)
    buffer = np.empty(len(mine) * max(_COLUMNS, width), dtype=u.dtype)
    while left < len(u):
        right = min(left + width, len(u))
        scores = buffer[: len(mine) * (right - left)].reshape(len(mine), right - left)
        np.matmul(mine, u[left:right].T, out=scores)
        inside = np.arange(max(left, start), min(right, stop))
        scores[inside - start, inside - left] = 0.0
        # This is several times faster than nonzero on two axes, because nearly all entries are False.
        at, offset = np.divmod(np.flatnonzero(scores > bar[:, None]), right - left)
        row = np.concatenate([row, at])
        column = np.concatenate([column, offset + left])
        score = np.concatenate([score, scores[at, offset]])
        row, column, score, bar = _keep_best(row, column, score, bar, k)
        # The steps widen: a narrow first block sets the bar before most columns are seen.
        left, width = right, min(4 * width, _COLUMNS)
    return row + start, column, score


def _keep_best(row: Any, column: Any, score: Any, bar: Any, k: int) -> tuple[Any, Any, Any, Any]:
    order = np.lexsort((column, -score, row))
    row, column, score = row[order], column[order], score[order]
    first = np.searchsorted(row, np.arange(len(bar)))
    rank = np.arange(len(row)) - first[row]
    last = rank == k - 1
    bar[row[last]] = score[last]
    keep = rank < k
    return row[keep], column[keep], score[keep], bar
