"""The probability simplex {w >= 0, sum w = 1}: projection, and a linear objective with a norm penalty."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, as_counts, as_vectors

__all__ = ["norm_regularised", "project", "softmax"]


def project(v: Any, *, floor: float = 0.0) -> Array:
    """Return the nearest point to `v` [n], or to each row of [m, n], with entries >= floor that sum to 1.

    The algorithm sorts the entries (Held, Wolfe and Crowder 1974; Duchi et al. 2008). floor * n must not exceed 1.

    >>> project([0.5, 2.0, -1.0])
    array([0., 1., 0.])
    >>> project([0.5, 2.0, -1.0], floor=0.1)
    array([0.1, 0.8, 0.1])
    """
    rows, shape = _rows(v, "v")
    n = rows.shape[1]
    if not (np.isfinite(floor) and floor >= 0 and floor * n <= 1 + 1e-12):
        raise GraphError(f"floor: expected 0 to 1/{n} so that {n} entries can sum to 1, got {floor}")
    room = max(1.0 - floor * n, 0.0)
    # Only differences matter. Entries that are lower than the largest by more than `room` end at the floor.
    rows = np.maximum(rows - rows.max(axis=1, keepdims=True), -2.0)
    ordered = -np.sort(-rows, axis=1)
    excess = np.cumsum(ordered, axis=1) - room
    count = np.arange(1, n + 1)
    # With room 0 no entry passes the test. The largest entry is then kept, with excess 0.
    support = np.maximum((ordered * count > excess).sum(axis=1), 1)
    cut = excess[np.arange(len(rows)), support - 1] / support
    return np.asarray(np.maximum(rows - cut[:, None], 0.0) + floor).reshape(shape)


def norm_regularised(c: Any, b: float, *, trust: Any = None) -> Array:
    """Return the w on the simplex that minimises -<c, w> + b |w|_2, for `c` [n] or each row of [m, n].

    b: at least 0. trust: t [n] above 0; the norm is then |w / sqrt(t)|_2, so that equal c give w proportional to t.
    Stationarity gives w_j = t_j (c_j - nu)_+ up to a factor, with sum_j t_j (c_j - nu)_+^2 = b^2. So nu solves a
    quadratic equation on each candidate support, and w is exact. b = 0 is the limit: all weight is on the largest
    entries.

    >>> norm_regularised([1.0, 1.0, 0.0], 0.5)
    array([0.5, 0.5, 0. ])
    >>> norm_regularised([1.0, 1.0, 0.0], 0.5, trust=[3.0, 1.0, 1.0])
    array([0.75, 0.25, 0.  ])
    """
    rows, shape = _rows(c, "c")
    if not (np.isfinite(b) and b >= 0):
        raise GraphError(f"b: expected a number of at least 0, got {b}")
    t = _trust(trust, rows.shape[1])
    rows = rows - rows.max(axis=1, keepdims=True)
    if b == 0:
        best = (rows == 0) * t
        return np.asarray(best / best.sum(axis=1, keepdims=True)).reshape(shape)
    # Rows are in units of b and of the largest trust. Entries more than b / sqrt(t) below the largest get weight 0.
    with np.errstate(over="ignore"):
        rows = np.maximum(rows * np.sqrt(t.max()) / b, -2.0 * np.sqrt(t.max() / t.min()))
    order = np.argsort(-rows, axis=1, kind="stable")
    ordered, share = np.take_along_axis(rows, order, axis=1), (t / t.max())[order]
    count = np.cumsum(share, axis=1)
    first, second = np.cumsum(share * ordered, axis=1), np.cumsum(share * np.square(ordered), axis=1)
    # Entry m is in the support if and only if nu is below it, that is, if sum_{i<=m} t_i (c_i - c_m)^2 < 1.
    support = (second - 2 * ordered * first + count * np.square(ordered) < 1).sum(axis=1)
    at = (np.arange(len(rows)), support - 1)
    mean = first[at] / count[at]
    cut = mean - np.sqrt(np.maximum(1 / count[at] - (second[at] / count[at] - np.square(mean)), 0.0))
    weight = np.maximum(rows - cut[:, None], 0.0) * t
    return np.asarray(weight / weight.sum(axis=1, keepdims=True)).reshape(shape)


def _trust(trust: Any, n: int) -> Array:
    if trust is None:
        return np.ones(n)
    t = as_counts(trust, n, "trust")
    if not (t > 0).all():
        raise GraphError(f"trust: expected numbers above 0, got {t.min():g} at {int(t.argmin())}")
    return t


def _rows(v: Any, name: str) -> tuple[Array, tuple[int, ...]]:
    """Return `v` as a matrix of rows, and the shape of the result."""
    ndim = np.ndim(v)
    if ndim not in (1, 2):
        raise GraphError(f"{name}: expected a vector [n] or rows [m, n], got {ndim} axes")
    array = as_vectors(v, name, ndim=ndim)
    return array.reshape(-1, array.shape[-1]), array.shape


def softmax(values: Any, temperature: float = 1.0) -> Array:
    """Return exp(c_k / temperature) divided by its sum: a prior [n] on clients from centralities [n] (TFL).

    temperature: above 0. A high temperature gives a prior near uniform, a low one a prior near one-hot.

    >>> softmax([0.0, 0.0])
    array([0.5, 0.5])
    """
    c = as_vectors(values, "values", ndim=1)
    if not (np.isfinite(temperature) and temperature > 0):
        raise GraphError(f"temperature: expected a number above 0, got {temperature}")
    with np.errstate(over="ignore"):
        weight = np.exp((c - c.max()) / temperature)
    return np.asarray(weight / weight.sum())
