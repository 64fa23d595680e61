"""TFL: a graph of the clients, learned from their models, says who is central; lambda is pulled towards them.

Ma, Li, Peng. Beyond the federation: topology-aware federated learning for generalization to unseen clients. ICML 2024.
Equation numbers are the paper's; `docs/methods/tfl.md` says what it leaves open and how that is closed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedkin import graph
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.keys import rng
from fedkin.methods.blocks.minimax import Robust, entropy, figure, filled, mean
from fedkin.methods.blocks.vectors import Layers, flat, last_layers, needs_planted, rows
from fedkin.settings import Settings
from fedkin.views import ClientView, ServerView

__all__ = ["Tfl", "Topology", "centralities", "divergence_slope", "grouped", "sketched"]

Array = npt.NDArray[np.float64]
_KL_FLOOR = 1e-3
# Above so many clients a graph of clusters is not written out client by client.
_LARGEST_WRITTEN_OUT = 1000


class Topology(Settings):
    """How the graph of clients is made, Eq. (4).

    similarity: "dot", "cosine", "l1", "l2" or "rbf", of `vectors`: clients' "weights", or their "updates" (weights
    less those they were sent); min-max scaled over pairs. layers: "all", or the last so many.
    sketch: vectors are first hashed into so many numbers (count sketch), which keeps inner products in expectation.
    epsilon: pairs below it have no edge. every: rounds from one graph to the next.
    clusters: k-means groups of vectors that the graph joins instead of clients; members share their centrality.
    centrality: with "raw" or "normalised" `scale` (betweenness, degree and current flow know both); `weighted` by the
    edges' similarity, which as a length is its inverse. temperature: of the softmax that makes it a prior.
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    similarity: str = "dot"
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
    control: str = "none"

    @field_validator("similarity", "control")
    @classmethod
    def _known(cls, spec: str, info: Any) -> str:
        """Refuse an unknown stage when the experiment is read, not in the middle of a run."""
        make: Callable[[str], object] = (
            graph.similarity_stage if info.field_name == "similarity" else graph.control_stage
        )
        try:
            make(spec)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return spec


class Tfl(Robust):
    """min over theta, max over lambda of sum_k lambda_k f_k(theta) - q D(lambda | p), p = softmax(centrality), Eq. (6).

    eta_lambda: rate of lambda; 0 leaves it as it is, and nothing is sent for losses. q: weight of the divergence.
    divergence: "euclidean", |lambda - p|^2 / 2, or "kl", KL(lambda | p) with entries of at least 1e-3.
    """

    name: ClassVar[str] = "tfl"
    title: ClassVar[str] = "TFL"
    paper: ClassVar[str] = "Ma et al., ICML 2024"
    kind: ClassVar[Literal["global"]] = "global"
    travels: ClassVar[str] = "the whole model, down and up; the new one down again for its loss"

    eta_lambda: float = Field(0.01, ge=0)
    q: float = Field(0.1, ge=0)
    divergence: Literal["euclidean", "kl"] = "euclidean"
    graph: Topology = Topology()

    def check(self, federation: Federation) -> None:
        needs_planted(federation, control="oracle" if self.graph.control == "oracle" else None)

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the model on the client's own samples."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        yield from self.weigh(server, sampled)
        drawn, old = self.drawn(server), server.state["params"]
        replies = yield from Ask("train", {id: Message(params=old) for id in sampled})
        models = {id: reply["params"] for id, reply in replies.items()}
        new = mean(models, drawn)
        if new is None:
            return
        server.state["params"] = new
        self.meet(server, models, old)
        if "prior" not in server.state or server.round % self.graph.every == 0:
            self.learn_topology(server)
        prior = filled(server.state["prior"], server.clients)
        if self.eta_lambda > 0:
            losses = yield from Ask("losses", {id: Message(params=new) for id in self.audience(server, sampled)})
            if losses:
                slope = divergence_slope(self.weights(server), prior, self.divergence)
                self.ascend(server, losses, self.eta_lambda, self.q * slope)
        weights = self.weights(server)
        server.info = {
            "prior_entropy": figure(entropy(prior)), "prior_largest": figure(float(prior.max())),
            "lambda_entropy": figure(entropy(weights)), "lambda_largest": figure(float(weights.max())),
        }  # fmt: skip

    # -- the topology -----------------------------------------------------------------------------------------

    def meet(self, server: ServerView, models: Mapping[str, Params], old: Params) -> None:
        """Remember what the graph needs of these clients' models: the last one known of each counts."""
        wanted = last_layers(server.net.trainable, self.graph.layers)
        start = old if self.graph.vectors == "updates" else None
        vectors = {id: flat(models[id], wanted, start) for id in sorted(models)}
        if self.graph.sketch is not None:
            vectors = sketched(vectors, self.graph.sketch, server.seed)
        server.state["vectors"] = {**server.state.get("vectors", {}), **vectors}

    def learn_topology(self, server: ServerView) -> None:
        """Renew the graph and the prior, from the clients met so far."""
        how, known = self.graph, server.state["vectors"]
        ids = tuple(id for id in server.clients if id in known)
        x = rows([known[id] for id in ids], how.similarity)
        labels = np.arange(len(ids))
        if how.clusters is not None:
            labels = grouped(x, how.clusters, server.key("clusters"))
            x = np.stack([x[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
        edges = graph.epsilon(graph.minmax(graph.similarity_stage(how.similarity)(x)), how.epsilon)
        planted = None
        if server.planted is not None and how.clusters is None:
            planted = np.array([server.planted[id] for id in ids])
        edges = graph.control_stage(how.control)(edges, planted=planted, seed=server.key("control"))
        central = centralities(edges, how)[labels]
        prior = graph.softmax(central, how.temperature)
        server.state["prior"] = dict(zip(ids, torch.from_numpy(prior).clone().unbind(), strict=True))
        lam = dict(zip(server.clients, self.weights(server).tolist(), strict=True))
        server.graph = graph.Graph(
            ids,
            edges if how.clusters is None else _between_members(np.asarray(edges), labels),
            groups=None if how.clusters is None else graph.by_id(ids, labels),
            round=server.round,
            values={"centrality": central, "prior": prior, "lambda": np.array([lam[id] for id in ids])},
        )


def centralities(edges: Any, how: Topology) -> Array:
    """Centrality of each node of the graph."""
    normalised = how.scale == "normalised"
    match how.centrality:
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


def divergence_slope(weights: Array, prior: Array, divergence: str) -> Array:
    """dD / dlambda; a constant added to all entries would change nothing after the projection.

    >>> divergence_slope(np.array([0.75, 0.25]), np.array([0.5, 0.5]), "euclidean")
    array([ 0.25, -0.25])
    """
    if divergence == "euclidean":
        return weights - prior
    return np.asarray(np.log(np.maximum(weights, _KL_FLOOR) / np.maximum(prior, _KL_FLOOR)))


def grouped(x: Array, clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """k-means labels of the rows, numbered by falling size; rows in another order get the same groups."""
    # k-means starts from rows that it draws by number: in the order of their lengths the draw knows no client.
    order = np.argsort(np.square(x).sum(axis=1), kind="stable")
    centred = x - x.mean(axis=0)
    labels = np.empty(len(x), dtype=np.int64)
    labels[order] = graph.kmeans(centred[order], min(clusters, len(x)), seed=seed)
    return graph.canonical(labels)


def sketched(vectors: Mapping[str, Tensor], size: int, seed: int) -> dict[str, Tensor]:
    """Count sketch: each coordinate, with a random sign, is added to one of `size` numbers (Charikar et al. 2002)."""
    length = len(next(iter(vectors.values())))
    draw = rng(seed, "", 0, "sketch")
    place = torch.from_numpy(draw.integers(size, size=length))
    sign = torch.from_numpy(2.0 * draw.integers(2, size=length) - 1)
    return {id: v.new_zeros(size).index_add(0, place, v * sign.to(v.dtype)) for id, v in vectors.items()}


def _between_members(edges: Array, labels: npt.NDArray[np.int64]) -> Any:
    """The clusters' edges, between all of their members; too many clients: none."""
    if len(labels) > _LARGEST_WRITTEN_OUT:
        return sp.csr_array((len(labels), len(labels)))
    return edges[np.ix_(labels, labels)]
