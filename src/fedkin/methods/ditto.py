"""Ditto: each client also trains a personal model, which is pulled towards the common model.

Li, Hu, Beirami, Smith. Ditto: fair and robust federated learning through personalization. ICML 2021. Equation numbers
are the paper's; `docs/methods/ditto.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from pydantic import Field

from fedkin.flow import ClientFlow, Fit, Message, Params, phase
from fedkin.forms import COUNT, NET
from fedkin.methods.blocks.near import fit_near
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import span
from fedkin.views import ClientView


class Ditto(FedAvg):
    """w as in FedAvg, and min over v_k of f_k(v_k) + lam / 2 |v_k - w|^2, Eq. (Ditto), at each client.

    Algorithm 1: a sampled client trains the w that it received, and takes the same number of steps
    v_k <- v_k - lr (grad f_k(v_k) + lam (v_k - w)).

    lam: 0 is Local training; large values tend to FedAvg, and need lam * training.lr below 2. weights, aggregate: as in
    FedAvg. A client that never trained fits its v_k at each evaluation, from w and by the same steps.
    """

    name = "ditto"
    title = "Ditto"
    paper = "Li et al., ICML 2021"
    kind = "personalised"
    fits = 2

    lam: float = Field(1.0, ge=0, json_schema_extra=span(0.03, 3))

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train w, which goes to the server, and v_k, which stays."""
        fitted = yield from Fit(message.params)
        client.state["params"] = yield from self.personal(client, client.state.get("params", client.initial), message)
        return Message(params=fitted.params, n=client.size)

    def personal(self, client: ClientView, start: Params, message: Message) -> ClientFlow[Params]:
        """v_k after local steps from `start`, pulled towards the model in the message."""
        fitted = yield from fit_near(client, start, message.params, self.lam)
        return fitted.params

    def use(self, client: ClientView, message: Message) -> Params | ClientFlow[Params]:
        if "params" in client.state:
            return client.state["params"]  # type: ignore[no-any-return]
        return self.personal(client, message.params, message) if client.size else message.params
