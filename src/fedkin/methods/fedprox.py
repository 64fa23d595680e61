"""FedProx: FedAvg with a proximal term that holds local models near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import Proximal, default_loss
from fedkin.views import ClientView, ServerView

__all__ = ["FedProx"]


class FedProx(ServerMethod):
    """Clients descend f_k(w) + mu / 2 |w - w_t|^2; w_{t+1} is the mean of the models that came back.

    mu: 0 is FedAvg. weights: "samples" weighs a client by n_k, "equal" weighs all alike.
    """

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    kind: ClassVar[Literal["global"]] = "global"
    travels: ClassVar[str] = "the whole model, down and up"

    mu: float = Field(0.01, ge=0)
    weights: Literal["samples", "equal"] = "samples"

    def start(self, server: ServerView) -> None:
        server.state["params"] = server.initial

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train near the global model."""
        start = {name: message.params[name] for name in client.net.trainable}
        fitted = yield from Fit(message.params, Proximal(default_loss(client.task), self.mu), extras={"start": start})
        return Message(params=fitted.params, n=client.size)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: Message(params=server.state["params"]) for id in sampled})
        if replies:
            n = {id: reply["n"] if self.weights == "samples" else 1 for id, reply in replies.items()}
            server.state["params"] = weighted_mean({id: reply["params"] for id, reply in replies.items()}, n)

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["params"])

    def use(self, client: ClientView, message: Message) -> Params:
        return message.params
