"""FedCollab: coalitions trade off differences between clients against few samples; FedAvg inside each.

Bao, Wang, Wu, He. Optimizing the collaboration structure in cross-silo federated learning. ICML 2023.
`docs/methods/fedcollab.md` says where paper and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Each, Number
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.net import BodyHead
from fedkin.methods.blocks.clusters import Clustered, mean_of_clusters, numbered_by_size
from fedkin.methods.blocks.own_models import held_out_fifth
from fedkin.methods.blocks.signatures import unsigned
from fedkin.methods.blocks.vectors import Array, Labels, last_layers
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


@dataclass(frozen=True)
class Discriminates:
    """log(1 + exp(-side s)), with s the model's output for the sample's own class, so that s depends on x and y.

    extras["side"]: 1 at one client of the pair, -1 at the other.
    """

    weighted = False
    stackable = True

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        outputs = model.head(model.features(batch.x))
        return masked_mean(F.softplus(-extras["side"] * own_output(outputs, batch.y)), batch)


def own_output(outputs: Tensor, labels: Tensor) -> Tensor:
    """The output [b] for each sample's own class."""
    return outputs.gather(1, labels[:, None])[:, 0]


class FedCollab(Clustered):
    """A partition that minimises mean_i [C sqrt(sum_j a_ij^2 / n_j) + sum_j a_ij d_ij]; FedAvg inside each coalition.

    a_ij: the share of client j's samples in the coalition of i, so that the first term is C / sqrt(samples of the
    coalition). d_ij: how well a discriminator separates samples (x, y) of i and j: its accuracy at i, plus that at j,
    minus 1, at least 0. Each pair trains a discriminator before the first round, in `exchanges` rounds of FedAvg
    between the two, and the best value on held-out samples counts. A discriminator is a net like the model; its output
    for a sample's own class says which client the sample is from.

    c: C, the weight of the first term. exchanges: rounds in which discriminators train. restarts: number of greedy
    searches, each from all clients alone. weights, aggregate: as in FedAvg, inside a coalition. A client that joins
    later is compared with all others, and the partition is computed again; a coalition continues from the mean of its
    members' models. A client that never took part uses the mean of all coalitions.

    The server's state: `sizes`, {client: n}; `divergence`, {client: {client: d}}; `cluster`, {client: coalition};
    `models`, {coalition: params}.
    """

    name = "fedcollab"
    title = "FedCollab"
    paper = "Bao et al., ICML 2023"
    by_client = ("sizes", "divergence", "cluster")
    travels = "once: a discriminator for each pair of clients; then the whole model of the coalition"
    needs_classes = True

    c: float = Field(10.0, ge=0, json_schema_extra=span(0.1, 100))
    exchanges: int = Field(5, ge=1)
    restarts: int = Field(100, ge=1)

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(n=COUNT)
    def count(self, client: ClientView, message: Message) -> Message:
        """The number of training samples."""
        return Message(n=client.size)

    @phase(right=Each(Number(0.0)), models=Each(NET))
    def discriminate(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Return each discriminator's accuracy on held-out samples, and the trained discriminators."""
        kept, held = held_out_fifth(client)
        right: dict[str, float] = {}
        models: dict[str, Params] = {}
        for other, params in sorted(message["models"].items()):
            side = 1.0 if client.id < other else -1.0
            outputs = yield from Infer(params, "logits", data=held)
            hits = side * own_output(outputs, held.labels()) > 0
            right[other] = float(hits.double().mean()) if len(held) else 0.0
            if message["train"]:
                extras = {"side": torch.tensor(side, dtype=client.net.dtype)}
                models[other] = (yield from Fit(params, Discriminates(), extras, data=kept)).params
        return Message(right=right, models=models)

    # -- at the server ----------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        yield from self.take(server, unsigned(server, sampled, state["sizes"]))
        if (yield from self.train_clusters(server, sampled)):
            self.record(server)

    def take(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[None]:
        """Compare these clients with each other and with all known clients; compute the coalitions again."""
        state = server.state
        replies = (yield from Ask("count", dict.fromkeys(ids, Message()))) if ids else {}
        if not replies:
            return
        sizes = {**state["sizes"], **{id: reply["n"] for id, reply in sorted(replies.items())}}
        pairs = [pair for pair in combinations(sorted(sizes), 2) if replies.keys() & set(pair)]
        divergence = {id: dict(row) for id, row in state["divergence"].items()}
        for (one, other), distance in (yield from self.compared(server, pairs)).items():
            divergence.setdefault(one, {})[other] = divergence.setdefault(other, {})[one] = distance
        state.update({"sizes": sizes, "divergence": divergence})
        self.form_coalitions(server)

    def form_coalitions(self, server: ServerView) -> None:
        """Compute the coalitions; each starts from the mean of the models that its clients had."""
        state = server.state
        sizes, divergence, known = state["sizes"], state["divergence"], sorted(state["sizes"])
        d = np.array([[divergence.get(i, {}).get(j, 0.0) for j in known] for i in known])
        labels = coalitions([sizes[id] for id in known], d, self.c, self.restarts, server.key("coalitions"))
        cluster = {id: str(label) for id, label in zip(known, labels.tolist(), strict=True)}
        models = {}
        for number in sorted(set(cluster.values()), key=int):
            before = {id: state["cluster"][id] for id in known if cluster[id] == number and id in state["cluster"]}
            models[number] = mean_of_clusters(state["models"], before) if before else server.initial
        state["cluster"], state["models"] = cluster, models

    def compared(
        self, server: ServerView, pairs: Sequence[tuple[str, str]]
    ) -> ServerFlow[dict[tuple[str, str], float]]:
        """Return d of each pair; 1 for a pair that was never judged by both clients."""
        # Outputs start at 0, so that it does not matter which client of a pair has which side.
        zeros = {name: torch.zeros_like(server.initial[name]) for name in last_layers(server.net.trainable, 1)}
        start = {**server.initial, **zeros}
        models: dict[tuple[str, str], Params] = dict.fromkeys(pairs, start)
        best: dict[tuple[str, str], float] = {}
        for exchange in range(self.exchanges + 1) if pairs else ():
            asked: dict[str, dict[str, Params]] = {}
            for (one, other), params in models.items():
                asked.setdefault(one, {})[other] = asked.setdefault(other, {})[one] = params
            train = exchange < self.exchanges
            messages = {id: Message(models=asked[id], train=train) for id in sorted(asked)}
            replies = yield from Ask("discriminate", messages)
            for pair in pairs:
                if trained := about_each_other(replies, "models", pair):
                    models[pair] = weighted_mean(trained, dict.fromkeys(trained, 1.0))
                rates = about_each_other(replies, "right", pair)
                if len(rates) == 2:
                    best[pair] = max(best.get(pair, 0.0), sum(rates.values()) - 1)
        return {pair: min(best.get(pair, 1.0), 1.0) for pair in pairs}


def about_each_other(replies: Mapping[str, Message], field: str, pair: tuple[str, str]) -> dict[str, Any]:
    """{client id: what it sent in this field about the other client of the pair}, of those that sent it."""
    sent = {id: replies[id][field] for id in pair if id in replies}
    mate = dict(zip(pair, reversed(pair), strict=True))
    return {id: about[mate[id]] for id, about in sent.items() if mate[id] in about}


def coalitions(sizes: Sequence[int], d: Array, c: float, restarts: int, seed: int) -> Labels:
    """Best partition [n] of a greedy search from all alone: each client in turn moves to where the sum is smallest.

    >>> far = np.kron([[0.0, 1.0], [1.0, 0.0]], np.ones((2, 2)))
    >>> coalitions([50, 50, 50, 50], far, 10.0, 5, 0).tolist()
    [0, 0, 1, 1]
    """
    n = np.asarray(sizes, dtype=np.float64)
    draw = np.random.default_rng(seed)
    # In an order that does not depend on ids.
    order = np.lexsort((np.sort(d, axis=1).sum(1), n))
    best, least = np.zeros(len(n), dtype=np.int64), np.inf
    for _ in range(restarts):
        labels = _moved(draw.permutation(order), n, d * n, c)
        value = float(cost(*_sums(labels, n, d * n)[1:], c).sum())
        if value < least - 1e-12:
            best, least = labels, value
    return numbered_by_size(best, n, d.sum(1))


def cost(count: Array, samples: Array, distances: Array, c: float) -> Array:
    """What each coalition adds to the sum over clients: sum_i [c / sqrt(N) + sum_j n_j d_ij / N]; 0 for an empty one.

    count, samples: its clients and N; distances: the sum of n_j d_ij over its clients i and j.
    """
    total = np.maximum(samples, 1e-300)
    return np.where(count > 0, count * c / np.sqrt(total) + distances / total, 0.0)


def _sums(labels: Labels, n: Array, weighted: Array) -> tuple[Array, Array, Array, Array]:
    """Return membership [coalitions, clients] and the arguments of `cost`; weighted: n_j d_ij."""
    member = (labels == np.arange(len(n))[:, None]).astype(np.float64)
    return member, member.sum(1), member @ n, ((member @ weighted) * member).sum(1)


def _moved(order: Labels, n: Array, weighted: Array, c: float) -> Labels:
    """Move one client after another to where the total cost is smallest, until no client moves."""
    labels, moving = np.arange(len(n)), True
    while moving:
        moving = False
        for k in order:
            here = labels[k]
            labels[k] = -1
            member, count, samples, distances = _sums(labels, n, weighted)
            joined = cost(count + 1, samples + n[k], distances + member @ (weighted[k] + weighted[:, k]), c)
            gain = joined - cost(count, samples, distances, c)
            to = int(np.argmin(gain))
            labels[k] = to if gain[to] < gain[here] - 1e-12 else here
            moving = moving or labels[k] != here
    return labels
