"""What a function of the room cannot take: refused with its name and what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedkin import graph as g
from fedkin.errors import GraphError
from fedkin.graph import mixing


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.cosine([[1, 2], [np.nan, 0]]), "row 1 is not all finite"),
        (lambda: g.cosine([[1, 2], [3]]), "rows of equal length"),
        (lambda: g.cosine([]), "expected 2 axes"),
        (lambda: g.cosine(np.zeros((0, 3))), "at least one client"),
        (lambda: g.cosine([["a", "b"]]), "expected numbers"),
        (lambda: g.rbf([[1.0], [2.0]], gamma=0), "gamma: expected a number above 0"),
        (lambda: g.minmax([[1, 2], [3, 4]]), "not symmetric"),
        (lambda: g.minmax([[1, 2]]), "square"),
        (lambda: g.anchor_similarity(np.zeros((2, 3, 1)), np.ones((2, 3))), "owned: expected bool"),
        (lambda: g.anchor_similarity(np.zeros((2, 3, 1)), np.ones((2, 3), bool), match="all"), "match: expected"),  # type: ignore[arg-type]
        (lambda: g.anchor_similarity(np.full((2, 1, 1), np.inf), np.ones((2, 1), bool)), "client 0 has a value"),
        (lambda: g.matching([np.ones((2, 3)), np.ones((2, 4))]), "client 1 has centres of width 4; expected 3"),
        (lambda: g.matching([np.ones((2, 3)), [[1.0, np.nan, 0.0]]]), "client 1: row 0 is not all finite"),
        (lambda: g.matching(7), "one per client"),
        (lambda: g.pca(np.ones((3, 2)), dims=0), "dims"),
        (lambda: g.pca(np.ones((3, 2)), np.ones((1, 3))), "width 2"),
        (lambda: g.umap(np.ones((3, 2)), neighbours=1), "neighbours"),
        (lambda: g.epsilon(np.eye(2), -0.1), "threshold: expected a number of at least 0"),
        (lambda: g.epsilon([[0, 1], [0, 0]], 0.1), r"not symmetric: \(0, 1\) and \(1, 0\) differ by 1"),
        (lambda: g.epsilon(sp.csr_array([[0, 1], [0, 0]]), 0.1), r"not symmetric: \(\d, \d\)"),
        (lambda: g.epsilon([[0, np.inf], [np.inf, 0]], 0.1), "row 0, column 1 is not finite"),
        (lambda: g.knn(np.eye(2), 0), "k: expected a whole number"),
        (lambda: g.knn(np.eye(2), True), "k: expected a whole number"),
        (lambda: g.gamma([[0, -1], [-1, 0]]), "D: the entry in row 0, column 1 is negative"),
        (lambda: g.gamma(np.zeros((2, 2)), np.nan), "threshold: expected a distance"),
        (lambda: g.to_distance([[1, 2], [2, 1]]), "rows 0 and 1 is 2; expected at most 1"),
        (lambda: g.symmetrise([[0, -1], [0, 0]]), "is negative"),
        (lambda: g.knn(np.zeros((0, 0)), 1), "at least one client"),
        (lambda: g.knn("abc", 1), "square matrix of numbers"),
        (lambda: g.knn_graph([[1.0], [np.nan]], 1), "row 1 is not all finite"),
        (lambda: g.knn_graph(np.ones((2, 2)), 0), "k: expected a whole number"),
        (lambda: g.louvain([[0, -1], [-1, 0]]), "row 0, column 1 is negative"),
        (lambda: g.louvain([[0, 1], [0, 0]]), "not symmetric"),
        (lambda: g.louvain(np.eye(2), resolution=0), "resolution: expected a number above 0"),
        (lambda: g.leiden(np.eye(2), resolution=np.nan), "resolution: expected"),
        (lambda: g.hierarchical(np.eye(2)), "distance of row 0 to itself is 1; expected a zero diagonal"),
        (lambda: g.hierarchical(np.zeros((2, 2)), 3), r"clusters: expected 1 to 2 .* got 3"),
        (lambda: g.hierarchical(np.zeros((2, 2)), linkage="centroid"), "linkage: expected"),  # type: ignore[arg-type]
        (lambda: g.hierarchical(np.zeros((2, 2)), choose="best"), "choose: expected"),  # type: ignore[arg-type]
        (lambda: g.kmeans([[1.0], [2.0]], 3), "clusters: expected 1 to 2"),
        (lambda: g.bipartition([[1.0]]), "at least two clients"),
        (lambda: g.cfl([[1.0, 2.0]], eps1=1, eps2=0), "inner: expected a square matrix"),
        (lambda: g.cfl(np.eye(2), eps1=1, eps2=0, counts=[1]), "counts: expected 2 counts"),
        (lambda: g.canonical([[0, 1]]), "one label per client"),
        (lambda: g.canonical([0.0, np.nan]), "row 1 has no label"),
        (lambda: g.betweenness([[0, 1], [0, 0]]), "not symmetric"),
        (lambda: g.closeness([[0, -1], [-1, 0]]), "is negative"),
        (lambda: g.softmax([]), "at least one client"),
        (lambda: g.softmax([0.0], 0.0), "temperature: expected a number above 0"),
        (lambda: g.softmax([0.0, np.inf]), "row 1 is not all finite"),
        (lambda: g.sampled_betweenness(np.eye(3), 4), "samples: expected 2 to 3"),
        (lambda: g.laplacian_step(np.eye(2), None, -0.1), "rate: expected a number of at least 0"),
        (lambda: g.laplacian_step(np.eye(2), [0], 0.1), "groups: expected 2 labels"),
        (lambda: g.project([1.0, 2.0], floor=0.6), "floor: expected 0 to 1/2"),
        (lambda: g.project([]), "at least one"),
        (lambda: g.project(3.0), "expected a vector"),
        (lambda: g.collaboration_weights([1.0, 0.5], 2), "own: expected a place from 0 to 1"),
        (lambda: g.collaboration_weights([1.0, np.nan], 0), "not all finite"),
        (lambda: g.collaboration_weights([1.0, 0.5], 0, trust=[1.0, 0.0]), "trust: expected numbers above 0"),
        (lambda: g.collaboration_weights([1.0, 0.5], 0, eps=0.0), "eps: expected"),
        (lambda: mixing.relative_similarity([1.0], -1), "own: expected a place"),
        (lambda: g.ari([0, 1], [0]), "found: expected 2 labels"),
        (lambda: g.nmi([], []), "at least one client"),
        (lambda: g.modularity([[0, 1], [0, 0]], [0, 1]), "not symmetric"),
        (lambda: g.modularity(np.eye(2), [0]), "labels: expected 2 labels"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
