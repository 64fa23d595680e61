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

from __future__ import annotations

from fedkin.graph.centrality import (
    betweenness,
    closeness,
    current_flow_betweenness,
    current_flow_closeness,
    degree,
    eigenvector,
    pagerank,
    sampled_betweenness,
)  # fmt: skip
from fedkin.graph.collaboration import (
    collaboration_loss,
    collaboration_weights,
    gradient_step,
    relative_similarity,
    sign_step,
)  # fmt: skip
from fedkin.graph.control import oracle, random, self_only, shuffled, uniform
from fedkin.graph.distances import hausdorff, matching, matching_of, minimum
from fedkin.graph.embedding import pca, umap
from fedkin.graph.evidence import Evidence, Node
from fedkin.graph.groups import (
    bipartition,
    by_id,
    canonical,
    cfl,
    components,
    hierarchical,
    kmeans,
    leiden,
    louvain,
    recursive_bipartition,
    silhouette,
)  # fmt: skip
from fedkin.graph.mixing import (
    group_average,
    laplacian,
    laplacian_step,
    learned_rows,
    max_degree,
    metropolis,
    neighbour_average,
    row_normalise,
)  # fmt: skip
from fedkin.graph.neighbours import Neighbours, knn_graph, nearest, nearest_points
from fedkin.graph.network import check_network, network
from fedkin.graph.own import Stage, stage
from fedkin.graph.picture import draw, force_layout
from fedkin.graph.record import Graph, from_networkx, load_graph
from fedkin.graph.recovery import (
    Difference,
    EdgeScores,
    across_share,
    ari,
    difference,
    edge_scores,
    modularity,
    nmi,
)  # fmt: skip
from fedkin.graph.same import (
    Cells,
    Interaction,
    Moments,
    Placement,
    Plan,
    Rows,
    Signature,
    Spread,
    Verdicts,
    apart,
    clump_p,
    coordinates,
    find,
    interaction,
    null_p,
    outlier_p,
    place,
    read_rows,
    read_signed,
    same_p,
    sign,
    split_p,
    top_p,
    ward,
    write_signed,
)  # fmt: skip
from fedkin.graph.similarity import (
    anchor_similarity,
    cosine,
    dot,
    head_response,
    minmax,
    negative_l1,
    negative_l2,
    rbf,
    response_similarity,
    row_cosine,
    update_cosine,
)  # fmt: skip
from fedkin.graph.simplex import norm_regularised, project, softmax
from fedkin.graph.sparsify import (
    epsilon,
    gamma,
    gap_threshold,
    knn,
    nonnegative,
    soft,
    symmetrise,
    to_distance,
)  # fmt: skip
from fedkin.graph.stages import (
    centrality_stage,
    control_stage,
    distance_stage,
    groups_stage,
    same_alpha,
    similarity_stage,
    sparsify_stage,
)  # fmt: skip
from fedkin.graph.table import Signatures, read_signatures

__all__ = [
    "Cells", "Difference", "EdgeScores", "Evidence", "Graph", "Interaction", "Moments", "Neighbours",
    "Node", "Placement", "Plan", "Rows", "Signature", "Signatures", "Spread", "Stage", "Verdicts", "across_share",
    "anchor_similarity", "apart", "ari", "betweenness", "bipartition", "by_id",
    "canonical", "centrality_stage", "cfl", "check_network", "closeness", "clump_p", "collaboration_loss",
    "collaboration_weights", "components", "control_stage", "coordinates", "cosine", "current_flow_betweenness",
    "current_flow_closeness", "degree", "difference", "distance_stage", "dot", "draw", "edge_scores",
    "eigenvector", "epsilon", "find", "force_layout", "from_networkx", "gamma", "gap_threshold",
    "gradient_step", "group_average", "groups_stage", "hausdorff", "head_response", "hierarchical",
    "interaction", "kmeans", "knn", "knn_graph", "laplacian", "laplacian_step", "learned_rows", "leiden",
    "load_graph", "louvain", "matching", "matching_of", "max_degree", "metropolis", "minimum", "minmax", "modularity",
    "nearest", "nearest_points", "negative_l1", "negative_l2", "neighbour_average", "network", "nmi", "nonnegative",
    "norm_regularised", "null_p", "oracle", "outlier_p", "pagerank", "pca", "place", "project", "random", "rbf",
    "read_rows", "read_signatures", "read_signed", "recursive_bipartition", "relative_similarity",
    "response_similarity", "row_cosine", "row_normalise", "same_alpha", "same_p", "sampled_betweenness",
    "self_only", "shuffled", "sign", "sign_step", "silhouette", "similarity_stage", "soft", "softmax",
    "sparsify_stage", "split_p", "stage", "symmetrise", "to_distance", "top_p", "umap", "uniform",
    "update_cosine", "ward", "write_signed",
]  # fmt: skip
