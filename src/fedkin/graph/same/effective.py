"""Samples that are not independent: how many samples are behind each independent one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from fedkin.graph._check import Array
from fedkin.graph.same.moments import Moments
from fedkin.graph.same.null import null_p

__all__ = ["repeats", "serial"]

# Fewer samples cannot tell dependence from chance.
_FEWEST = 12
_COUNTED, _SAID = 0.05, 0.001


def serial(p: Array) -> tuple[float, bool]:
    """The design effect of centred features p [n, D] in stored order, and whether it is beyond doubt.

    Means of contiguous blocks (2, 4, 8, .. blocks, up to pairs of samples) vary as S / length if samples are
    independent. Where they vary more (p < .05 over all block lengths) the largest ratio, and one deviation, is
    the effect.
    """
    n = len(p)
    if n < _FEWEST:
        return 1.0, False
    traces = Moments.of(p).traces
    if traces[0] <= 1e-12:
        return 1.0, False
    sums = np.vstack([np.zeros(p.shape[1]), np.cumsum(p - p.mean(axis=0), axis=0)])
    counts = [2**j for j in range(1, int(np.log2(n)))]
    best, least = 1.0, 1.0
    for count in counts:
        edges = np.linspace(0, n, count + 1).round().astype(int)
        q = float((np.square(sums[edges[1:]] - sums[edges[:-1]]).sum(axis=1) / np.diff(edges)).sum())
        found = float(null_p(q, count - 1, traces, n - 1)) * len(counts)
        least = min(least, found)
        if found < _COUNTED:
            # One deviation above: too small an effect makes a client odd, too large a one only loses power.
            doubt = np.sqrt(2 * min(max(traces[1], 0.0) / traces[0] ** 2, 1.0) / (count - 1))
            best = max(best, q / (count - 1) / traces[0] * (1 + doubt))
    return min(best, n / 2), least < _SAID


def repeats(x: Any) -> float:
    """sum of squared multiplicities / n of equal rows, 1 if they may well be equal by chance.

    Rows of a few categories are often equal and independent all the same. Equal rows count as repeats if
    columns that are drawn independently of each other would give less than .01 pairs of equal rows.
    """
    n = len(x)
    seen = Counter(row.tobytes() for row in x)
    counts = np.array(list(seen.values()))
    m = len(counts)
    if m == n:
        return 1.0
    # How often a column has equal values in two different rows.
    pairs = [np.square(np.unique(column, return_counts=True)[1]).sum() - m for column in _distinct(x, seen).T]
    chance = np.log(np.maximum(np.array(pairs) / max(m * (m - 1), 1), 1 / m**2)).sum()
    return float(np.square(counts).sum() / n) if np.log(n * n / 2) + chance < np.log(0.01) else 1.0


def _distinct(x: Any, seen: Counter[bytes]) -> Any:
    return np.stack([np.frombuffer(row, dtype=x.dtype) for row in seen])
