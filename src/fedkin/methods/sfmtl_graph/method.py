"""SFMTL-Graph: heads and class anchors travel; the server finds communities and mixes heads inside them.

Similarity-driven federated multi-task learning with a dynamic task similarity graph (SFMTL-Graph), 2025.
Equation numbers below are the paper's; `docs/methods/sfmtl-graph.md` says where paper, released code and this
file differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor
from torch.nn import functional as F

from fedkin import graph
from fedkin.codec import Tree
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import Ask, ClassVectors, ClientFlow, Fit, Infer, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.keys import rng
from fedkin.learning.losses import Batch, class_means, masked_mean
from fedkin.learning.net import BodyHead, head_of
from fedkin.learning.sgd import load
from fedkin.methods.blocks.vectors import needs_planted
from fedkin.settings import Settings
from fedkin.views import ClientView, ServerView, View

__all__ = ["AnchoredCrossEntropy", "GraphSettings", "SfmtlGraph"]

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
_OWN = ("both", "heads", "anchors")  # similarities of this method, beside those of fedkin.graph


@dataclass(frozen=True)
class AnchoredCrossEntropy:
    """f_k + weight * g_k: cross-entropy plus the squared distance of each feature to its class anchor, Eq. (5, 6).

    carry: anchors [C, d] and known [C]; a class without an anchor pulls nothing. With a `rate`, each step
    moves the anchors of its classes by `rate` towards their mean feature in the batch (a first anchor is that
    mean itself); without one, the anchors stay.
    """

    weight: float
    rate: float | None

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> tuple[Tensor, Tree]:
        anchors, known = carry["anchors"], carry["known"]
        z = model.features(batch.x)
        loss = F.cross_entropy(model.head(z), batch.y, reduction="none")
        distance = (z - anchors[batch.y]).square().sum(1) * known[batch.y]
        value = masked_mean(loss + self.weight * distance, batch)
        if self.rate is None:
            return value, carry
        mean, count = class_means(z.detach(), batch.y, batch.mask, len(anchors))
        here = count > 0
        moved = torch.where(known[:, None], torch.lerp(anchors, mean, self.rate), mean)
        return value, {"anchors": torch.where(here[:, None], moved, anchors), "known": known | here}


class GraphSettings(Settings):
    """The server's graph, stage by stage; each can be swapped.

    similarity: "both" (alpha * heads + (1 - alpha) * anchors, the paper's), "heads", "anchors", or a similarity
    of the heads' weights as vectors ("cosine", "dot", "l1", "l2", "rbf").
    match: which classes two clients are compared on: "union", "shared", or "rows" (the released code's).
    sparsify, groups: a stage of `fedkin.graph`, for example "knn:5", "leiden", "hierarchical:4".
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    similarity: str = "both"
    match: Literal["union", "shared", "rows"] = "union"
    sparsify: str = "none"
    groups: str = "louvain"
    resolution: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**32)
    control: str = "none"

    @field_validator("similarity", "sparsify", "groups", "control")
    @classmethod
    def _known(cls, spec: str, info: ValidationInfo) -> str:
        """Refuse an unknown stage when the experiment is read, not in the middle of a run."""
        if info.field_name == "similarity" and spec in _OWN:
            return spec
        make = {"similarity": graph.similarity_stage, "sparsify": graph.sparsify_stage, "groups": graph.groups_stage,
                "control": graph.control_stage}  # fmt: skip
        try:
            make[str(info.field_name)](spec)
        except ConfigError as error:
            own = f", or {', '.join(_OWN)}" if info.field_name == "similarity" else ""
            raise ValueError(f"{error}{own}") from None
        return spec


class SfmtlGraph(ServerMethod):
    """Personal models whose heads are pulled together inside communities of similar clients.

    alpha: weight of head similarity against anchor similarity, Eq. (7).
    lam: lambda, of the anchor loss (6) and of the head update (15).
    anchor_weight: weight of the anchor loss if it is to differ from lam.
    tau: server rate; None: lr * R, as in the paper.
    anchors: "exponential" (moved by `anchor_rate` every step) or "mean" (exact class means after training).
    """

    name: ClassVar[str] = "sfmtl-graph"
    title: ClassVar[str] = "SFMTL-Graph"
    paper: ClassVar[str] = "SFMTL-Graph, 2025"
    kind: ClassVar[Literal["personalised"]] = "personalised"
    travels: ClassVar[str] = "head, anchors of owned classes, counts; down: mixed head, community anchors"
    needs_classes: ClassVar[bool] = True

    alpha: float = Field(0.49, ge=0, le=1)
    lam: float = Field(0.03, ge=0)
    anchor_weight: float | None = Field(None, ge=0)
    tau: float | None = Field(None, ge=0)
    anchors: Literal["exponential", "mean"] = "exponential"
    anchor_rate: float = Field(0.5, gt=0, le=1)
    graph: GraphSettings = GraphSettings()

    def check(self, federation: Federation) -> None:
        needs_planted(
            federation, control="oracle" if self.graph.control == "oracle" else None,
            groups="planted" if self.graph.groups == "planted" else None,
        )  # fmt: skip

    # -- at a client ------------------------------------------------------------------------------------------

    def join(self, client: ClientView) -> None:
        classes, width = client.task.classes, client.net.width(client.task)
        client.state["params"] = client.initial
        client.state["anchors"] = torch.zeros(classes, width, dtype=client.net.dtype)
        client.state["known"] = torch.zeros(classes, dtype=torch.bool)

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train, then send head and anchors."""
        weight = self.lam if self.anchor_weight is None else self.anchor_weight
        rate = self.anchor_rate if self.anchors == "exponential" else None
        carry = {name: client.state[name] for name in ("anchors", "known")}
        fitted = yield from Fit(client.state["params"], AnchoredCrossEntropy(weight, rate), carry=carry)
        client.state.update(fitted.carry, params=fitted.params)
        if self.anchors == "mean":
            z = yield from Infer(fitted.params, "features")
            y = client.train.labels()
            mean, count = class_means(z, y, torch.ones(len(y), dtype=z.dtype), client.task.classes)
            client.state.update(anchors=mean, known=count > 0)
        owned = client.state["known"].nonzero()[:, 0]
        return Message(
            head=head_of(fitted.params), anchors=client.state["anchors"][owned], classes=owned.tolist(), n=client.size
        )

    @phase
    def update(self, client: ClientView, message: Message) -> Message:
        """Take the mixed head and the community's anchors for the next round."""
        anchors = client.state["anchors"].clone()
        anchors[message["classes"]] = message["anchors"]
        client.state["anchors"] = anchors
        client.state["params"] = {**client.state["params"], **message["head"]}
        return Message()

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: Message() for id in sampled})
        if not replies:
            return
        ids = tuple(sorted(replies))
        came = [replies[id] for id in ids]
        weights, labels = self.communities(server, ids, self.affinity(server, came))
        rate = self.lam * (server.training.lr * server.training.local if self.tau is None else self.tau)
        mixing = _dense(graph.laplacian_step(weights, labels, rate))
        if mixing.min() < -1e-12:
            warnings.warn(
                f"lambda tau times the largest degree is {1 - mixing.diagonal().min():.2g}, above 1: heads overshoot "
                "their neighbours; lower method.lam or method.tau, or thin the graph with method.graph.sparsify",
                stacklevel=1,
            )
        server.graph = graph.Graph(ids, weights, groups=graph.by_id(ids, labels), round=server.round, mixing=mixing)
        heads = mixed_heads([reply["head"] for reply in came], mixing)
        anchors = community_anchors(came, labels, server.task.classes)
        yield from Ask(
            "update",
            {
                id: Message(head=head, anchors=anchor, classes=reply["classes"])
                for id, head, anchor, reply in zip(ids, heads, anchors, came, strict=True)
            },
        )

    def affinity(self, server: ServerView, replies: Sequence[Message]) -> Array:
        """Edge weights a_kl >= 0, symmetric, zero diagonal, Eq. (7)."""
        settings = self.graph
        anchors, owned = stacked_anchors(server, replies, settings.match)
        if settings.similarity in _OWN:
            alpha = {"both": self.alpha, "heads": 1.0, "anchors": 0.0}[settings.similarity]
            heads = graph.response_similarity(head_responses(server, replies, anchors), owned, match=settings.match)
            features = graph.anchor_similarity(anchors.numpy(), owned, match=settings.match)
            similar = alpha * heads + (1 - alpha) * features
        else:
            flat = [torch.cat([t.flatten() for _, t in sorted(reply["head"].items())]) for reply in replies]
            similar = graph.similarity_stage(settings.similarity)(torch.stack(flat).double().numpy())
        return _dense(graph.sparsify_stage(settings.sparsify)(similar))

    def communities(self, server: ServerView, ids: Sequence[str], weights: Array) -> tuple[Array, Labels]:
        """(the graph after the control, community of each client), Eq. (12)."""
        settings = self.graph
        planted = None if server.planted is None else np.array([server.planted[id] for id in ids])
        weights = _dense(graph.control_stage(settings.control)(weights, planted=planted, seed=server.key("control")))
        find = graph.groups_stage(settings.groups)
        return weights, find(weights, seed=settings.seed, resolution=settings.resolution, planted=planted)

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return Message()

    def class_vectors(self, view: View) -> ClassVectors | None:
        return ClassVectors(view.state["anchors"], view.state["known"]) if "anchors" in view.state else None

    def use(self, client: ClientView, message: Message) -> Params:
        params: Params = client.state["params"]
        return params


def _dense(matrix: Any) -> Array:
    """A stage's matrix as an ndarray: a round's clients are few."""
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float64)


def mixed_heads(heads: Sequence[Params], mixing: Array) -> list[dict[str, Tensor]]:
    """head_k <- sum_l mixing[k, l] head_l, all from the old heads; the identity gives every head back bit for bit.

    With mixing = I - lambda tau L inside communities this is Eq. (15).
    """
    mix = torch.from_numpy(mixing)
    new: list[dict[str, Tensor]] = [{} for _ in heads]
    for name in heads[0]:
        old = torch.stack([head[name] for head in heads])
        if not old.is_floating_point():
            mixed = old  # counters stay each client's own
        else:
            mixed = (mix @ old.reshape(len(old), -1).double()).to(old.dtype).reshape(old.shape)
        for k, row in enumerate(mixed):
            new[k][name] = row.clone()
    return new


def community_anchors(replies: Sequence[Message], labels: Labels, classes: int) -> list[Tensor]:
    """For each client, the n_k-weighted mean anchor of its owned classes over its community, Eq. (14).

    A class is averaged over the members that own it.
    """
    width = replies[0]["anchors"].shape[1]
    new: list[Tensor] = [reply["anchors"] for reply in replies]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label).tolist()
        total = torch.zeros(classes, width, dtype=torch.float64)
        count = torch.zeros(classes, 1, dtype=torch.float64)
        for k in members:
            total[replies[k]["classes"]] += replies[k]["n"] * replies[k]["anchors"].double()
            count[replies[k]["classes"]] += replies[k]["n"]
        for k in members:
            rows = replies[k]["classes"]
            new[k] = (total[rows] / count[rows]).to(replies[k]["anchors"].dtype)
    return new


def stacked_anchors(server: ServerView, replies: Sequence[Message], match: str) -> tuple[Tensor, npt.NDArray[np.bool_]]:
    """(anchors [n, C, d], owned [n, C]); rows of classes a client does not own are zero.

    For the released code's `match="rows"`, which compares these rows too, they hold what they hold there: the
    common random start, rows of unit length.
    """
    classes, width = server.task.classes, replies[0]["anchors"].shape[1]
    anchors = torch.zeros(len(replies), classes, width, dtype=torch.float64)
    if match == "rows":
        start = rng(server.seed, "", 0, "anchors").normal(size=(classes, width))
        anchors[:] = torch.from_numpy(start / np.linalg.norm(start, axis=1, keepdims=True))
    owned = np.zeros((len(replies), classes), dtype=bool)
    for k, reply in enumerate(replies):
        anchors[k, reply["classes"]] = reply["anchors"].double()
        owned[k, reply["classes"]] = True
    return anchors, owned


def head_responses(server: ServerView, replies: Sequence[Message], anchors: Tensor) -> Array:
    """Outputs [n, n, C, outputs]: entry (k, l, c) is what head k says to client l's anchor of class c."""
    module = server.net.scratch().eval()
    flat = anchors.flatten(0, 1).to(server.net.dtype)
    said = []
    with torch.no_grad():
        for reply in replies:
            load(module, {**server.initial, **reply["head"]})
            said.append(module.head(flat).reshape(*anchors.shape[:2], -1).double())
    return np.asarray(torch.stack(said).numpy())
