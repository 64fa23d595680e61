"""Numbers of the papers' figures: hierarchies (FLT, Fig. 3), overlaps (MAPL, Fig. 3, 4), points in the plane."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist, squareform

from fedkin.graph import silhouette

__all__ = ["Tree", "axes", "class_overlap", "correlation", "mean_by_level", "project", "separation", "tree", "tsne"]

Array = npt.NDArray[np.float64]

# With fewer points t-SNE shows no more than principal components do.
_FEW = 12
_STEPS = 500


@dataclass(frozen=True, eq=False)
class Tree:
    """order: rows from left to right [n]; branches, one per row, from the lowest to the highest.

    A branch is (left, right, left foot, right foot, height, first leaf, last leaf). `left` and `right` are x
    positions, where leaf k of the order is at k. The branch rises from its feet to its height and holds these leaves.
    """

    order: npt.NDArray[np.int64]
    branches: Array


def tree(weights: Any) -> Tree:
    """Ward's hierarchy of the rows of `weights` [n, n], high = similar; the diagonal is set to the largest weight.

    Rows are compared, as in FLT's released code: clients with the same neighbours are similar. Of two branches, the
    one whose leaves are more similar is on the left.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage

    rows = np.array(weights, dtype=np.float64)
    n = len(rows)
    if n < 2:
        return Tree(np.arange(n), np.zeros((0, 7)))
    np.fill_diagonal(rows, max(float(rows.max()), 0.0))
    merges = linkage(pdist(rows), method="ward")
    order = np.array(dendrogram(merges, no_plot=True, distance_sort="ascending")["leaves"], dtype=np.int64)
    return Tree(order, _branches(merges, order))


def _branches(merges: Array, order: npt.NDArray[np.int64]) -> Array:
    n = len(order)
    place = np.empty(2 * n - 1)
    place[order] = np.arange(n)
    low, high, height = place.copy(), place.copy(), np.zeros(2 * n - 1)
    branches = np.zeros((n - 1, 7))
    for k, (a, b, at, _) in enumerate(merges.tolist()):
        left, right = sorted((int(a), int(b)), key=lambda node: place[node])
        new = n + k
        place[new], height[new] = (place[left] + place[right]) / 2, at
        low[new], high[new] = min(low[left], low[right]), max(high[left], high[right])
        branches[k] = place[left], place[right], height[left], height[right], at, low[new], high[new]
    return branches


def class_overlap(classes: Sequence[Collection[str]]) -> Array:
    """Classes that both clients have, divided by classes that either has: [n, n] in [0, 1]; 0 if neither has any.

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


def axes(points: Any) -> tuple[Array, Array]:
    """Mean [d] and two first principal axes [d, 2] of points [n, d]; the largest entry of an axis is positive."""
    x = np.asarray(points, dtype=np.float64)
    mean = x.mean(0)
    _, vectors = np.linalg.eigh((x - mean).T @ (x - mean))
    directions = np.zeros((x.shape[1], 2))
    directions[:, : vectors.shape[1]] = vectors[:, :-3:-1]
    return mean, directions * np.sign(directions[np.abs(directions).argmax(0), [0, 1]] + 1e-300)


def project(points: Any, basis: tuple[Array, Array]) -> Array:
    """Positions [n, 2] of points [n, d] along the axes of `axes`."""
    mean, directions = basis
    return np.asarray((np.asarray(points, dtype=np.float64) - mean) @ directions)


def tsne(points: Any, start: Array) -> Array:
    """Positions [n, 2], largest entry 1, of points [n, d] by t-SNE (van der Maaten and Hinton 2008), by scikit-learn.

    start: initial positions, and the result for fewer than 12 points. Perplexity is n / 10, from 4 to 30: above the
    size of the clusters it would let each of them collapse. One thread is used: equal points get equal positions.
    """
    x = np.asarray(points, dtype=np.float64)
    if len(x) >= _FEW and float(start.std(axis=0).max()) > 0:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        with threadpool_limits(1):
            begin = (start / start.std(axis=0).max() * 1e-4).astype(np.float32)
            near = min(float(np.clip(len(x) / 10, 4, 30)), (len(x) - 1) / 3)
            steps = "max_iter" if "max_iter" in TSNE().get_params() else "n_iter"  # scikit-learn 1.5 renamed it
            made = TSNE(perplexity=near, init=begin, random_state=0, **{steps: _STEPS})
            start = np.asarray(made.fit_transform((x - x.mean(0)) / max(float(x.std()), 1e-12)), dtype=np.float64)
    centred = start - (start.max(0) + start.min(0)) / 2
    return np.asarray(centred / max(float(np.abs(centred).max()), 1e-12))


def separation(points: Any, kinds: Sequence[Any]) -> float | None:
    """Mean silhouette of points [n, d] by kind, in [-1, 1]: high if the kinds are separated (Rousseeuw 1987).

    None for one kind only, or if every point is of its own kind.
    """
    _, labels = np.unique(np.asarray(kinds), return_inverse=True)
    if not 2 <= int(labels.max(initial=0)) + 1 < len(labels):
        return None
    return float(silhouette(squareform(pdist(np.asarray(points, dtype=np.float64))), labels).mean())
