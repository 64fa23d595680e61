"""Nearest neighbours of many clients without the matrix of all pairs: scikit-learn's brute force, in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import as_vectors
from fedkin.graph.affinity import symmetrise
from fedkin.graph.similarity import unit


def knn_graph(x: Any, k: int, *, mutual: bool = False) -> sp.csr_array:
    """Return `knn(cosine(x), k, mutual=mutual)` of `x` [n, d] as a csr_array, in memory of order n * (d + k).

    Of equal cosines, any may be taken.

    >>> knn_graph([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], 1).toarray().round(3)
    array([[0.   , 0.995, 0.   ],
           [0.995, 0.   , 0.1  ],
           [0.   , 0.1  , 0.   ]])
    """
    from sklearn.neighbors import NearestNeighbors

    u = unit(as_vectors(x))
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise GraphError(f"k: expected a whole number of neighbours of at least 1, got {k!r}")
    if len(u) == 1:
        return sp.csr_array((1, 1))
    search = NearestNeighbors(n_neighbors=min(int(k), len(u) - 1), metric="cosine", algorithm="brute").fit(u)
    near = sp.csr_array(search.kneighbors_graph(mode="distance"))
    cosine = np.minimum(1 - near.data, 1.0)
    near.data = np.where(cosine > 1e-15, cosine, 0.0)  # what rounding makes of right angles is no similarity
    graph = sp.csr_array(symmetrise(near, mutual=mutual))
    graph.eliminate_zeros()
    return graph
