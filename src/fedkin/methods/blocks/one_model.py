"""What methods with one global model share: the server keeps it, and offers it to everyone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from torch import Tensor

from fedkin.flow import Message, Params, ServerMethod
from fedkin.learning.aggregate import weighted_mean
from fedkin.views import ClientView, ServerView

__all__ = ["OneModel", "State", "Weights", "mean_model"]

# How a client's model is weighed in a mean: by its number of samples, or all alike.
Weights = Literal["samples", "equal"]


class State(TypedDict):
    """params: the global model, {name: tensor}."""

    params: Params


class OneModel(ServerMethod):
    """The server's state has the global model in `params`; each client uses that model."""

    def start(self, server: ServerView[Any]) -> None:
        server.state["params"] = server.initial

    def offer(self, server: ServerView[Any], id: str) -> Message:
        return Message(params=server.state["params"])

    def use(self, client: ClientView[Any], message: Message) -> Params:
        return message.params


def mean_model(replies: Mapping[str, Message], weights: Weights) -> dict[str, Tensor]:
    """sum_k n_k w_k / sum_k n_k over the replies, which have `params` and `n`; with "equal" weights every n_k is 1."""
    n = {id: reply["n"] if weights == "samples" else 1 for id, reply in replies.items()}
    return weighted_mean({id: reply.params for id, reply in replies.items()}, n)
