"""pFedSim: after a FedAvg phase, each client's body is a mean of all bodies, weighted by how alike the heads are.

Tan, Zhou, Liu, Wang, Yu. pFedSim: similarity-aware model aggregation towards personalized federated learning.
arXiv 2305.15706, 2023. `docs/methods/pfedsim.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import COUNT, NET
from fedkin.graph import Graph
from fedkin.learning.aggregate import Rule
from fedkin.learning.net import body_of, head_of
from fedkin.methods.blocks.averaging import mean_model
from fedkin.methods.blocks.vectors import Array, as_vector
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


class PFedSim(ServerMethod):
    """FedAvg for the first rounds; then body_i <- sum_j a_ij body_j with a_ij in proportion to -log(1 - s_ij).

    s_ij is the cosine of the heads i and j, at least 0 and at most `ceiling`, which is also s_ii. Heads stay local.
    warmup: rounds of FedAvg; below 1 it is a fraction of `training.rounds`. aggregate: for these rounds, as in FedAvg.
    cosine: mean over the cosines of the heads' class "rows", or the cosine of the "whole" heads.
    predict: with the model that the client "trained" last, or with its head on the body that the server would now mix
    for it ("mixed").
    """

    name = "pfedsim"
    title = "pFedSim"
    paper = "Tan et al., 2023"
    kind = "personalised"
    by_client = ("models",)
    travels = "the whole model up; down: the whole model, after the first phase the body"

    warmup: float = Field(0.5, ge=0, json_schema_extra=span(0.1, 0.9, log=False))
    aggregate: Rule = "mean"
    ceiling: float = Field(0.9999, gt=0, lt=1)
    cosine: Literal["rows", "whole"] = "rows"
    predict: Literal["trained", "mixed"] = "trained"

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the received model and send all of it. A client with its own model keeps that model's head."""
        fitted = yield from Fit({**client.state.get("params", client.initial), **message.params})
        if message["personal"]:
            client.state["params"] = fitted.params
        return Message(params=fitted.params, n=client.size)

    # -- at the server ------------------------------------------------------------------------------------------

    def start(self, server: ServerView) -> None:
        server.state.update({"params": server.initial, "models": {}})

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        """FedAvg in the first phase; in the second, bodies are mixed, sent, trained and kept."""
        personal = server.round > server.training.rounds_of(self.warmup)
        models = server.state["models"]
        mixed = self.mixed(server, [id for id in sampled if id in models])
        messages = {id: Message(params=mixed.get(id, server.state["params"]), personal=personal) for id in sampled}
        replies = yield from Ask("train", messages)
        if not replies:
            return
        trained = {id: reply.params for id, reply in replies.items()}
        if personal:
            server.state["models"] = {**models, **trained}
            ids, similar, weights = self.weights(server)
            server.graph = Graph(tuple(ids), similar * (1 - np.eye(len(ids))), round=server.round, mixing=weights)
        else:
            server.state["params"] = mean_model(replies, "samples", self.aggregate, server.state["params"])

    def weights(self, server: ServerView) -> tuple[list[str], Array, Array]:
        """(ids of the clients with a model of their own, sorted; similarities s [n, n]; mixing weights a [n, n])."""
        ids = sorted(server.state["models"])
        heads = [head_of(server.state["models"][id]) for id in ids]
        similar = np.clip(head_cosines(heads, whole=self.cosine == "whole"), 0.0, self.ceiling)
        return ids, similar, similarity_weights(similar, self.ceiling)

    def mixed(self, server: ServerView, wanted: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """body_i <- sum_j a_ij body_j for these clients i, from the models that the server has."""
        if not wanted:
            return {}
        ids, _, weights = self.weights(server)
        rows = weights[[ids.index(id) for id in wanted]]
        bodies = [body_of(server.state["models"][id]) for id in ids]
        return dict(zip(wanted, mixed_bodies(bodies, rows), strict=True))

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        if id not in server.state["models"]:
            return Message(params=server.state["params"])
        return Message() if self.predict == "trained" else Message(params=self.mixed(server, [id])[id])

    def use(self, client: ClientView, message: Message) -> Params:
        params: Params = message.get("params", {})
        if params.keys() == client.initial.keys():
            return params
        return {**client.state["params"], **params} if params else client.state["params"]


def head_cosines(heads: Sequence[Params], whole: bool = False) -> Array:
    """Cosine of each pair of heads [n, n]: the mean cosine of weight rows, or the cosine of the `whole` heads.

    A row of zeros has cosine 0 with every other.
    """
    if whole:
        tables = [torch.stack([as_vector(head, sorted(head)).double() for head in heads])[:, None]]
    else:
        names = sorted(name for name, tensor in heads[0].items() if tensor.ndim > 1)
        tables = [torch.stack([head[name].double() for head in heads]).flatten(2) for name in names]
    total = torch.zeros(len(heads), len(heads), dtype=torch.float64)
    for table in tables:
        unit = F.normalize(table, dim=2).flatten(1)
        total += unit @ unit.T
    # A product's two triangles may differ in the last bit.
    return np.asarray(((total + total.T) / (2 * max(sum(table.shape[1] for table in tables), 1))).numpy())


def similarity_weights(similar: Array, ceiling: float) -> Array:
    """a_ij = -log(1 - s_ij) / sum_j -log(1 - s_ij), with s_ii = ceiling; rows sum to 1.

    >>> similarity_weights(np.array([[1.0, 0.0], [0.0, 1.0]]), 0.9999)
    array([[1., 0.],
           [0., 1.]])
    """
    bounded = np.clip(similar, 0.0, ceiling)
    np.fill_diagonal(bounded, ceiling)
    near = -np.log1p(-bounded)
    return np.asarray(near / near.sum(axis=1, keepdims=True))


def mixed_bodies(bodies: Sequence[Params], weights: Array) -> list[dict[str, Tensor]]:
    """sum_j weights[i, j] body_j for each row i of weights [m, n]; integer counters take the largest value."""
    mixed: list[dict[str, Tensor]] = [{} for _ in weights]
    by = torch.from_numpy(np.ascontiguousarray(weights))
    for name, first in bodies[0].items():
        stack = torch.stack([body[name] for body in bodies])
        if first.is_floating_point():
            mean = (by @ stack.flatten(1).double()).to(first.dtype).reshape(-1, *first.shape)
        else:
            mean = stack.amax(0).expand(len(weights), *first.shape)
        for own, tensor in zip(mixed, mean, strict=True):
            own[name] = tensor.clone()
    return mixed
