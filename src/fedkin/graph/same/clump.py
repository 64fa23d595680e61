"""Are clients that differ in clumps, or spread like one Gaussian? Only clumps are worth a cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_dense, as_vectors
from fedkin.graph.same.cluster import ward
from fedkin.graph.same.stack import Stack
from fedkin.keys import rng as keyed

__all__ = ["clump_p", "noise_covariance"]

_REPLICAS, _FIRST = 199, 39
# Beyond so many clients, profiles are of this many micro-clusters; on both sides, so the level holds.
_MOST = 150
_DEEPEST = 30


def clump_p(means: Any, n: Any, covariance: Any, *, seed: int = 0) -> tuple[float, float]:
    """p-value of "these clients' true means are of one Gaussian", by simulation, and its strength.

    means [k, D], n [k] samples behind each, covariance [D, D] of one sample. The strength is how many deviations
    the clients' profile lies below that of the Gaussians. 1 for fewer than four clients. Statistic: Ward's
    profile log W_K / W_1, K = 2 .. 30, W_K the sum of squares within K clusters, each K in deviations of the
    replicas', and the largest of these. Replicas: Gaussians with the covariance between clients that is left
    when noise is taken out, plus noise. Close to SHC (Kimes et al. 2017), which clusters samples instead.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([[-3.0, 0.0], [3.0, 0.0]], 20, axis=0) + rng.normal(size=(40, 2))
    >>> clump_p(truth, np.full(40, 1000), np.eye(2) / 10)[0]
    0.005
    """
    means, n, covariance = as_vectors(means, "means"), as_vectors(n, "n", ndim=1), as_dense(covariance, "covariance")
    k = len(n)
    if len(means) != k or covariance.shape[1] != means.shape[1] or (n <= 0).any():
        raise GraphError(
            f"clump_p: expected a positive n per row of means, and a covariance of {means.shape[1]} columns"
        )
    if k < 4:
        return 1.0, 0.0
    most = max(2, min(k - 1, k // 2, _DEEPEST)) + 1
    x = means - n @ means / n.sum()
    between = ((x * n[:, None]).T @ x - (k - 1) * covariance) / (n.sum() - np.square(n).sum() / n.sum())
    to_truth, to_noise = _root(between, float(np.trace(between))), _root(covariance, float(np.trace(covariance)))
    # In the axes along which clients differ most, so that micro-clusters are cut there; distances stay.
    axes = np.linalg.eigh((between + between.T) / 2)[1][:, ::-1]
    x, to_truth, to_noise = x @ axes, axes.T @ to_truth, axes.T @ to_noise
    draw = keyed(seed, "clump", k, x.shape[1])

    def replica() -> Array:
        truth: Array = draw.standard_normal((k, to_truth.shape[1])) @ to_truth.T
        truth += (draw.standard_normal((k, to_noise.shape[1])) @ to_noise.T) / np.sqrt(n)[:, None]
        return truth

    got = _profile(x, n, most)
    nulls = np.stack([_profile(replica(), n, most) for _ in range(_FIRST)])
    p, strength = _rank(got, nulls)
    # A quarter of the first replicas beyond the clients: more replicas would not change the answer.
    if p > 0.25:
        return p, strength
    nulls = np.vstack([nulls, [_profile(replica(), n, most) for _ in range(_REPLICAS - _FIRST)]])
    return _rank(got, nulls)


def _rank(got: Array, nulls: Array) -> tuple[float, float]:
    middle, spread = nulls.mean(axis=0), nulls.std(axis=0) + 1e-9
    mine = float(((middle - got) / spread).max())
    theirs = ((middle - nulls) / spread).max(axis=1)
    return (1 + int((theirs >= mine).sum())) / (len(nulls) + 1), mine


def _root(covariance: Array, trace: float) -> Array:
    """A square root [D, r] of the nearest covariance without negative eigenvalues and with this trace."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    values = np.maximum(values, 0)
    keep = values > 1e-7 * max(float(values[-1]), 1e-300)
    if trace <= 0 or not keep.any():
        return np.zeros((len(covariance), 0))
    root: Array = vectors[:, keep] * np.sqrt(values[keep] * (trace / values.sum()))
    return root


def _profile(x: Array, n: Array, most: int) -> Array:
    """log W_K / W_1 for K = 2 .. most - 1 clusters."""
    if len(x) > _MOST:
        x, n = _micro(x, n)
    heights = ward(x, n)[:, 2]
    within = np.cumsum(heights)[::-1]
    return np.asarray(np.log(np.maximum(within[1:most] / within[0], 1e-12)))


def _micro(x: Array, n: Array) -> tuple[Array, Array]:
    """Micro-clusters: splits along the axis of most variance at the weighted mean, the costliest first."""
    parts: list[Labels] = [np.arange(len(x))]
    costs = [_cost(x, n)]
    while len(parts) < _MOST:
        rows = parts.pop(at := int(np.argmax(costs)))
        costs.pop(at)
        mean = n[rows] @ x[rows] / n[rows].sum()
        axis = int(np.argmax(n[rows] @ np.square(x[rows] - mean)))
        right = x[rows, axis] > mean[axis]
        for side in (rows[~right], rows[right]):
            if len(side):
                parts.append(side)
                costs.append(_cost(x[side], n[side]) if len(side) > 1 and right.any() else 0.0)
    weights = np.array([n[rows].sum() for rows in parts])
    return np.stack([n[rows] @ x[rows] / n[rows].sum() for rows in parts]), weights


def _cost(x: Array, n: Array) -> float:
    return float(n @ np.square(x).sum(axis=1) - np.square(n @ x).sum() / n.sum())


def noise_covariance(stack: Stack) -> Array:
    """Covariance of one sample's noise from all clients' halves, with the trace that they state."""
    h = stack.halves * np.sqrt(stack.n)[:, None]
    found: Array = h.T @ h / max(len(h), 1)
    trace, t1 = float(np.trace(found)), stack.pooled()[0][0]
    return found * (t1 / trace) if trace > 0 else found
