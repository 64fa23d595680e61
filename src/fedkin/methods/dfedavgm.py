"""DFedAvgM: peers train with momentum, then mix their models with those of their neighbours.

Sun, Li, Wang. Decentralized federated averaging. IEEE Transactions on Pattern Analysis and Machine Intelligence 45(4),
2023. `docs/methods/dfedavgm.md` says what the paper leaves open and what this file chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedkin.flow import Fit, Message, Params, PeerFlow, PeerMethod, Share
from fedkin.forms import COUNT, NET, Each, Number
from fedkin.graph import Graph
from fedkin.learning.aggregate import Rule, aggregated
from fedkin.learning.training import Training
from fedkin.methods.blocks.model_mixing import mixing_matrix
from fedkin.settings import span
from fedkin.views import PeerView

_MOMENTUM = 0.9


class DFedAvgM(PeerMethod):
    """x_i <- sum_l w_il z_l, with z_l peer l's model after K local steps of momentum SGD, W of Metropolis-Hastings.

    momentum: theta of the local steps; for Adam, the first of its betas. The velocity is zero at the start of each
    round. None: 0.9 for SGD, `training.betas` for Adam.
    aggregate: the rule that combines the received models with the peer's own; updates are measured from its own
    (`fedkin.learning.aggregate.aggregated`).
    """

    name = "dfedavgm"
    title = "DFedAvgM"
    paper = "Sun, Li and Wang, TPAMI 2023"
    kind = "peer"
    shares: ClassVar[Mapping[str, Any]] = {
        "share": {"params": NET, "degree": COUNT},
        "report": {"row": Each(Number(low=0))},
    }
    travels = "the whole model and the degree, to every neighbour"

    aggregate: Rule = "mean"
    momentum: float | None = Field(None, ge=0, lt=1, json_schema_extra=span(0, 0.95, log=False))

    def join(self, peer: PeerView) -> None:
        """Set a peer's state.

        params: its model x_i; row: the mixing weights w_il of its last round, by peer id, its own included.
        """
        peer.state.update({"params": peer.initial, "row": {peer.id: 1.0}})

    def round(self, peer: PeerView) -> PeerFlow[None]:
        """Take K local steps, then average with the models received from neighbours."""
        fitted = yield from Fit(peer.state["params"], training=self.local(peer.training))
        inbox = yield from Share(Message(params=fitted.params, degree=len(peer.neighbours)))
        degrees = {id: message["degree"] for id, message in inbox.items()}
        row = metropolis_row(peer.id, len(peer.neighbours), degrees)
        models = {peer.id: fitted.params, **{id: message.params for id, message in inbox.items()}}
        peer.state.update({"params": aggregated(models, row, self.aggregate, fitted.params), "row": row})

    def local(self, training: Training) -> Training:
        """The experiment's training with this method's momentum."""
        if training.optimiser == "adam":
            first = training.betas[0] if self.momentum is None else self.momentum
            return training.model_copy(update={"betas": (first, training.betas[1])})
        return training.model_copy(update={"momentum": _MOMENTUM if self.momentum is None else self.momentum})

    def use(self, peer: PeerView) -> Params:
        params: Params = peer.state["params"]
        return params

    def report(self, peer: PeerView) -> Message:
        return Message(row=peer.state["row"])

    def graph_of(self, reports: Mapping[str, Message]) -> Graph:
        """Return the mixing weights of each peer's last round; an edge has the larger of its two weights."""
        ids, mixing = mixing_matrix({id: report["row"] for id, report in reports.items()})
        weights = np.maximum(mixing, mixing.T)
        np.fill_diagonal(weights, 0.0)
        return Graph(ids, weights, mixing=mixing)


def metropolis_row(own: str, degree: int, degrees: Mapping[str, int]) -> dict[str, float]:
    """w_il = 1 / (1 + max(degree_i, degree_l)) for the neighbours l whose message arrived; the peer gets the rest.

    degree: number of the peer's neighbours; degrees: of the neighbours whose message arrived, by id.

    >>> metropolis_row("a", 1, {"b": 2})
    {'b': 0.3333333333333333, 'a': 0.6666666666666667}
    """
    row = {id: 1.0 / (1 + max(degree, degrees[id])) for id in sorted(degrees)}
    return {**row, own: 1.0 - sum(row.values())}
