"""DRFA: distributionally robust federated averaging; gradient ascent of the clients' weights on losses of a snapshot.

Deng, Kamani, Mahdavi. Distributionally robust federated averaging. NeurIPS 2020, Algorithm 1.
`docs/methods/drfa.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkin.codec import Tree
from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, phase
from fedkin.forms import COUNT, NET
from fedkin.learning.losses import Batch, Loss, default_loss
from fedkin.learning.net import BodyHead
from fedkin.methods.blocks.minimax import Minimax, mean
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


@dataclass(frozen=True)
class Snapshotting:
    """A loss that stores the parameters after carry["left"] steps in carry["snapshot"]."""

    loss: Loss

    @property
    def weighted(self) -> bool | None:
        """Whether the loss uses class weights."""
        return getattr(self.loss, "weighted", None)

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> tuple[Tensor, Tree]:
        value = self.loss(model, batch, {}, {})
        assert isinstance(value, Tensor)
        # A loss sees the parameters before its step.
        now = carry["left"] == 0
        snapshot = {name: torch.where(now, w.detach(), carry["snapshot"][name]) for name, w in model.params.items()}
        return value, {"left": carry["left"] - 1, "snapshot": snapshot}


class Drfa(Minimax):
    """lambda <- projection of lambda + gamma tau v, v the losses of the mean model at a random local step.

    gamma: rate of lambda; tau is the mean number of local steps.
    snapshot: use losses of the model at a step drawn uniformly from the round's steps; else after the last step.
    """

    name = "drfa"
    title = "DRFA"
    paper = "Deng et al., NeurIPS 2020"
    kind = "global"
    travels = "the whole model, down; it and its snapshot, up; their mean down again for its loss"

    gamma: float = Field(0.01, ge=0, json_schema_extra=span(1e-3, 1))
    snapshot: bool = True
    ask_losses: Literal["all", "sampled"] = "sampled"
    floor: float = Field(1e-3, ge=0)

    @phase(params=NET, snapshot=NET.when(lambda at: at.method.snapshot), steps=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train; send the model and its snapshot, which is the model at the drawn step."""
        params, loss = message.params, default_loss(client.task)
        if not self.snapshot:
            fitted = yield from Fit(params, loss)
            return Message(params=fitted.params, steps=fitted.steps)
        steps = client.training.steps(client.size)
        at = max(1, math.ceil(float(message["at"]) * steps))
        carry = {"left": torch.tensor(at), "snapshot": {name: params[name] for name in client.net.trainable}}
        fitted = yield from Fit(params, Snapshotting(loss), carry=carry)
        kept = fitted.params if at == steps else {**fitted.params, **fitted.carry["snapshot"]}
        return Message(params=fitted.params, snapshot=dict(kept), steps=fitted.steps)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        # m clients, drawn by lambda, take tau local steps; the server averages their models.
        drawn = self.drawn(server, sampled)
        message = Message(params=server.state["params"])
        if self.snapshot:
            # In (0, 1]: a share of the local steps, since clients may take different numbers of them.
            message = Message(**message, at=torch.tensor(1 - server.rng("snapshot").random(), dtype=torch.float64))
        replies = yield from Ask("train", dict.fromkeys(drawn, message))
        new = mean({id: reply.params for id, reply in replies.items()}, drawn)
        if new is None:
            return
        server.state["params"] = judged = new
        # Losses of the mean snapshot: an estimate of the ascent's direction over these tau steps.
        if self.snapshot:
            judged = mean({id: reply["snapshot"] for id, reply in replies.items()}, drawn) or new
        losses = yield from self.estimated_losses(server, judged, sampled)
        if losses is not None:
            tau = sum(reply["steps"] for reply in replies.values()) / len(replies)
            self.ascend(server, self.gamma * tau * losses)
        server.info = self.lambda_figures(server)
