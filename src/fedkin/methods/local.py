"""Local training: clients exchange nothing. This baseline shows which clients gain by collaboration."""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.views import ClientView, ServerView


class Local(ServerMethod):
    """Every sampled client trains its own model on its own samples; nothing travels."""

    name = "local"
    title = "Local training"
    paper = "(baseline)"
    kind = "local"
    travels = "nothing"
    unlike_models = True

    def join(self, client: ClientView) -> None:
        client.state["params"] = client.initial

    @phase()
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the client's own model."""
        fitted = yield from Fit(client.state["params"])
        client.state["params"] = fitted.params
        return Message()

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        yield from Ask("train", {id: Message() for id in sampled})

    def offer(self, server: ServerView, id: str) -> Message:
        return Message()

    def use(self, client: ClientView, message: Message) -> Params:
        params: Params = client.state["params"]
        return params
