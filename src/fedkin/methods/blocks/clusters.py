"""Parts of clustered methods: one model per cluster, distances between parameters, the graph of a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from fedkin.flow import Ask, AveragedReplies, Message, Params, ServerFlow
from fedkin.graph import Graph, canonical
from fedkin.learning.aggregate import Rule, aggregated, weighted_mean
from fedkin.methods.blocks.averaging import Weights, WholeModel, mean_asked, mean_weights
from fedkin.methods.blocks.vectors import Array, Labels, blocks
from fedkin.views import ServerView


def cluster_means(
    models: Mapping[str, Params], cluster: Mapping[str, str], replies: Mapping[str, Message], weights: Weights,
    aggregate: Rule,
) -> dict[str, Params]:  # fmt: skip
    """One model per cluster: the weighted mean of its members' replies. A cluster without replies keeps its model.

    models: {cluster: params}; cluster: {client id: cluster}; replies of other clients do not count. replies: also the
    answer to Ask(..., mean_asked(weights, aggregate, cluster)). aggregate: the rule in place of the mean.
    """
    if (asked := mean_asked(weights, aggregate, cluster)) is not None and isinstance(replies, AveragedReplies):
        return {**models, **asked.by_group(replies)}
    share = mean_weights(replies, weights)
    new = dict(models)
    for number in sorted({cluster[id] for id in replies if id in cluster}):
        members = [id for id in replies if cluster.get(id) == number]
        new[number] = aggregated({id: replies[id].params for id in members}, share, aggregate, models.get(number))
    return new


class Clustered(WholeModel):
    """FedAvg inside clusters: the server's state has `models`, {number as text: params}, and `cluster`, {id: number}.

    weights, aggregate: as in FedAvg.
    """

    kind = "clustered"

    weights: Weights = "samples"
    aggregate: Rule = "mean"

    def start(self, server: ServerView) -> None:
        server.state.update({table: {} for table in (*self.by_client, "models")})

    def train_clusters(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[bool]:
        """FedAvg inside the clusters; return False if no model arrived."""
        state = server.state
        cluster = {id: state["cluster"][id] for id in sampled if id in state["cluster"]}
        asked = {id: Message(params=state["models"][number]) for id, number in cluster.items()}
        mean = mean_asked(self.weights, self.aggregate, cluster)
        replies = (yield from Ask("train", asked, mean)) if asked else {}
        if replies:
            state["models"] = cluster_means(state["models"], cluster, replies, self.weights, self.aggregate)
        return bool(replies)

    def record(self, server: ServerView) -> None:
        """Record the clusters as this round's graph."""
        models = sorted(server.state["models"], key=int)
        server.graph = members_graph(server.state["cluster"], models, server.round)

    def offer(self, server: ServerView, id: str) -> Message:
        """Offer the model of the client's cluster; without a cluster, the mean of all, weighted by size."""
        models, cluster = server.state["models"], server.state["cluster"]
        if id in cluster:
            return Message(params=models[cluster[id]])
        return Message(params=mean_of_clusters(models, cluster) if models else server.initial)


def mean_of_clusters(models: Mapping[str, Params], cluster: Mapping[str, str]) -> Params:
    """The mean of the clusters' models, each weighted by its number of members.

    models: {cluster: params}; cluster: {client id: cluster}. While no client has a cluster, all models weigh the
    same. With one model to average, the result is that same object.
    """
    size = Counter(cluster.values())
    present = {number: model for number, model in models.items() if size[number] or not cluster}
    if len(present) == 1:
        return next(iter(present.values()))
    return weighted_mean(present, {number: max(size[number], 1) for number in present})


def squared_distances(rows: Sequence[Params], centres: Sequence[Params], names: Iterable[str]) -> Array:
    """|row_i - centre_j|^2 over the named tensors, [m, C]."""
    total = torch.zeros(len(rows), len(centres), dtype=torch.float64)
    for name in names if centres else ():
        first, *_ = flat = [centre[name].flatten() for centre in centres]
        for block, part in blocks([row[name].flatten() for row in rows], first):
            for j, centre in enumerate(flat):
                step = centre[part].double() - first[part].double()
                total[:, j] += (block - step).square().sum(1)
    return np.asarray(total.numpy())


def numbered_by_size(labels: npt.ArrayLike, *keys: npt.ArrayLike) -> Labels:
    """The same groups numbered by size, then by each key's sum over the members, largest first, then by first row.

    Keys come from the data, so that other client ids give the same numbers.

    >>> numbered_by_size([0, 0, 1, 1], [1.0, 1.0, 5.0, 5.0]).tolist()
    [1, 1, 0, 0]
    """
    groups = canonical(labels)
    weights = [np.ones(len(groups)), *(np.asarray(key, dtype=np.float64) for key in keys)]
    falling = [-np.bincount(groups, weights=weight) for weight in weights]
    rank = np.empty(int(groups.max()) + 1, dtype=np.int64)
    rank[np.lexsort([np.arange(len(rank)), *reversed(falling)])] = np.arange(len(rank))
    return np.asarray(rank[groups])


def continued(labels: Sequence[int], before: Sequence[int | None], used: Iterable[int]) -> list[tuple[int, int | None]]:
    """(number, parent) of each new group, in the order of its label, when groups are made again.

    labels: new group of each client. before: its old group (None: it had none). used: the old groups' numbers. A new
    group's parent is the old group of most of its members (None: it has only new members). Of several groups with the
    same parent, the one with most members from it keeps the parent's number; the others get new numbers, above all
    `used`.
    """
    groups = max(labels) + 1
    shared = Counter((label, old) for label, old in zip(labels, before, strict=True) if old is not None)
    parents: list[int | None] = [None] * groups
    numbers: list[int | None] = [None] * groups
    for label, old in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if parents[label] is None:
            parents[label] = old
            if old not in numbers:
                numbers[label] = old
    free = count(max(used, default=-1) + 1)
    return [(next(free) if n is None else n, parent) for n, parent in zip(numbers, parents, strict=True)]


def members_graph(cluster: Mapping[str, str], clusters: Iterable[str], round: int) -> Graph:
    """The graph of this round with weight 1 between the members of a cluster; groups are numbered as in `clusters`.

    cluster: {client id: cluster}.
    """
    ids = tuple(sorted(cluster))
    column_of = {name: index for index, name in enumerate(clusters)}
    labels = np.array([column_of[cluster[id]] for id in ids], dtype=np.int64)
    # Written out: a product of membership matrices takes ten times as long, and clusters may hold thousands.
    members = [np.flatnonzero(labels == number) for number in range(len(column_of))]
    starts = np.concatenate([[0], np.cumsum([len(members[label]) - 1 for label in labels])])
    columns = np.empty(starts[-1], dtype=np.int32)
    for rows in members:
        for row in rows:
            columns[starts[row] : starts[row + 1]] = rows[rows != row]
    weights = sp.csr_array((np.ones(starts[-1]), columns, starts), shape=(len(ids), len(ids)))
    return Graph(ids, weights, groups=dict(zip(ids, labels.tolist(), strict=True)), round=round)
