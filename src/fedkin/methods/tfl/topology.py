"""TFL's topology, Eq. (4): a graph of clients by the similarity of their models, and each client's centrality in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.errors import ConfigError
from fedkin.methods.blocks import crowd
from fedkin.methods.blocks.stages import ControlStage, SimilarityStage
from fedkin.methods.blocks.vectors import Layers, rows
from fedkin.settings import Settings

__all__ = ["Learned", "Topology", "centralities", "check_size", "grouped", "learned"]

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
# Above this number of clients, a graph of clusters is not written out client by client.
_LARGEST_WRITTEN_OUT = 1000
_SOURCES = 200  # from which the betweenness of very many clients is estimated


class Topology(Settings):
    """How the graph of clients is made, Eq. (4).

    similarity: "dot", "cosine", "l1", "l2" or "rbf", min-max scaled over pairs; of `vectors`: the clients' "weights",
    or their "updates" (weights minus those they were sent). layers: "all", or how many of the last.
    sketch: vectors are first hashed into this many numbers (count sketch), which keeps inner products in expectation.
    epsilon: pairs below it have no edge. every: rounds from one graph to the next.
    clusters: number of k-means groups of vectors; the graph then joins groups, and the members of a group share its
    centrality. centrality: with "raw" or "normalised" `scale` (betweenness, degree and current flow have both);
    `weighted` by the edges' similarity, whose inverse is an edge's length. temperature: of the softmax that makes the
    prior. control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    similarity: SimilarityStage = "dot"
    vectors: Literal["weights", "updates"] = "weights"
    layers: Layers = "all"
    sketch: int | None = Field(None, ge=1)
    epsilon: float = Field(0.4, ge=0, le=1)
    every: int = Field(5, ge=1)
    clusters: int | None = Field(None, ge=1)
    centrality: Literal["betweenness", "degree", "closeness", "eigenvector", "current-flow"] = "betweenness"
    scale: Literal["raw", "normalised"] = "raw"
    weighted: bool = False
    temperature: float = Field(1.0, gt=0)
    control: ControlStage = "none"


@dataclass(frozen=True, eq=False)
class Learned:
    """edges [n, n] between clients, centrality [n] of each, and its cluster [n] where clusters were asked for."""

    edges: Any
    centrality: Array
    clusters: Labels | None


def check_size(clients: int, how: Topology) -> None:
    """Raise ConfigError for what is not computed of so many clients; a graph of clusters has as many as it says."""
    if how.clusters is not None:
        return
    crowd.check_all_pairs(clients, control=how.control)
    crowd.check_measure(clients, "similarity", how.similarity)
    if clients > crowd.LARGEST and how.scale == "raw" and how.centrality in ("betweenness", "degree", "current-flow"):
        raise ConfigError(
            f"method.graph.scale: 'raw' {how.centrality} of {clients:,} clients with a few neighbours each differs by "
            "so much that the prior would be one client; set scale = 'normalised', and method.graph.temperature"
        )


def learned(
    vectors: Sequence[Tensor], how: Topology, *, planted: Any = None, seed: int = 0, control_seed: int = 0
) -> Learned:
    """The graph of n clients with these vectors [d]; planted: their true groups [n], for the control "oracle"."""
    many = len(vectors) > crowd.LARGEST
    if many and how.clusters is None:
        # Controls and the sources of betweenness are drawn by row: in the order of content these know no client.
        order = crowd.by_content(vectors)
        back = np.argsort(order)
        some = [vectors[row] for row in order.tolist()]
        edges = crowd.neighbour_affinity(some, how.similarity, f"epsilon:{how.epsilon}", seed)
        truth = None if planted is None else np.asarray(planted)[order]
        edges = graph.control_stage(how.control)(edges, planted=truth, seed=control_seed)
        return Learned(edges[back][:, back], centralities(edges, how, seed)[back], None)
    # Of very many clients the vectors themselves: points at their places would take a matrix of all pairs.
    x = crowd.points(vectors) if many else rows(vectors, how.similarity)
    labels = np.arange(len(vectors))
    if how.clusters is not None:
        labels = grouped(x, how.clusters, seed)
        x = np.stack([x[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
        planted = None  # the control's nodes are clusters
    edges = graph.epsilon(graph.minmax(graph.similarity_stage(how.similarity)(x)), how.epsilon)
    edges = graph.control_stage(how.control)(edges, planted=planted, seed=control_seed)
    central = centralities(edges, how)[labels]
    if how.clusters is None:
        return Learned(edges, central, None)
    return Learned(_between_members(np.asarray(edges), labels), central, labels)


def centralities(edges: Any, how: Topology, seed: int = 0) -> Array:
    """Centrality [n] of each node of the graph [n, n]; betweenness of very many nodes is estimated from 200 of them."""
    normalised = how.scale == "normalised"
    match how.centrality:
        case "betweenness" if edges.shape[0] > crowd.LARGEST and not how.weighted:
            return graph.sampled_betweenness(edges, _SOURCES, seed=seed, normalised=normalised)[0]
        case "betweenness":
            return graph.betweenness(edges, weighted=how.weighted, normalised=normalised)
        case "degree":
            return graph.degree(edges, weighted=how.weighted) * (1 if normalised else max(edges.shape[0] - 1, 1))
        case "closeness":
            return graph.closeness(edges, weighted=how.weighted)
        case "current-flow":
            return graph.current_flow_betweenness(edges, weighted=how.weighted, normalised=normalised)
        case _:
            return graph.eigenvector(edges)


def grouped(x: Array, clusters: int, seed: int) -> Labels:
    """k-means labels [n] of the rows of x [n, d], numbered by falling size; the order of the rows does not matter."""
    # k-means starts from rows that it draws by number: in the order of their lengths the draw knows no client.
    order = np.argsort(np.square(x).sum(axis=1), kind="stable")
    centred = x - x.mean(axis=0)
    labels = np.empty(len(x), dtype=np.int64)
    labels[order] = graph.kmeans(centred[order], min(clusters, len(x)), seed=seed)
    return graph.canonical(labels)


def _between_members(edges: Array, labels: Labels) -> Any:
    """The clusters' edges, between all of their members; no edges where there are too many clients."""
    if len(labels) > _LARGEST_WRITTEN_OUT:
        return sp.csr_array((len(labels), len(labels)))
    return edges[np.ix_(labels, labels)]
