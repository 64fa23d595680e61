"""Exact nearest neighbours of many clients without the matrix of all pairs: scikit-learn's brute force, in blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_vectors
from fedkin.graph.affinity import symmetrise
from fedkin.graph.similarity import unit

_BLOCK = 1 << 18  # differences of pairs of rows, [_BLOCK / d, d], that are held at once


class Neighbours(NamedTuple):
    """columns, distances [rows, k]: the rows that are nearest to each, the nearest first.

    >>> nearest_points([[0.0], [1.0], [5.0]], 1).distances.ravel()
    array([1., 1., 4.])
    """

    columns: Labels
    distances: Array


def knn_graph(x: Any, k: int, *, mutual: bool = False) -> sp.csr_array:
    """Return `knn(cosine(x), k, mutual=mutual)` of `x` [n, d] as a csr_array, in memory of order n * (d + k).

    >>> knn_graph([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], 1).toarray().round(3)
    array([[0.   , 0.995, 0.   ],
           [0.995, 0.   , 0.1  ],
           [0.   , 0.1  , 0.   ]])
    """
    graph = symmetrise(nearest(x, k), mutual=mutual)
    assert not isinstance(graph, np.ndarray)
    graph.eliminate_zeros()
    return graph


def nearest(x: Any, k: int) -> sp.csr_array:
    """Return a directed csr_array [n, n]: row i has the k largest positive cosines to other rows of `x` [n, d].

    Of equal cosines, any may be taken. Rows of zeros have no neighbours.

    >>> nearest([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], 1).indices
    array([1, 0, 1])
    """
    u = unit(as_vectors(x))
    count = _count(k, len(u))
    directed = np.flatnonzero(u.any(axis=1))
    shape = (len(u), len(u))
    if len(directed) < 2:
        return sp.csr_array(shape)
    # On the unit sphere the nearest by distance are the nearest by angle.
    near = nearest_points(u[directed], min(count, len(directed) - 1))
    cosine = 1 - np.square(near.distances) / 2
    rows = np.repeat(directed, near.columns.shape[1])
    kept = cosine.ravel() > 1e-15  # what rounding makes of right angles is no similarity
    columns, weights = directed[near.columns.ravel()[kept]], np.minimum(cosine.ravel()[kept], 1.0)
    return sp.csr_array((weights, (rows[kept], columns)), shape=shape)


def nearest_points(x: Any, k: int, *, rows: Any = None) -> Neighbours:
    """Return the k other rows of `x` [n, d] that are nearest by Euclidean distance, exactly; `rows`: of these only.

    Distances below about 1e-7 of the largest length of a centred row are not told apart when neighbours are chosen.

    >>> nearest_points([[0.0], [1.0], [5.0]], 1).columns.ravel()
    array([1, 0, 1])
    """
    from sklearn.neighbors import NearestNeighbors

    x = as_vectors(x)
    count = _count(k, len(x))
    wanted = np.arange(len(x)) if rows is None else np.asarray(rows, dtype=np.int64)
    # Squares of large coordinates would swallow small distances.
    centred = x - x.mean(axis=0)
    search = NearestNeighbors(n_neighbors=min(count + 1, len(x)), algorithm="brute").fit(centred)
    columns = search.kneighbors(centred[wanted], return_distance=False)
    # A row is among its own nearest, but for rows with more equals than are asked for: then the last one is left out.
    itself = columns == wanted[:, None]
    itself[~itself.any(axis=1), -1] = True
    columns = columns[~itself].reshape(len(wanted), -1)
    distances = np.empty(columns.shape)
    step = max(1, _BLOCK // max(1, columns.shape[1] * x.shape[1]))
    for start in range(0, len(wanted), step):
        some = slice(start, start + step)
        distances[some] = np.sqrt(np.square(x[wanted[some], None] - x[columns[some]]).sum(axis=2))
    order = np.lexsort((columns, distances), axis=1)
    return Neighbours(np.take_along_axis(columns, order, axis=1), np.take_along_axis(distances, order, axis=1))


def _count(k: Any, rows: int) -> int:
    """Check a number of neighbours; return no more than there are other rows."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise GraphError(f"k: expected a whole number of neighbours of at least 1, got {k!r}")
    return min(int(k), rows - 1)
