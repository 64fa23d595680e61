"""pFedMe: personal models are proximal points of a global one.

Dinh, Tran, Nguyen. Personalized federated learning with Moreau envelopes. NeurIPS 2020. Equation numbers are the
paper's; `docs/methods/pfedme.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field

from fedkin.flow import Ask, ClientFlow, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET
from fedkin.learning.aggregate import Rule
from fedkin.methods.blocks.averaging import OneModel, Weights, mean_asked, mean_model
from fedkin.methods.blocks.near import fit_near
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


class PFedMe(OneModel):
    """min over w of sum_k min over theta of f_k(theta) + lam / 2 |theta - w|^2, Eq. (2, 3).

    Each of R local steps draws one batch. On it, `inner_steps` (K) steps of the experiment's optimiser bring theta near
    its minimiser; then w <- w - eta lam (w - theta), Eq. (6, 7). The server: (1 - beta) w + beta mean w_k.

    lam: lambda; the inner steps need lam * training.lr below 2. eta: rate of w.
    evaluate: "personal" (theta, the paper's PM) or "global" (w, its GM).
    aggregate: as in FedAvg.
    welcome_steps: proximal steps that make theta for a client that never took part.
    """

    name = "pfedme"
    title = "pFedMe"
    paper = "Dinh et al., NeurIPS 2020"
    kind = "personalised"
    travels = "the whole model, down and up"

    lam: float = Field(15.0, gt=0, json_schema_extra=span(0.3, 30))
    inner_steps: int = Field(5, ge=1)
    eta: float = Field(0.005, ge=0, json_schema_extra=span(0.005, 1))
    beta: float = Field(1.0, gt=0)
    weights: Weights = "equal"
    aggregate: Rule = "mean"
    evaluate: Literal["personal", "global"] = "personal"
    welcome_steps: int = Field(10, ge=0)

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Take R local steps; theta stays here, w goes to the server."""
        w = theta = message.params
        inner, names = client.training.with_steps(self.inner_steps, whole=True), client.net.trainable
        for rows in client.training.batches(client.size, client.rng("batches")):
            fitted = yield from fit_near(client, theta, w, self.lam, training=inner, data=client.train.take(rows))
            theta = fitted.params
            w = {**theta, **{name: torch.lerp(w[name], theta[name], self.eta * self.lam) for name in names}}
        client.state["params"] = theta
        return Message(params=w, n=client.size)

    @phase(params=NET)
    def personalise(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Make theta for a client that never took part."""
        steps = client.training.with_steps(self.welcome_steps)
        fitted = yield from fit_near(client, message.params, message.params, self.lam, training=steps)
        return Message(params=fitted.params)

    # -- at the server ----------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        asked = {id: self.offer(server, id) for id in sampled}
        replies = yield from Ask("train", asked, mean_asked(self.weights, self.aggregate))
        if not replies:
            return
        old, mean = server.state["params"], mean_model(replies, self.weights, self.aggregate, server.state["params"])
        if self.beta != 1:
            # Running statistics are only averaged: a beta above 1 could make a variance negative.
            mean |= {name: torch.lerp(old[name], mean[name], self.beta) for name in server.net.trainable}
        server.state["params"] = mean

    def use(self, client: ClientView, message: Message) -> Params:
        """Theta; the global model at a client that has not trained yet."""
        return message.params if self.evaluate == "global" else client.state.get("params", message.params)

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        offers = {id: self.offer(server, id) for id in ids}
        if self.evaluate == "global" or self.welcome_steps == 0:
            return offers
        replies = yield from Ask("personalise", offers)
        return {**offers, **replies}
