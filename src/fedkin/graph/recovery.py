"""Scores of graphs and groups against planted groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Labels, as_labels, as_sparse


def ari(truth: Any, found: Any) -> float:
    """Return the adjusted Rand index of two labellings [n] (Hubert and Arabie 1985): 1 equal groups, 0 by chance.

    >>> ari(["a", "a", "b", "b"], [1, 1, 0, 0])
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_labellings(truth, found)))


def nmi(truth: Any, found: Any) -> float:
    """Return the normalised mutual information of two labellings [n]: 2 I / (H_truth + H_found), in [0, 1].

    >>> nmi(["a", "a", "b", "b"], [1, 1, 0, 0])
    1.0
    """
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_labellings(truth, found)))


def _labellings(truth: Any, found: Any) -> tuple[Labels, Labels]:
    labels = as_labels(truth, name="truth")
    if len(labels) == 0:
        raise GraphError("truth: expected at least one client")
    return labels, as_labels(found, len(labels), "found")


def modularity(a: Any, labels: Any, *, resolution: float = 1.0) -> float:
    """Return Newman's modularity of groups in symmetric affinity `a` [n, n], in [-1, 1]; 0 without edges.

    Q = sum_g (w_g / m - resolution * (d_g / 2m)^2), where w_g is the weight inside g, d_g the sum of degrees in g,
    and m the total weight (SFMTL-Graph, Eq. 11). A diagonal entry is a self-loop, and adds twice its weight to its
    client's degree, as in networkx.

    >>> modularity(np.kron(np.eye(2), [[0, 1], [1, 0]]), [0, 0, 1, 1])
    0.5
    """
    coo = as_sparse(a, nonnegative=True).tocoo()
    groups = as_labels(labels, coo.shape[0])
    loop = coo.row == coo.col
    weight = np.where(loop, 2.0, 1.0) * coo.data
    total = weight.sum()
    if total == 0:
        return 0.0
    weight = weight / total
    inside = float(weight[groups[coo.row] == groups[coo.col]].sum())
    degree = np.bincount(groups[coo.row], weights=weight, minlength=groups.max() + 1)
    return inside - resolution * float(np.square(degree).sum())
