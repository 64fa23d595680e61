"""Scores of graphs and groups against planted groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_labels, as_sparse


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
    first, second = _labellings(truth, found)
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1)
    p = table / table.sum()
    joint, one, two = _entropy(p), _entropy(p.sum(1)), _entropy(p.sum(0))
    return float(np.clip(2 * (one + two - joint) / (one + two), 0.0, 1.0)) if one + two > 0 else 1.0


def _entropy(p: Array) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


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


@dataclass(frozen=True)
class EdgeScores:
    """Precision and recall of edges, scored against planted groups.

    precision: share of edges that are inside planted groups. recall: share of pairs of the same group that are edges.
    f1: the harmonic mean of both.

    Without edges the precision is 1, and without pairs of the same group the recall is 1, since there is no error.
    """

    precision: float
    recall: float
    f1: float


def edge_scores(a: Any, planted: Any) -> EdgeScores:
    """Score the edges (a_ij > 0, i != j) of `a` [n, n] against the pairs of the same planted group.

    >>> edge_scores(np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]), ["a", "a", "b"])
    EdgeScores(precision=0.5, recall=1.0, f1=0.6666666666666666)
    """
    coo = as_sparse(a, symmetric=False, nonnegative=True).tocoo()
    truth = as_labels(planted, coo.shape[0], "planted")
    edge = (coo.row != coo.col) & (coo.data > 0)
    count, hits = int(edge.sum()), int((edge & (truth[coo.row] == truth[coo.col])).sum())
    size = np.bincount(truth)
    wanted = int((size * (size - 1)).sum())
    precision = hits / count if count else 1.0
    recall = hits / wanted if wanted else 1.0
    both = precision + recall
    return EdgeScores(precision, recall, 2 * precision * recall / both if both else 0.0)
