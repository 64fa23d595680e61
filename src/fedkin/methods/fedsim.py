"""FedSim: heads are averaged, bodies stay at the clients; both are trained at once.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. Federated learning with partial model personalization. ICML 2022.
`docs/methods/fedsim.md` says what is shared here and why.
"""

from __future__ import annotations

from typing import Literal

from fedkin.flow import Message
from fedkin.forms import HEAD
from fedkin.methods.blocks.partial import PartialModel
from fedkin.views import ServerView


class FedSim(PartialModel):
    """u <- sum_k n_k u_k / sum_k n_k for the heads u of the clients that answered; bodies v_k are each client's own.

    predict: use the client's body with the "shared" head, or with the head that the client trained last ("own").
    """

    name = "fedsim"
    title = "FedSim"
    paper = "Pillutla et al., ICML 2022"
    travels = "the head, down and up"
    unlike_models = True
    sent = HEAD

    predict: Literal["shared", "own"] = "shared"

    def offer(self, server: ServerView, id: str) -> Message:
        return super().offer(server, id) if self.predict == "shared" else Message()
