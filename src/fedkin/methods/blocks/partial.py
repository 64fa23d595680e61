"""Models with one part that is shared and averaged; the rest stays at each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fedkin.flow import ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, Fields, Weights
from fedkin.learning.net import Net
from fedkin.methods.blocks.averaging import AveragedModel
from fedkin.views import ClientView, ServerView


class PartialModel(AveragedModel):
    """u <- sum_k n_k u_k / sum_k n_k for the shared part u; the other parameters v_k are each client's own.

    A method defines `sent`, the form of the shared parameters. Both parts are trained at once, unless the method
    overrides `trained`. weights: "samples" weighs a client by n_k, "equal" gives all clients the same
    weight. aggregate: the rule that combines the shared parts, by default the mean
    (`fedkin.learning.aggregate.aggregated`).
    """

    kind = "personalised"
    sent: ClassVar[Weights]

    @classmethod
    def declared(cls, phase: str) -> Sequence[Fields] | None:
        """Return what `@phase` declared; the `train` of this class sends the shared part and n."""
        fields = super().declared(phase)
        inherited = phase == "train" and cls.train is PartialModel.train
        return [{"params": cls.sent, "n": COUNT}] if fields is None and inherited else fields

    def shared(self, net: Net, params: Mapping[str, Any]) -> Params:
        """The shared part of a model."""
        return {name: params[name] for name in self.sent.names(net)}

    # -- at a client ------------------------------------------------------------------------------------------

    def join(self, client: ClientView) -> None:
        client.state["params"] = client.initial

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Put the shared part into the client's own model, train, and send the shared part."""
        params = yield from self.trained(client, {**client.state["params"], **message.params})
        client.state["params"] = params
        return Message(params=self.shared(client.net, params), n=client.size)

    def trained(self, client: ClientView, params: Params) -> ClientFlow[Params]:
        """The model after local training: here of both parts at once."""
        fitted = yield from Fit(params)
        return fitted.params

    # -- at the server ----------------------------------------------------------------------------------------

    def start(self, server: ServerView) -> None:
        server.state["params"] = self.shared(server.net, server.initial)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        # Not `offer`: it may be empty for evaluation, but training needs the shared part.
        yield from self.average(server, dict.fromkeys(sampled, Message(params=server.state["params"])))

    # -- the model that a client uses ---------------------------------------------------------------------------

    def use(self, client: ClientView, message: Message) -> Params | ClientFlow[Params]:
        """The client's own model, with the shared part if it is offered."""
        return {**client.state["params"], **message.get("params", {})}
