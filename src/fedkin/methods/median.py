"""Coordinate-wise median: one model for all; each parameter is the median over clients. It is robust to a few outliers.

Yin, Chen, Ramchandran, Bartlett. Byzantine-robust distributed learning: towards optimal statistical rates. ICML 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, phase
from fedkin.forms import NET
from fedkin.learning.aggregate import aggregated
from fedkin.methods.blocks.averaging import OneModel
from fedkin.views import ClientView, ServerView


class Median(OneModel):
    """w_i <- median over the clients that answered of w_k,i; for an even number, the mean of the middle two."""

    name = "median"
    title = "Coordinate median"
    paper = "Yin et al., ICML 2018"
    kind = "global"
    travels = "the whole model, down and up"

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the global model on the client's own samples."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled})
        if replies:
            models = {id: reply.params for id, reply in replies.items()}
            server.state["params"] = aggregated(models, dict.fromkeys(models, 1.0), "median")
