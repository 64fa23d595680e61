"""FedSim: heads are averaged, bodies stay at home; both are trained at once.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. Federated learning with partial model personalization. ICML 2022.
`docs/methods/fedsim.md` says what is shared here and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import COUNT, HEAD
from fedkin.learning.aggregate import Rule, aggregated
from fedkin.learning.net import head_of
from fedkin.views import ClientView, ServerView


class FedSim(ServerMethod):
    """u <- sum_k n_k u_k / sum_k n_k for the heads u of the clients that answered; bodies v_k are each client's own.

    weights: "samples" weighs a head by n_k, "equal" gives all the same weight.
    aggregate: another rule than the mean of heads (`fedkin.learning.aggregate.aggregated`).
    predict: a client's body with the "shared" head, or with the head that it trained last ("own").
    """

    name: ClassVar[str] = "fedsim"
    title: ClassVar[str] = "FedSim"
    paper: ClassVar[str] = "Pillutla et al., ICML 2022"
    kind: ClassVar[Literal["personalised"]] = "personalised"
    travels: ClassVar[str] = "the head, down and up"
    unlike_models: ClassVar[bool] = True

    weights: Literal["samples", "equal"] = "samples"
    aggregate: Rule = "mean"
    predict: Literal["shared", "own"] = "shared"

    # -- at a client ------------------------------------------------------------------------------------------

    def join(self, client: ClientView[Any]) -> None:
        client.state["params"] = client.initial

    @phase(head=HEAD, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        """Put the shared head on the own body, train both, send the head."""
        fitted = yield from self.fit(client, {**client.state["params"], **message["head"]})
        client.state["params"] = fitted.params
        return Message(head=head_of(fitted.params), n=client.size)

    def fit(self, client: ClientView[Any], params: Params) -> Fit:
        """The local training."""
        return Fit(params)

    # -- at the server ------------------------------------------------------------------------------------------

    def start(self, server: ServerView[Any]) -> None:
        server.state["head"] = head_of(server.initial)

    def round(self, server: ServerView[Any], sampled: Sequence[str]) -> ServerFlow[None]:
        """Average the heads that the sampled clients trained."""
        replies = yield from Ask("train", {id: Message(head=server.state["head"]) for id in sampled})
        if replies:
            n = {id: reply["n"] if self.weights == "samples" else 1 for id, reply in replies.items()}
            heads = {id: reply["head"] for id, reply in replies.items()}
            server.state["head"] = aggregated(heads, n, self.aggregate, server.state["head"])

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView[Any], id: str) -> Message:
        return Message(head=server.state["head"]) if self.predict == "shared" else Message()

    def use(self, client: ClientView[Any], message: Message) -> Params:
        own = client.state["params"]
        return {**own, **message["head"]} if self.predict == "shared" else own
