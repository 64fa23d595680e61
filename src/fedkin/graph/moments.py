"""Moments of one client's features: how far a mean of so many samples strays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, as_vectors
from fedkin.keys import rng as keyed

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean of n samples of D features, and the traces of their covariance S; 2 D + 9 numbers.

    n: samples. mean [D]. half [D]: half the difference of two halves' means, scaled so that its covariance is that of
    `mean`. traces: tr S, tr S^2, tr S^3, unbiased, NaN for too few samples. free [3]: degrees of freedom behind each.
    effect: variance of the mean over that of n independent samples, at least 1. noise: variance added on purpose to
    each entry of `mean` and `half`.

    >>> import numpy as np
    >>> p = np.random.default_rng(0).normal(size=(600, 4))
    >>> one, two = Moments.of(p[:200]), Moments.of(p[200:])
    >>> both = Moments.total([one, two])
    >>> both.n, bool(np.allclose(both.mean, p.mean(axis=0)))
    (600, True)
    >>> both.traces.round(1)
    array([4. , 4. , 3.9])
    """

    n: int
    mean: Array
    half: Array
    traces: Array
    free: Array
    effect: float = 1.0
    noise: float = 0.0

    @property
    def weight(self) -> float:
        """The number of independent samples whose mean is as precise as this one, without noise."""
        return self.n / self.effect

    @classmethod
    def of(cls, p: Any, *, effect: float = 1.0, seed: int = 0) -> Moments:
        """Return the moments of samples `p` [n, D]; halves and thirds are drawn by `seed` and n."""
        p = as_vectors(p, "p")
        n, width = p.shape
        p = p[keyed(seed, "moments", n).permutation(n)]
        half = np.zeros(width)
        if n > 1:
            k = n // 2
            half = (p[:k].mean(axis=0) - p[k : 2 * k].mean(axis=0)) / 2 * np.sqrt(2 * k / n * effect)
        traces = _traces(p, effect)
        free = np.where(np.isfinite(traces), max(n / effect - 1, 0.0), 0.0)
        return cls(n, p.mean(axis=0), half, traces, free, effect)

    @classmethod
    def empty(cls, width: int) -> Moments:
        """Return the moments of no samples: they have no weight in any test."""
        return cls(0, np.zeros(width), np.zeros(width), np.full(3, np.nan), np.zeros(3))

    @classmethod
    def total(cls, parts: Sequence[Moments]) -> Moments:
        """Return the moments of all clients' samples, if all have one mean."""
        widths = sorted({len(m.mean) for m in parts})
        if len(widths) != 1:
            raise GraphError(f"moments of {widths or 'no'} features cannot be merged; expected one width")
        parts = [m for m in parts if m.n] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        weight, noise = fields_of(parts, "weight", "noise")
        means, halves, traces, free = fields_of(parts, "mean", "half", "traces", "free")
        share, n = weight / weight.sum(), sum(m.n for m in parts)
        effect = float(n / weight.sum())
        return cls(n, share @ means, share @ halves, *pool(traces, free), effect, float(share**2 @ noise))

    def to_arrays(self) -> Arrays:
        """mean and half in float16 (float32 where that would overflow), all else as float32."""
        largest = max(np.abs(self.mean).max(initial=0), np.abs(self.half).max(initial=0))
        numbers = np.array([self.n, self.effect, self.noise, *self.traces, *self.free], dtype=np.float32)
        mean, half = (half_precision(v, largest) for v in (self.mean, self.half))
        return {"mean": mean, "half": half, "numbers": numbers}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Moments:
        """Read what `to_arrays` wrote."""
        mean, half, numbers = floats_in(arrays, "moments", "mean", "half", "numbers")
        finite = np.isfinite(mean).all() and np.isfinite(half).all() and np.isfinite(numbers[:3]).all()
        if mean.ndim != 1 or mean.shape != half.shape or numbers.shape != (9,) or not finite:
            raise GraphError("moments: mean, half or numbers have another shape or are not finite; send them again")
        return cls(round(numbers[0]), mean, half, numbers[3:6], numbers[6:], float(numbers[1]), float(numbers[2]))


def _traces(p: Array, effect: float) -> Array:
    """tr S from all samples; tr S^2 and tr S^3 from products of thirds, whose errors are independent.

    NaN if unknown: tr S of one sample, the others of fewer than six.
    """
    n = len(p)
    if n < 2 or n <= effect:
        return np.full(3, np.nan)
    # Of n samples whose mean varies as S effect / n, squares about the mean sum to (n - effect) S.
    first = float(np.square(p - p.mean(axis=0)).sum() / (n - effect))
    if n < 6:
        return np.array([first, np.nan, np.nan])
    parts = [third - third.mean(axis=0) for third in np.array_split(p, 3)]
    return np.array([first, *cross_traces([q / np.sqrt(len(q) - 1) for q in parts])])


def cross_traces(thirds: list[Array]) -> tuple[float, float]:
    """tr S^2 and tr S^3 from three independent roots A, B, C of S, S = E A'A: tr A'A B'B and so on."""
    a, b, c = thirds
    if len(a) < a.shape[1]:
        ab, bc, ca = a @ b.T, b @ c.T, c @ a.T
        squares = np.square(ab).sum() + np.square(bc).sum() + np.square(ca).sum()
        return float(squares) / 3, float((ab @ bc * ca.T).sum())
    a, b, c = a.T @ a, b.T @ b, c.T @ c
    return float((a * b).sum() + (b * c).sum() + (a * c).sum()) / 3, float((a @ b * c).sum())


def fields_of(parts: Sequence[Any], *names: str) -> list[Any]:
    """These fields of all parts, each as one array with a row for each part."""
    return [np.array([getattr(part, name) for part in parts]) for name in names]


def pool(traces: Array, free: Array) -> tuple[Array, Array]:
    """Traces [k, 3] weighted by degrees of freedom [k, 3], each over the parts that know it; and the total degrees."""
    total = free.sum(axis=0)
    sums: Array = (np.where(free > 0, traces, 0) * free).sum(axis=0)
    return np.where(total > 0, sums / np.maximum(total, 1e-300), np.nan), total


def floats_in(arrays: Mapping[str, Any], what: str, *names: str) -> list[Array]:
    """These arrays as float64; raises GraphError if one is missing or holds no numbers."""
    try:
        return [np.asarray(arrays[name], dtype=np.float64) for name in names]
    except (KeyError, TypeError, ValueError):
        raise GraphError(f"{what}: expected arrays {', '.join(names)}; send them again") from None


def half_precision(values: Array, largest: float) -> np.ndarray[Any, Any]:
    """As float16, or float32 where float16 would overflow."""
    return values.astype(np.float32 if largest > 6e4 else np.float16)
