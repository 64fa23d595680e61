"""One global model: the server averages the clients' models, weighted by their samples or equally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from fedkin.errors import MethodError
from fedkin.flow import Ask, AveragedReplies, ClientFlow, Fit, Mean, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import COUNT, NET
from fedkin.learning.aggregate import Rule, aggregated
from fedkin.views import ClientView, ServerView

# How a client's model is weighed in a mean: by its number of samples, or equally.
Weights = Literal["samples", "equal"]


def mean_weights(replies: Mapping[str, Message], weights: Weights) -> dict[str, float]:
    """The weight of each reply in a mean, by client id: its n, or 1."""
    return {id: float(reply["n"]) if weights == "samples" else 1.0 for id, reply in replies.items()}


def mean_asked(weights: Weights, aggregate: Rule, group: Mapping[str, str] | None = None) -> Mean | None:
    """`mean` of an Ask whose answer is used only through `mean_model`; None if single models are needed.

    group: {client id: group}, if the answer is used through `cluster_means`.
    """
    return Mean("params", "n" if weights == "samples" else None, group) if aggregate == "mean" else None


def mean_model(
    replies: Mapping[str, Message], weights: Weights, aggregate: Rule = "mean", start: Params | None = None
) -> dict[str, Tensor]:
    """sum_k n_k w_k / sum_k n_k over the replies, which have `params` and `n`; with "equal" weights every n_k is 1.

    aggregate: the rule in place of the mean; start: the model that clients started from; see `aggregated`.
    """
    asked = mean_asked(weights, aggregate)
    if asked is not None:
        return asked.of(replies)
    if isinstance(replies, AveragedReplies):
        raise MethodError(
            f"the rule {aggregate!r} needs single models, and the answer is to Ask(..., mean={replies.mean!r}): "
            "write Ask(phase, messages, mean_asked(weights, aggregate))"
        )
    models = {id: reply.params for id, reply in replies.items()}
    return aggregated(models, mean_weights(replies, weights), aggregate, start)


class WholeModel(ServerMethod):
    """Clients train the complete model that they receive, and use the model that they are offered."""

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the model in the message on the client's own samples."""
        fitted = yield from self.fit(client, message.params)
        return Message(params=fitted.params, n=client.size)

    def fit(self, client: ClientView, params: Params) -> Fit:
        """Local training from these parameters: here on the task's loss."""
        return Fit(params)


class OneModel(WholeModel):
    """The server's state has the global model in `params`, {name: tensor}; each client uses that model."""

    def start(self, server: ServerView) -> None:
        server.state["params"] = server.initial

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["params"])


class AveragedModel(OneModel):
    """w <- sum_k n_k w_k / sum_k n_k over the clients that answered.

    weights: "samples" weighs a client by n_k, "equal" gives all clients the same weight. aggregate: the rule that
    combines the models, by default the mean (`fedkin.learning.aggregate.aggregated`).
    """

    weights: Weights = "samples"
    aggregate: Rule = "mean"

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        yield from self.average(server, {id: self.offer(server, id) for id in sampled})

    def average(self, server: ServerView, asked: Mapping[str, Message]) -> ServerFlow[None]:
        """Ask clients to train, and keep the mean of the returned models."""
        replies = yield from Ask("train", asked, mean_asked(self.weights, self.aggregate))
        if replies:
            server.state["params"] = mean_model(replies, self.weights, self.aggregate, server.state["params"])
