"""SCAFFOLD: control variates correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging for federated learning. ICML
2020. Equation numbers are the paper's; `docs/methods/scaffold.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from fedkin.codec import Tree
from fedkin.errors import MethodError
from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, phase
from fedkin.forms import COUNT, NET, TRAINABLE
from fedkin.learning.losses import Batch, masked_mean, per_sample
from fedkin.learning.net import BodyHead
from fedkin.methods.blocks.averaging import Weights, mean_model
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import span
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView


@dataclass(frozen=True)
class Corrected:
    """The task's loss plus <c - c_k, w>, whose gradient is grad f_k(w) - c_k + c; extras["shift"] is c - c_k."""

    task: Task
    weighted = True

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        value = masked_mean(per_sample(self.task)(model(batch.x), batch.y), batch)
        for name, w in model.params.items():
            value = value + (extras["shift"][name] * w).sum()
        return value


class Scaffold(FedAvg):
    """w_k <- w_k - lr (grad f_k(w_k) - c_k + c) for K local steps, c_k <- c_k - c + (w - w_k) / (K lr), Eq. (3, 4).

    The server: w <- w + rate (mean_k w_k - w), and c <- c + |S| / N mean_k (change of c_k), Eq. (5), where S are the
    clients that answered, of N. A reply contains the change of c_k.

    rate: the server's step. weights: "equal" as in the paper, or "samples"; aggregate: as in FedAvg, of models.
    Momentum and Adam are refused, because K lr is not the length of their local steps.
    """

    name = "scaffold"
    title = "SCAFFOLD"
    paper = "Karimireddy et al., ICML 2020"
    travels = "the whole model and a control variate, down and up"

    weights: Weights = "equal"
    rate: float = Field(1.0, gt=0, json_schema_extra=span(0.1, 2))

    @phase(params=NET, control=TRAINABLE, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Take corrected local steps; send the model and the change of c_k."""
        training, names = client.training, client.net.trainable
        if training.optimiser != "sgd" or training.momentum or training.clip is not None:
            raise MethodError(
                'scaffold: set training.optimiser = "sgd" without training.momentum and training.clip: its control '
                "variates are the mean gradient only of plain steps"
            )
        c = message["control"]
        own = client.state.get("control", {name: torch.zeros_like(c[name]) for name in names})
        shift = {name: c[name] - own[name] for name in names}
        fitted = yield from Fit(message.params, Corrected(client.task), extras={"shift": shift})
        length = fitted.steps * training.lr
        change = {
            name: (message.params[name] - fitted.params[name]) / length - c[name]
            if length
            else torch.zeros_like(c[name])
            for name in names
        }
        client.state["control"] = {name: own[name] + change[name] for name in names}
        return Message(params=fitted.params, control=change, n=client.size)

    def start(self, server: ServerView) -> None:
        zeros = {name: torch.zeros_like(server.initial[name]) for name in server.net.trainable}
        server.state.update({"params": server.initial, "control": zeros})

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        asked = {id: Message(params=state["params"], control=state["control"]) for id in sampled}
        replies = yield from Ask("train", asked)
        if not replies:
            return
        mean = mean_model(replies, self.weights, self.aggregate, state["params"])
        state["params"] = {
            **mean,
            **{name: torch.lerp(state["params"][name], mean[name], self.rate) for name in server.net.trainable},
        }
        changes = [replies[id]["control"] for id in sorted(replies)]
        state["control"] = {
            name: c + torch.stack([change[name] for change in changes]).sum(0) / len(server.clients)
            for name, c in state["control"].items()
        }
