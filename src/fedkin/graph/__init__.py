"""Graphs of clients: similarities, groups, centralities, mixing matrices.

These are plain functions on numpy arrays and scipy csr_arrays. They work without the rest of fedkin.

>>> import numpy as np
>>> from fedkin.graph import betweenness, cosine, epsilon, laplacian_step, louvain, softmax
>>> X = np.array([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
>>> A = epsilon(cosine(X), 0.4)
>>> groups = louvain(A, seed=0)
>>> groups
array([0, 0, 1, 1])
>>> laplacian_step(A, groups, 0.25).sum(axis=1)
array([1., 1., 1., 1.])
>>> softmax(betweenness(A))
array([0.25, 0.25, 0.25, 0.25])
"""

# ruff: noqa: I001
from __future__ import annotations

from fedkin.graph.affinity import (
    epsilon, gamma, gap_threshold, knn, knn_graph, nonnegative, oracle, symmetrise, to_distance,
)  # fmt: skip
from fedkin.graph.centrality import (
    betweenness, closeness, current_flow_betweenness, degree, eigenvector, sampled_betweenness,
)  # fmt: skip
from fedkin.graph.grouping_tests import Placement, Verdicts, apart, find, place
from fedkin.graph.groups import (
    bipartition, by_id, canonical, cfl, components, hierarchical, kmeans, leiden, louvain,
)  # fmt: skip
from fedkin.graph.holding import Doubt, look
from fedkin.graph.mixing import collaboration_weights, laplacian_step, project, softmax
from fedkin.graph.network import network
from fedkin.graph.picture import draw
from fedkin.graph.plan import Plan, Spread
from fedkin.graph.record import Evidence, Graph, load_graph
from fedkin.graph.recovery import ari, modularity, nmi
from fedkin.graph.signatures import Signature, sign
from fedkin.graph.similarity import (
    anchor_similarity, cosine, dot, matching, minimum, minmax, negative_l1, negative_l2,
    pca, rbf, response_similarity, umap,
)  # fmt: skip
from fedkin.graph.stages import (
    Stage, control_stage, groups_stage, same_alpha, similarity_stage, sparsify_stage, stage,
)  # fmt: skip
from fedkin.graph.tables import Rows, read_rows, read_signatures, read_signed, write_signed

__all__ = [
    "Doubt", "Evidence", "Graph", "Placement", "Plan", "Rows", "Signature", "Spread", "Stage", "Verdicts",
    "anchor_similarity", "apart", "ari", "betweenness", "bipartition", "by_id", "canonical", "cfl", "closeness",
    "collaboration_weights", "components", "control_stage", "cosine", "current_flow_betweenness", "degree",
    "dot", "draw", "eigenvector", "epsilon", "find", "gamma", "gap_threshold", "groups_stage",
    "hierarchical", "kmeans", "knn", "knn_graph", "laplacian_step", "leiden", "load_graph", "look",
    "louvain", "matching", "minimum", "minmax", "modularity", "negative_l1", "negative_l2", "network", "nmi",
    "nonnegative", "oracle", "pca", "place", "project", "rbf", "read_rows", "read_signatures", "read_signed",
    "response_similarity", "same_alpha", "sampled_betweenness", "sign", "similarity_stage", "softmax", "sparsify_stage",
    "stage", "symmetrise", "to_distance", "umap", "write_signed",
]  # fmt: skip
