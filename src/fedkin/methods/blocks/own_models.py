"""Methods in which each client has a model of its own, and the server the last one of each client."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypedDict

from fedkin.flow import Message, Params, ServerMethod
from fedkin.learning.aggregate import weighted_mean
from fedkin.views import ClientView, ServerView


class ClientState(TypedDict, total=False):
    """params: the client's own model; absent before it trained."""

    params: Params


class OwnModels(ServerMethod):
    """The server's state has `models`, {client id: params}; a client's has `params`.

    A client uses its own model; one that never trained uses the mean of all.
    """

    kind: ClassVar[Literal["personalised"]] = "personalised"

    def offer(self, server: ServerView[Any], id: str) -> Message:
        models = server.state["models"]
        if id in models:
            return Message()
        return Message(params=weighted_mean(models, dict.fromkeys(models, 1.0)) if models else server.initial)

    def use(self, client: ClientView[Any], message: Message) -> Params:
        return client.state.get("params") or message.params
