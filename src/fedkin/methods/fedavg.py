"""FedAvg: one model for all, the mean of the sampled clients' models weighted by their samples.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.learning.aggregate import weighted_mean
from fedkin.views import ClientView, ServerView

__all__ = ["FedAvg"]


class FedAvg(ServerMethod):
    """w <- sum_k n_k w_k / sum_k n_k over the clients that answered.

    weights: "samples" weighs a client by n_k, "equal" weighs all alike.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    kind: ClassVar[Literal["global"]] = "global"
    travels: ClassVar[str] = "the whole model, down and up"

    weights: Literal["samples", "equal"] = "samples"

    def start(self, server: ServerView) -> None:
        server.state["params"] = server.initial

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params, n=client.size)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: Message(params=server.state["params"]) for id in sampled})
        if replies:
            n = {id: reply["n"] if self.weights == "samples" else 1 for id, reply in replies.items()}
            server.state["params"] = weighted_mean({id: r["params"] for id, r in replies.items()}, n)

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["params"])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params
