"""FedPer: the body is shared, each client has a head of its own, and both are trained at once.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated learning with personalization layers. arXiv 1912.00818, 2019.
"""

from __future__ import annotations

from fedkin.forms import BODY
from fedkin.methods.blocks.partial import PartialModel


class FedPer(PartialModel):
    """(u_k, v_k) <- R local steps on f_k from (u, v_k), with the body u and the head v_k; u <- sum_k n_k u_k / n.

    A client predicts with the shared body and the head that it trained last.
    """

    name = "fedper"
    title = "FedPer"
    paper = "Arivazhagan et al., 2019"
    travels = "the body, down and up"
    sent = BODY
