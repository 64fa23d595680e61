"""Checks that every stage makes before it computes: shapes, finite values, symmetry, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedkin.errors import GraphError

Array: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]
Matrix: TypeAlias = Array | sp.csr_array

# Largest asymmetry that rounding in a matrix product can leave, relative to the largest entry.
_SYMMETRY = 1e-8


def as_vectors(x: Any, name: str = "X", ndim: int = 2) -> Array:
    """Return `x` as finite float64 with `ndim` axes, one client per row."""
    try:
        array = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise GraphError(f"{name}: expected numbers in rows of equal length, one row per client") from None
    if array.ndim != ndim:
        raise GraphError(f"{name}: expected {ndim} axes (clients first), got shape {array.shape}")
    if array.shape[0] == 0 or 0 in array.shape:
        raise GraphError(f"{name}: expected at least one client and one value, got shape {array.shape}")
    good = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    if not good.all():
        raise GraphError(f"{name}: row {int(np.argmin(good))} is not all finite; expected numbers")
    return array


def as_matrix(a: Any, name: str = "A", *, symmetric: bool = True, nonnegative: bool = False) -> Matrix:
    """Return `a` as a square float64 matrix: csr_array for sparse input, else ndarray."""
    if sp.issparse(a):
        matrix: Matrix = _csr(a)
    else:
        try:
            matrix = np.asarray(a, dtype=np.float64)
        except (TypeError, ValueError):
            raise GraphError(f"{name}: expected a square matrix of numbers") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise GraphError(f"{name}: expected a square matrix, got shape {matrix.shape}")
    if matrix.shape[0] == 0:
        raise GraphError(f"{name}: expected at least one client, got an empty matrix")
    values = matrix if isinstance(matrix, np.ndarray) else matrix.data
    _refuse(matrix, ~np.isfinite(values), name, "is not finite; expected numbers")
    if nonnegative:
        _refuse(matrix, values < 0, name, "is negative; expected weights of at least 0")
    if symmetric:
        _symmetric(matrix, name)
    return matrix


def as_dense(a: Any, name: str = "A", *, symmetric: bool = True, nonnegative: bool = False) -> Array:
    """Return `as_matrix` of `a` as an ndarray."""
    matrix = as_matrix(a, name, symmetric=symmetric, nonnegative=nonnegative)
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def as_sparse(a: Any, *, nonnegative: bool = False) -> sp.csr_array:
    """Return `as_matrix` of `a` as a csr_array."""
    matrix = as_matrix(a, nonnegative=nonnegative)
    return sp.csr_array(matrix) if isinstance(matrix, np.ndarray) else matrix


def only(a: Any, keep: Any) -> sp.csr_array:
    """Return the entries of a coo_array that a mask over them keeps."""
    return sp.csr_array((a.data[keep], (a.row[keep], a.col[keep])), shape=a.shape)


def _csr(a: Any) -> sp.csr_array:
    """Return a sorted csr_array without duplicate entries; the input is not changed."""
    matrix = sp.csr_array(a.astype(np.float64))
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def _refuse(matrix: Matrix, bad: Any, name: str, what: str) -> None:
    """Raise GraphError for the first entry of `matrix` that is bad; bad: a mask of its values."""
    if not bad.any():
        return
    first = int(np.argmax(bad))
    if isinstance(matrix, np.ndarray):
        row, column = divmod(first, matrix.shape[1])
    else:
        row, column = int(np.searchsorted(matrix.indptr, first, side="right")) - 1, int(matrix.indices[first])
    raise GraphError(f"{name}: the entry in row {row}, column {column} {what}")


def _symmetric(matrix: Matrix, name: str) -> None:
    if isinstance(matrix, np.ndarray):
        gap = np.abs(matrix - matrix.T)
        row, column = divmod(int(np.argmax(gap)), len(matrix))
        largest, scale = float(gap[row, column]), float(np.abs(matrix).max())
    else:
        difference = abs(matrix - matrix.T).tocoo()
        if difference.nnz == 0:
            return
        worst = int(np.argmax(difference.data))
        row, column = int(difference.row[worst]), int(difference.col[worst])
        largest, scale = float(difference.data[worst]), float(np.abs(matrix.data).max())
    if largest > _SYMMETRY * scale:
        entries = f"({row}, {column}) and ({column}, {row})"
        raise GraphError(f"{name}: not symmetric: {entries} differ by {largest:.3g}; expected them equal")


def as_labels(labels: Any, n: int | None = None, name: str = "labels") -> Labels:
    """Return labels of any kind, one per client, as integers 0.. in the sorted order of the labels."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype == object or (n is not None and len(array) != n):
        expected = "one label per client" if n is None else f"{n} labels, one per client"
        raise GraphError(f"{name}: expected {expected}, got shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array)))
        raise GraphError(f"{name}: row {row} has no label; expected one per client")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def as_counts(counts: Any, n: int, name: str = "counts") -> Array:
    """Return sample counts, one per client, finite and at least 0; None gives each client 1."""
    if counts is None:
        return np.ones(n)
    array = as_vectors(counts, name, ndim=1)
    if len(array) != n:
        raise GraphError(f"{name}: expected {n} counts, one per client, got {len(array)}")
    if (array < 0).any():
        raise GraphError(f"{name}: row {int(np.argmax(array < 0))} is negative; expected counts of at least 0")
    return array


def as_sets(sets: Any, name: str = "U") -> list[Array]:
    """Return sets of centres as a list; `sets`: an array [n, k, d] or n arrays [k_i, d] with the same d."""
    if isinstance(sets, np.ndarray) and sets.dtype != object:
        return list(as_vectors(sets, name, ndim=3))
    if not isinstance(sets, Sequence | np.ndarray) or len(sets) == 0:
        raise GraphError(f"{name}: expected an array [n, k, d] or n arrays [k_i, d], one per client")
    arrays = [as_vectors(centres, f"{name}: client {row}") for row, centres in enumerate(sets)]
    for row, centres in enumerate(arrays):
        if centres.shape[1] != arrays[0].shape[1]:
            expected = f"expected {arrays[0].shape[1]} as client 0 has"
            raise GraphError(f"{name}: client {row} has centres of width {centres.shape[1]}; {expected}")
    return arrays
