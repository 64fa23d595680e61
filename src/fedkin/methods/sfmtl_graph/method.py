"""SFMTL-Graph: heads and class anchors travel; the server finds communities and mixes heads inside them.

Similarity-driven federated multi-task learning with a dynamic task similarity graph (SFMTL-Graph), 2025.
Equation numbers are the paper's; `docs/methods/sfmtl-graph.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.federation import Federation
from fedkin.flow import Ask, ClassVectors, ClientFlow, Fit, Infer, Message, Params, ServerFlow, phase
from fedkin.forms import BODY, COUNT, HEAD, Fields, Shaped, Wholes
from fedkin.learning.losses import class_means
from fedkin.learning.net import body_of, head_of
from fedkin.methods.blocks import crowd
from fedkin.methods.blocks.mixing import laplacian_mixing, mixed
from fedkin.methods.blocks.signatures import Same, SigningMethod, groups_from_test, labels_of
from fedkin.methods.blocks.stages import dense, needs_planted, planted_labels
from fedkin.methods.sfmtl_graph.crowd import check, near
from fedkin.methods.sfmtl_graph.loss import AnchoredCrossEntropy
from fedkin.methods.sfmtl_graph.means import community_anchors, community_bodies
from fedkin.methods.sfmtl_graph.similarity import GraphSettings, similarity
from fedkin.settings import span
from fedkin.views import ClientView, ServerView, View

__all__ = ["ClientState", "SfmtlGraph", "State"]

Labels = npt.NDArray[np.int64]
SENT: Fields = {
    "head": HEAD, "anchors": Shaped("owned", "width"), "classes": Wholes("owned", below="classes", rising=True),
    "n": COUNT,
}  # fmt: skip


class State(TypedDict):
    """At the server. same: signatures and groups from the test, None unless `graph.groups` is "same"."""

    same: Same | None


class ClientState(TypedDict):
    """params: the client's own model, {name: tensor}.

    anchors: a feature vector per class [C, d], zero for a class that was never seen. known: which rows are seen [C].
    """

    params: Params
    anchors: Tensor
    known: Tensor


class SfmtlGraph(SigningMethod):
    """Personal models whose heads are pulled together inside communities of similar clients.

    alpha: weight of head similarity against anchor similarity, Eq. (7).
    lam: lambda, of the anchor loss (6) and of the head update (15).
    anchor_weight: weight of the anchor loss if it is to differ from lam.
    tau: server rate; None: lr * R, as in the paper.
    share: what is exchanged inside communities, beside anchors: the "head", by Eq. (15), as in the paper; the "body",
    as its members' mean weighted by samples, and no head; or the "model", which is both. "body" and "model" are ours.
    anchors: "exponential" (moved by `anchor_rate` every step) or "mean" (exact class means after training).
    """

    name: ClassVar[str] = "sfmtl-graph"
    title: ClassVar[str] = "SFMTL-Graph"
    paper: ClassVar[str] = "SFMTL-Graph, 2025"
    kind: ClassVar[Literal["personalised"]] = "personalised"
    travels: ClassVar[str] = "head, anchors of owned classes, counts (and body); down: those of the community"
    needs_classes: ClassVar[bool] = True

    alpha: float = Field(0.49, ge=0, le=1)
    lam: float = Field(0.03, ge=0)
    anchor_weight: float | None = Field(None, ge=0, json_schema_extra=span(0.003, 1))
    tau: float | None = Field(None, ge=0, json_schema_extra=span(0.01, 4))
    share: Literal["head", "body", "model"] = "head"
    anchors: Literal["exponential", "mean"] = "exponential"
    anchor_rate: float = Field(0.5, gt=0, le=1)
    graph: GraphSettings = GraphSettings()

    def check(self, federation: Federation) -> None:
        needs_planted(federation, control=self.graph.control, groups=self.graph.groups)

    def start(self, server: ServerView[State]) -> None:
        server.state = State(same=None)

    # -- at a client ------------------------------------------------------------------------------------------

    def join(self, client: ClientView[ClientState]) -> None:
        classes, width = client.task.classes, client.net.width(client.task)
        client.state["params"] = client.initial
        client.state["anchors"] = torch.zeros(classes, width, dtype=client.net.dtype)
        client.state["known"] = torch.zeros(classes, dtype=torch.bool)

    @phase(SENT, {**SENT, "body": BODY})
    def train(self, client: ClientView[ClientState], message: Message) -> ClientFlow[Message]:
        """R steps on f_k + lambda g_k, Eq. (6); send the head, the anchors of owned classes, and the body if shared."""
        state = client.state
        weight = self.lam if self.anchor_weight is None else self.anchor_weight
        loss = AnchoredCrossEntropy(weight, self.anchor_rate if self.anchors == "exponential" else None)
        carry = {"anchors": state["anchors"], "known": state["known"]}
        fitted = yield from Fit(state["params"], loss, carry=carry)
        state["params"] = fitted.params
        if self.anchors == "exponential":
            state["anchors"], state["known"] = fitted.carry["anchors"], fitted.carry["known"]
        else:
            z = yield from Infer(fitted.params, "features")
            y = client.train.labels()
            mean, count = class_means(z, y, torch.ones(len(y), dtype=z.dtype), client.task.classes)
            state["anchors"], state["known"] = mean, count > 0
        owned = state["known"].nonzero()[:, 0]
        body = {} if self.share == "head" else {"body": body_of(fitted.params)}
        head, anchors = head_of(fitted.params), state["anchors"][owned]
        return Message(head=head, anchors=anchors, classes=owned.tolist(), n=client.size, **body)

    @phase()
    def update(self, client: ClientView[ClientState], message: Message) -> Message:
        """Take the community's anchors and what it shares for the next round."""
        anchors = client.state["anchors"].clone()
        anchors[message["classes"]] = message["anchors"]
        client.state["anchors"] = anchors
        client.state["params"] = {**client.state["params"], **message.get("head", {}), **message.get("body", {})}
        return Message()

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        if len(sampled) > crowd.LARGEST:
            check(len(sampled), self.graph)  # before anybody has trained for nothing
        if self.graph.from_test:
            held = server.state["same"]
            server.state["same"] = yield from groups_from_test(server, held, sampled, self.graph.groups)
        replies = yield from Ask("train", {id: Message() for id in sampled})
        if not replies:
            return
        ids = tuple(sorted(replies))
        came = [replies[id] for id in ids]
        # a_kl (7), and the communities of that graph (12).
        weights, labels = self.communities(server, ids, self.affinity(server, came))
        # Anchors: the community's mean (14). Heads: a step towards the community's other heads (15).
        new: dict[str, Sequence[Any]] = {}
        mixing = None
        if self.share != "body":
            tau = server.training.lr * server.training.local if self.tau is None else self.tau
            mixing = laplacian_mixing(weights, labels, self.lam * tau, "heads")
            new["head"] = mixed([reply["head"] for reply in came], mixing)
        if self.share != "head":
            new["body"] = community_bodies(dict(zip(ids, came, strict=True)), labels)
        new["anchors"] = community_anchors(came, labels, server.task.classes)
        server.graph = graph.Graph(ids, weights, groups=graph.by_id(ids, labels), round=server.round, mixing=mixing)
        told = {id: {name: values[k] for name, values in new.items()} for k, id in enumerate(ids)}
        yield from Ask("update", {id: Message(**told[id], classes=replies[id]["classes"]) for id in ids})

    def affinity(self, server: ServerView[State], replies: Sequence[Message]) -> Any:
        """a_kl = max(0, similarity) [n, n], symmetric, zero diagonal, Eq. (7); of very many clients a csr_array."""
        if len(replies) > crowd.LARGEST:
            found = near(server, replies, self.graph, self.alpha)
            server.info = {} if found.recall is None else {"neighbour_recall": found.recall}
            return found.affinity
        similar = similarity(server, replies, self.graph, self.alpha)
        return dense(graph.sparsify_stage(self.graph.sparsify)(similar))

    def communities(self, server: ServerView[State], ids: Sequence[str], weights: Any) -> tuple[Any, Labels]:
        """(the graph after the control [n, n], community of each client [n]), Eq. (12)."""
        how, planted = self.graph, planted_labels(server, ids)
        changed = graph.control_stage(how.control)(weights, planted=planted, seed=server.key("control"))
        weights = changed if len(ids) > crowd.LARGEST else dense(changed)
        if how.from_test:
            return weights, labels_of(server.state["same"], ids)
        find = graph.groups_stage(how.groups)
        return weights, find(weights, seed=how.seed, resolution=how.resolution, planted=planted)

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView[State], id: str) -> Message:
        return Message()

    def use(self, client: ClientView[ClientState], message: Message) -> Params:
        return client.state["params"]

    def class_vectors(self, view: View[Any]) -> ClassVectors | None:
        return ClassVectors(view.state["anchors"], view.state["known"]) if "anchors" in view.state else None
