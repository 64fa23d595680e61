"""Numbers of the papers' figures: overlaps of clients (MAPL, Fig. 3, 4), and separation of kinds of points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def class_overlap(classes: Sequence[Collection[str]]) -> Array:
    """Number of common classes of two clients, divided by that of their union: [n, n] in [0, 1]; 0 without any class.

    >>> class_overlap([{"0", "1"}, {"1", "2"}, {"3"}]).round(2)
    array([[1.  , 0.33, 0.  ],
           [0.33, 1.  , 0.  ],
           [0.  , 0.  , 1.  ]])
    """
    names = sorted({name for one in classes for name in one})
    has = np.array([[name in one for name in names] for one in classes], dtype=np.float64).reshape(len(classes), -1)
    both, size = has @ has.T, has.sum(1)
    return np.asarray(both / np.maximum(size[:, None] + size[None, :] - both, 1))


def correlation(weights: Any, overlap: Any) -> float | None:
    """Pearson correlation of two matrices [n, n] over the pairs of different clients; None if one is constant."""
    a, b = _pairs(weights), _pairs(overlap)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def mean_by_level(weights: Any, overlap: Any) -> tuple[float | None, float | None, float | None]:
    """Mean weight of the pairs that share nothing (overlap 0), something, and everything (overlap 1).

    >>> overlap = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.5], [0.0, 0.5, 1.0]])
    >>> mean_by_level(np.array([[9.0, 4.0, 1.0], [2.0, 9.0, 3.0], [1.0, 3.0, 9.0]]), overlap)
    (1.0, 3.0, 3.0)
    """
    weight, shared = _pairs(weights), _pairs(overlap)
    levels = (shared <= 0, (shared > 0) & (shared < 1), shared >= 1)
    return tuple(float(weight[level].mean()) if level.any() else None for level in levels)  # type: ignore[return-value]


def _pairs(matrix: Any) -> Array:
    dense = np.asarray(matrix, dtype=np.float64)
    return dense[~np.eye(len(dense), dtype=bool)]


def separation(points: Any, kinds: Sequence[Any]) -> float | None:
    """Mean silhouette of points [n, d] by kind, in [-1, 1]: high if the kinds are separated (Rousseeuw 1987).

    None if there is only one kind, or if every point has its own kind.
    """
    _, labels = np.unique(np.asarray(kinds), return_inverse=True)
    if not 2 <= int(labels.max(initial=0)) + 1 < len(labels):
        return None
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(np.asarray(points, dtype=np.float64), labels))
