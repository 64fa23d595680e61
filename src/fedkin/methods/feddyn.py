"""FedDyn: each round changes the clients' objectives so that their minima move to a common point.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated learning based on dynamic regularization. ICLR 2021.
`docs/methods/feddyn.md` says which choices this file makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from fedkin.codec import Tree
from fedkin.flow import Ask, ClientFlow, Fit, Mean, Message, ServerFlow, phase
from fedkin.forms import NET
from fedkin.learning.losses import Batch, masked_mean, per_sample
from fedkin.learning.net import BodyHead
from fedkin.methods.blocks.averaging import OneModel
from fedkin.settings import span
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView


@dataclass(frozen=True)
class Dynamic:
    """The task's loss - <g, w> + alpha / 2 |w - w_0|^2, with g = extras["gradient"] and w_0 = extras["start"]."""

    task: Task
    alpha: float
    weighted = True

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        value = masked_mean(per_sample(self.task)(model(batch.x), batch.y), batch)
        for name, w in model.params.items():
            pull = self.alpha / 2 * (w - extras["start"][name]).square() - extras["gradient"][name] * w
            value = value + pull.sum()
        return value


class FedDyn(OneModel):
    """w_k minimises f_k(w) - <g_k, w> + alpha / 2 |w - w_t|^2, and g_k <- g_k - alpha (w_k - w_t), Algorithm 1.

    The server sums over the clients that answered, of N clients: h <- h - alpha / N sum_k (w_k - w_t). Then w_{t+1} is
    the mean of their w_k minus h / alpha. At a client's minimum g_k is the gradient of f_k, and h is the mean of all
    g_k. At a fixed point all w_k equal w_t, and the mean of the gradients is 0: w_t minimises the mean of the f_k,
    whatever the number of local steps.

    alpha: weight of the pull to w_t. All clients have the same weight. The state `gradient` is g_k at a client, zero at
    first, and h at the server.
    """

    name = "feddyn"
    title = "FedDyn"
    paper = "Acar et al., ICLR 2021"
    kind = "global"
    travels = "the whole model, down and up"

    alpha: float = Field(0.1, gt=0, json_schema_extra=span(1e-3, 1))

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train on the changed objective; the gradient stays at the client."""
        start = {name: message.params[name] for name in client.net.trainable}
        gradient = client.state.get("gradient", {name: torch.zeros_like(w) for name, w in start.items()})
        extras = {"start": start, "gradient": gradient}
        fitted = yield from Fit(message.params, Dynamic(client.task, self.alpha), extras=extras)
        end = fitted.params
        client.state["gradient"] = {name: gradient[name] - self.alpha * (end[name] - start[name]) for name in start}
        return Message(params=fitted.params)

    def start(self, server: ServerView) -> None:
        super().start(server)
        server.state["gradient"] = {name: torch.zeros_like(server.initial[name]) for name in server.net.trainable}

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        w, h, mean = server.state["params"], server.state["gradient"], Mean(weight=None)
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled}, mean)
        if not replies:
            return
        new = mean.of(replies)
        rate = self.alpha * len(replies) / len(server.clients)
        h = {name: h[name] - rate * (new[name] - w[name]) for name in h}
        server.state["gradient"] = h
        server.state["params"] = {**new, **{name: new[name] - h[name] / self.alpha for name in h}}
