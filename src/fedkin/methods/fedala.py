"""FedALA: each client learns, for each parameter of the head, how much of the common head it takes.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: adaptive local aggregation for personalized federated learning. AAAI
2023. Equation numbers are the paper's; `docs/methods/fedala.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkin.flow import ClientFlow, Fit, Message, Params, phase
from fedkin.forms import COUNT, NET
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import span
from fedkin.views import ClientView


class FedALA(FedAvg):
    """theta_hat = theta_k + (theta - theta_k) * W for the head, Eq. (3); the body is the common one.

    W <- clip(W - eta grad f_k(theta_hat) * (theta - theta_k), 0, 1), Eq. (5), over batches of the client's samples. It
    starts at W = 1 and takes `first_passes` passes the second time that a client trains, one pass in later rounds. Then
    the client trains theta_hat.

    eta: rate of W; 0 keeps W = 1, which is FedAvg. weights, aggregate: as in FedAvg. A client predicts with its last
    trained model; before its first training, with the common model.
    """

    name = "fedala"
    title = "FedALA"
    paper = "Zhang et al., AAAI 2023"
    kind = "personalised"

    eta: float = Field(1.0, ge=0, json_schema_extra=span(0.1, 10))
    first_passes: int = Field(5, ge=1)

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Mix the head, train the result, keep it and send it."""
        start = (yield from self.mixed(client, message.params)) if "params" in client.state else message.params
        fitted = yield from Fit(start)
        client.state["params"] = fitted.params
        return Message(params=fitted.params, n=client.size)

    def mixed(self, client: ClientView, common: Params) -> ClientFlow[Params]:
        """Learn W, and return the common body with the mixed head."""
        names = [name for name in client.net.trainable if name.startswith("head.")]
        apart = {name: common[name] - client.state["params"][name] for name in names}
        mix = client.state.get("mix", {name: torch.ones_like(apart[name]) for name in names})

        def head(mix: Params) -> dict[str, torch.Tensor]:
            # As common + (W - 1) (common - own), W = 1 gives the common head bit for bit.
            return {name: common[name] + (mix[name] - 1) * apart[name] for name in names}

        if self.eta:
            passes = 1 if "mix" in client.state else self.first_passes
            # A step of rate 1 moves the parameters by minus the gradient.
            plain = {"optimiser": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip": None}
            step = client.training.with_steps(1, whole=True, **plain)
            for rows in client.training.with_epochs(passes).batches(client.size, client.rng("mix")):
                before = {**common, **head(mix)}
                after = (yield from Fit(before, training=step, data=client.train.take(rows))).params
                mix = {
                    name: (mix[name] - self.eta * (before[name] - after[name]) * apart[name]).clamp(0, 1)
                    for name in names
                }
        client.state["mix"] = mix
        return {**common, **head(mix)}

    def use(self, client: ClientView, message: Message) -> Params:
        return client.state.get("params") or message.params
