"""How far means of so many samples stray by chance: p-values with a known null, on plain arrays.

For clients with one mean and covariance S, Q = sum n_i |m_i - m|^2 is a sum of chi-squares with df = k - 1,
weighted by the eigenvalues of S. A gamma distribution with Q's first three cumulants stands for it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

from fedkin.errors import GraphError
from fedkin.graph._check import Array, as_vectors
from fedkin.keys import rng as keyed

__all__ = ["null_p", "outlier_p", "same_p", "top_p"]

_REPLICAS = 100


def null_p(q: Any, df: float, traces: Any, residual: float = np.inf) -> Any:
    """P(Q >= q) for Q = sum_j lambda_j chi2_df, from traces = sum lambda, sum lambda^2, sum lambda^3.

    q: one number or an array. residual: degrees of freedom behind the traces, as those of the denominator in
    an F test. With f = q / (df t1) and T the estimate of t1, the p-value is P(Q - f df T >= 0) by the first three
    cumulants: df t1 (1 - f), 2 df t2 (1 + f^2 df / residual), 8 df t3 (1 - f^3 df^2 / residual^2) (Satterthwaite's
    idea with one moment more). Exact when all lambda are equal and residual is infinite.

    >>> round(float(null_p(18.307, 10, [1, 1, 1])), 4)
    0.05
    >>> null_p([5.0, 50.0], 10, [1, 1, 1]).round(3)
    array([0.891, 0.   ])
    """
    t1, t2, t3 = _three(traces)
    q = np.asarray(q, dtype=float)
    if t1 <= 0:
        return np.where(q > 1e-9, 0.0, 1.0)[()]
    f = q / (df * t1)
    k2 = 2 * df * t2 * (1 + f**2 * df / residual)
    k3 = 8 * df * t3 * (1 - f**3 * (df / residual) ** 2)
    # A sum of chi-squares is never more skewed than one of them alone.
    skew = np.clip(k3 / k2**1.5, -np.sqrt(8 / df), np.sqrt(8 / df))
    return gamma_tail((q - df * t1) / np.sqrt(k2), skew)


def gamma_tail(z: Any, skew: float) -> Any:
    """P(Z >= z) of the gamma distribution with mean 0, variance 1 and this skewness, mirrored if it is negative."""
    sign = np.where(np.asarray(skew) < 0, -1.0, 1.0)
    shape = 4 / np.maximum(np.abs(skew), 1e-3) ** 2
    x = np.maximum(sign * np.asarray(z) * np.sqrt(shape) + shape, 0)
    return np.where(sign > 0, special.gammaincc(shape, x), special.gammainc(shape, x))[()]


def same_p(means: Any, n: Any, traces: Any, residual: float = np.inf) -> float:
    """p-value of "all clients have one mean".

    means [k, D]. n [k]: samples behind each; 0 leaves a client out. traces: of the covariance of one sample,
    [3]. Against departures in many directions.

    >>> import numpy as np
    >>> m = np.random.default_rng(0).normal(size=(8, 20)) / 10
    >>> bool(same_p(m, np.full(8, 100), [20, 20, 20]) > 0.01)
    True
    >>> bool(same_p(m + np.arange(8)[:, None] / 10, np.full(8, 100), [20, 20, 20]) < 1e-9)
    True
    """
    x, n = _centred(means, n)
    return float(null_p((n * np.square(x).sum(axis=1)).sum(), len(n) - 1, traces, residual)) if len(n) > 1 else 1.0


def outlier_p(means: Any, n: Any, traces: Any, residual: float = np.inf, own: Any = None) -> float:
    """p-value of "no client differs from the mean of all others", corrected for k clients (Bonferroni).

    own [k]: tr S by each client itself. One that varies more than all do is measured by its own: a single far
    sample moves its mean and its scatter together. Without this, levels of heavy-tailed data are missed.

    >>> import numpy as np
    >>> m = np.zeros((50, 20)); m[7] = 1
    >>> bool(outlier_p(m, np.full(50, 10), [20, 20, 20]) < 1e-6)
    True
    """
    have = np.asarray(n) > 0
    x, n = _centred(means, n)
    if len(n) < 2:
        return 1.0
    # Against the mean of the others: n_i (N - n_i) / N |m_i - m_rest|^2 = n_i N / (N - n_i) |m_i - m|^2.
    q = n * n.sum() / (n.sum() - n) * np.square(x).sum(axis=1)
    if own is not None:
        wide = np.asarray(own, dtype=float)[have] / max(float(traces[0]), 1e-300)
        q = q / np.maximum(np.where(np.isfinite(wide), wide, 1.0), 1.0)
    return min(1.0, float(np.min(null_p(q, 1, traces, residual))) * len(n))


def top_p(means: Any, n: Any, traces: Any, seed: int = 0) -> float:
    """p-value of the largest eigenvalue of sum n_i (m_i - m)(m_i - m)': a departure along few directions.

    Against replicas of noise with eigenvalues that fall as a power law with these traces, a gamma
    distribution through their moments. 1 for fewer than five clients.

    >>> import numpy as np
    >>> m = np.random.default_rng(0).normal(size=(40, 50)) / 10
    >>> bool(top_p(m, np.full(40, 100), [50, 50, 50]) > 0.01)
    True
    >>> m[:20, 0] += 0.5
    >>> bool(top_p(m, np.full(40, 100), [50, 50, 50]) < 1e-4)
    True
    """
    x, n = _centred(means, n)
    t1, t2, _ = _three(traces)
    if len(n) < 5 or t1 <= 0:
        return 1.0
    x = x * np.sqrt(n)[:, None]
    gram = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    largest = np.linalg.eigvalsh(gram)[-1] / t1
    # A grid of exponents lets nodes and blocks share their replicas.
    power = round(_exponent(x.shape[1], t2 / t1**2) * 20) / 20
    mean, spread, skew = _largest_of_noise(len(n) - 1, x.shape[1], power, seed)
    return float(gamma_tail((largest - mean) / spread, skew))


@lru_cache(maxsize=4096)
def _largest_of_noise(df: int, width: int, power: float, seed: int) -> tuple[float, float, float]:
    """Mean, deviation and skewness of the largest eigenvalue of a Wishart matrix with df degrees of freedom."""
    draw = keyed(seed, "top", df, width, str(power))
    root = np.sqrt(_power_law(width, power))
    root = root[root > 1e-4 * root[0]]
    # Small matrices cost nothing, and few clients vary most.
    replicas = _REPLICAS * (4 if min(df, len(root)) <= 40 else 1)
    found = np.empty(replicas)
    for at in range(replicas):
        if df > len(root):  # Bartlett: the triangular root of a Wishart matrix.
            y = np.tril(draw.standard_normal((len(root), len(root))), -1)
            y[np.diag_indices(len(root))] = np.sqrt(draw.chisquare(df - np.arange(len(root))))
            y = y.T * root
            gram = y.T @ y
        else:
            y = draw.standard_normal((df, len(root))) * root
            gram = y @ y.T
        found[at] = np.linalg.eigvalsh(gram)[-1]
    mean, spread = float(found.mean()), float(found.std(ddof=1))
    # No less skewed than a chi-square of this mean and deviation, which one direction alone is, or than the limit
    # for many (Tracy and Widom's law).
    third = float(np.mean(((found - mean) / spread) ** 3))
    return mean, spread, max(third, 2 * spread / mean, 0.3)


def _power_law(width: int, power: float) -> Array:
    values: Array = np.arange(1, width + 1.0) ** -power
    values /= values.sum()
    return values


def _exponent(width: int, squares: float) -> float:
    """The power whose law sums to 1 with this sum of squares."""
    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if np.square(_power_law(width, middle)).sum() < squares else (low, middle)
    return low


def _three(traces: Any) -> tuple[float, float, float]:
    """The traces, put into what traces of a covariance can be."""
    t1, t2, t3 = (float(t) for t in as_vectors(traces, "traces", ndim=1))
    t2 = min(max(t2, 1e-6 * t1 * t1), t1 * t1)
    # Between what equal eigenvalues give (Cauchy-Schwarz) and what the largest possible one does.
    return t1, t2, min(max(t3, t2 * t2 / max(t1, 1e-300)), t2**1.5)


def _centred(means: Any, n: Any) -> tuple[Array, Array]:
    """Means about their weighted mean, of the clients that have any sample."""
    means, n = as_vectors(means, "means"), as_vectors(n, "n", ndim=1)
    if len(n) != len(means) or (n < 0).any():
        raise GraphError(f"n: expected {len(means)} counts of at least 0, one per row of means, got {n}")
    have = n > 0
    means, n = means[have], n[have]
    return (means - n @ means / n.sum() if len(n) else means), n
