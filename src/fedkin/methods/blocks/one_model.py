"""What methods with one global model share: the server keeps it, and offers it to everyone."""

from __future__ import annotations

from typing import Any, TypedDict

from fedkin.flow import Message, Params, ServerMethod
from fedkin.views import ClientView, ServerView

__all__ = ["OneModel", "State"]


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
