"""SFMTL-Graph: heads and class anchors travel; the server finds communities of clients and mixes heads inside them.

A. Elbakary, C. Ben Issaid, M. Bennis. Learning to collaborate over graphs: a selective federated multi-task learning
approach. 2025. Equation numbers are the paper's, whose phi is `head` and h `anchor`; `docs/methods/sfmtl-graph.md` says
where paper, released code and this file differ.

    client   min f_k + lambda g_k,  g_k = mean of |z - anchor of its class|^2                              (5, 6)
    server   a_kl = max(0, alpha Sim_head + (1 - alpha) Sim_repr)                                          (7-10)
             communities: Louvain on a                                                                     (12)
             anchor <- mean of the community's, weighted by n_k                                            (14)
             head_k <- head_k - lambda tau sum over the community of a_kl (head_k - head_l)                (15)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin import graph
from fedkin.codec import Tree
from fedkin.errors import ConfigError
from fedkin.federation import AnyRoster
from fedkin.flow import Ask, ClassVectors, ClientFlow, Fit, Infer, Message, Params, ServerFlow, phase
from fedkin.forms import BODY, COUNT, HEAD, Fields, Integers, Shaped
from fedkin.keys import rng
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import Batch, class_means, masked_mean
from fedkin.learning.net import BodyHead, body_of, head_of
from fedkin.methods.blocks import stage_settings
from fedkin.methods.blocks.model_mixing import laplacian_mixing, mixed
from fedkin.methods.blocks.signatures import SigningMethod, ask_for_groups, group_labels
from fedkin.methods.blocks.vectors import Array, Labels, as_points
from fedkin.settings import Settings, span
from fedkin.views import ClientView, ServerView, View

SENT: Fields = {
    "head": HEAD, "anchors": Shaped("owned", "width"), "classes": Integers("owned", below="classes", rising=True),
    "n": COUNT,
}  # fmt: skip
_OWN = ("both", "heads", "anchors")  # similarities of this method, besides those of fedkin.graph
MOST = 20_000  # up to this many clients, all pairs of heads are compared
_NEAR = 16  # neighbours per client above 5,000 clients, if no stage gives a number
_ROWS = 512  # rows of a matrix of all pairs that are sorted at a time
_KEPT = ("none", "epsilon", "knn", "mutual")
_OF_NEIGHBOURS = ("louvain", "leiden", "components", "planted", "single", "alone", "same")  # for sparse graphs


# -- settings, states and the client's loss ---------------------------------------------------------------------------


class GraphSettings(Settings):
    """The server's graph, stage by stage; each can be replaced.

    similarity: "both" (alpha * heads + (1 - alpha) * anchors, the paper's), "heads", "anchors", or a similarity
    of the heads' weights as vectors ("cosine", "dot", "l1", "l2", "rbf").
    match: which classes two clients are compared on: "union", "shared", or "rows" (the released code's).
    sparsify, groups: a stage of `fedkin.graph`, for example "knn:5", "leiden", "hierarchical:4"; groups "same[:alpha]"
    are found once, from signatures of the clients' samples.
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    similarity: Annotated[str, stage_settings.known_stage(graph.similarity_stage, *_OWN)] = "both"
    match: Literal["union", "shared", "rows"] = "union"
    sparsify: stage_settings.SparsifyStage = "none"
    groups: stage_settings.GroupsStage = "louvain"
    resolution: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**32)
    control: stage_settings.ControlStage = "none"

    @property
    def from_test(self) -> bool:
        """Whether clients send signatures from which groups are found."""
        return self.groups.split(":")[0] == "same"


@dataclass(frozen=True)
class AnchoredCrossEntropy:
    """f_k + weight * g_k: cross-entropy plus the squared distance of each feature to its class anchor, Eq. (5, 6).

    carry: anchors [C, d] and known [C]; a class without an anchor adds no pull. With a `rate`, each step
    moves the anchors of its classes by `rate` towards their mean feature in the batch (a first anchor is that
    mean); without a rate, anchors stay.
    """

    weighted = True
    stackable = True

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


# -- the method -------------------------------------------------------------------------------------------------------


class SfmtlGraph(SigningMethod):
    """Personal models whose heads are pulled together inside communities of similar clients.

    alpha: weight of head similarity against anchor similarity, Eq. (7).
    lam: lambda, of the anchor loss (6) and of the head update (15).
    anchor_weight: weight of the anchor loss; None: lam.
    tau: server rate; None: lr * R, as in the paper.
    share: what communities exchange besides anchors: the "head", by Eq. (15), as in the paper; only the "body", as the
    members' mean weighted by samples; or the "model", which is both. "body" and "model" are not in the paper.
    anchors: "exponential" (moved by `anchor_rate` every step) or "mean" (exact class means after training).
    """

    name = "sfmtl-graph"
    title = "SFMTL-Graph"
    paper = "Elbakary et al., 2025"
    kind = "personalised"
    by_client = ("same.signatures", "same.group")
    travels = "head, anchors of owned classes, counts (and body); down: those of the community"
    needs_classes = True

    alpha: float = Field(0.49, ge=0, le=1)
    lam: float = Field(0.03, ge=0)
    anchor_weight: float | None = Field(None, ge=0, json_schema_extra=span(0.003, 1))
    tau: float | None = Field(None, ge=0, json_schema_extra=span(0.01, 4))
    share: Literal["head", "body", "model"] = "head"
    anchors: Literal["exponential", "mean"] = "exponential"
    anchor_rate: float = Field(0.5, gt=0, le=1)
    graph: GraphSettings = GraphSettings()

    def check(self, federation: AnyRoster) -> None:
        stage_settings.needs_planted(federation, control=self.graph.control, groups=self.graph.groups)

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        same: signatures and groups from the test, None unless `graph.groups` is "same".

        A client's state: params, its own model. anchors: a feature vector per class [C, d], zero for a class that was
        never seen. known: which of its present classes were seen [C].
        """
        server.state = {"same": None}

    # -- at a client ------------------------------------------------------------------------------------------

    def join(self, client: ClientView) -> None:
        classes, width = client.task.classes, client.net.width(client.task)
        client.state["params"] = client.initial
        client.state["anchors"] = torch.zeros(classes, width, dtype=client.net.dtype)
        client.state["known"] = torch.zeros(classes, dtype=torch.bool)

    @phase(SENT, {**SENT, "body": BODY})
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """R steps on f_k + lambda g_k, Eq. (6); send the head, the anchors of owned classes, and the body if shared."""
        state = client.state
        weight = self.lam if self.anchor_weight is None else self.anchor_weight
        loss = AnchoredCrossEntropy(weight, self.anchor_rate if self.anchors == "exponential" else None)
        carry = {"anchors": state["anchors"], "known": state["known"]}
        fitted = yield from Fit(state["params"], loss, carry=carry)
        state["params"] = fitted.params
        if self.anchors == "exponential":
            # A class that the client no longer has would enter its similarities for ever.
            present = torch.bincount(client.train.labels(), minlength=client.task.classes) > 0
            state["anchors"], state["known"] = fitted.carry["anchors"], fitted.carry["known"] & present
        else:
            z = yield from Infer(fitted.params, "features")
            mean, count = class_means(z, client.train.labels(), None, client.task.classes)
            state["anchors"], state["known"] = mean, count > 0
        owned = state["known"].nonzero()[:, 0]
        body = {} if self.share == "head" else {"body": body_of(fitted.params)}
        head, anchors = head_of(fitted.params), state["anchors"][owned]
        return Message(head=head, anchors=anchors, classes=owned.tolist(), n=client.size, **body)

    @phase()
    def update(self, client: ClientView, message: Message) -> Message:
        """Take over the community's anchors and shared parameters for the next round."""
        anchors = client.state["anchors"].clone()
        anchors[message["classes"]] = message["anchors"]
        client.state["anchors"] = anchors
        client.state["params"] = {**client.state["params"], **message.get("head", {}), **message.get("body", {})}
        return Message()

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        check_round(len(sampled), self.graph)  # before clients train for nothing
        if self.graph.from_test:
            held = server.state["same"]
            server.state["same"] = yield from ask_for_groups(server, held, sampled, self.graph.groups)
        replies = yield from Ask("train", dict.fromkeys(sampled, Message()))
        if not replies:
            return
        ids = tuple(sorted(replies))
        in_order = [replies[id] for id in ids]
        # a_kl (7), and the communities of that graph (12).
        weights, labels = self.communities(server, ids, self.affinity(server, in_order))
        # Anchors: the community's mean (14). Heads: a step towards the community's other heads (15).
        new: dict[str, Sequence[Any]] = {}
        mixing = None
        if self.share != "body":
            tau = server.training.lr * server.training.local if self.tau is None else self.tau
            mixing = laplacian_mixing(weights, labels, self.lam * tau, "heads")
            new["head"] = mixed([reply["head"] for reply in in_order], mixing, server.net.trainable)
        if self.share != "head":
            new["body"] = community_bodies(dict(zip(ids, in_order, strict=True)), labels)
        new["anchors"] = community_anchors(in_order, labels, server.task.classes)
        server.graph = graph.Graph(ids, weights, groups=graph.by_id(ids, labels), round=server.round, mixing=mixing)
        new["classes"] = [reply["classes"] for reply in in_order]
        messages = [Message(**dict(zip(new, values, strict=True))) for values in zip(*new.values(), strict=True)]
        yield from Ask("update", dict(zip(ids, messages, strict=True)))

    def affinity(self, server: ServerView, replies: Sequence[Message]) -> Any:
        """a_kl = max(0, similarity) [n, n], symmetric, zero diagonal, Eq. (7).

        For more than 5,000 clients: a csr_array that links each only with its nearest, K for knn:K, else 16.
        """
        similar = similarity(server, replies, self.graph, self.alpha)
        if len(replies) > stage_settings.LARGEST:
            return nearest_only(similar, self.graph.sparsify)
        return graph.sparsify_stage(self.graph.sparsify)(similar)

    def communities(self, server: ServerView, ids: Sequence[str], weights: Any) -> tuple[Any, Labels]:
        """(the graph after the control [n, n], community of each client [n]), Eq. (12)."""
        settings, planted = self.graph, stage_settings.planted_labels(server, ids)
        weights = graph.control_stage(settings.control)(weights, planted=planted, seed=server.key("control"))
        if settings.from_test:
            return weights, group_labels(server.state["same"], ids)
        find = graph.groups_stage(settings.groups)
        return weights, find(weights, seed=settings.seed, resolution=settings.resolution, planted=planted)

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return Message()

    def use(self, client: ClientView, message: Message) -> Params:
        params: Params = client.state["params"]
        return params

    def class_vectors(self, view: View[Any]) -> ClassVectors | None:
        return ClassVectors(view.state["anchors"], view.state["known"]) if "anchors" in view.state else None


# -- the graph, Eq. (7-10) --------------------------------------------------------------------------------------------


def similarity(server: ServerView, replies: Sequence[Message], settings: GraphSettings, alpha: float) -> Array:
    """Similarity [n, n] of the clients that sent these replies: alpha Sim_head (8) + (1 - alpha) Sim_repr (10)."""
    if settings.similarity not in _OWN:
        vectors = [torch.cat([t.flatten() for _, t in sorted(reply["head"].items())]) for reply in replies]
        return graph.similarity_stage(settings.similarity)(as_points(vectors))
    anchors, owned = stacked_anchors(server, replies, settings.match)
    alpha = {"both": alpha, "heads": 1.0, "anchors": 0.0}[settings.similarity]
    outputs = head_outputs(server, replies, anchors, owned, settings.match)
    s = graph.response_similarity(outputs, owned, match=settings.match)
    s *= alpha
    s += (1 - alpha) * graph.anchor_similarity(anchors.numpy(), owned, match=settings.match)
    return s


def stacked_anchors(server: ServerView, replies: Sequence[Message], match: str) -> tuple[Tensor, npt.NDArray[np.bool_]]:
    """(anchors [n, C, d], owned [n, C]); rows of classes that a client does not own are zero.

    With `match="rows"` these rows are compared too, as in the released code. They then hold its values there: the
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


def head_outputs(
    server: ServerView, replies: Sequence[Message], anchors: Tensor, owned: Any, match: str
) -> Callable[[int, Labels], Array]:
    """Return a function of head k and m places of used anchors: outputs [m, outputs]; see `response_similarity`."""
    module = server.net.scratch().eval()
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    used = anchors[torch.from_numpy(np.ones_like(owned) if match == "rows" else owned)].to(server.net.dtype)

    def outputs(k: int, rows: Labels) -> Array:
        with torch.no_grad():
            for name, tensor in replies[k]["head"].items():
                places[name].copy_(tensor)
            asked = used if len(rows) == len(used) else used[torch.from_numpy(rows)]
            return np.asarray(module.head(asked).numpy())

    return outputs


def check_round(clients: int, settings: GraphSettings) -> None:
    """Raise ConfigError for settings that a round of more than 5,000 clients cannot have, and above MOST."""
    if clients <= stage_settings.LARGEST:
        return
    too_many = f"{clients:,} clients in a round, and above {stage_settings.LARGEST:,}"
    if clients > MOST:
        raise ConfigError(f"training.clients_per_round: {clients:,}; SFMTL-Graph compares heads of at most {MOST:,}")
    if settings.control in ("oracle", "uniform"):
        why = f"{settings.control!r} would link all pairs"
        raise ConfigError(f"method.graph.control: {too_many}, {why}: take another one")
    if settings.similarity not in _OWN:
        raise ConfigError(f"method.graph.similarity: {too_many}, take one of {', '.join(_OWN)}")
    if settings.sparsify.partition(":")[0] not in _KEPT:
        raise ConfigError(f"method.graph.sparsify: {too_many}, take 'none', 'epsilon:E', 'knn:K' or 'mutual:K'")
    if settings.groups.partition(":")[0] not in _OF_NEIGHBOURS:
        raise ConfigError(f"method.graph.groups: {too_many}, take {', '.join(map(repr, _OF_NEIGHBOURS))}")


def nearest_only(similar: Any, sparsify: str) -> sp.csr_array:
    """Return the graph that links each client with its nearest, from similarities of all pairs [n, n].

    Only positive similarities count. knn:K and mutual:K take the K nearest, other stages the 16 nearest.
    """
    stage, _, argument = sparsify.partition(":")
    n = len(similar)
    count = min(int(argument) if stage in ("knn", "mutual") else _NEAR, n - 1)
    columns, values = np.empty((n, count), dtype=np.int64), np.empty((n, count))
    for start in range(0, n, _ROWS):
        block = similar[start : start + _ROWS].astype(np.float64)
        block[np.arange(len(block)), start + np.arange(len(block))] = -np.inf
        here = slice(start, start + len(block))
        columns[here] = np.argpartition(-block, count - 1, axis=1)[:, :count]
        values[here] = np.take_along_axis(block, columns[here], axis=1)
    kept = values > 0
    if stage == "epsilon":
        kept &= values >= float(argument)
    rows = np.repeat(np.arange(n), count)[kept.ravel()]
    directed = sp.csr_array((values[kept], (rows, columns[kept])), shape=(n, n))
    return sp.csr_array(graph.symmetrise(directed, mutual=stage == "mutual"))


# -- means inside communities -----------------------------------------------------------------------------------------


def community_anchors(replies: Sequence[Message], labels: Labels, classes: int) -> list[Tensor]:
    """For each client, the n_k-weighted mean anchor of its owned classes over its community, Eq. (14).

    A class is averaged over the members that own it.
    """
    width = replies[0]["anchors"].shape[1]
    anchors: list[Tensor] = [reply["anchors"] for reply in replies]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label).tolist()
        total = torch.zeros(classes, width, dtype=torch.float64)
        count = torch.zeros(classes, 1, dtype=torch.float64)
        for k in members:
            total[replies[k]["classes"]] += replies[k]["n"] * replies[k]["anchors"].double()
            count[replies[k]["classes"]] += replies[k]["n"]
        for k in members:
            rows = replies[k]["classes"]
            anchors[k] = (total[rows] / count[rows]).to(replies[k]["anchors"].dtype)
    return anchors


def community_bodies(replies: Mapping[str, Message], labels: Labels) -> list[Params]:
    """For each client, the n_k-weighted mean body of its community, as Eq. (14) for anchors; not in the paper.

    labels: community of each client [n], in the order of `replies`. A client alone keeps its body, bit for bit.
    """
    members: dict[int, list[str]] = {}
    for id, label in zip(replies, labels.tolist(), strict=True):
        members.setdefault(label, []).append(id)
    means = {
        label: weighted_mean({id: replies[id]["body"] for id in ids}, {id: float(replies[id]["n"]) for id in ids})
        for label, ids in members.items()
    }
    return [means[label] for label in labels.tolist()]
