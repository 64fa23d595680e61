"""FedNova: updates are divided by the number of local steps, so that clients with more steps do not count more.

Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem in heterogeneous federated optimization.
NeurIPS 2020. Equation numbers are the paper's; `docs/methods/fednova.md` says where paper and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, phase
from fedkin.forms import COUNT, NET
from fedkin.learning.aggregate import aggregated
from fedkin.methods.blocks.averaging import mean_weights
from fedkin.methods.fedavg import FedAvg
from fedkin.views import ClientView, ServerView


class FedNova(FedAvg):
    """w <- w - tau_eff sum_k p_k d_k, with d_k = (w - w_k) / tau_k and tau_eff = sum_k p_k tau_k, Eq. (7).

    tau_k: local steps of client k. p_k: its share of samples, or equal shares (`weights`). With equal tau_k FedNova is
    FedAvg. It is for plain SGD; with momentum the paper has other weights.
    """

    name = "fednova"
    title = "FedNova"
    paper = "Wang et al., NeurIPS 2020"

    @phase(params=NET, n=COUNT, steps=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train the global model; send it and the number of local steps."""
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params, n=client.size, steps=fitted.steps)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled})
        if not replies:
            return
        w, weights = server.state["params"], mean_weights(replies, self.weights)
        effective = sum(weights[id] * reply["steps"] for id, reply in replies.items()) / sum(weights.values())
        scaled = {
            id: {
                name: torch.lerp(w[name], t, effective / reply["steps"]) if t.is_floating_point() else t
                for name, t in reply.params.items()
            }
            for id, reply in replies.items()
        }
        server.state["params"] = aggregated(scaled, weights, self.aggregate, w)
