"""The hierarchy of a graph's clients: the order of its leaves and its branches, as FLT's Fig. 3 draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Tree", "tree"]

Array = npt.NDArray[np.float64]


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
    from scipy.spatial.distance import pdist

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
    found = np.zeros((n - 1, 7))
    for k, (a, b, at, _) in enumerate(merges.tolist()):
        left, right = sorted((int(a), int(b)), key=lambda node: place[node])
        new = n + k
        place[new], height[new] = (place[left] + place[right]) / 2, at
        low[new], high[new] = min(low[left], low[right]), max(high[left], high[right])
        found[k] = place[left], place[right], height[left], height[right], at, low[new], high[new]
    return found
