"""FedSim: heads are averaged, bodies stay at the clients; both are trained at once.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. Federated learning with partial model personalization. ICML 2022.
`docs/methods/fedsim.md` says what is shared here and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedkin.flow import ClientFlow, Message, phase
from fedkin.forms import COUNT, HEAD
from fedkin.learning.net import Net, head_of
from fedkin.methods.blocks.partial import PartialModel
from fedkin.views import ClientView, ServerView


class FedSim(PartialModel):
    """u <- sum_k n_k u_k / sum_k n_k for the heads u of the clients that answered; bodies v_k are each client's own.

    predict: use the client's body with the "shared" head, or with the head that the client trained last ("own").
    """

    name = "fedsim"
    title = "FedSim"
    paper = "Pillutla et al., ICML 2022"
    travels = "the head, down and up"
    unlike_models = True

    predict: Literal["shared", "own"] = "shared"

    def shared_names(self, net: Net) -> Sequence[str]:
        return list(head_of(net.initial))

    @phase(params=HEAD, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Put the shared head on the client's body, train both, and send the head."""
        return (yield from self.update(client, message))

    def offer(self, server: ServerView, id: str) -> Message:
        return super().offer(server, id) if self.predict == "shared" else Message()
