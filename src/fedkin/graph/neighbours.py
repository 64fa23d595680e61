"""Exact nearest neighbours of many clients, without the matrix of all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.graph._nearest import as_directions, as_neighbours, best_of
from fedkin.graph.sparsify import symmetrise

__all__ = ["knn_graph", "nearest"]

_ROWS = 1024  # that are compared with the others at a time


def knn_graph(x: Any, k: int, *, mutual: bool = False) -> sp.csr_array:
    """Return `knn(cosine(x), k, mutual=mutual)` of `x` [n, d] as a csr_array, in memory of order n * (d + k).

    The neighbours are exact; `approximate_nearest` finds most of them, much sooner.

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
    u = as_directions(x)
    k = as_neighbours(k, len(u))
    found = [best_of(u, np.arange(start, min(start + _ROWS, len(u))), k) for start in range(0, len(u), _ROWS)]
    rows, columns, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    score = np.minimum(scores.astype(np.float64), 1.0)
    return sp.csr_array((score, (rows, columns)), shape=(len(u), len(u)))
