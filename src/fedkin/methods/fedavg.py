"""FedAvg: one model for all, the mean of the sampled clients' models weighted by their samples.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedkin.flow import Ask, ServerFlow
from fedkin.learning.aggregate import Rule
from fedkin.methods.blocks.averaging import OneModel, Weights, mean_asked, mean_model
from fedkin.views import ServerView


class FedAvg(OneModel):
    """w <- sum_k n_k w_k / sum_k n_k over the clients that answered.

    weights: "samples" weighs a client by n_k, "equal" weighs all alike. aggregate: another rule than the mean
    (`fedkin.learning.aggregate.aggregated`).
    """

    name = "fedavg"
    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017"
    kind: ClassVar[Literal["global", "personalised"]] = "global"
    travels = "the whole model, down and up"

    weights: Weights = "samples"
    aggregate: Rule = "mean"

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        asked = {id: self.offer(server, id) for id in sampled}
        replies = yield from Ask("train", asked, mean_asked(self.weights, self.aggregate))
        if replies:
            server.state["params"] = mean_model(replies, self.weights, self.aggregate, server.state["params"])
