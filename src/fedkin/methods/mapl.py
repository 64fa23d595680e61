"""MAPL: peers with different models align their features by shared prototypes and learn whom to share them with.

Mukherjee, Simonetto, Jamali-Rad. MAPL: Model agnostic peer-to-peer learning, 2024. Equations, algorithms and lines are
the paper's. MAPL+ is for peers with equal models, which mix their bodies too (the paper's Table 9).
`docs/methods/mapl.md` says where paper, released code and this file differ.

Edges: the paper sends nothing along an edge of weight 0 and does not say how the sender learns of this. Here the
receiver decides, because w_ij is its interest in neighbour j. A neighbour sends until it is asked to stop, and sends
again when asked to (the paper's future work on exploration). A lost request does no harm: an unwanted neighbour
continues to send and is asked to stop again, and a probe can be repeated in a later round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin import graph
from fedkin.codec import Tree
from fedkin.federation import AnyRoster, Task
from fedkin.federation.inputs import concatenated
from fedkin.flow import ClassVectors, Fit, Message, Params, PeerFlow, PeerMethod, Share
from fedkin.forms import COUNT, HEAD, Each, Fields, Flag, Number, Shaped, Weights
from fedkin.graph import Graph
from fedkin.graph.mixing import collaboration_weights, gradient_step, relative_similarity, sign_step
from fedkin.learning import contrastive
from fedkin.learning.aggregate import Rule, aggregated
from fedkin.learning.augment import Augment
from fedkin.learning.losses import Batch
from fedkin.learning.net import BodyHead, Net, head_of
from fedkin.methods.blocks.model_mixing import mixing_matrix
from fedkin.methods.blocks.vectors import Array
from fedkin.settings import Settings, one_of
from fedkin.views import PeerView, View

Row = dict[str, float]

_PAPER, _SOLVED = (0.1, 0.5), (0.01, 20.0)  # (mu2, beta)


class CollaborationSettings(Settings):
    """How a peer learns its weights (CGL), and which edges it drops.

    on: false keeps equal weights in all rounds.
    terms: what speaks for a peer in Eq. 7: similarity s and confidence gamma ("both"), or one of them (Table 3).
    "similarity" treats all counts of samples as equal, "confidence" all heads as equal (s = 1).
    step: "solve": the optimum of the graph objective, every round; "paper": Algorithm 2, `steps` (E_g) projected
    gradient steps of `rate` (eta) from the last weights; "released": the released code's sign step of `rate`. Both
    have the paper's confidence gamma, as a share of the samples of all peers heard so far.
    similarity: of two heads, the cosine of their changes since the common start ("change"), of their weights
    ("weights"), or the mean cosine of the weights' rows ("rows"). None: step "solve" takes "change", "paper" "weights",
    "released" "rows".
    mu1, mu2, beta: weights of similarity, of both regularisers, and of the norm (Eq. 7, 8); None: 0.01 and 20 for
    "solve", 0.1 and 0.5 (the paper's) for the others. eps: inside the logarithm (Eq. 8).
    alike: for "solve"; from this similarity on, the best neighbour counts as much as the peer itself.
    threshold: a weight of 0, or below threshold / (number of neighbours + 1), is no edge, and nothing is sent on it.
    None: 0.1 for "solve", 0 for "paper"; "released" keeps every edge.
    probe: probability, each round, that a neighbour without an edge is asked for a message again.
    """

    on: bool = True
    terms: Literal["both", "similarity", "confidence"] = "both"
    step: Literal["solve", "paper", "released"] = "solve"
    similarity: Literal["change", "weights", "rows"] | None = None
    mu1: float = Field(0.5, ge=0)
    mu2: float | None = Field(None, ge=0)
    beta: float | None = Field(None, ge=0)
    eps: float = Field(1e-6, gt=0)
    rate: float = Field(0.1, gt=0)
    steps: int = Field(1, ge=1)
    alike: float = Field(0.45, gt=0, le=1)
    threshold: float | None = Field(None, ge=0, lt=1)
    probe: float = Field(0.01, ge=0, le=1)

    def row(
        self, own: str, heads: Mapping[str, Params], start: Params, counts: Mapping[str, int],
        last: Mapping[str, float],
    ) -> Row:  # fmt: skip
        """Return w_i over these peers, `own` included, by id; it sums to 1.

        start: the head that all peers began with; counts: numbers of training samples of these peers, and of others
        that were heard before; last: the previous weights, 0 for missing peers.
        """
        ids = sorted(heads)
        index = ids.index(own)
        counts = dict.fromkeys(counts, 1) if self.terms == "similarity" else counts
        n = np.array([counts[id] for id in ids], dtype=np.float64)
        s = np.ones(len(ids))
        if self.terms != "confidence":
            kind = self.similarity or {"solve": "change", "paper": "weights", "released": "rows"}[self.step]
            s = similarity(kind, [heads[id] for id in ids], start, index)
        if self.step == "solve":
            return dict(zip(ids, self.solved(s, index, n).tolist(), strict=True))
        w = np.array([last.get(id, 0.0) for id in ids])
        w = w / w.sum() if w.sum() > 0 else np.full(len(ids), 1 / len(ids))
        mu2, beta = self._weights
        gamma = n / sum(counts.values())
        if self.step == "paper":
            w = gradient_step(
                w, s, index, gamma=gamma, mu1=self.mu1, mu2=mu2, beta=beta, eps=self.eps, rate=self.rate,
                steps=self.steps,
            )  # fmt: skip
        else:
            s = released_similarity(s, index)
            w = sign_step(w, s, index, gamma=gamma, mu1=self.mu1, mu2=mu2, beta=beta, rate=self.rate)
        return dict(zip(ids, w.tolist(), strict=True))

    def solved(self, s: Array, own: int, n: Array) -> Array:
        """The weights [m] that step "solve" gives for similarities s and sample counts n, both [m]."""
        s, trust = relative_similarity(s, own, alike=self.alike), n / n.mean()
        mu2, beta = self._weights
        # `count` is about the number of similar peers. Equal weights on so many have the norm 1 / sqrt(count): in this
        # unit the result depends neither on the number of peers nor on the number of clusters.
        count = float((trust * np.square(np.maximum(s, 0.0))).sum())
        beta = beta * np.sqrt(count)
        return collaboration_weights(s, own, trust=trust, mu1=self.mu1, mu2=mu2, beta=beta, eps=self.eps)

    def smallest_weight(self, neighbours: int) -> float | None:
        """The smallest weight of an edge for a peer with this number of neighbours; None: every pair has an edge."""
        if self.threshold is None and self.step == "released":
            return None
        threshold = (0.1 if self.step == "solve" else 0.0) if self.threshold is None else self.threshold
        return threshold / (neighbours + 1)

    @property
    def _weights(self) -> tuple[float, float]:
        mu2, beta = _SOLVED if self.step == "solve" else _PAPER
        return mu2 if self.mu2 is None else self.mu2, beta if self.beta is None else self.beta


# Sent along an edge in every round; a neighbour that wants no messages gets only a request, if there is one.
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
    absent: weight of a peer's prototype of a class without samples at that peer; with samples it is 1. absent = 1 is
    the paper's plain sum. With absent = 0, a class that no peer with a weight owns keeps the peer's own prototype.
    warmup: T_thr: the first round that learns weights; before it they are equal. Below 1 it is a fraction of
    `training.rounds`; the paper's 100 of 400 rounds are 0.25.
    graph: how weights are learned, and which edges are dropped. augment: the random views.
    """

    name = "mapl"
    title = "MAPL"
    paper = "Mukherjee, Simonetto and Jamali-Rad, 2024"
    kind = "peer"
    travels = "class prototypes, owned classes; after the warm-up head and count, on learned edges only"
    unlike_models = True
    needs_classes = True
    weighs_classes = False
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

    def check(self, federation: AnyRoster) -> None:
        self.augment.check(federation.task)

    def equip(self, net: Net, task: Task, key: int) -> Net:
        """Add a projection f_psi and prototypes xi [K, d] to body and head (Section 4.1)."""
        width = net.width(task)

        def modules() -> dict[str, nn.Module]:
            projection = contrastive.Projection(width, self.hidden or 8 * width, width)
            return {"projection": projection, "prototypes": contrastive.prototypes(task.classes, width)}

        return net.extended(modules, key)

    def join(self, peer: PeerView) -> None:
        """Set a peer's state.

        dropped: neighbours that it asked to stop, sorted; refused_by: neighbours that asked it to stop, sorted. params:
        body theta_i, head phi_i, projection psi_i and prototypes xi_i ("prototypes.weight" [K, d], mixed). weights: the
        row w_i of its last round, by peer id, itself included; it sums to 1. samples: numbers of training samples of
        all peers heard so far.
        """
        peer.state.update(
            {"params": peer.initial, "weights": {peer.id: 1.0}, "samples": {}, "dropped": [], "refused_by": []}
        )

    def round(self, peer: PeerView) -> PeerFlow[None]:
        """Algorithm 3 at one peer i, one round t."""
        # Line 2, local step 1 (PML, Algorithm 1): h_i and xi_i descend the regularised loss, Eq. 2.
        fitted = yield from Fit(peer.state["params"], self.objective())
        to = [id for id in peer.neighbours if id not in peer.state["refused_by"]]
        row: Row | None = None
        wants: dict[str, bool] = {}
        # Line 3: t >= T_thr.
        if self.graph.on and peer.round >= peer.training.rounds_of(self.warmup):
            # Line 4: share the classifier head with the neighbours.
            head = Message(head=head_of(fitted.params), n=peer.size)
            heads = yield from Share(dict.fromkeys(to, head), phase="head")
            # Line 5, local step 2 (CGL, Algorithm 2): learn w_i, Eq. 9. Edges of weight 0 are dropped.
            learned = self.weights(peer, {peer.id: head, **heads})
            row = pruned(learned, peer.id, self.graph.smallest_weight(len(peer.neighbours)))
            wants = requests(
                peer.state, peer.neighbours, learned.keys(), row.keys(),
                lambda id: peer.rng(f"probe {id}").random() < self.graph.probe,
            )  # fmt: skip
        # Line 7: share the prototypes with the neighbours.
        own = self.message(peer, fitted.params)
        inbox = yield from Share(outbox(to, own, wants), phase="prototypes")
        store_requests(peer.state, inbox)
        # Line 8, local step 3: xi_i <- w_ii xi_i + sum_j w_ij xi_j, over the neighbours j whose message arrived.
        messages = {peer.id: own, **{id: message for id, message in inbox.items() if "prototypes" in message}}
        equal = {id: 1 / len(messages) for id in sorted(messages)}
        row = equal if row is None else restricted(row, peer.id, messages)
        peer.state.update({"params": self.mixed(peer, fitted.params, messages, row), "weights": row})

    def objective(self) -> TwoViews:
        """The local objective, Eq. 2-5."""
        weights = self.ce, self.cont, self.proto, self.uni
        return TwoViews(self.augment, *weights, self.temperature, self.spread, self.variant)

    def weights(self, peer: PeerView, heads: Mapping[str, Message]) -> Row:
        """Return this round's weights of the peer and of all peers in `heads`, before edges are dropped, Eq. 6-9."""
        samples = peer.state["samples"] = {**peer.state["samples"], **{id: each["n"] for id, each in heads.items()}}
        return self.graph.row(
            peer.id, {id: message["head"] for id, message in heads.items()}, head_of(peer.initial), samples,
            previous(peer.id, heads, peer.state["weights"], peer.state["dropped"]),
        )  # fmt: skip

    def message(self, peer: PeerView, params: Params) -> Message:
        """Return what is sent along an edge in every round: prototypes [K, d] and which classes the peer owns [K]."""
        return Message(prototypes=params["prototypes.weight"], owned=owned_classes(peer))

    def mixed(self, peer: PeerView, params: Params, messages: Mapping[str, Message], row: Row) -> Params:
        """Return the peer's parameters with mixed prototypes; all other parameters stay its own."""
        sets = {id: messages[id]["prototypes"] for id in row}
        owned = {id: messages[id]["owned"] for id in row}
        return {**params, "prototypes.weight": mixed_prototypes(peer.id, sets, owned, row, self.absent)}

    def use(self, peer: PeerView) -> Params:
        params: Params = peer.state["params"]
        return params

    def report(self, peer: PeerView) -> Message:
        return Message(weights=peer.state["weights"])

    def graph_of(self, reports: Mapping[str, Message]) -> Graph:
        """The weights of every peer's last round."""
        return learned_graph({id: report["weights"] for id, report in reports.items()})

    def class_vectors(self, view: View[Any]) -> ClassVectors:
        assert isinstance(view, PeerView)
        return ClassVectors(view.state["params"]["prototypes.weight"], owned_classes(view))


class MaplPlus(Mapl):
    """MAPL, with theta_i <- sum_j w_ij theta_j for the bodies; projection and head stay a peer's own.

    aggregate: the rule that combines bodies; updates are measured from the peer's own body
    (`fedkin.learning.aggregate.aggregated`). The other settings are those of MAPL.
    """

    name = "mapl-plus"
    title = "MAPL+"
    travels = "what MAPL sends, and the body"
    unlike_models = False
    shares: ClassVar[Mapping[str, Any]] = {
        **Mapl.shares,
        "prototypes": [{**SHARED, "body": Weights(only="body.")}, {"want": Flag()}],
    }

    aggregate: Rule = "mean"

    def message(self, peer: PeerView, params: Params) -> Message:
        """What MAPL sends, and the body."""
        body = {name: tensor for name, tensor in params.items() if name.startswith("body.")}
        return Message(**super().message(peer, params), body=body)

    def mixed(self, peer: PeerView, params: Params, messages: Mapping[str, Message], row: Row) -> Params:
        """Return the peer's parameters with mixed prototypes and a mixed body."""
        bodies = {id: messages[id]["body"] for id in row}
        mixed = aggregated(bodies, row, self.aggregate, bodies[peer.id])
        return {**super().mixed(peer, params, messages, row), **mixed}


# -- local step 1 (PML, Algorithm 1): the local objective -------------------------------------------------------------


@dataclass(frozen=True)
class TwoViews:
    """ce * l_ce + cont * l_cont + proto * l_proto + uni * l_uni over two random views of each sample (Eq. 2-5).

    The model has a module `projection` and parameters "prototypes.weight" [K, d]. A term of weight 0 is left out.
    """

    augment: Augment
    ce: float
    cont: float
    proto: float
    uni: float
    temperature: float
    spread: float
    form: contrastive.Form

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        # Line 2: two views of each sample. Lines 3 and 4: their features z and projections p.
        z, y = model.features(self.augment(concatenated([batch.x, batch.x]))), torch.cat([batch.y, batch.y])
        xi = model.params["prototypes.weight"]
        # Lines 5 and 6: the local loss l_ce + l_cont, Eq. 3. Line 8: the regulariser l_proto + l_uni, Eq. 4.
        value = self.ce * F.cross_entropy(model.head(z), y, reduction="none").mean()
        if self.cont or self.proto:
            p = cast(Any, model).projection(z)
            if self.cont:
                value = value + self.cont * contrastive.supervised_contrastive(p, y, self.temperature, self.form)
            if self.proto:
                value = value + self.proto * contrastive.prototype_loss(p, y, xi, self.temperature, self.form)
        if self.uni:
            value = value + self.uni * contrastive.uniformity_loss(xi, self.spread, self.form)
        return value


# -- local step 2 (CGL, Algorithm 2): a row of weights; its solver is in fedkin.graph.mixing -------------------


def similarity(kind: str, heads: Sequence[Params], start: Params, own: int) -> Array:
    """s_i [n] in [-1, 1]: the cosine of head `own` with each of the heads, 1 with itself; biases are left out.

    kind, start: see `CollaborationSettings`.
    """
    rows = np.stack([_rows(head) for head in heads])
    if kind == "change":
        rows = rows - _rows(start)
    if kind != "rows":
        rows = rows.reshape(len(rows), 1, -1)
    unit = graph.similarity.unit(rows)
    alike = np.clip((unit * unit[own]).sum(-1).mean(-1), -1.0, 1.0)
    alike[own] = 1.0
    return np.asarray(alike)


def _rows(head: Params) -> Array:
    """The weights of a head's last layer, one row per output; of a head without a matrix, everything as one row."""
    matrices = [_plain(tensor) for _, tensor in sorted(head.items()) if tensor.ndim == 2]
    return matrices[-1] if matrices else np.concatenate([_plain(t).ravel() for _, t in sorted(head.items())])[None]


def _plain(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().double().numpy())


def released_similarity(s: Array, own: int) -> Array:
    """Divide `s` by the largest value of the others, whatever its sign, as the released code does; own entry 1."""
    others = np.delete(s, own)
    scaled = s / others.max() if others.size and others.max() != 0 else s.copy()
    scaled[own] = 1.0
    return np.asarray(scaled)


def previous(own: str, heard: Collection[str], weights: Mapping[str, float], dropped: Iterable[str]) -> Row:
    """Return the weights that this round's step starts from: the last ones, and an equal share for new peers.

    Dropped peers start with 0. A peer that has not mixed with others yet starts with equal weights.
    """
    last = weights if weights.keys() - {own} else {}
    return dict.fromkeys(heard, 1 / len(heard)) | dict.fromkeys(dropped, 0.0) | dict(last)


def pruned(row: Row, own: str, low: float | None) -> Row:
    """The row without other peers of weight 0 or below `low` (None: keep all), scaled to sum to 1."""
    return restricted(row, own, {id for id, w in row.items() if low is None or (w > 0 and w >= low)})


def restricted(row: Row, own: str, ids: Container[str]) -> Row:
    """The row's entries of `own` and of `ids`, scaled to sum to 1."""
    weights = {id: w for id, w in row.items() if id == own or id in ids}
    total = sum(weights.values())
    return {id: w / total for id, w in weights.items()} if total > 0 else {own: 1.0}


def learned_graph(rows: Mapping[str, Mapping[str, float]]) -> Graph:
    """The peers' rows of weights as a graph: `mixing` holds the rows, `weights` their symmetric mean.

    The groups are the communities that Leiden finds in the symmetric mean.
    """
    ids, mixing = mixing_matrix(rows)
    weights = (mixing + mixing.T) / 2
    np.fill_diagonal(weights, 0.0)
    return Graph(ids, weights, groups=graph.by_id(ids, graph.leiden(weights)), mixing=mixing)


# -- local step 3 (Algorithm 3, line 8): the mean of prototypes -------------------------------------------------------


def mixed_prototypes(
    own: str, sets: Mapping[str, Tensor], owned: Mapping[str, Tensor], weights: Mapping[str, float], absent: float = 0.0
) -> Tensor:
    """Prototypes [K, d] of peer `own` after the exchange (Algorithm 3, line 8, with trust in the owners of a class).

    xi^k <- sum_j w_j t_j^k xi_j^k / sum_j w_j t_j^k, with t_j^k = 1 if peer j has samples of class k, else `absent`.
    A class with sum 0 keeps the prototype of `own`.
    sets: prototypes [K, d] by peer; owned: bool [K] by peer; weights: row w of `own`, over peers in both.
    absent: in [0, 1]; 1 is the paper's weighted sum.

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
    return torch.where(total[:, None] > 0, mean.to(sets[own].dtype), sets[own])


def owned_classes(peer: PeerView) -> Tensor:
    """Whether the peer has training samples of each class, bool [K]."""
    return torch.bincount(peer.train.labels(), minlength=peer.task.classes) > 0


# -- which edges carry messages ---------------------------------------------------------------------------------------


def requests(
    state: dict[str, Any], neighbours: Sequence[str], heard: AbstractSet[str], kept: AbstractSet[str],
    probes: Callable[[str], bool],
) -> dict[str, bool]:  # fmt: skip
    """Return {neighbour: False to ask it to stop sending, True to send again}; update `state["dropped"]`.

    heard: peers that sent a head in this round; kept: those of them with an edge of enough weight;
    probes(id): whether to ask a neighbour that was dropped in an earlier round for a message now.
    """
    dropped, before = heard - kept, set(state["dropped"]) - heard
    state["dropped"] = sorted(before | dropped)
    # A silent neighbour that was not dropped may still hold a request that this peer made before it left and came back.
    again = [id for id in neighbours if id not in heard and (id not in before or probes(id))]
    return dict.fromkeys(sorted(dropped), False) | dict.fromkeys(again, True)


def outbox(to: Iterable[str], message: Message, wants: Mapping[str, bool]) -> dict[str, Message]:
    """Return one message per receiver; a request travels with that message, or alone if there is none."""
    out = dict.fromkeys(to, message)
    for id, want in wants.items():
        out[id] = Message(**out.get(id, Message()), want=want)
    return dict(sorted(out.items()))


def store_requests(state: dict[str, Any], inbox: Mapping[str, Message]) -> None:
    """Update `state["refused_by"]` with the neighbours' requests."""
    wants = {id: message["want"] for id, message in inbox.items() if "want" in message}
    still = set(state["refused_by"]) - wants.keys()
    state["refused_by"] = sorted(still | {id for id, want in wants.items() if not want})
