"""Affinities (non-negative, symmetric, mostly zero) from similarities or distances, and control graphs to beat.

All functions return float64, dense for dense input and csr_array for sparse input. The diagonal is
zero. A client without any edge is alone, which is not an error. Control graphs keep the clients'
order and the matrix's shape and type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Matrix, as_dense, as_labels, as_matrix, as_sparse, as_vectors, only
from fedkin.graph.similarity import unit


def nonnegative(s: Any) -> Matrix:
    """Return max(0, s_ij): every positive similarity is an edge.

    >>> nonnegative(np.array([[1.0, -0.2], [-0.2, 1.0]]))
    array([[0., 0.],
           [0., 0.]])
    """
    return epsilon(s, 0.0)


def epsilon(s: Any, threshold: float) -> Matrix:
    """Keep s_ij where s_ij >= threshold and s_ij > 0, else 0 (TFL). threshold: at least 0.

    >>> epsilon(np.array([[1.0, 0.5, 0.3], [0.5, 1.0, 0.4], [0.3, 0.4, 1.0]]), 0.4)
    array([[0. , 0.5, 0. ],
           [0.5, 0. , 0.4],
           [0. , 0.4, 0. ]])
    """
    s = as_matrix(s, "S")
    if not (np.isfinite(threshold) and threshold >= 0):
        raise GraphError(f"threshold: expected a number of at least 0, got {threshold}")
    if isinstance(s, np.ndarray):
        return _finish(np.where((s >= threshold) & (s > 0), s, 0.0))
    kept = s.copy()
    kept.data = np.where((kept.data >= threshold) & (kept.data > 0), kept.data, 0.0)
    return _finish(kept)


def gamma(d: Any, threshold: float | None = None) -> Matrix:
    """Return 1 where the distance d_ij < threshold, else 0 (FLT, Algorithm 2, line 17).

    threshold: None takes `gap_threshold(d)`. `d` must be dense.

    >>> gamma(np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 8.0], [9.0, 8.0, 0.0]]))
    array([[0., 1., 0.],
           [1., 0., 0.],
           [0., 0., 0.]])
    """
    d = as_dense(d, "D", nonnegative=True)
    if threshold is None:
        threshold = gap_threshold(d)
    if np.isnan(threshold):
        raise GraphError("threshold: expected a distance, got nan")
    return _finish((d < threshold).astype(np.float64))


def gap_threshold(d: Any) -> float:
    """Return the middle of the largest gap between the sorted distances of pairs of `d` [n, n].

    If several gaps are equally large, the lowest is taken. Without any gap (all distances are equal, or there are
    fewer than two pairs) the threshold is just above the largest distance, so that all clients are linked.

    >>> gap_threshold(np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 8.0], [9.0, 8.0, 0.0]]))
    4.5
    """
    d = as_dense(d, "D", nonnegative=True)
    values = np.unique(d[np.triu_indices(len(d), 1)])
    if len(values) == 0:
        return float(np.nextafter(0.0, np.inf))
    gaps = np.diff(values)
    # A difference that rounding can make is not a gap.
    if len(gaps) == 0 or gaps.max() <= 1e-12 * values[-1]:
        return float(np.nextafter(values[-1], np.inf))
    largest = int(np.argmax(gaps))
    return float(values[largest] + gaps[largest] / 2)


def knn(s: Any, k: int, *, mutual: bool = False) -> Matrix:
    """Link each client to its k most similar others with s_ij > 0; s_ij is the weight of the edge.

    Of equally similar clients, the lower row is taken. A pair is linked if one of the two clients chose the other, or,
    with `mutual`, if both did. For more clients than a dense matrix can hold, `knn_graph` does the same from vectors.

    >>> knn(np.array([[1.0, 0.5, 0.3], [0.5, 1.0, 0.4], [0.3, 0.4, 1.0]]), 1)
    array([[0. , 0.5, 0. ],
           [0.5, 0. , 0.4],
           [0. , 0.4, 0. ]])
    """
    s = as_matrix(s, "S")
    _check_count(k)
    if isinstance(s, np.ndarray):
        best: Any = np.zeros_like(s)
        ranked = s.copy()
        np.fill_diagonal(ranked, -np.inf)
        order = np.argsort(-ranked, axis=1, kind="stable")[:, : min(k, len(s) - 1)]
        np.put_along_axis(best, order, np.maximum(np.take_along_axis(s, order, axis=1), 0.0), axis=1)
    else:
        best = _sparse_top(s, k)
    return _finish(symmetrise(best, mutual=mutual))


def _check_count(k: Any) -> None:
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise GraphError(f"k: expected a whole number of neighbours of at least 1, got {k!r}")


def _sparse_top(s: sp.csr_array, k: int) -> sp.csr_array:
    """Return the k largest positive entries off the diagonal in each row of a csr_array."""
    coo = s.tocoo()
    row, column, value = coo.row, coo.col, coo.data
    order = np.lexsort((column, -value, row))
    order = order[(row[order] != column[order]) & (value[order] > 0)]
    first = np.searchsorted(row[order], np.arange(s.shape[0]))
    rank = np.arange(len(order)) - first[row[order]]
    order = order[rank < k]
    return sp.csr_array((value[order], (row[order], column[order])), shape=s.shape)


def knn_graph(x: Any, k: int, *, mutual: bool = False) -> sp.csr_array:
    """Return `knn(cosine(x), k, mutual=mutual)` of `x` [n, d] as a csr_array, in memory of order n * (d + k).

    Found by scikit-learn's brute force, in blocks. Of equal cosines, any may be taken.

    >>> knn_graph([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], 1).toarray().round(3)
    array([[0.   , 0.995, 0.   ],
           [0.995, 0.   , 0.1  ],
           [0.   , 0.1  , 0.   ]])
    """
    from sklearn.neighbors import NearestNeighbors

    u = unit(as_vectors(x))
    _check_count(k)
    if len(u) == 1:
        return sp.csr_array((1, 1))
    search = NearestNeighbors(n_neighbors=min(int(k), len(u) - 1), metric="cosine", algorithm="brute").fit(u)
    near = sp.csr_array(search.kneighbors_graph(mode="distance"))
    cosine = np.minimum(1 - near.data, 1.0)
    near.data = np.where(cosine > 1e-15, cosine, 0.0)  # rounding of a right angle is no similarity
    graph = sp.csr_array(symmetrise(near, mutual=mutual))
    graph.eliminate_zeros()
    return graph


def symmetrise(a: Any, *, mutual: bool = False) -> Matrix:
    """Make non-negative `a` symmetric: the larger of a_ij and a_ji, or with `mutual` the smaller.

    >>> symmetrise(np.array([[0.0, 0.5], [0.0, 0.0]]))
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    a = as_matrix(a, symmetric=False, nonnegative=True)
    if isinstance(a, np.ndarray):
        return np.minimum(a, a.T) if mutual else np.maximum(a, a.T)
    return sp.csr_array(a.minimum(a.T) if mutual else a.maximum(a.T))


def to_distance(s: Any) -> Array:
    """Return 1 - s_ij of similarities of at most 1 (cosine, RBF, min-max): at least 0, with a zero diagonal.

    >>> to_distance(np.array([[1.0, 0.75], [0.75, 1.0]]))
    array([[0.  , 0.25],
           [0.25, 0.  ]])
    """
    s = as_dense(s, "S")
    d: Array = 1.0 - s
    if d.min() < -1e-9:
        row, column = divmod(int(np.argmin(d)), len(d))
        raise GraphError(
            f"S: the similarity of rows {row} and {column} is {s[row, column]:.4g}; expected at most 1, to "
            "turn it into a distance (minmax scales it)"
        )
    np.fill_diagonal(d, 0.0)
    return np.maximum(d, 0.0)


def _finish(a: Matrix) -> Matrix:
    """Return `a` with a zero diagonal, and without stored zeros."""
    if isinstance(a, np.ndarray):
        np.fill_diagonal(a, 0.0)
        return a
    coo = a.tocoo()
    return only(coo, (coo.row != coo.col) & (coo.data != 0))


# -- control graphs ----------------------------------------------------------------------------------------------------


# Largest complete graph that fits in a few GB.
_LARGEST_DENSE = 20_000


def random(a: Any, *, seed: int = 0) -> Matrix:
    """Move the edges of symmetric `a` [n, n], with their weights, to pairs drawn uniformly; no self-loops.

    >>> a = np.array([[0, 0.5, 0], [0.5, 0, 0.2], [0, 0.2, 0]])
    >>> drawn = random(a, seed=1)
    >>> sorted(drawn[np.triu_indices(3, 1)].tolist())
    [0.0, 0.2, 0.5]
    """
    dense = not sp.issparse(a)
    upper = sp.triu(as_sparse(a, nonnegative=True), k=1).tocoo()
    upper.eliminate_zeros()
    n = upper.shape[0]
    rng = np.random.default_rng(seed)
    pair = _draw_pairs(rng, n * (n - 1) // 2, upper.nnz)
    row, column = _pair(pair, n)
    half = sp.csr_array((rng.permutation(upper.data), (row, column)), shape=(n, n))
    moved = sp.csr_array(half + half.T)
    return moved.toarray() if dense else moved


def _draw_pairs(rng: np.random.Generator, pairs: int, count: int) -> Any:
    """Draw `count` different numbers below `pairs`; if `count` is small, without a list of all pairs."""
    if pairs < 4 * count or pairs < 10_000:
        return np.sort(rng.permutation(pairs)[:count])
    drawn = np.unique(rng.integers(pairs, size=count))
    while len(drawn) < count:
        drawn = np.union1d(drawn, rng.integers(pairs, size=count - len(drawn)))
    return drawn


def _pair(number: Any, n: int) -> tuple[Any, Any]:
    """Return the pair (row < column) with this number, in row order."""
    starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1, dtype=np.int64))])
    row = np.searchsorted(starts, number, side="right") - 1
    return row, number - starts[row] + row + 1


def uniform(a: Any) -> Matrix:
    """Give every pair the mean off-diagonal weight of `a` [n, n]: the same total weight, no structure.

    >>> uniform(np.array([[0, 0.6, 0], [0.6, 0, 0], [0, 0, 0]])).round(3)
    array([[0. , 0.2, 0.2],
           [0.2, 0. , 0.2],
           [0.2, 0.2, 0. ]])
    """
    a = as_matrix(a, nonnegative=True)
    n = a.shape[0]
    total = float(a.sum() - a.diagonal().sum())
    complete = _complete(np.zeros(n, dtype=np.int64), total / max(n * (n - 1), 1))
    return complete if isinstance(a, np.ndarray) else sp.csr_array(complete)


def oracle(planted: Any) -> Array:
    """Return 1 between clients of the same planted group, else 0; dense [n, n] with a zero diagonal.

    >>> oracle(["a", "b", "a"])
    array([[0., 0., 1.],
           [0., 0., 0.],
           [1., 0., 0.]])
    """
    return _complete(as_labels(planted, name="planted"), 1.0)


def _complete(labels: Any, weight: float) -> Array:
    if len(labels) > _LARGEST_DENSE:
        raise GraphError(f"a complete graph of {len(labels)} clients is too large; expected at most {_LARGEST_DENSE}")
    a = np.where(labels[:, None] == labels[None, :], weight, 0.0)
    np.fill_diagonal(a, 0.0)
    return a


def shuffled(a: Any, *, seed: int = 0) -> Matrix:
    """Permute rows and columns of `a` [n, n] by one random order: the same graph, with clients exchanged.

    >>> shuffled(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]]), seed=3)
    array([[0., 0., 0.],
           [0., 0., 1.],
           [0., 1., 0.]])
    """
    a = as_matrix(a, symmetric=False)
    order = np.random.default_rng(seed).permutation(a.shape[0])
    return a[order][:, order] if isinstance(a, np.ndarray) else sp.csr_array(a[order][:, order])


def self_only(a: Any) -> Matrix:
    """Return a graph without edges: every client is alone.

    >>> self_only(np.ones((2, 2)))
    array([[0., 0.],
           [0., 0.]])
    """
    a = as_matrix(a, symmetric=False)
    return np.zeros_like(a) if isinstance(a, np.ndarray) else sp.csr_array(a.shape, dtype=np.float64)
