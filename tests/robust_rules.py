"""Robust rules of aggregation, written out one number after another."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Each with and without a number.
RULES = [
    "mean", "median", "trimmed-mean", "trimmed-mean:0.4", "krum", "krum:0.1", "multi-krum:0.3",
    "geometric-median:0.001", "centred-clipping", "centred-clipping:0.05", "norm-clipping", "norm-clipping:0.05",
]  # fmt: skip


def clipped(u: Array, limit: float) -> Array:
    length = math.sqrt(float((u * u).sum()))
    return u if length <= limit else u * (limit / length)


def middle(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def by_krum(x: list[Array], f: int, start: Array) -> list[Array]:
    """All vectors, the best first; of equal scores that which is nearer to the start."""
    scored = []
    for i, own in enumerate(x):
        apart = sorted(float(((own - other) ** 2).sum()) for j, other in enumerate(x) if j != i)
        scored.append((sum(apart[: max(len(x) - f - 2, 1)]), float(((own - start) ** 2).sum()), i))
    return [x[i] for _, _, i in sorted(scored)]


def by_hand(rule: str, x: list[Array], weights: list[float], start: Array) -> Array:
    name, _, text = rule.partition(":")
    m, d = len(x), len(x[0])
    w = [weight / sum(weights) for weight in weights]
    f = min(math.ceil(float(text or 0.2) * m), (m - 1) // 2) if name in ("trimmed-mean", "krum", "multi-krum") else 0
    if name == "mean":
        return np.asarray(sum(share * own for share, own in zip(w, x, strict=True)))
    if name == "median":
        return np.array([middle([float(own[k]) for own in x]) for k in range(d)])
    if name == "trimmed-mean":
        return np.array([np.mean(sorted(float(own[k]) for own in x)[f : m - f]) for k in range(d)])
    if name == "krum":
        return by_krum(x, f, start)[0]
    if name == "multi-krum":
        return np.asarray(sum(by_krum(x, f, start)[: m - f]) / (m - f))
    if name == "geometric-median":
        z = by_hand("median", x, weights, start)
        for _ in range(300):
            pull = [share / max(float(text), float(np.linalg.norm(own - z))) for share, own in zip(w, x, strict=True)]
            z = np.asarray(sum(p * own for p, own in zip(pull, x, strict=True)) / sum(pull))
        return z
    v = start
    for _ in range(3 if name == "centred-clipping" else 1):
        limit = float(text) if text else middle([float(np.linalg.norm(own - v)) for own in x])
        v = v + np.asarray(sum(share * clipped(own - v, limit) for share, own in zip(w, x, strict=True)))
    return v
