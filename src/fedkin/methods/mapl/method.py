"""MAPL: peers with unlike models align their features by shared prototypes and learn whom to share them with.

Mukherjee, Simonetto, Jamali-Rad. MAPL: Model agnostic peer-to-peer learning, 2024. Equation numbers are the paper's;
`docs/methods/mapl.md` says where paper, released code and these files differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Federation, Task
from fedkin.flow import ClassVectors, Fit, Message, Params, PeerFlow, PeerMethod, Share
from fedkin.graph import Graph
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.augment import Augment
from fedkin.learning.contrastive import Projection, prototypes
from fedkin.learning.net import Net, head_of
from fedkin.methods.mapl.loss import TwoViews
from fedkin.methods.mapl.weights import CollaborationSettings, Row, among, kept, learned_graph, uniform
from fedkin.views import PeerView, View

__all__ = ["Mapl", "MaplPlus", "mixed_prototypes"]


class Mapl(PeerMethod):
    """Own models; class prototypes mixed over neighbours by weights that each peer learns from heads it receives.

    ce, cont, proto, uni: weights of cross-entropy, sample contrast, sample-to-prototype contrast and uniformity of
    prototypes; 0 leaves a term out.
    temperature: of both contrasts; spread: of uniformity in the released form, as the released code has it.
    variant: "paper", or "released": the losses as the released code has them.
    hidden: hidden width of the projection; None: 8 times the features' width.
    absent: how much a peer's prototype of a class without samples there weighs, against 1 with samples; 1 is the
    paper's plain sum. A class that nobody near has samples of keeps its own prototype.
    warmup: T_thr: the round from which on weights are learned; before it they are equal.
    """

    name: ClassVar[str] = "mapl"
    title: ClassVar[str] = "MAPL"
    paper: ClassVar[str] = "Mukherjee, Simonetto and Jamali-Rad, 2024"
    kind: ClassVar[Literal["peer"]] = "peer"
    travels: ClassVar[str] = "class prototypes, owned classes; after the warm-up head and count, on learned edges only"
    unlike_models: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    ce: float = Field(1.0, ge=0)
    cont: float = Field(1.0, ge=0)
    proto: float = Field(1.0, ge=0)
    uni: float = Field(1.0, ge=0)
    temperature: float = Field(0.1, gt=0)
    spread: float = Field(100.0, gt=0)
    variant: Literal["paper", "released"] = "paper"
    hidden: int | None = Field(None, ge=1)
    absent: float = Field(0.0, ge=0, le=1)
    warmup: int = Field(100, ge=0)
    graph_learning: CollaborationSettings = CollaborationSettings()
    augment: Augment = Augment()

    def check(self, federation: Federation) -> None:
        kind = getattr(federation.task, "kind", "classification")
        if kind not in ("classification", "risk"):
            raise ConfigError(
                f"method.name: {self.name!r} contrasts classes, one label for each sample; {federation.name} is a task "
                f"of {kind}. Choose a method of `fedkin methods` that does without classes"
            )
        self.augment.check(federation.task)

    def equip(self, net: Net, task: Task, key: int) -> Net:
        width = net.width(task)

        def made() -> dict[str, nn.Module]:
            return {
                "projection": Projection(width, self.hidden or 8 * width, width),
                "prototypes": prototypes(task.classes, width),
            }

        return net.extended(made, key)

    # -- a peer's round ---------------------------------------------------------------------------------------

    def join(self, peer: PeerView) -> None:
        """gone: neighbours without an edge from here; refused: neighbours that want no message."""
        peer.state.update(params=peer.initial, weights={}, gone=[], refused=[])

    def round(self, peer: PeerView) -> PeerFlow[None]:
        fitted = yield from Fit(peer.state["params"], self.loss)
        learning = self.graph_learning.on and peer.round >= self.warmup
        asked = [id for id in peer.neighbours if id not in peer.state["refused"]]
        wishes: dict[str, bool] = {}
        row: Row | None = None
        if learning:
            own = Message(head=head_of(fitted.params), n=peer.size)
            heads = yield from Share(dict.fromkeys(asked, own), phase="head")
            row, wishes = self.negotiated(peer, self.weights(peer, {peer.id: own, **heads}))
        letter = self.letter(peer, fitted.params)
        posts = dict.fromkeys(asked, letter)
        posts |= {id: Message(**posts.get(id, Message()), want=want) for id, want in wishes.items()}
        came = yield from Share(dict(sorted(posts.items())), phase="prototypes")
        self.heed(peer, came)
        letters = {peer.id: letter, **{id: message for id, message in came.items() if "prototypes" in message}}
        row = uniform(list(letters)) if row is None else among(row, peer.id, letters)
        peer.state.update(params=self.mixed(peer, fitted.params, letters, row), weights=row)

    @property
    def loss(self) -> TwoViews:
        """The local objective, Eq. (2)."""
        return TwoViews(
            self.augment, self.ce, self.cont, self.proto, self.uni, self.temperature, self.spread, self.variant
        )

    def letter(self, peer: PeerView, params: Params) -> Message:
        """What goes along an edge in every round."""
        return Message(prototypes=params["prototypes.weight"], owned=owned_classes(peer))

    def weights(self, peer: PeerView, heads: Mapping[str, Message]) -> Row:
        """This round's weights of all that were heard, Eq. (9)."""
        # Who has listened to nobody yet begins with equal weights.
        known = peer.state["weights"] if peer.state["weights"].keys() - {peer.id} else {}
        last = dict.fromkeys(heads, 1 / len(heads)) | dict.fromkeys(peer.state["gone"], 0.0) | known
        return self.graph_learning.row(
            peer.id, {id: message["head"] for id, message in heads.items()}, head_of(peer.initial),
            {id: message["n"] for id, message in heads.items()}, last,
        )  # fmt: skip

    def negotiated(self, peer: PeerView, row: Row) -> tuple[Row, dict[str, bool]]:
        """The row without edges that are gone, and what to tell whom: to stop, or to send again.

        The receiver decides: a neighbour sends until it is told to stop, and again once it is asked. A stop that is
        lost is repeated, since messages keep coming; an ask that is lost may be followed by another one.
        """
        left = kept(row, peer.id, self.graph_learning.least(len(peer.neighbours)))
        dropped = row.keys() - left.keys()
        gone = (set(peer.state["gone"]) - row.keys()) | dropped
        probed = {
            id for id in peer.neighbours
            if id in gone - dropped and peer.rng(f"probe {id}").random() < self.graph_learning.probe
        }  # fmt: skip
        peer.state["gone"] = sorted(gone)
        return left, dict.fromkeys(dropped, False) | dict.fromkeys(probed, True)

    def heed(self, peer: PeerView, came: Mapping[str, Message]) -> None:
        """Remember who wants messages from here, and who does not."""
        refused = set(peer.state["refused"])
        for id, message in came.items():
            if "want" in message:
                (refused.discard if message["want"] else refused.add)(id)
        peer.state["refused"] = sorted(refused)

    def mixed(self, peer: PeerView, params: Params, letters: Mapping[str, Message], row: Row) -> Params:
        """The peer's parameters after the exchange."""
        sets = {id: letters[id]["prototypes"] for id in row}
        owned = {id: letters[id]["owned"] for id in row}
        return {**params, "prototypes.weight": mixed_prototypes(peer.id, sets, owned, row, self.absent)}

    def use(self, peer: PeerView) -> Params:
        params: Params = peer.state["params"]
        return params

    def report(self, peer: PeerView) -> Message:
        return Message(weights=peer.state["weights"] or {peer.id: 1.0})

    def graph(self, reports: Mapping[str, Message]) -> Graph | None:
        """The weights of every peer's last round."""
        return learned_graph({id: report["weights"] for id, report in reports.items()})

    def class_vectors(self, view: View) -> ClassVectors:
        assert isinstance(view, PeerView)
        return ClassVectors(view.state["params"]["prototypes.weight"], owned_classes(view))


def owned_classes(peer: PeerView) -> Tensor:
    """Which classes [K] the peer has training samples of."""
    return torch.bincount(peer.train.labels(), minlength=peer.task.classes) > 0


class MaplPlus(Mapl):
    """MAPL for equal models: bodies are mixed too, with the same weights; projection and head stay a peer's own."""

    name: ClassVar[str] = "mapl-plus"
    title: ClassVar[str] = "MAPL+"
    travels: ClassVar[str] = "what MAPL sends, and the body"
    unlike_models: ClassVar[bool] = False

    def letter(self, peer: PeerView, params: Params) -> Message:
        body = {name: tensor for name, tensor in params.items() if name.startswith("body.")}
        return Message(**super().letter(peer, params), body=body)

    def mixed(self, peer: PeerView, params: Params, letters: Mapping[str, Message], row: Row) -> Params:
        return {
            **super().mixed(peer, params, letters, row),
            **weighted_mean({id: letters[id]["body"] for id in row}, row),
        }


def mixed_prototypes(
    own: str, sets: Mapping[str, Tensor], owned: Mapping[str, Tensor], weights: Mapping[str, float], absent: float = 0.0
) -> Tensor:
    """xi^k = sum_j w_j t_j^k xi_j^k / sum_j w_j t_j^k [K, d], t_j^k 1 where j has samples of class k, else `absent`.

    sets: prototypes [K, d]; owned: bool [K]. A class that nobody here with a weight owns keeps the prototype of
    `own`. absent 1: the plain weighted sum of the other classes (Algorithm 3, line 8).

    >>> sets = {"a": torch.tensor([[0.0], [0.0]]), "b": torch.tensor([[2.0], [2.0]])}
    >>> owned = {"a": torch.tensor([True, False]), "b": torch.tensor([True, False])}
    >>> mixed_prototypes("a", sets, owned, {"a": 0.5, "b": 0.5})
    tensor([[1.],
            [0.]])
    """
    ids = sorted(weights)
    w = torch.tensor([weights[id] for id in ids], dtype=torch.float64)
    has = torch.stack([owned[id] for id in ids]).double()
    share = w[:, None] * (has + absent * (1 - has))
    total = share.sum(0)
    share = share / torch.where(total > 0, total, 1.0)
    mean = torch.einsum("jk,jkd->kd", share, torch.stack([sets[id] for id in ids]).double())
    known = (w[:, None] * has).sum(0) > 0
    return torch.where(known[:, None], mean.to(sets[own].dtype), sets[own])
