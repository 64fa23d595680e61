"""FedSEM: k-means on the clients' weights. A client trains from the centre that was nearest to its last model.

Xie, Long, Shen, Zhou, Wang, Jiang. Multi-center federated learning. arXiv:2005.01026, 2020 (there FeSEM).
`docs/methods/fedsem.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedkin import graph
from fedkin.flow import Ask, Message, Params, ServerFlow
from fedkin.methods.blocks.clusters import (
    Clustered,
    cluster_means,
    mean_of_clusters,
    squared_distances,
)  # fmt: skip
from fedkin.methods.blocks.signatures import SameStage, SigningMethod, ask_for_count, group_count
from fedkin.methods.blocks.vectors import Array, Labels, inner_products_of_params
from fedkin.settings import one_of
from fedkin.views import ServerView

# A squared distance below this share of the largest squared length is rounding error: the points are equal.
_ROUNDING = 1e-10


class FedSem(Clustered, SigningMethod):
    """E step: a client's cluster is the centre nearest to its weights (l2). M step: a centre is its clients' mean.

    clusters: C, or "same[:alpha]": the number of groups found from signatures (`fedkin.graph.find`).
    weights: "samples" weighs a client by n_k in the mean, "equal" weighs all the same (the paper's).
    aggregate: as in FedAvg, inside a cluster.
    compare: distances are between whole "net"s or between "head"s.
    """

    name = "fedsem"
    title = "FedSEM"
    paper = "Xie et al., 2020"
    by_client = ("cluster", "same.signatures", "same.group")
    travels = "the whole model; down: that of the client's cluster"

    clusters: Annotated[int, Field(ge=1)] | SameStage = Field(2, json_schema_extra=one_of(2, 3, 4, 5, 6, 8))
    compare: Literal["net", "head"] = "net"

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        models: {cluster: params}, the centres; empty before the first round. cluster: {client id: cluster}, as of the
        last round in which the client took part. common: the mean of the centres, weighted by their sizes. same:
        signatures and groups from the test, None where C is given.
        """
        server.state = {"models": {}, "cluster": {}, "common": server.initial, "same": None}

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        state["same"] = yield from ask_for_count(server, state["same"], sampled, self.clusters)
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled})
        if not replies:
            return
        # E step.
        cluster = self.nearest(server, replies)
        new = sorted(set(cluster.values()) - set(state["models"]), key=int)
        # M step.
        models = {**state["models"], **dict.fromkeys(new, state["common"])}
        state["models"] = cluster_means(models, cluster, replies, self.weights, self.aggregate)
        state["cluster"] = {**state["cluster"], **cluster}
        state["common"] = mean_of_clusters(state["models"], state["cluster"])
        self.record(server)

    def nearest(self, server: ServerView, replies: Mapping[str, Message]) -> dict[str, str]:
        """E step: {client id: cluster} of these replies. While there are fewer than C centres, new ones are opened."""
        ids = sorted(replies)
        rows = [replies[id].params for id in ids]
        names, clusters = self.compared(server), group_count(self.clusters, server.state["same"]) or 1
        centres = list(_by_number(server.state["models"]).values())
        if clusters == 1:
            labels = np.zeros(len(ids), dtype=np.int64)
        elif len(centres) == clusters:
            labels = squared_distances(rows, centres, names).argmin(1)
        else:
            inner = inner_products_of_params(rows, names, server.state["common"])
            if centres:
                labels = opened(squared_distances(rows, centres, names), inner, clusters).argmin(1)
            else:
                labels = first_groups(inner, clusters, server.key("centres"))
        return {id: str(label) for id, label in zip(ids, labels.tolist(), strict=True)}

    def compared(self, server: ServerView) -> list[str]:
        """Names of the parameters that distances are computed from."""
        heads = [name for name in server.net.trainable if name.startswith("head.")]
        return heads if self.compare == "head" and heads else list(server.net.trainable)

    def offer(self, server: ServerView, id: str) -> Message:
        """Offer the centre of the client's cluster; without a cluster, the mean of all centres weighted by size."""
        state = server.state
        return Message(params=state["models"][state["cluster"][id]] if id in state["cluster"] else state["common"])

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part train once from the common model and take the centre nearest to the result."""
        offers = {id: self.offer(server, id) for id in ids}
        if len(server.state["models"]) < 2:
            return offers
        replies = yield from Ask("train", offers)
        if replies:
            came, centres = sorted(replies), list(_by_number(server.state["models"]).values())
            rows = [replies[id].params for id in came]
            labels = squared_distances(rows, centres, self.compared(server)).argmin(1)
            offers |= {id: Message(params=centres[label]) for id, label in zip(came, labels.tolist(), strict=True)}
        return offers


def _by_number(models: Mapping[str, Params]) -> dict[str, Params]:
    """The centres in the order of their numbers, which a checkpoint does not keep."""
    return {number: models[number] for number in sorted(models, key=int)}


def first_groups(inner: Array, clusters: int, seed: int) -> Labels:
    """Return at most m k-means groups of m points, from their inner products [m, m].

    The points are placed at their true distances in at most m dimensions, and visited in the order of their lengths, so
    that relabelled clients get the same groups.
    """
    order = np.argsort(np.diag(inner), kind="stable")
    values, vectors = np.linalg.eigh(inner[np.ix_(order, order)])
    labels = np.empty(len(inner), dtype=np.int64)
    if values.max() <= 0:
        return np.zeros_like(labels)
    keep = values > values.max() * 1e-12
    # Rounded, so that equal clients have equal coordinates in any order.
    places = np.round(vectors[:, keep] * np.sqrt(values[keep] / values.max()), 9)
    labels[order] = graph.kmeans(places, min(clusters, len(inner)), seed=seed)
    return labels


def opened(between: Array, inner: Array, clusters: int) -> Array:
    """Add a column for each new centre to the squared distances `between` m points and c centres [m, c].

    A new centre is the point farthest from all centres; centres are added until there are `clusters`, or until every
    point lies on a centre. inner: inner products [m, m] of the points.
    """
    lengths = np.diag(inner)
    while between.shape[1] < clusters:
        gap = between.min(1)
        far = int(gap.argmax())
        if gap[far] <= _ROUNDING * max(float(lengths.max()), float(between.max())):
            break
        column = np.maximum(lengths + lengths[far] - 2 * inner[far], 0.0)
        between = np.column_stack([between, column])
    return between
