"""CoBo: clients collaborate in learned pairs: those whose gradients agree halfway between their models.

Hashemi, He, Jaggi. CoBo: collaborative learning via bilevel optimization. arXiv 2409.05539, 2024.
`docs/methods/cobo.md` says where paper and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import NET, TRAINABLE, Each
from fedkin.graph import Graph
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.blocks.near import fit_near
from fedkin.methods.blocks.own_models import OwnModels
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


class CoBo(OwnModels):
    """min over x of sum_i f_i(x_i) + rho / 2 sum over pairs of w_ij |x_i - x_j|^2, with learned w_ij in [0, 1].

    Each round draws pairs; w_ij <- clip(w_ij + gamma <grad f_i(z), grad f_j(z)>, 0, 1) at z = (x_i + x_j) / 2, with one
    batch of each client. Then x_i <- local steps from x_i on f_i + rho / 2 sum_j w_ij |x - x_j|^2, where x_j are the
    others' last models. Weights start at 1.

    rho: weight of the pull; 0 is Local training. gamma: rate of the weights. pairs: mean number of pairs of a client in
    a round; all pairs if there are fewer others. A client that never trained uses the mean of all models. The server's
    state also has `weights`, {one: {other: w}}, 1 where a pair is absent.
    """

    name = "cobo"
    title = "CoBo"
    paper = "Hashemi et al., 2024"
    by_client = ("models", "weights")
    travels = "the whole model and gradients up; means of models down, those of two clients among them"

    rho: float = Field(0.01, ge=0, json_schema_extra=span(0.001, 1))
    gamma: float = Field(0.01, ge=0, json_schema_extra=span(0.001, 1))
    pairs: float = Field(5.0, gt=0)

    @phase(gradients=Each(TRAINABLE))
    def gradients(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Return the gradient of one batch at each point in the message, {other: {name: tensor}}."""
        rows = next(iter(client.training.batches(client.size, client.rng("gradients"))))
        lr, names = client.training.lr or 1.0, client.net.trainable
        step = client.training.with_steps(1, whole=True).model_copy(update={"lr": lr})
        gradients = {}
        for other, params in sorted(message["points"].items()):
            moved = (yield from Fit(params, training=step, data=client.train.take(rows))).params
            gradients[other] = {name: (params[name] - moved[name]) / lr for name in names}
        return Message(gradients=gradients)

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the client's model, pulled to the weighted mean of the others' models, and send it."""
        own: Params = client.state.get("params", client.initial)
        near = fit_near(client, own, message["centre"], message["pull"]) if "centre" in message else Fit(own)
        fitted = yield from near
        client.state["params"] = fitted.params
        return Message(params=fitted.params)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        yield from self.weigh(server, sampled)
        replies = yield from Ask("train", {id: self.pulled(server, id) for id in sampled})
        if not replies:
            return
        self.keep(server, replies)
        ids = sorted(server.state["models"])
        weights = np.array([[weight_of(server.state, i, j) if i != j else 0.0 for j in ids] for i in ids])
        server.graph = Graph(tuple(ids), weights, round=server.round)

    def weigh(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        """Draw pairs, and move their weights by the agreement of their gradients halfway between their models."""
        models, drawn = server.state["models"], self.drawn_pairs(server, sampled)
        points: dict[str, dict[str, Params]] = {}
        for one, other in drawn:
            pair = {"": models.get(one, server.initial), " ": models.get(other, server.initial)}
            halfway = weighted_mean(pair, dict.fromkeys(pair, 1.0))
            points.setdefault(one, {})[other] = points.setdefault(other, {})[one] = halfway
        if not points:
            return
        replies = yield from Ask("gradients", {id: Message(points=points[id]) for id in sorted(points)})
        weights = {one: dict(row) for one, row in server.state["weights"].items()}
        for one, other in drawn:
            gradients = [replies[a]["gradients"].get(b) for a, b in ((one, other), (other, one)) if a in replies]
            if len(gradients) == 2 and None not in gradients:
                agreement = inner(gradients[0], gradients[1], server.net.trainable)
                moved = weight_of(server.state, one, other) + self.gamma * agreement
                moved = min(max(moved, 0.0), 1.0)
                weights.setdefault(one, {})[other] = weights.setdefault(other, {})[one] = moved
        server.state["weights"] = weights

    def drawn_pairs(self, server: ServerView, sampled: Sequence[str]) -> list[tuple[str, str]]:
        """Draw pairs of these clients, about `pairs` / 2 for each client."""
        chance = min(1.0, self.pairs / max(len(sampled) - 1, 1))
        every = list(combinations(sorted(sampled), 2))
        return [pair for pair, x in zip(every, server.rng("pairs").random(len(every)), strict=True) if x < chance]

    def pulled(self, server: ServerView, id: str) -> Message:
        """Return the others' mean model, weighted by w, and the strength of the pull to it; empty without a pull.

        sum_j w_j |x - x_j|^2 is W |x - mean|^2 plus a constant, with W = sum_j w_j.
        """
        models = server.state["models"]
        share = {other: weight_of(server.state, id, other) for other in sorted(models) if other != id}
        share = {other: weight for other, weight in share.items() if weight > 0}
        if not share or not self.rho:
            return Message()
        return Message(
            centre=weighted_mean({other: models[other] for other in share}, share),
            pull=self.rho * sum(share.values()),
        )


def weight_of(state: Mapping[str, Any], one: str, other: str) -> float:
    """The weight of a pair."""
    weight: float = state["weights"].get(one, {}).get(other, 1.0)
    return weight


def inner(one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """The inner product of two gradients, in double precision.

    >>> import torch
    >>> inner({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, -1.0])}, ["w"])
    1.0
    """
    return float(sum((one[name].double() * other[name].double()).sum() for name in names))
