"""LG-FedAvg: local representations and a global head, from a common model.

Liang, Liu, Liu, Salakhutdinov, Morency. Think locally, act globally: federated learning with local and global
representations. NeurIPS 2019 workshop on federated learning, arXiv 2001.01523.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, HEAD
from fedkin.learning.aggregate import Rule
from fedkin.learning.net import head_of
from fedkin.methods.blocks.averaging import Weights, WholeModel, mean_asked, mean_model
from fedkin.settings import span
from fedkin.views import ClientView, ServerView


class LGFedAvg(WholeModel):
    """FedAvg for the first rounds; then u <- sum_k n_k u_k / n for the heads u, and each body stays at its client.

    The second phase is FedSim. LG-FedAvg adds the start from a common model, which its released code loads. warmup:
    rounds of FedAvg; below 1 it is a fraction of `training.rounds`. weights, aggregate: as in FedAvg. A client predicts
    with the common head and its own body; before it has its own, with the common body.
    """

    name = "lg-fedavg"
    title = "LG-FedAvg"
    paper = "Liang et al., 2019"
    kind = "personalised"
    by_client = ("began",)
    travels = "the whole model, down and up; after the first phase the head"

    warmup: float = Field(0.5, ge=0, json_schema_extra=span(0.1, 0.9, log=False))
    weights: Weights = "samples"
    aggregate: Rule = "mean"

    @phase(params=HEAD, n=COUNT)
    def train_own_body(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the client's body with the common head, keep both, and send the head."""
        fitted = yield from Fit(self.use(client, message))
        client.state["params"] = fitted.params
        return Message(params=head_of(fitted.params), n=client.size)

    def start(self, server: ServerView) -> None:
        server.state.update({"params": server.initial, "began": []})

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        common = server.round <= server.training.rounds_of(self.warmup)
        asked = {id: self.offer(server, id) for id in sampled}
        mean = mean_asked(self.weights, self.aggregate)
        replies = yield from Ask("train" if common else "train_own_body", asked, mean)
        if not replies:
            return
        state = server.state
        start = state["params"] if common else head_of(state["params"])
        state["params"] = {**state["params"], **mean_model(replies, self.weights, self.aggregate, start)}
        if not common:
            state["began"] = sorted({*state["began"], *replies})

    def offer(self, server: ServerView, id: str) -> Message:
        params = server.state["params"]
        return Message(params=head_of(params) if id in server.state["began"] else params)

    def use(self, client: ClientView, message: Message) -> Params:
        # The server sends the common body with the head until a reply of this client has arrived.
        return {**message.params, **client.state.get("params", {}), **head_of(message.params)}
