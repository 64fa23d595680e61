"""FedSEM: k-means on the clients' weights; each client trains on from the centre that it is nearest to.

Xie, Long, Shen, Zhou, Wang, Jiang. Multi-center federated learning. arXiv:2005.01026, 2020 (there FeSEM).
`docs/methods/fedsem.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin import graph
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.methods.blocks.clusters import (
    Array,
    Labels,
    Weights,
    aggregated,
    centre,
    gram,
    members_graph,
    squared_distances,
)
from fedkin.views import ClientView, ServerView

__all__ = ["FedSem"]

# Squared distances below this share of the largest squared length are rounding, not a second place.
_SAME = 1e-10


class FedSem(ServerMethod):
    """E step: a client's cluster is the centre nearest to its weights (l2). M step: a centre is its clients' mean.

    clusters: C. weights: "samples" weighs a client by n_k in the mean, "equal" weighs all alike (the paper's).
    compare: distances are between whole "net"s or between "head"s.
    """

    name: ClassVar[str] = "fedsem"
    title: ClassVar[str] = "FedSEM"
    paper: ClassVar[str] = "Xie et al., 2020"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "the whole model; down: that of the client's cluster"

    clusters: int = Field(2, ge=1)
    weights: Weights = "samples"
    compare: Literal["net", "head"] = "net"

    def start(self, server: ServerView) -> None:
        server.state["models"] = {}
        server.state["where"] = {}
        server.state["common"] = server.initial

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params, n=client.size)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled})
        if not replies:
            return
        where = self.nearest(server, replies)
        models = {
            **dict.fromkeys(sorted({*server.state["models"], *where.values()}, key=int)),
            **server.state["models"],
        }
        server.state["models"] = aggregated(models, where, replies, self.weights)
        server.state["where"] = {**server.state["where"], **where}
        server.state["common"] = centre(server.state["models"], server.state["where"])
        server.graph = members_graph(server.state["where"], sorted(server.state["models"], key=int), server.round)

    def nearest(self, server: ServerView, replies: Mapping[str, Message]) -> dict[str, str]:
        """E step: {client id: cluster} of these replies; opens centres as long as there are fewer than C."""
        ids = sorted(replies)
        rows = [replies[id]["params"] for id in ids]
        names = self.compared(server)
        centres = _centres(server)
        if self.clusters == 1:
            labels = np.zeros(len(ids), dtype=np.int64)
        elif not centres:
            labels = first_groups(gram(rows, server.state["common"], names), self.clusters, server.key("centres"))
        else:
            between = squared_distances(rows, centres, names)
            if len(centres) < self.clusters:
                inner = gram(rows, server.state["common"], names)
                between = opened(between, inner, self.clusters)
            labels = between.argmin(1)
        return {id: str(label) for id, label in zip(ids, labels.tolist(), strict=True)}

    def compared(self, server: ServerView) -> list[str]:
        """Names of the parameters that distances are taken over."""
        heads = [name for name in server.net.trainable if name.startswith("head.")]
        return heads if self.compare == "head" and heads else list(server.net.trainable)

    def offer(self, server: ServerView, id: str) -> Message:
        """The centre of the client's cluster; the members' mean of all centres while it has none."""
        state = server.state
        return Message(params=state["models"][state["where"][id]] if id in state["where"] else state["common"])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part train once from the common model and take the centre nearest to the result."""
        found = {id: self.offer(server, id) for id in ids}
        if len(server.state["models"]) < 2:
            return found
        replies = yield from Ask("train", found)
        if replies:
            came, centres = sorted(replies), _centres(server)
            rows = [replies[id]["params"] for id in came]
            labels = squared_distances(rows, centres, self.compared(server)).argmin(1)
            found |= {id: Message(params=centres[k]) for id, k in zip(came, labels.tolist(), strict=True)}
        return found


def _centres(server: ServerView) -> list[Params]:
    """The centres, by their numbers 0.."""
    models: Mapping[str, Params] = server.state["models"]
    return [models[str(number)] for number in range(len(models))]


def first_groups(inner: Array, clusters: int, seed: int) -> Labels:
    """k-means groups of m points, at most m, from their inner products [m, m].

    Points are placed at their true distances in as many dimensions as there are points, and are visited in the order
    of their lengths, so that relabelled clients get the same groups.
    """
    order = np.argsort(np.diag(inner), kind="stable")
    values, vectors = np.linalg.eigh(inner[np.ix_(order, order)])
    labels = np.empty(len(inner), dtype=np.int64)
    if values.max() <= 0:
        return np.zeros_like(labels)
    keep = values > values.max() * 1e-12
    # Rounded, so that equal clients are at one place whatever the order.
    places = np.round(vectors[:, keep] * np.sqrt(values[keep] / values.max()), 9)
    labels[order] = graph.kmeans(places, min(clusters, len(inner)), seed=seed)
    return labels


def opened(between: Array, inner: Array, clusters: int) -> Array:
    """`between` [m, c] with a column for each new centre: the point that is farthest from all, until there are C."""
    lengths = np.diag(inner)
    while between.shape[1] < clusters:
        gap = between.min(1)
        far = int(gap.argmax())
        if gap[far] <= _SAME * max(float(lengths.max()), float(between.max())):
            break
        column = np.maximum(lengths + lengths[far] - 2 * inner[far], 0.0)
        between = np.column_stack([between, column])
    return between
