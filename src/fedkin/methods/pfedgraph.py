"""pFedGraph: the server infers a collaboration graph, whose rows mix the models that clients start from.

Ye, Ni, Wu, Chen, Wang. Personalized federated learning with inferred collaboration graphs. ICML 2023. Equation numbers
are the paper's; `docs/methods/pfedgraph.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin import graph
from fedkin.codec import Tree
from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, phase
from fedkin.forms import COUNT, NET
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import Batch, masked_mean, per_sample
from fedkin.learning.net import BodyHead
from fedkin.methods.blocks.model_mixing import mixed
from fedkin.methods.blocks.own_models import OwnModels
from fedkin.methods.blocks.vectors import Array, as_vector, inner_products
from fedkin.settings import span
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView


@dataclass(frozen=True)
class AlongAggregate:
    """The task's loss minus lam cos(w, w_hat), with the aggregate w_hat = extras["aggregate"], Eq. (6)."""

    task: Task
    lam: float
    weighted = True

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        value = masked_mean(per_sample(self.task)(model(batch.x), batch.y), batch)
        params = model.params
        w = as_vector(params, list(params))
        return value - self.lam * F.cosine_similarity(w, as_vector(extras["aggregate"], list(params)), dim=0)


class PFedGraph(OwnModels):
    """w_i = argmin over the simplex of alpha |w - p|^2 - sum_j w_j s_ij, Eq. (5); theta_hat_i = sum_j w_ij theta_j.

    p: the clients' shares of the samples. s_ij: cosine of theta_i - theta_0 and theta_j - theta_0, with the common
    start theta_0. Client i trains from theta_hat_i on f_i(theta) - lam cos(theta, theta_hat_i), and predicts with the
    result.

    alpha: pull of each row to p, the weights of FedAvg; large values give every client the same mean. lam: pull of a
    client to its aggregate. A client that never answered gets the mean weighted by samples. The server's state also has
    `sizes`.
    """

    name = "pfedgraph"
    title = "pFedGraph"
    paper = "Ye et al., ICML 2023"
    by_client = ("models", "sizes")
    travels = "the whole model up, a mixed one down"

    alpha: float = Field(0.8, gt=0, json_schema_extra=span(0.01, 10))
    lam: float = Field(0.01, ge=0)

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train from the client's aggregate, keep the result and send it."""
        aggregate = {name: message.params[name] for name in client.net.trainable}
        loss = AlongAggregate(client.task, self.lam) if self.lam else None
        fitted = yield from Fit(message.params, loss, extras={"aggregate": aggregate} if self.lam else {})
        client.state["params"] = fitted.params
        return Message(params=fitted.params, n=client.size)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        ids, _, mixing = self.collaboration(server)
        aggregates = dict(zip(ids, mixed([state["models"][id] for id in ids], mixing), strict=True)) if ids else {}
        asked = {id: Message(params=aggregates[id]) if id in aggregates else self.common(server) for id in sampled}
        replies = yield from Ask("train", asked)
        if not replies:
            return
        self.keep(server, replies)
        state["sizes"] = {**state["sizes"], **{id: reply["n"] for id, reply in sorted(replies.items())}}
        ids, similar, mixing = self.collaboration(server)
        weights = mixing * (1 - np.eye(len(ids)))
        server.graph = graph.Graph(
            tuple(ids), weights, directed=True, round=server.round, values={"cosine": similar}, mixing=mixing
        )

    def collaboration(self, server: ServerView) -> tuple[list[str], Array, Array]:
        """(ids of the clients that ever answered, sorted; cosines s [n, n]; rows w [n, n])."""
        models, sizes = server.state["models"], server.state["sizes"]
        ids = sorted(models)
        if not ids:
            return [], np.zeros((0, 0)), np.zeros((0, 0))
        vectors = [as_vector(models[id], server.net.trainable, server.initial) for id in ids]
        inner = inner_products(vectors)
        length = np.sqrt(np.maximum(np.diag(inner), 1e-300))
        similar = np.clip(inner / np.outer(length, length), -1.0, 1.0)
        return ids, similar, collaboration(similar, [sizes[id] for id in ids], self.alpha)

    def common(self, server: ServerView) -> Message:
        """Return the mean of all models so far, weighted by samples; at first the common start."""
        models = server.state["models"]
        return Message(params=weighted_mean(models, server.state["sizes"]) if models else server.initial)

    def offer(self, server: ServerView, id: str) -> Message:
        return Message() if id in server.state["models"] else self.common(server)


def collaboration(similar: Array, sizes: Sequence[int], alpha: float) -> Array:
    """Rows w_i [n, n] of Eq. (5): the projection of p + s_i / (2 alpha) on the simplex, with p = sizes / sum.

    >>> collaboration(np.ones((2, 2)), [3, 1], 0.8)
    array([[0.75, 0.25],
           [0.75, 0.25]])
    """
    p = np.asarray(sizes, dtype=np.float64) / sum(sizes)
    return graph.project(p + similar / (2 * alpha))
