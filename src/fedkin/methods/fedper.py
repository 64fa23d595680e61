"""FedPer: the body is shared, each client has a head of its own, and both are trained at once.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated learning with personalization layers. arXiv 1912.00818, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.flow import ClientFlow, Message, phase
from fedkin.forms import BODY, COUNT
from fedkin.learning.net import Net, body_of
from fedkin.methods.blocks.partial import PartialModel
from fedkin.views import ClientView


class FedPer(PartialModel):
    """(u_k, v_k) <- R local steps on f_k from (u, v_k), with the body u and the head v_k; u <- sum_k n_k u_k / n.

    A client predicts with the shared body and the head that it trained last.
    """

    name = "fedper"
    title = "FedPer"
    paper = "Arivazhagan et al., 2019"
    travels = "the body, down and up"

    def shared_names(self, net: Net) -> Sequence[str]:
        return list(body_of(net.initial))

    @phase(params=BODY, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train both parts; send the body."""
        return (yield from self.update(client, message))
