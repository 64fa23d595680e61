"""FedAMP: each client's cloud model is a mean of all models, in which similar models weigh more.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized cross-silo federated learning on non-IID data. AAAI 2021.
Equation numbers are the paper's; `docs/methods/fedamp.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedkin.flow import Ask, ClientFlow, Message, Params, ServerFlow, phase
from fedkin.forms import NET
from fedkin.graph import Graph
from fedkin.methods.blocks.model_mixing import mixed
from fedkin.methods.blocks.near import fit_near
from fedkin.methods.blocks.own_models import OwnModels
from fedkin.methods.blocks.vectors import Array, as_vector, inner_products
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


class FedAMP(OwnModels):
    """u_i = sum_j xi_ij w_j, Eq. (6), and w_i = argmin of f_i(w) + lam / (2 alpha) |w - u_i|^2, Eq. (7).

    xi_ij = alpha exp(-|w_i - w_j|^2 / sigma) / sigma for j != i, and xi_ii = 1 - sum_j xi_ij. The client continues
    from its own w_i with the experiment's local training. A row whose xi_ij sum to more than 1 is divided by that sum.

    lam: weight of the pull; 0 is Local training. alpha: rate of the server's step. sigma: scale of squared distances.
    A client that never trained starts from the mean of all models, which is also its u_i.
    """

    name = "fedamp"
    title = "FedAMP"
    paper = "Huang et al., AAAI 2021"
    travels = "the whole model up, a mixed one down"

    lam: float = Field(1.0, ge=0, json_schema_extra=span(0.01, 3))
    alpha: float = Field(1.0, gt=0)
    sigma: float = Field(1.0, gt=0, json_schema_extra=span(0.1, 1000))

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the client's model near the cloud model, keep it and send it."""
        client.state["params"] = yield from self.near(client, client.state.get("params", client.initial), message)
        return Message(params=client.state["params"])

    def near(self, client: ClientView, start: Params, message: Message) -> ClientFlow[Params]:
        """Local training from `start`, pulled towards the model in the message."""
        fitted = yield from fit_near(client, start, message.params, self.lam / self.alpha)
        return fitted.params

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        models = server.state["models"]
        ids, xi = self.weights(server)
        clouds = dict(zip(ids, mixed([models[id] for id in ids], xi), strict=True)) if ids else {}
        asked = {id: Message(params=clouds.get(id, server.initial)) for id in sampled}
        replies = yield from Ask("train", asked)
        if not replies:
            return
        self.keep(server, replies)
        ids, xi = self.weights(server)
        server.graph = Graph(tuple(ids), xi * (1 - np.eye(len(ids))), directed=True, round=server.round, mixing=xi)

    def weights(self, server: ServerView) -> tuple[list[str], Array]:
        """(ids of the clients that ever answered, sorted; xi [n, n])."""
        ids = sorted(server.state["models"])
        if not ids:
            return [], np.zeros((0, 0))
        vectors = [as_vector(server.state["models"][id], server.net.trainable) for id in ids]
        inner = inner_products(vectors)
        length = np.diag(inner)
        return ids, attention(length[:, None] + length[None, :] - 2 * inner, self.alpha, self.sigma)

    def use(self, client: ClientView, message: Message) -> Params | ClientFlow[Params]:
        if "params" in client.state:
            return client.state["params"]  # type: ignore[no-any-return]
        return self.near(client, message.params, message) if client.size else message.params


def attention(squared: Array, alpha: float, sigma: float) -> Array:
    """Return xi [n, n] from squared distances [n, n]; entries are at least 0, and rows sum to 1.

    >>> attention(np.array([[0.0, 1e9], [1e9, 0.0]]), 1.0, 1.0)
    array([[1., 0.],
           [0., 1.]])
    """
    xi = alpha / sigma * np.exp(-np.maximum(squared, 0.0) / sigma)
    np.fill_diagonal(xi, 0.0)
    xi /= np.maximum(xi.sum(1, keepdims=True), 1.0)
    np.fill_diagonal(xi, 1.0 - xi.sum(1))
    return xi
