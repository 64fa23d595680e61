"""Scores of graphs and groups against planted groups, and the difference between the graphs of two rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Array, Labels, as_labels, as_sparse

if TYPE_CHECKING:
    from fedkin.graph.record import Graph

__all__ = [
    "Difference", "EdgeScores", "across_share", "ari", "difference", "edge_scores", "modularity", "nmi",
]  # fmt: skip


def ari(truth: Any, found: Any) -> float:
    """Return the adjusted Rand index of two labellings [n] (Hubert and Arabie 1985): 1 equal groups, 0 by chance.

    >>> ari(["a", "a", "b", "b"], [1, 1, 0, 0])
    1.0
    """
    table = _contingency(truth, found)
    # These are Python integers, because products of pair counts exceed 2^63 beyond about 90,000 clients.
    both = int((table * (table - 1) // 2).sum())
    rows, columns = (int((s * (s - 1) // 2).sum()) for s in (table.sum(1), table.sum(0)))
    n = int(table.sum())
    pairs = n * (n - 1) // 2
    # Numerator and denominator of ARI / 2. Both are 0 if every client is alone in both labellings, or if all clients
    # are together in both: the labellings agree.
    top, bottom = both * pairs - rows * columns, (rows + columns) * pairs - 2 * rows * columns
    return 1.0 if bottom == 0 else 2 * top / bottom


def nmi(truth: Any, found: Any) -> float:
    """Return the normalised mutual information of two labellings [n]: 2 I / (H_truth + H_found), in [0, 1].

    >>> nmi(["a", "a", "b", "b"], [1, 1, 0, 0])
    1.0
    """
    table = _contingency(truth, found)
    p = table / table.sum()
    joint, one, two = _entropy(p), _entropy(p.sum(1)), _entropy(p.sum(0))
    return float(np.clip(2 * (one + two - joint) / (one + two), 0.0, 1.0)) if one + two > 0 else 1.0


def _entropy(p: Array) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def _contingency(truth: Any, found: Any) -> Labels:
    one = as_labels(truth, name="truth")
    two = as_labels(found, len(one), "found")
    if len(one) == 0:
        raise GraphError("truth: expected at least one client")
    table = np.zeros((one.max() + 1, two.max() + 1), dtype=np.int64)
    np.add.at(table, (one, two), 1)
    return table


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


def across_share(a: Any, labels: Any) -> float:
    """Return the share of off-diagonal weight between different groups, in [0, 1]; 0 without edges.

    >>> across_share(np.array([[0, 3, 1], [3, 0, 0], [1, 0, 0]]), [0, 0, 1])
    0.25
    """
    coo = as_sparse(a, symmetric=False, nonnegative=True).tocoo()
    groups = as_labels(labels, coo.shape[0])
    weight = np.where(coo.row == coo.col, 0.0, coo.data)
    total = float(weight.sum())
    return float(weight[groups[coo.row] != groups[coo.col]].sum()) / total if total > 0 else 0.0


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


@dataclass(frozen=True)
class Difference:
    """The changes from one graph to the next, by client id.

    moved: {id: (group before, group now)} of clients in both graphs that changed their group. Each number is that of
    its own graph. Groups of the two graphs are matched by largest overlap, so that new numbers alone move no client.
    gained, lost: edges (id, id) between clients of both graphs. arrived: ids only in the second graph. left: ids only
    in the first graph.
    """

    moved: dict[str, tuple[int, int]]
    gained: frozenset[tuple[str, str]]
    lost: frozenset[tuple[str, str]]
    arrived: frozenset[str]
    left: frozenset[str]


def difference(before: Graph, now: Graph) -> Difference:
    """Return the changes between the graphs of two rounds; if one of them has no groups, no client has moved.

    >>> from fedkin.graph import Graph
    >>> a = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    >>> b = np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    >>> one = Graph(("x", "y", "z"), a, groups={"x": 0, "y": 0, "z": 1})
    >>> two = Graph(("x", "y", "z"), b, groups={"x": 1, "y": 1, "z": 1})
    >>> change = difference(one, two)
    >>> change.moved, sorted(change.gained)
    ({'z': (1, 1)}, [('x', 'z')])
    """
    both = set(before.ids) & set(now.ids)
    directed = before.directed or now.directed
    old, new = _edges(before, both, directed), _edges(now, both, directed)
    return Difference(
        moved=_moved(before, now, sorted(both)),
        gained=frozenset(new - old),
        lost=frozenset(old - new),
        arrived=frozenset(set(now.ids) - both),
        left=frozenset(set(before.ids) - both),
    )


def _moved(before: Graph, now: Graph, ids: list[str]) -> dict[str, tuple[int, int]]:
    from scipy.optimize import linear_sum_assignment

    if before.groups is None or now.groups is None or not ids:
        return {}
    old = np.array([before.groups[id] for id in ids])
    new = np.array([now.groups[id] for id in ids])
    table = _contingency(old, new)
    row, column = linear_sum_assignment(-table)
    stays = np.zeros_like(table, dtype=bool)
    stays[row, column] = True
    stayed = stays[as_labels(old), as_labels(new)]
    return {ids[at]: (int(old[at]), int(new[at])) for at in np.flatnonzero(~stayed)}


def _edges(graph: Graph, among: set[str], directed: bool) -> set[tuple[str, str]]:
    coo = sp.coo_array(graph.weights)
    pairs = zip(coo.row[coo.data != 0].tolist(), coo.col[coo.data != 0].tolist(), strict=True)
    named = ((graph.ids[i], graph.ids[j]) for i, j in pairs if i != j)
    kept = (pair for pair in named if pair[0] in among and pair[1] in among)
    return set(kept) if directed else {(min(pair), max(pair)) for pair in kept}
