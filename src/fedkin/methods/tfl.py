"""TFL: a graph of the clients, learned from their models, pulls the weights lambda to central clients.

Ma, Li, Peng. Beyond the federation: topology-aware federated learning for generalization to unseen clients. ICML 2024.
Equation numbers are the paper's; `docs/methods/tfl.md` says what it leaves open and what is done here.

    min over theta, max over lambda of  sum_k lambda_k f_k(theta) - q D(lambda | p)                        (6)
    W_kl = similarity of theta_k and theta_l, 0 below epsilon;  p = softmax(centrality of W)               (4)
    theta  <- mean of the models of m clients drawn by lambda                                              (7)
    lambda <- projection on the simplex of  lambda + eta_lambda (f_k(theta) - q dD / dlambda_k)            (7)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from pydantic import Field
from scipy import special
from torch import Tensor

from fedkin import graph
from fedkin.federation import AnyRoster
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import NET
from fedkin.methods.blocks import stage_settings
from fedkin.methods.blocks.minimax import Minimax, figure, filled, mean, tensors_by_id
from fedkin.methods.blocks.vectors import Array, Labels, Layers, as_points, as_vector, last_layers, rows
from fedkin.settings import Settings, one_of, span
from fedkin.views import ClientView, ServerView

LARGEST_EXACT = 1000  # up to this many clients betweenness is exact; above, it is estimated from SOURCES clients
SOURCES = 200
_LARGEST_WRITTEN_OUT = 1000  # up to this many clients, a graph of clusters is recorded client by client
_KL_FLOOR = 1e-3


class Topology(Settings):
    """How the graph of clients is made, Eq. (4).

    similarity: "dot", "cosine", "l1", "l2" or "rbf", min-max scaled over pairs. vectors: the clients' "weights", or
    their "updates" (weights minus the received weights). layers: "all", or the number of last layers.
    epsilon: pairs below it have no edge. every: rounds from one graph to the next.
    clusters: number of k-means groups of vectors; the graph then links groups, and the members of a group share its
    centrality. centrality: with "raw" or "normalised" `scale` (betweenness, degree and current flow have both).
    temperature: of the softmax that makes the prior. control: replace the learned graph: "random", "uniform", "oracle",
    "shuffled", "self"; "none" keeps it.
    """

    similarity: stage_settings.SimilarityStage = "dot"
    vectors: Literal["weights", "updates"] = "weights"
    layers: Layers = "all"
    epsilon: float = Field(0.4, ge=0, le=1, json_schema_extra=span(0.2, 0.6, log=False))
    every: int = Field(5, ge=1)
    clusters: int | None = Field(None, ge=1)
    centrality: Literal["betweenness", "degree", "closeness", "eigenvector", "current-flow"] = Field(
        "betweenness", json_schema_extra=one_of("betweenness", "degree", "closeness", "eigenvector", "current-flow")
    )
    scale: Literal["raw", "normalised"] = Field("raw", json_schema_extra=one_of("raw", "normalised"))
    temperature: float = Field(1.0, gt=0, json_schema_extra=span(0.1, 10))
    control: stage_settings.ControlStage = "none"


class Learned(NamedTuple):
    """Edges [n, n] between clients; of each client its centrality [n] and, if `clusters` is set, its cluster [n]."""

    edges: Any
    centrality: Array
    clusters: Labels | None


class Tfl(Minimax):
    """min over theta, max over lambda of sum_k lambda_k f_k(theta) - q D(lambda | p), p = softmax(centrality), Eq. (6).

    eta_lambda: rate of lambda; 0 keeps lambda, and no losses are requested. q: weight of the divergence.
    divergence: "euclidean", |lambda - p|^2 / 2, or "kl", KL(lambda | p) with entries of at least 1e-3.

    The server's state: params, lam, drawn as in `blocks.minimax`.

    vectors: {id: [d]}, for each client that ever answered: the part of its last model that the graph compares.
    prior: p_k of each client in the last graph, {id: 0-d float64 tensor}; absent before the first graph.
    """

    name = "tfl"
    title = "TFL"
    paper = "Ma et al., ICML 2024"
    kind = "global"
    by_client = ("lam", "drawn", "prior", "vectors")
    travels = "the whole model, down and up; the new one down again for its loss"

    eta_lambda: float = Field(0.01, ge=0, json_schema_extra=span(1e-3, 1))
    q: float = Field(0.1, ge=0, json_schema_extra=span(0.01, 10))
    divergence: Literal["euclidean", "kl"] = Field("euclidean", json_schema_extra=one_of("euclidean", "kl"))
    graph: Topology = Topology()

    def check(self, federation: AnyRoster) -> None:
        stage_settings.needs_planted(federation, control=self.graph.control)
        if self.graph.clusters is None:
            stage_settings.check_size(len(federation.seen), "method.graph", "set method.graph.clusters")

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """theta_k: descend f_k from theta on the client's own samples, Eq. (7)."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        # m clients, drawn by lambda, train; theta is the mean of their models.
        drawn = self.drawn(server, sampled)
        old = server.state["params"]
        replies = yield from Ask("train", {id: Message(params=old) for id in drawn})
        models = {id: reply.params for id, reply in replies.items()}
        new = mean(models, drawn)
        if new is None:
            return
        server.state["params"] = new
        # Every f rounds, the graph of all clients met so far, Eq. (4); its centrality gives the prior p.
        self.remember(server, models, old)
        if "prior" not in server.state or server.round % self.graph.every == 0:
            self.learn_topology(server)
        prior = filled(server.state["prior"], server.clients)
        # lambda <- projection of lambda + eta_lambda dF / dlambda, Eq. (6, 7).
        if self.eta_lambda > 0:
            losses = yield from self.estimated_losses(server, new, sampled)
            if losses is not None:
                slope = divergence_slope(self.weights(server), prior, self.divergence)
                self.ascend(server, self.eta_lambda * (losses - self.q * slope))
        server.info = {
            "prior_entropy": figure(special.entr(prior).sum()), "prior_largest": figure(float(prior.max())),
            **self.lambda_figures(server),
        }  # fmt: skip

    def remember(self, server: ServerView, models: Mapping[str, Params], old: Params) -> None:
        """Store the vector of each client's last model for the graph; the models were trained from `old`."""
        names = last_layers(server.net.trainable, self.graph.layers)
        start = old if self.graph.vectors == "updates" else None
        vectors = {id: as_vector(models[id], names, start) for id in sorted(models)}
        server.state["vectors"] = {**server.state.get("vectors", {}), **vectors}

    def learn_topology(self, server: ServerView) -> None:
        """Renew the graph, Eq. (4), and the prior p = softmax(centrality)."""
        known = server.state["vectors"]
        ids = tuple(id for id in server.clients if id in known)
        topology = learned(
            [known[id] for id in ids], self.graph, planted=stage_settings.planted_labels(server, ids),
            seed=server.key("clusters"), control_seed=server.key("control"),
        )  # fmt: skip
        prior = graph.softmax(topology.centrality, self.graph.temperature)
        server.state["prior"] = tensors_by_id(ids, prior)
        lam = dict(zip(server.clients, self.weights(server).tolist(), strict=True))
        server.graph = graph.Graph(
            ids,
            topology.edges,
            groups=None if topology.clusters is None else graph.by_id(ids, topology.clusters),
            round=server.round,
            values={"centrality": topology.centrality, "prior": prior, "lambda": np.array([lam[id] for id in ids])},
        )


def divergence_slope(weights: Array, prior: Array, divergence: str) -> Array:
    """dD / dlambda [K]; a constant added to all entries would change nothing after the projection.

    >>> divergence_slope(np.array([0.75, 0.25]), np.array([0.5, 0.5]), "euclidean")
    array([ 0.25, -0.25])
    """
    if divergence == "euclidean":
        return weights - prior
    return np.asarray(np.log(np.maximum(weights, _KL_FLOOR) / np.maximum(prior, _KL_FLOOR)))


# -- the graph, Eq. (4) -----------------------------------------------------------------------------------------------


def learned(
    vectors: Sequence[Tensor], settings: Topology, *, planted: Any = None, seed: int = 0, control_seed: int = 0
) -> Learned:
    """The graph of n clients with these vectors [d]; planted: their true groups [n], for the control "oracle"."""
    # With very many clients use the vectors themselves: `rows` may need a matrix of all pairs.
    x = as_points(vectors) if len(vectors) > stage_settings.LARGEST else rows(vectors, settings.similarity)
    labels = np.arange(len(vectors))
    if settings.clusters is not None:
        labels = grouped(x, settings.clusters, seed)
        x = np.stack([x[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
        planted = None  # the control's nodes are clusters
    similar = graph.minmax(graph.similarity_stage(settings.similarity)(x))
    affinity = graph.epsilon(similar, settings.epsilon)
    edges = graph.control_stage(settings.control)(affinity, planted=planted, seed=control_seed)
    central = centralities(edges, settings, seed)[labels]
    if settings.clusters is None:
        return Learned(edges, central, None)
    if len(labels) > _LARGEST_WRITTEN_OUT:  # no edges: those between all members would be too many
        return Learned(sp.csr_array((len(labels), len(labels))), central, labels)
    return Learned(np.asarray(edges)[np.ix_(labels, labels)], central, labels)


def centralities(edges: Any, settings: Topology, seed: int = 0) -> Array:
    """Centrality [n] of each node of the graph [n, n].

    Betweenness of more than 1,000 nodes is estimated from shortest paths that start at 200 of them.
    """
    normalised = settings.scale == "normalised"
    match settings.centrality:
        case "betweenness" if edges.shape[0] > LARGEST_EXACT:
            return graph.sampled_betweenness(edges, SOURCES, seed=seed, normalised=normalised)[0]
        case "betweenness":
            return graph.betweenness(edges, normalised=normalised)
        case "degree":
            return graph.degree(edges) * (1 if normalised else max(edges.shape[0] - 1, 1))
        case "closeness":
            return graph.closeness(edges)
        case "current-flow":
            return graph.current_flow_betweenness(edges, normalised=normalised)
        case _:
            return graph.eigenvector(edges)


def grouped(x: Array, clusters: int, seed: int) -> Labels:
    """k-means labels [n] of the rows of x [n, d], numbered by decreasing size; the order of rows does not matter."""
    # k-means draws its start by row number: with rows sorted by length, the draw does not depend on ids.
    order = np.argsort(np.square(x).sum(axis=1), kind="stable")
    centred = x - x.mean(axis=0)
    labels = np.empty(len(x), dtype=np.int64)
    labels[order] = graph.kmeans(centred[order], min(clusters, len(x)), seed=seed)
    return graph.canonical(labels)
