"""Mixing matrices: W [n, n] with rows that sum to 1; the clients' new values are W @ X.

A client without neighbours has the identity's row in W, so it keeps its own values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Matrix, as_counts, as_dense, as_labels, as_matrix, as_sparse
from fedkin.graph.simplex import norm_regularised

__all__ = [
    "group_average", "laplacian", "laplacian_step", "learned_rows", "max_degree", "metropolis",
    "neighbour_average", "row_normalise",
]  # fmt: skip


def row_normalise(a: Any) -> Matrix:
    """Divide each row of non-negative `a` [n, n] by its sum; an all-zero row becomes the identity's.

    >>> row_normalise(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.  , 1.  ]])
    """
    a = as_matrix(a, symmetric=False, nonnegative=True)
    # Each row is divided by its largest entry first, so that no row sum overflows and only an empty row sums to 0.
    top = np.asarray(a.max(axis=1) if isinstance(a, np.ndarray) else a.max(axis=1).toarray()).ravel()
    # Below 1e-300 the inverse overflows; what is left then is summed well all the same.
    scaled = _rows(a, 1.0 / np.where(top > 0, np.maximum(top, 1e-300), 1.0))
    total = np.asarray(scaled.sum(axis=1)).ravel()
    alone = (total == 0).astype(np.float64)
    return _plus_diagonal(_rows(scaled, 1.0 / np.where(total > 0, total, 1.0)), alone)


def neighbour_average(a: Any, counts: Any = None, *, own: float | None = 1.0) -> Matrix:
    """Weight neighbours by edge weight and sample count: a_ij n_j / sum_j a_ij n_j (FLT, case I, normalised).

    a: [n, n], at least 0, may be directed. counts: sample counts n_j [n]; None means equal counts. own: the weight
    a_ii that replaces the diagonal; None keeps the diagonal.

    >>> neighbour_average(np.array([[0.0, 1.0], [1.0, 0.0]]), counts=[100, 300])
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    a = as_matrix(a, symmetric=False, nonnegative=True)
    n = a.shape[0]
    weight = as_counts(counts, n)
    if own is not None:
        if not (np.isfinite(own) and own >= 0):
            raise GraphError(f"own: expected a weight of at least 0, got {own}")
        a = _plus_diagonal(a, own - a.diagonal())
    weight = weight / (weight.max() or 1.0)
    return row_normalise(a * weight if isinstance(a, np.ndarray) else a @ sp.diags_array(weight, format="csr"))


def group_average(labels: Any, counts: Any = None) -> Array:
    """Weight the clients of a group by n_j / sum of n over the group, others by 0 (FLT, case II): dense [n, n].

    The clients of a group whose counts are all zero get equal weights.

    >>> group_average([0, 0, 1], counts=[1, 3, 5])
    array([[0.25, 0.75, 0.  ],
           [0.25, 0.75, 0.  ],
           [0.  , 0.  , 1.  ]])
    """
    found = as_labels(labels)
    weight = as_counts(counts, len(found))
    empty = np.bincount(found, weights=weight) == 0
    weight = np.where(empty[found], 1.0, weight)
    same = found[:, None] == found[None, :]
    mixed = row_normalise(same * (weight / weight.max()))
    assert isinstance(mixed, np.ndarray)
    return mixed


def laplacian(a: Any, groups: Any = None) -> Matrix:
    """Return L = D - A of symmetric `a` [n, n], only of edges inside `groups` if given. Rows sum to 0.

    >>> laplacian(np.array([[0.0, 2.0], [2.0, 0.0]]))
    array([[ 2., -2.],
           [-2.,  2.]])
    """
    a = as_matrix(a, nonnegative=True)
    if isinstance(a, np.ndarray):
        inside = np.where(_same(groups, len(a)), a, 0.0)
        np.fill_diagonal(inside, 0.0)
        return np.diag(inside.sum(axis=1)) - inside
    coo = a.tocoo()
    found = as_labels(np.zeros(a.shape[0], dtype=np.int64) if groups is None else groups, a.shape[0], "groups")
    keep = (found[coo.row] == found[coo.col]) & (coo.row != coo.col)
    within = sp.csr_array((coo.data[keep], (coo.row[keep], coo.col[keep])), shape=a.shape)
    return sp.csr_array(sp.diags_array(np.asarray(within.sum(axis=1)).ravel(), format="csr") - within)


def _same(groups: Any, n: int) -> Any:
    if groups is None:
        return True
    found = as_labels(groups, n, "groups")
    return found[:, None] == found[None, :]


def laplacian_step(a: Any, groups: Any, rate: float) -> Matrix:
    """Return W = I - rate * L inside groups: x_k - rate * sum_l a_kl (x_k - x_l) (SFMTL-Graph, Eq. 15; FedU).

    groups: labels [n], or None for the whole graph. Rows sum to 1 for any rate. Entries are non-negative
    if rate <= 1 / the largest weighted degree inside a group.

    >>> laplacian_step(np.array([[0.0, 1.0], [1.0, 0.0]]), [0, 0], 0.25)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    if not (np.isfinite(rate) and rate >= 0):
        raise GraphError(f"rate: expected a number of at least 0, got {rate}")
    inner = laplacian(a, groups)
    if isinstance(inner, np.ndarray):
        return np.eye(len(inner)) - rate * inner
    return sp.csr_array(sp.eye_array(inner.shape[0], format="csr") - rate * inner)


def metropolis(a: Any) -> Matrix:
    """Return Metropolis weights 1 / (1 + max(deg_i, deg_j)) on the edges of symmetric `a`, the rest on the diagonal.

    Degrees are numbers of neighbours, so the weights of `a` do not matter. W is symmetric, so columns sum to 1 too
    (Xiao, Boyd and Lall 2005).

    >>> metropolis(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    return _from_degrees(a, lambda degree, i, j: 1.0 / (1.0 + np.maximum(degree[i], degree[j])))


def max_degree(a: Any) -> Matrix:
    """Return weights 1 / (1 + largest degree) on the edges of symmetric `a`, the rest on the diagonal.

    W is symmetric (Xiao, Boyd and Lall 2005).

    >>> max_degree(np.array([[0, 1], [1, 0]]))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    return _from_degrees(a, lambda degree, i, j: np.full(len(i), 1.0 / (1.0 + degree.max())))


def _from_degrees(a: Any, weigh: Any) -> Matrix:
    dense = not sp.issparse(a)
    coo = as_sparse(a, nonnegative=True).tocoo()
    keep = (coo.row != coo.col) & (coo.data > 0)
    i, j = coo.row[keep], coo.col[keep]
    degree = np.bincount(i, minlength=coo.shape[0])
    edges = sp.csr_array((weigh(degree, i, j), (i, j)), shape=coo.shape)
    rest: Array = 1.0 - np.asarray(edges.sum(axis=1), dtype=np.float64).ravel()
    mixed = _plus_diagonal(edges, rest)
    return mixed.toarray() if dense and not isinstance(mixed, np.ndarray) else mixed


def learned_rows(s: Any, beta: float, *, scale: Any = None) -> Array:
    """Return rows w on the simplex that minimise -sum_j scale_j s_ij w_j + beta |w|_2: dense [n, n].

    s: similarities [n, n] of any sign, may be asymmetric. scale: one factor per client (for instance sample counts
    divided by their mean); None means 1. A larger beta spreads the weight over more clients; see
    `norm_regularised`.

    >>> learned_rows(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), 0.5)
    array([[0.5, 0.5, 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0. , 1. ]])
    """
    s = as_dense(s, "S", symmetric=False)
    return norm_regularised(s * as_counts(scale, s.shape[0], "scale"), beta)


def _rows(a: Matrix, factor: Array) -> Matrix:
    if isinstance(a, np.ndarray):
        return a * factor[:, None]
    return sp.csr_array(sp.diags_array(factor, format="csr") @ a)


def _plus_diagonal(a: Matrix, values: Array) -> Matrix:
    if isinstance(a, np.ndarray):
        return a + np.diag(values)
    out = sp.csr_array(a + sp.diags_array(values, format="csr"))
    out.eliminate_zeros()
    return out
