"""FedU: one personal model per client; a graph Laplacian pulls the models of neighbours together.

Dinh, Vu, Tran, Dao, Zhang. A new look and convergence rate of federated multitask learning with Laplacian
regularization. IEEE TNNLS 35(6), 2024. `docs/methods/fedu.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedkin import graph
from fedkin.federation import AnyRoster
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import NET
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks import stage_settings
from fedkin.methods.blocks.model_mixing import laplacian_mixing, mixed
from fedkin.methods.blocks.vectors import Layers, as_vector, last_layers, rows
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


class StatedGraph(stage_settings.ControlledGraph):
    """The graph of the clients, a_kl >= 0.

    source: "uniform" (every pair 1), "planted" (1 inside a planted group, else 0), or the similarity of models:
    "cosine", "dot", "l1", "l2", "rbf", of their "weights" or their "updates" since the common start (`vectors`).
    layers: "all", or the number of last layers. sparsify: a stage of `fedkin.graph`, for example "knn:5".
    """

    source: Annotated[str, stage_settings.known_stage(graph.similarity_stage, "uniform", "planted")] = "uniform"
    vectors: Literal["weights", "updates"] = "updates"
    layers: Layers = "all"
    sparsify: stage_settings.SparsifyStage = "none"


class FedU(ServerMethod):
    """min over W of sum_k f_k(w_k) + lam / 2 sum over pairs of a_kl |w_k - w_l|^2.

    After R local steps, w_k <- w_k - tau lam sum_l a_kl (w_k - w_l), all from the models before this update.

    lam: weight of the regulariser. tau: rate of the server's step; None: lr * R, as in the paper.
    neighbours: l runs over the clients that "answered" in this round, or over "all" that ever answered, with their last
    models.
    welcome_steps: local steps from the mean model that make the model of a client that never took part.
    """

    name = "fedu"
    title = "FedU"
    paper = "Dinh et al., TNNLS 2024"
    kind = "personalised"
    by_client = ("models",)
    travels = "the client's own whole model, down and up"

    lam: float = Field(0.1, ge=0)
    tau: float | None = Field(None, ge=0, json_schema_extra=span(0.01, 3))
    neighbours: Literal["answered", "all"] = "answered"
    welcome_steps: int = Field(10, ge=0)
    graph: StatedGraph = StatedGraph()

    def check(self, federation: AnyRoster) -> None:
        stage_settings.needs_planted(federation, control=self.graph.control, source=self.graph.source)
        if self.neighbours == "all":
            stage_settings.check_size(len(federation.seen), "method.neighbours: 'all'", "take 'answered'")

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        models: the last model of each client that ever answered, {id: {name: tensor}}.
        """
        server.state["models"] = {}

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the client's own model."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    @phase(params=NET)
    def adapt(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Make a personal model for a client that never took part."""
        fitted = yield from Fit(message.params, training=client.training.with_steps(self.welcome_steps))
        return Message(params=fitted.params)

    # -- at the server ----------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled})
        if not replies:
            return
        trained = {id: replies[id].params for id in sorted(replies)}
        kept = {**server.state["models"], **trained}
        ids = tuple(id for id in server.clients if id in (kept if self.neighbours == "all" else trained))
        weights = self.affinity(server, ids, kept)
        rate = self.lam * (server.training.lr * server.training.local if self.tau is None else self.tau)
        mixing = laplacian_mixing(weights, None, rate, "models")
        server.graph = graph.Graph(ids, weights, round=server.round, mixing=mixing)
        moved = dict(zip(ids, mixed([kept[id] for id in ids], mixing, server.net.trainable), strict=True))
        server.state["models"] = {**kept, **{id: moved[id] for id in trained}}

    def affinity(self, server: ServerView, ids: Sequence[str], models: Mapping[str, Params]) -> Any:
        """a_kl >= 0, symmetric, zero diagonal [n, n]."""
        settings = self.graph
        stage_settings.check_size(len(ids), "method.graph", "let fewer clients take part in a round")
        planted = stage_settings.planted_labels(server, ids)
        if settings.source == "uniform":
            a = np.ones((len(ids), len(ids)))
        elif settings.source == "planted":
            a = graph.oracle(planted)
        else:
            wanted = last_layers(server.net.trainable, settings.layers)
            start = server.initial if settings.vectors == "updates" else None
            vectors = [as_vector(models[id], wanted, start) for id in ids]
            a = graph.similarity_stage(settings.source)(rows(vectors, settings.source))
        return settings.controlled(server, ids, graph.sparsify_stage(settings.sparsify)(a))

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["models"].get(id, server.initial))

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        models = server.state["models"]
        mean = weighted_mean(models, dict.fromkeys(models, 1)) if models else server.initial
        offers = {id: Message(params=mean) for id in ids}
        if self.welcome_steps == 0:
            return offers
        replies = yield from Ask("adapt", offers)
        return {**offers, **replies}
