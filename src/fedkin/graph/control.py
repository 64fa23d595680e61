"""Control graphs, which a learned graph must beat; each keeps the clients' order and the matrix's shape and type."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Matrix, as_labels, as_matrix, as_sparse

__all__ = ["oracle", "random", "self_only", "shuffled", "uniform"]

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
    everyone = _complete(np.zeros(n, dtype=np.int64), total / max(n * (n - 1), 1))
    return everyone if isinstance(a, np.ndarray) else sp.csr_array(everyone)


def oracle(planted: Any, *, weight: float = 1.0) -> Array:
    """Return `weight` between clients of the same planted group, else 0; dense [n, n] with a zero diagonal.

    >>> oracle(["a", "b", "a"])
    array([[0., 0., 1.],
           [0., 0., 0.],
           [1., 0., 0.]])
    """
    return _complete(as_labels(planted, name="planted"), weight)


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
