"""MAPL+: MAPL for peers with equal models, which mix their bodies too (the paper's Table 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fedkin.flow import Message, Params
from fedkin.forms import Flag, Weights
from fedkin.learning.robust import Rule, aggregated
from fedkin.methods.mapl.method import SHARED, Mapl, State
from fedkin.methods.mapl.weights import Row
from fedkin.views import PeerView

__all__ = ["MaplPlus"]


class MaplPlus(Mapl):
    """MAPL, with theta_i <- sum_j w_ij theta_j for the bodies; projection and head stay a peer's own.

    aggregate: another rule than the mean for bodies; updates are measured from the peer's own
    (`fedkin.learning.robust.aggregated`). The other settings are those of MAPL.
    """

    name: ClassVar[str] = "mapl-plus"
    title: ClassVar[str] = "MAPL+"
    travels: ClassVar[str] = "what MAPL sends, and the body"
    unlike_models: ClassVar[bool] = False
    shares: ClassVar[Mapping[str, Any]] = {
        **Mapl.shares,
        "prototypes": [{**SHARED, "body": Weights(only="body.")}, {"want": Flag()}],
    }

    aggregate: Rule = "mean"

    def message(self, peer: PeerView[State], params: Params) -> Message:
        """What MAPL sends, and the body."""
        body = {name: tensor for name, tensor in params.items() if name.startswith("body.")}
        return Message(**super().message(peer, params), body=body)

    def mixed(self, peer: PeerView[State], params: Params, messages: Mapping[str, Message], row: Row) -> Params:
        """The peer's parameters with prototypes and body mixed."""
        bodies = {id: messages[id]["body"] for id in row}
        mixed = aggregated(bodies, row, self.aggregate, bodies[peer.id])
        return {**super().mixed(peer, params, messages, row), **mixed}
