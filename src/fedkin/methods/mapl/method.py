"""MAPL: peers with unlike models align their features by shared prototypes and learn whom to share them with.

Mukherjee, Simonetto, Jamali-Rad. MAPL: Model agnostic peer-to-peer learning, 2024. Equations, algorithms and lines are
the paper's. `docs/methods/mapl.md` says where paper, released code and these files differ: the losses (loss.py), the
collaboration weights (weights.py), prototypes of absent classes (prototypes.py) and edges without messages (edges.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Federation, Task
from fedkin.flow import ClassVectors, Fit, Message, Params, PeerFlow, PeerMethod, Share
from fedkin.forms import COUNT, HEAD, Each, Fields, Flag, Number, Shaped
from fedkin.graph import Graph
from fedkin.learning.augment import Augment
from fedkin.learning.contrastive import Projection, prototypes
from fedkin.learning.net import Net, head_of
from fedkin.methods.mapl.edges import EdgeState, outbox, receivers, remember, requests
from fedkin.methods.mapl.graph import learned_graph
from fedkin.methods.mapl.loss import TwoViews
from fedkin.methods.mapl.prototypes import mixed_prototypes
from fedkin.methods.mapl.weights import CollaborationSettings, Row, among, kept, previous, uniform
from fedkin.settings import one_of
from fedkin.views import PeerView, View

__all__ = ["SHARED", "Mapl", "State"]


class State(EdgeState):
    """What a peer keeps between rounds, beside the keys of EdgeState (edges.py).

    params: body theta_i, head phi_i, projection psi_i and prototypes xi_i ("prototypes.weight" [K, d], mixed).
    weights: the row w_i of its last round, by peer id, itself included; it sums to 1.
    """

    params: Params
    weights: Row


# What travels along an edge in every round; a neighbour that is wanted no more gets the request alone.
SHARED: Fields = {
    "prototypes": Shaped("classes", "width"), "owned": Shaped("classes", dtype=torch.bool), "want": Flag() | None,
}  # fmt: skip


class Mapl(PeerMethod):
    """Own models; class prototypes mixed over neighbours by weights that each peer learns from heads it receives.

    ce, cont, proto, uni: weights of cross-entropy, sample contrast, sample-to-prototype contrast and uniformity of
    prototypes; 0 leaves a term out.
    temperature: of both contrasts; spread: of uniformity in the released form, as the released code has it.
    variant: "paper", or "released": the losses as the released code has them.
    hidden: hidden width of the projection; None: 8 times the features' width.
    absent: weight of a peer's prototype of a class that the peer has no samples of, where one with samples has 1;
    1 is the paper's plain sum. A class that nobody near has samples of keeps its own prototype.
    warmup: T_thr: the round from which on weights are learned; before it they are equal. Below 1 it is a fraction of
    `training.rounds`; the paper's 100 of 400 rounds are 0.25.
    graph: how weights are learned, and which edges are dropped. augment: the random views.
    """

    name: ClassVar[str] = "mapl"
    title: ClassVar[str] = "MAPL"
    paper: ClassVar[str] = "Mukherjee, Simonetto and Jamali-Rad, 2024"
    kind: ClassVar[Literal["peer"]] = "peer"
    travels: ClassVar[str] = "class prototypes, owned classes; after the warm-up head and count, on learned edges only"
    unlike_models: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    weighs_classes: ClassVar[bool] = False
    renamed: ClassVar[Mapping[str, str]] = {"graph_learning": "graph"}
    shares: ClassVar[Mapping[str, Any]] = {
        "head": {"head": HEAD, "n": COUNT},
        "prototypes": [SHARED, {"want": Flag()}],
        "report": {"weights": Each(Number(low=0))},
    }

    ce: float = Field(1.0, ge=0)
    cont: float = Field(1.0, ge=0)
    proto: float = Field(1.0, ge=0)
    uni: float = Field(1.0, ge=0)
    temperature: float = Field(0.1, gt=0)
    spread: float = Field(100.0, gt=0)
    variant: Literal["paper", "released"] = "paper"
    hidden: int | None = Field(None, ge=1)
    absent: float = Field(0.0, ge=0, le=1)
    warmup: Annotated[int | float, Field(ge=0)] = Field(0.25, json_schema_extra=one_of(0, 0.1, 0.25, 0.5))
    graph: CollaborationSettings = CollaborationSettings()
    augment: Augment = Augment()

    def check(self, federation: Federation) -> None:
        kind = getattr(federation.task, "kind", "classification")
        if kind not in ("classification", "risk"):
            raise ConfigError(
                f"method.name: {self.name!r} contrasts classes, one label for each sample; {federation.name} is a task "
                f"of {kind}. Choose a method of `fedkin list methods` that does without classes"
            )
        self.augment.check(federation.task)

    def equip(self, net: Net, task: Task, key: int) -> Net:
        """Body and head, with a projection f_psi and prototypes xi [K, d] beside them (Section 4.1)."""
        width = net.width(task)

        def made() -> dict[str, nn.Module]:
            projection = Projection(width, self.hidden or 8 * width, width)
            return {"projection": projection, "prototypes": prototypes(task.classes, width)}

        return net.extended(made, key)

    def join(self, peer: PeerView[State]) -> None:
        peer.state.update({"params": peer.initial, "weights": {peer.id: 1.0}, "dropped": [], "refused_by": []})

    def round(self, peer: PeerView[State]) -> PeerFlow[None]:
        """Algorithm 3 at one peer i, one round t."""
        # Line 2, local step 1 (PML, Algorithm 1): h_i and xi_i descend the regularised loss, Eq. 2.
        fitted = yield from Fit(peer.state["params"], self.objective())
        to = receivers(peer.state, peer.neighbours)
        row: Row | None = None
        wants: dict[str, bool] = {}
        # Line 3: t >= T_thr.
        if self.graph.on and peer.round >= peer.training.rounds_of(self.warmup):
            # Line 4: share the classifier head with the neighbours.
            head = Message(head=head_of(fitted.params), n=peer.size)
            heads = yield from Share(dict.fromkeys(to, head), phase="head")
            # Line 5, local step 2 (CGL, Algorithm 2): learn w_i, Eq. 9. An edge of weight 0 is gone.
            learned = self.weights(peer, {peer.id: head, **heads})
            row = kept(learned, peer.id, self.graph.least(len(peer.neighbours)))
            wants = requests(
                peer.state, peer.neighbours, learned.keys(), row.keys(),
                lambda id: peer.rng(f"probe {id}").random() < self.graph.probe,
            )  # fmt: skip
        # Line 7: share the prototypes with the neighbours.
        own = self.message(peer, fitted.params)
        inbox = yield from Share(outbox(to, own, wants), phase="prototypes")
        remember(peer.state, inbox)
        # Line 8, local step 3: xi_i <- w_ii xi_i + sum_j w_ij xi_j, over the neighbours j that were heard.
        messages = {peer.id: own, **{id: message for id, message in inbox.items() if "prototypes" in message}}
        row = uniform(messages) if row is None else among(row, peer.id, messages)
        peer.state.update({"params": self.mixed(peer, fitted.params, messages, row), "weights": row})

    def objective(self) -> TwoViews:
        """The local objective, Eq. 2-5."""
        return TwoViews(
            self.augment, self.ce, self.cont, self.proto, self.uni, self.temperature, self.spread, self.variant
        )

    def weights(self, peer: PeerView[State], heads: Mapping[str, Message]) -> Row:
        """This round's weights of the peer itself and all that it heard, before any edge is dropped, Eq. 6-9."""
        return self.graph.row(
            peer.id, {id: message["head"] for id, message in heads.items()}, head_of(peer.initial),
            {id: message["n"] for id, message in heads.items()},
            previous(peer.id, heads, peer.state["weights"], peer.state["dropped"]),
        )  # fmt: skip

    def message(self, peer: PeerView[State], params: Params) -> Message:
        """What travels along an edge in every round: prototypes [K, d] and which classes the peer owns [K]."""
        return Message(prototypes=params["prototypes.weight"], owned=owned_classes(peer))

    def mixed(self, peer: PeerView[State], params: Params, messages: Mapping[str, Message], row: Row) -> Params:
        """The peer's parameters with the prototypes mixed: all else stays its own."""
        sets = {id: messages[id]["prototypes"] for id in row}
        owned = {id: messages[id]["owned"] for id in row}
        return {**params, "prototypes.weight": mixed_prototypes(peer.id, sets, owned, row, self.absent)}

    def use(self, peer: PeerView[State]) -> Params:
        return peer.state["params"]

    def report(self, peer: PeerView[State]) -> Message:
        return Message(weights=peer.state["weights"])

    def graph_of(self, reports: Mapping[str, Message]) -> Graph:
        """The weights of every peer's last round."""
        return learned_graph({id: report["weights"] for id, report in reports.items()})

    def class_vectors(self, view: View[Any]) -> ClassVectors:
        assert isinstance(view, PeerView)
        return ClassVectors(view.state["params"]["prototypes.weight"], owned_classes(view))


def owned_classes(peer: PeerView[State]) -> Tensor:
    """Whether the peer has training samples of each class, bool [K]."""
    return torch.bincount(peer.train.labels(), minlength=peer.task.classes) > 0
