"""FLT: clients send k centres of their encoded data once; the server finds related clients and averages their models.

H. Jamali-Rad, M. Abdizadeh, A. Singh. Federated learning with taskonomy for non-IID data. IEEE Transactions on Neural
Networks and Learning Systems 34(11), 2022. Line numbers are the paper's. `docs/methods/flt.md` says where paper,
released code and this file differ.

    Algorithm 2, FCR (form client relatedness)
      client   3-7     fine-tune the encoder G for J epochs; E_m = G(D_m)
               8-10    M_m = kMEANS(E_m), its k centres
      server   13, 14  Z = UMAP(M)
               15, 16  A_ij = min |u_ir - u_js| over the centres of i and j
               17      i and j are neighbours where A_ij < gamma
               18, 19  C = hierarchical clusters of the thresholded A
    Algorithm 3, FLT
      2        FCR
      4-13     the clients m of S^t train E epochs from w_m, and raise a flag if their data have changed
      16, 17   Case I:  w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j  over neighbours
      18-20    Case II: w_c = sum of n_m w_m / sum of n_m          over the members of a group
      21-27    once lambda flags are up, or every tau rounds: FCR again
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import AfterValidator, Field, model_validator
from scipy.spatial.distance import pdist, squareform
from torch import Tensor, nn

from fedkin import graph
from fedkin.errors import ConfigError, imported
from fedkin.federation import AnyRoster, Samples
from fedkin.federation.samples import hash_of
from fedkin.flow import Ask, ClientFlow, Fit, Infer, Mean, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import COUNT, NET, Flag, Number, Shaped, Sums, Upto
from fedkin.keys import key, rng
from fedkin.learning import encoders
from fedkin.learning.aggregate import Rule, aggregated, weighted_mean
from fedkin.learning.encoders import moments
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.methods.blocks import stage_settings
from fedkin.methods.blocks.averaging import mean_asked
from fedkin.methods.blocks.clusters import cluster_means, continued
from fedkin.methods.blocks.signatures import by_content, due, unsigned
from fedkin.methods.blocks.vectors import Array, Labels
from fedkin.settings import Settings
from fedkin.views import ClientView, ServerView

if TYPE_CHECKING:
    from fedkin.data.dataset import Dataset

Shape = tuple[int, ...]
Sets = Sequence[Any]  # each client's centres [k, d], or another signature

_MEMBERS = 10  # members of each group that a client is compared with if there are too many pairs
_ROWS = 2000  # clients that are compared at a time
_DENSE = 1000  # up to this many clients, a graph is recorded as a dense matrix


# -- settings ---------------------------------------------------------------------------------------------------------


class EncoderSettings(Settings):
    """The encoder: its kind, the data on which the server trains it, and how clients fine-tune it.

    kind: "grey" and "colour" convolutional autoencoders, "mlp", "linear", or "none" (the inputs themselves); "auto" is
    "none" if no encoder is pretrained, else the kind that suits the inputs.
    dims: length of a code (None: 128, or the inputs' size if that is less).
    pretrain: name of a data source that the server owns (None: the encoder keeps its random initial values).
    classes: use only these classes of it. limit: use at most this number of its training samples.
    epochs, batch_size, lr: of pretraining with Adam; batch_size and lr also of fine-tuning.
    fine_tune: J, epochs of every client on its own samples before it encodes them.
    seed: of initial values, samples and batches; not the run's seed, so that runs of all seeds have one encoder.
    """

    kind: Literal["auto", "grey", "colour", "mlp", "linear", "none"] = "auto"
    dims: int | None = Field(None, ge=1)
    pretrain: str | None = None
    classes: tuple[int, ...] | None = None
    limit: int | None = Field(None, ge=1)
    epochs: int = Field(5, ge=1)
    batch_size: int = Field(64, ge=1)
    lr: float = Field(1e-3, gt=0)
    fine_tune: int = Field(5, ge=0)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> EncoderSettings:
        if self.kind == "none" and self.pretrain is not None:
            raise ValueError("pretrain: kind 'none' has nothing to train; choose another kind")
        if self.pretrain is None and (self.classes is not None or self.limit is not None):
            raise ValueError("classes and limit say what of a data set to pretrain on: name it in pretrain")
        return self

    @property
    def raw(self) -> bool:
        """Whether codes are the inputs themselves."""
        return self.kind == "none" or (self.kind == "auto" and self.pretrain is None)

    def net(self, shape: Shape) -> Net | None:
        """The autoencoder for inputs of this shape; None for raw inputs. Raises ConfigError for other inputs."""
        if self.raw:
            return None
        kind: encoders.Kind = encoders.kind_for(shape) if self.kind == "auto" else self.kind  # type: ignore[assignment]
        return encoders.encoder_net(kind, shape, self.length(shape), self.seed)

    def length(self, shape: Shape) -> int:
        """The length of the code for inputs of this shape."""
        if self.raw:
            return math.prod(shape)
        return min(128, math.prod(shape)) if self.dims is None else self.dims

    def training(self, epochs: int) -> Training:
        """How an autoencoder is trained."""
        return Training(optimiser="adam", lr=self.lr, batch_size=self.batch_size, local_epochs=epochs)

    def pretrained(self, shape: Shape, public: Callable[[str], Dataset]) -> tuple[Params, dict[str, Any]]:
        """At the server: (initial parameters, moments of the inputs it was pretrained on).

        The moments are empty for images, and without pretraining.
        """
        net = self.net(shape)
        if net is None or self.pretrain is None:
            return ({} if net is None else net.initial), {}
        dataset = public(self.pretrain)
        samples = encoders.chosen(dataset, self.classes, self.limit, self.seed)
        if dataset.task.shape != shape:
            shapes = f"the inputs of {dataset.name} have shape {dataset.task.shape}, the clients' have {shape}"
            raise ConfigError(f"method.encoder.pretrain: {shapes}; choose a data set of that shape")
        count, total, squares = moments(samples)
        sums = {} if len(shape) == 3 else {"count": count, "total": total, "squares": squares}
        view = view_of(samples, shape, sums)
        title = f"pretraining the encoder on {dataset.name}"
        return encoders.pretrained(net, samples, self.training(self.epochs), self.seed, view, title), sums

    def check(self, federation: AnyRoster) -> None:
        """Raise ConfigError for inputs that the encoder cannot take."""
        how = "choose a method that groups clients without an encoder: method.name = 'ifca' or 'cfl'"
        shape = federation.task.numbers("method.encoder", how)
        net = self.net(shape)
        if net is None or not any(isinstance(layer, nn.Sigmoid) for layer in net.module.head.modules()):
            return
        for id, client in federation.items():
            for now in client.phases:
                _check_brightness(id, now.train)


def _check_brightness(id: str, samples: Samples) -> None:
    if not len(samples):
        return
    divide = 1.0 if samples.scale is None else samples.scale.divide
    low, high = (float(value) / divide for value in samples.own().x.aminmax())  # type: ignore[union-attr]
    if low < 0 or high > 1:
        raise ConfigError(
            f"method.encoder.kind: an autoencoder of images reads brightness from 0 to 1, those of client {id!r} run "
            f"from {low:g} to {high:g}: give its samples a scale that divides by the brightest value, or take kind "
            "'linear' or 'none'"
        )


def _at_least(low: int) -> AfterValidator:
    def check(value: float | str) -> float | str:
        if not isinstance(value, str) and value < low:
            raise ValueError(f"expected a number of at least {low}")
        return value

    return AfterValidator(check)


Gamma = Annotated[float | Literal["groups", "gap"], _at_least(0)]


class GraphSettings(Settings):
    """How distances between clients become their graph.

    gamma: clients nearer than this are neighbours. "groups" puts it halfway between the mean distance inside the groups
    and that to the nearest other group, "gap" into the widest gap between all distances.
    adjacency: "hard" (1 below gamma) or "soft" (exp(-(distance / gamma)^2)).
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    gamma: Gamma = "groups"
    adjacency: Literal["hard", "soft"] = "hard"
    control: stage_settings.ControlStage = "none"


class RelatednessSettings(GraphSettings):
    """How centres become a graph of clients and groups, Algorithm 2, lines 13 to 19.

    embedding: "umap" (the paper's), "pca" or "none" (distances between the centres themselves), to `dims` dimensions,
    fitted on the centres of all clients. neighbours, min_dist: UMAP's.
    distance: between two clients' sets of centres, "min" (the paper's) or "matching" (the released code's).
    gamma: as in GraphSettings; the paper's 1 is a distance in UMAP's embedding. adjacency, control: as there.
    groups: a number of groups, or how it is found from the hierarchy: "gap", "ratio" or "silhouette", at most `most`
    (None: half the number of clients, and at most 30). linkage: of the hierarchy.
    cluster: the hierarchy is made from distances between the "rows" of the adjacency (the paper's), or from the
    "distances" themselves.
    """

    embedding: Literal["umap", "pca", "none"] = "umap"
    dims: int = Field(2, ge=1)
    neighbours: int = Field(15, ge=2)
    min_dist: float = Field(0.1, ge=0, le=1)
    distance: Literal["min", "matching"] = "min"
    gamma: Gamma = 1.0
    groups: Annotated[int | Literal["gap", "ratio", "silhouette"], _at_least(1)] = "gap"
    most: int | None = Field(None, ge=2)
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    cluster: Literal["rows", "distances"] = "rows"


# -- Algorithm 3: rounds of averaging along a graph of related clients ------------------------------------------------


class Related(NamedTuple):
    """What Algorithm 2 returns: adjacency [n, n] with a zero diagonal, groups [n], gamma, and the distances [n, n]."""

    adjacency: Array
    groups: Labels
    gamma: float
    between: Array


class Taskonomy(ServerMethod):
    """Algorithm 3, for any signature and any way from signatures to a graph and groups.

    average: inside "groups" (Case II) or over "neighbours" (Case I), weighted by n_j over the round's participants.
    stale: clients that did not take part enter the averages with the model that they have. aggregate: as in FedAvg.
    regroup_changed: lambda; once so many clients have changed data, they sign again and groups are made again (None:
    never). regroup_every: tau; every tau rounds all clients do so (None: never).
    """

    by_client: ClassVar[tuple[str, ...]] = ("signatures", "group", "model", "changed", "sizes")
    kind = "clustered"

    average: Literal["groups", "neighbours"] = "groups"
    stale: bool = False
    aggregate: Rule = "mean"
    regroup_changed: int | None = Field(1, ge=1)
    regroup_every: int | None = Field(None, ge=1)
    if TYPE_CHECKING:
        graph: GraphSettings = GraphSettings()  # a setting of each method

    def check(self, federation: AnyRoster) -> None:
        stage_settings.needs_planted(federation, control=self.graph.control)
        # Case I and the controls compare all pairs of clients.
        if self.average != "groups":
            stage_settings.check_size(len(federation.seen), f"method.average: {self.average!r}", "take 'groups'")
        if self.graph.control != "none":
            what = f"method.graph.control: {self.graph.control!r}"
            stage_settings.check_size(len(federation.seen), what, "take 'none'")

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        The numbers of groups and of models are counted from 0. signatures: {client id: its centres [k, d], or another
        signature}. row: {client id: row} in the adjacency. adjacency: [n, n], booleans if all weights are 0 or 1, else
        floats; zero diagonal; of the first 5,000 clients only. gamma: the distance below which two clients are
        neighbours. founders: number of clients that graph and groups were made from; they have the first rows,
        newcomers the rows after them. group: {client id: number of its group}. models: {number as text: params}. model:
        {client id: number as text} of the model that the client has. In Case II these are the groups' numbers. changed:
        {client id: True} of clients whose data are no longer those of their signature (the paper's Delta). sizes:
        {client id: n_j}, with `stale` only. encoder: the encoder's parameters that clients need. moments: count, total
        and squares of the inputs that it was trained on, or of the clients' inputs; empty for images.

        A client's state: signed, a hash of the samples that its signature stands for.
        """
        server.state = {
            "signatures": {}, "row": {}, "founders": 0, "group": {}, "models": {}, "model": {}, "changed": {},
            "sizes": {},
        }  # fmt: skip

    def leave(self, server: ServerView, ids: Collection[str]) -> None:
        """Forget clients and their rows of the graph; if no founder is left, the remaining clients become founders."""
        super().leave(server, ids)
        state = server.state
        order = sorted(state["row"], key=lambda id: state["row"][id])
        remaining = [id for id in order if id not in ids]
        if len(remaining) == len(order):
            return
        founders = sum(id not in ids for id in order[: state["founders"]])
        rows = [state["row"][id] for id in remaining if state["row"][id] < len(state["adjacency"])]
        state["adjacency"] = state["adjacency"][rows][:, rows]
        state["row"], state["founders"] = {id: place for place, id in enumerate(remaining)}, founders or len(remaining)

    # Each kind of signature defines the following.

    @abstractmethod
    def signatures(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        """Ask these clients for their `signature`, with `stale` also for n (Algorithm 2, lines 1 to 11)."""

    def decoded(self, signature: Tensor) -> Any:
        """Return a signature in the form that the following methods read: here the centres."""
        return np.asarray(signature.double().numpy())

    @abstractmethod
    def related(self, server: ServerView, ids: Sequence[str], sets: Sets) -> Related:
        """Graph and groups of these clients, from their signatures (Algorithm 2, lines 13 to 19)."""

    def placed(self, fitted: Sets, new: Sets, seed: int) -> tuple[Sets, Sets]:
        """Return both lists of signatures in the space where distances are measured: here unchanged."""
        return fitted, new

    @abstractmethod
    def distances(self, sets: Sets, others: Sets) -> Array:
        """The distance of each of these placed signatures to each of the others."""

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(params=NET, n=COUNT, changed=Flag() | None)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Lines 7 to 13: E epochs from w_m, and the flag delta if the data have changed."""
        fitted = yield from Fit(message.params)
        changed = self.regroup_changed is not None and client.state["signed"] != hash_of(client.train).hex()
        return Message(params=fitted.params, n=client.size, **({"changed": True} if changed else {}))

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        """Run one round. Lines 21 to 27 end a round in the paper; here they start the next one."""
        state, first = server.state, not server.state["row"]
        # 1: all clients in the first round; later, lines 23 and 24.
        joined = yield from self.form_relatedness(server, self.due_to_sign(server, sampled))  # 2, 25: FCR
        # 4 to 6: w_m goes to the clients m of S^t. After the first round, newcomers train from the next one on.
        training = [id for id in sampled if id in state["model"] and (first or id not in joined)]
        if training:
            yield from self.train_and_average(server, training)

    def train_and_average(self, server: ServerView, training: Sequence[str]) -> ServerFlow[None]:
        """Lines 4 to 22: these clients train, and the models are averaged along the graph."""
        state = server.state
        group = {id: state["model"][id] for id in training}
        replies = yield from Ask("train", {id: self.offer(server, id) for id in training}, self.mean_of(group))
        if not replies:
            return
        flags = {id: True for id, reply in replies.items() if "changed" in reply}
        state["changed"] = {**state["changed"], **flags}  # 22: Delta
        if self.average == "neighbours":
            sent = {**absent_models(state, replies), **replies} if self.stale else replies
            state["models"], state["model"] = along_edges(state, sent, self.aggregate)  # 16, 17: Case I
            return
        if self.stale:
            replies, group = with_absent(state, replies)
        # 18 to 20, Case II: w_c = sum of n_m w_m / sum of n_m
        state["models"] = cluster_means(state["models"], group, replies, "samples", self.aggregate)

    def mean_of(self, group: Mapping[str, str]) -> Mean | None:
        """The means that the server asks for, if one mean per group is enough."""
        means = self.average == "groups" and not self.stale
        return mean_asked("samples", self.aggregate, group) if means else None

    def due_to_sign(self, server: ServerView, sampled: Sequence[str]) -> list[str]:
        """Line 23: clients without a signature; those with changed data, if there are enough; every tau rounds, all."""
        state = server.state
        if due(self.regroup_every, server.round):
            return unsigned(server, sampled, ())
        enough = self.regroup_changed is not None and len(state["changed"]) >= self.regroup_changed
        flagged = state["changed"] if enough else {}
        return unsigned(server, sampled, [id for id in state["signatures"] if id not in flagged])

    def form_relatedness(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[frozenset[str]]:
        """Run Algorithm 2 with new signatures of these clients; return the clients that had no model before.

        All groups are made again if there are none yet, if a client signed again, if newcomers outnumber founders, and
        with a control graph. Otherwise newcomers join the existing groups.
        """
        state = server.state
        replies = yield from self.signatures(server, ids)  # 1 to 11
        if not replies:
            return frozenset()
        joined = frozenset(id for id in replies if id not in state["model"])
        signed_again = any(id in state["row"] for id in replies)
        newcomers = len({*state["signatures"], *replies}) - state["founders"]
        self.take_signatures(server, replies)  # 12
        if signed_again or newcomers > state["founders"] or self.graph.control != "none":
            # In an order that does not depend on ids; of very many clients, a random sample.
            order = by_content(state["signatures"], state["signatures"])
            drawn = np.sort(rng(seed_of(server), "drawn").permutation(len(order))[: stage_settings.LARGEST])
            self.make_groups(server, [order[row] for row in drawn.tolist()])
        self.attach(server)
        self.record(server)
        return joined

    def take_signatures(self, server: ServerView, replies: Mapping[str, Message]) -> None:
        """Store the received signatures and clear the flags of their senders, line 26."""
        state = server.state
        state["signatures"] = {**state["signatures"], **{id: reply["signature"] for id, reply in replies.items()}}
        state["sizes"] = {**state["sizes"], **{id: reply["n"] for id, reply in replies.items() if "n" in reply}}
        state["changed"] = {id: True for id in state["changed"] if id not in replies}

    def make_groups(self, server: ServerView, ids: Sequence[str]) -> Related:
        """Make graph and groups of these clients; a new group starts from the model of the group it comes from."""
        state = server.state
        related = self.related(server, ids, self.signed(server, ids))  # 13 to 19
        labels = related.groups.tolist()
        numbers = continued(labels, [state["group"].get(id) for id in ids], state["group"].values())
        group = {id: numbers[label][0] for id, label in zip(ids, labels, strict=True)}
        if self.average == "groups":
            state["models"] = {
                str(number): server.initial if parent is None else state["models"][str(parent)]
                for number, parent in numbers
            }
            state["model"] = {id: str(number) for id, number in group.items()}
        else:
            adopt_models(server, ids, related)
        state["group"], state["row"] = group, {id: place for place, id in enumerate(ids)}
        state["founders"], state["gamma"], state["adjacency"] = len(ids), related.gamma, stored(related.adjacency)
        return related

    def attach(self, server: ServerView) -> None:
        """Put clients without a group into the nearest group, with a model from there; no other client moves.

        A newcomer's group is the one whose founders are nearest on average.
        """
        state = server.state
        new = by_content((id for id in state["signatures"] if id not in state["row"]), state["signatures"])
        if not new:
            return
        in_order = sorted(state["row"], key=lambda id: state["row"][id])
        founders, others = in_order[: state["founders"]], in_order[state["founders"] :]
        placed = self.placed(self.signed(server, founders), self.signed(server, [*others, *new]), seed_of(server))
        known, fresh = [*placed[0], *placed[1][: len(others)]], placed[1][len(others) :]
        labels = np.array([state["group"][id] for id in founders])
        joins, closest = self.nearest(fresh, known[: len(founders)], labels, seed_of(server))
        group = dict(zip(new, joins, strict=True))
        if self.average == "groups":
            model = {id: str(number) for id, number in group.items()}
        else:
            model = {id: state["model"][founders[row]] for id, row in zip(new, closest, strict=True)}
        n, m = len(known), len(fresh)
        if n + m <= stage_settings.LARGEST:
            grown = np.zeros((n + m, n + m))
            grown[:n, :n] = state["adjacency"].double().numpy()
            rows = adjacency(self.distances(fresh, [*known, *fresh]), state["gamma"], self.graph.adjacency)
            rows[np.arange(m), n + np.arange(m)] = 0.0
            grown[n:], grown[:, n:] = rows, rows.T
            state["adjacency"] = stored(grown)
        state["group"], state["model"] = {**state["group"], **group}, {**state["model"], **model}
        state["row"] = {**state["row"], **{id: n + place for place, id in enumerate(new)}}

    def nearest(self, fresh: Sets, founders: Sets, labels: Labels, seed: int) -> tuple[list[int], list[int]]:
        """(the nearest group, the nearest founder's row) for each newcomer; of too many founders, some per group."""
        compared = np.arange(len(founders))
        if len(fresh) * len(founders) > stage_settings.LARGEST**2:
            draw = rng(seed, "members")
            members_of = [np.flatnonzero(labels == label) for label in np.unique(labels)]
            compared = np.concatenate([draw.permutation(rows)[:_MEMBERS] for rows in members_of])
        members = [founders[row] for row in compared.tolist()]
        joins, closest = [], []
        for start in range(0, len(fresh), _ROWS):
            between = self.distances(fresh[start : start + _ROWS], members)
            joins += nearest_group(between, labels[compared]).tolist()
            closest += compared[between.argmin(1)].tolist()
        return joins, closest

    def signed(self, server: ServerView, ids: Iterable[str]) -> Sets:
        """The signatures of these clients."""
        return [self.decoded(server.state["signatures"][id]) for id in ids]

    def record(self, server: ServerView) -> None:
        """Record the graph for this round; only rounds that change the graph have a record."""
        state = server.state
        ids = tuple(sorted(state["row"]))
        rows = np.array([state["row"][id] for id in ids])
        weights: Any = sp.csr_array(state["adjacency"].double().numpy())
        weights.resize((len(ids), len(ids)))  # with very many clients, only founders have edges
        weights = weights[rows][:, rows]
        if len(ids) <= _DENSE:
            weights = weights.toarray()
        server.graph = graph.Graph(ids, weights, groups={id: state["group"][id] for id in ids}, round=server.round)

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        number = server.state["model"].get(id)
        return Message(params=server.initial if number is None else server.state["models"][number])

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part send their signature, and get the model of the nearest group (or client)."""
        state = server.state
        if not state["row"]:
            return {id: self.offer(server, id) for id in ids}
        # A client without samples cannot sign: it gets the mean of all clients' models.
        clients = Counter(state["model"].values())
        models, sizes = state["models"], {number: float(clients[number]) for number in state["models"]}
        signed = yield from self.signatures(server, sorted(ids))
        if signed:
            self.take_signatures(server, signed)
            self.attach(server)
        common = weighted_mean(models, sizes) if len(signed) < len(ids) else server.initial
        return {id: self.offer(server, id) if id in signed else Message(params=common) for id in ids}


def along_edges(
    state: dict[str, Any], sent: Mapping[str, Message], aggregate: Rule
) -> tuple[dict[str, Params], dict[str, str]]:
    """Case I, lines 16 and 17: w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j, with A_mm = 1.

    Returns the new models, and the number of each client's model. All means are over the models as the clients sent
    them. A client keeps its model if neither it nor a neighbour sent one. Clients with equal rows share one model; with
    a rule other than the mean only if they shared one before, because updates are measured from it.
    """
    order = sorted(state["row"], key=lambda id: state["row"][id])
    entering = sorted(sent, key=lambda id: state["row"][id])
    columns, n = np.array([state["row"][id] for id in entering]), np.array([float(sent[id]["n"]) for id in entering])
    # {(row of weights, old model unless the mean replaces it): number of the new model}.
    numbers: dict[tuple[bytes, str], str] = {}
    models: dict[str, Params] = {}
    model: dict[str, str] = {}
    for id, adjacent in zip(order, state["adjacency"], strict=True):
        weights = adjacent.double().numpy() + (np.arange(len(order)) == state["row"][id])
        row = weights[columns] * n
        old, near = state["model"][id], np.flatnonzero(row)
        entries = near.tobytes() + row[near].tobytes()
        shared_by = (entries, "" if entries and aggregate == "mean" else old)
        if shared_by not in numbers:
            numbers[shared_by] = str(len(numbers))
            share = {entering[place]: float(row[place]) for place in near.tolist()}
            models[numbers[shared_by]] = kept = state["models"][old]
            if share:
                params = {other: sent[other].params for other in share}
                models[numbers[shared_by]] = aggregated(params, share, aggregate, kept)
        model[id] = numbers[shared_by]
    return models, model


def absent_models(state: dict[str, Any], replies: Mapping[str, Message]) -> dict[str, Message]:
    """What clients that did not reply would send: the models that they have."""
    models, model, sizes = state["models"], state["model"], state["sizes"]
    return {id: Message(params=models[model[id]], n=sizes[id]) for id in state["row"] if id not in replies}


def with_absent(state: dict[str, Any], replies: Mapping[str, Message]) -> tuple[dict[str, Message], dict[str, str]]:
    """Return the replies, and one more per group for its absent members, with the group's model.

    Also returns the group of each reply. Rules that weigh all the same count the absent members as one.
    """
    group = {id: state["model"][id] for id in replies}
    absent = dict.fromkeys(group.values(), 0.0)
    for id, number in state["model"].items():
        if number in absent and id not in replies:
            absent[number] += state["sizes"][id]
    # No client has such an id, and it comes before all others.
    members = {f"\0{number}": number for number, n in absent.items() if n}
    kept = {id: Message(params=state["models"][number], n=absent[number]) for id, number in members.items()}
    return {**kept, **replies}, {**members, **group}


def adopt_models(server: ServerView, ids: Sequence[str], related: Related) -> None:
    """Case I: a client without a model takes the model of its strongest neighbour that has one.

    Without such a neighbour it takes the model of the nearest client in its group that has one; if no member has one,
    the initial model.
    """
    state = server.state
    if not state["model"]:
        state["models"], state["model"] = {"0": server.initial}, dict.fromkeys(ids, "0")
        return
    has_model = np.array([id in state["model"] for id in ids])
    givers = np.flatnonzero(has_model)
    initial = str(1 + max(map(int, state["models"])))
    model = {}
    for row in np.flatnonzero(~has_model).tolist():
        strength = related.adjacency[row, givers]
        fellows = givers[related.groups[givers] == related.groups[row]]
        if strength.any():
            model[ids[row]] = state["model"][ids[givers[strength.argmax()]]]
        elif len(fellows):
            model[ids[row]] = state["model"][ids[fellows[related.between[row, fellows].argmin()]]]
        else:
            model[ids[row]] = initial
    if initial in model.values():
        state["models"] = {**state["models"], initial: server.initial}
    state["model"] = {**state["model"], **model}


def stored(weights: Array) -> Tensor:
    """The adjacency as the state stores it: booleans if all weights are 0 or 1, else floats."""
    tensor = torch.from_numpy(weights)
    return tensor.bool() if bool(((tensor == 0) | (tensor == 1)).all()) else tensor.float()


def seed_of(server: ServerView) -> int:
    """The seed of embeddings and of control graphs: the same in every round, so that a fit can be repeated."""
    return key(server.seed, "", "relatedness") >> 32


# -- from distances to a graph, lines 17 to 19 ------------------------------------------------------------------------


def threshold(between: Array, labels: Labels, gamma: float | str) -> float:
    """The gamma of line 17: the distance below which two clients are neighbours.

    "groups": halfway between the mean distance inside groups and the mean, over clients, of their group's distance to
    the nearest other group. With one group it is just above the largest distance.
    """
    if not isinstance(gamma, str):
        return float(gamma)
    if gamma == "gap":
        return graph.gap_threshold(between)
    member = np.eye(int(labels.max()) + 1)[labels]
    size = member.sum(0)
    if len(size) == 1:
        return float(np.nextafter(between.max(), np.inf))
    total = member.T @ between @ member
    mean = total / np.outer(size, size)
    np.fill_diagonal(mean, np.inf)
    outside = float((mean.min(1) * size).sum() / size.sum())
    pairs = float((size * (size - 1)).sum())
    inside = float(np.trace(total)) / pairs if pairs else 0.0
    return (inside + outside) / 2


def adjacency(between: Array, gamma: float, form: Literal["hard", "soft"] = "hard") -> Array:
    """Line 17: 1 where two clients are nearer than gamma, or the soft form exp(-(distance / gamma)^2).

    The diagonal is kept. With gamma 0 nothing is linked, in both forms.
    """
    if form == "hard":
        return (between < gamma).astype(np.float64)
    return np.exp(-np.square(between / gamma)) if gamma else np.zeros_like(between)


def nearest_group(between: Array, labels: Labels) -> Labels:
    """For each row of distances [m, n] to clients with these labels, the label that is nearest on average."""
    groups, member = np.unique(labels, return_inverse=True)
    belongs = sp.csr_array((np.ones(len(labels)), (np.arange(len(labels)), member)))
    total: Any = belongs.T @ between.T
    return np.asarray(groups[np.argmin(total.T / np.bincount(member), axis=1)])


def controlled(linked: Array, labels: Labels, control: str, seed: int, planted: Any) -> tuple[Array, Labels]:
    """The control graph in place of the learned one, and its groups; random and shuffled keep the groups' sizes."""
    if control == "none":
        return linked, labels
    changed: Any = graph.control_stage(control)(linked, seed=seed, planted=planted)
    if control == "oracle":
        return changed, graph.canonical(planted)
    if control in ("self", "uniform"):
        return changed, np.arange(len(labels)) if control == "self" else np.zeros(len(labels), dtype=np.int64)
    # The permutation that `graph.shuffled` draws from this seed.
    return changed, labels[np.random.default_rng(seed).permutation(len(labels))]


# -- FLT: Algorithm 2 -------------------------------------------------------------------------------------------------

# Sums over the clients' inputs, per feature; k centres of codes.
_SUMS = Sums(lambda at: at.task.numbers("method.encoder")[0], dtype=torch.float64)
_CENTRES = Shaped(
    Upto(lambda at: at.method.k),
    lambda at: at.method.encoder.length(at.task.numbers("method.encoder")),
    dtype=torch.float32,
)
_DISTANCES = {"matching": graph.matching, "min": graph.minimum}


class Flt(Taskonomy):
    """Clients send centres of encoded samples once; the server makes a graph and groups, and averages along these.

    k: number of centres that a client sends, at most its number of distinct samples. encoder: makes the codes. graph:
    how centres become graph and groups.

    average: inside "groups" (Case II) or over "neighbours" (Case I). stale: clients that did not take part enter the
    averages with the model that they have. aggregate: as in FedAvg. regroup_changed: after so many flags of changed
    data, these clients send centres again, and groups are made again (None: never). regroup_every: every so many rounds
    all clients do so (None: never).
    """

    name = "flt"
    title = "FLT"
    paper = "Jamali-Rad et al., TNNLS 2022"
    travels = "once: an encoder down, k centres up; then the whole model of the client's group"

    k: int = Field(5, ge=1)
    encoder: EncoderSettings = EncoderSettings()
    graph: RelatednessSettings = RelatednessSettings()

    def check(self, federation: AnyRoster) -> None:
        super().check(federation)
        groups, clients = self.graph.groups, len(federation.seen)
        if isinstance(groups, int) and groups > clients:
            raise ConfigError(f"method.graph.groups: {groups} groups, but the federation has {clients} clients")
        if self.graph.embedding == "umap":
            imported("umap", "method.graph.embedding = 'umap' (or 'none', with method.graph.gamma = 'groups')", "umap")
        self.encoder.check(federation)

    # -- at a client, lines 2 to 11 ---------------------------------------------------------------------------

    @phase(count=Number(low=1), total=_SUMS, squares=_SUMS)
    def measure(self, client: ClientView, message: Message) -> Message:
        """Only for tables, not in the paper: count, sum and sum of squares of the inputs, to standardise them."""
        count, total, squares = moments(client.train)
        return Message(count=count, total=total, squares=squares)

    @phase(centres=_CENTRES, n=COUNT.when(lambda at: at.method.stale))
    def sign(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Lines 2 to 11: the client's signature."""
        codes = yield from self.codes(client, message)  # 3 to 7
        centres = centres_of(codes, self.k, int(client.rng("k-means").integers(2**31)))  # 8, 9: M_m = kMEANS(E_m)
        client.state["signed"] = hash_of(client.train).hex()
        return Message(centres=centres, n=client.size) if self.stale else Message(centres=centres)  # 10

    def codes(self, client: ClientView, message: Message) -> ClientFlow[Tensor]:
        """Lines 3 to 7: J epochs of fine-tuning on the client's samples, then their codes E_m = G(D_m), [n, dims]."""
        shape = client.task.numbers("method.encoder")
        view = view_of(client.train, shape, message.get("moments", {}))
        net = self.encoder.net(shape)
        if net is None:
            return view(client.train.inputs(slice(None))).flatten(1)
        params: Params = {**net.initial, **message["encoder"]}
        if self.encoder.fine_tune:
            training = self.encoder.training(self.encoder.fine_tune)
            fitted = yield from Fit(params, encoders.Reconstruction(view), training=training, net=net)
            params = fitted.params
        return (yield from Infer(params, encoders.Encode(view), net=net))

    # -- at the server ----------------------------------------------------------------------------------------

    def signatures(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        if not ids or not (yield from self.prepare_encoder(server, ids)):
            return {}
        fields = {"encoder": server.state["encoder"], "moments": server.state["moments"]}
        # Empty fields are not sent.
        message = Message(**{name: value for name, value in fields.items() if value})
        replies = yield from Ask("sign", dict.fromkeys(ids, message))
        n = {id: {"n": reply["n"]} if self.stale else {} for id, reply in replies.items()}
        return {id: Message(signature=reply["centres"], **n[id]) for id, reply in replies.items()}

    def prepare_encoder(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[bool]:
        """Make the encoder once; return False if the moments that it needs did not arrive."""
        state, shape = server.state, server.task.numbers("method.encoder")
        if "encoder" in state:
            return True
        sums: dict[str, Any] = {}
        if len(shape) != 3 and self.encoder.pretrain is None:
            sums = yield from self.moments(ids)
            if not sums:
                return False
        params, pretrained_on = self.encoder.pretrained(shape, server.public)
        # Only fine-tuning needs the decoder.
        sent = {name: t for name, t in params.items() if self.encoder.fine_tune or name.startswith("body.")}
        state["encoder"], state["moments"] = sent, pretrained_on or sums
        return True

    def moments(self, ids: Sequence[str]) -> ServerFlow[dict[str, Any]]:
        """Ask these clients for the moments of their inputs; return the sums, empty if none arrived."""
        replies = yield from Ask("measure", {id: Message() for id in ids})
        in_order = [reply for _, reply in sorted(replies.items())]
        return {name: sum(reply[name] for reply in in_order) for name in ("count", "total", "squares") if in_order}

    def related(self, server: ServerView, ids: Sequence[str], sets: Sets) -> Related:
        return relate(sets, self.graph, seed_of(server), stage_settings.planted_labels(server, ids))

    def placed(self, fitted: Sets, new: Sets, seed: int) -> tuple[Sets, Sets]:
        return embedded(fitted, self.graph, seed), embedded(fitted, self.graph, seed, new)

    def distances(self, sets: Sets, others: Sets) -> Array:
        return np.asarray(_DISTANCES[self.graph.distance](sets, others))


def view_of(samples: Samples, shape: Shape, sums: Mapping[str, Any]) -> encoders.View:
    """How the encoder reads these samples: brightness of images, else standardised features."""
    return encoders.pixels(samples.scale) if len(shape) == 3 else encoders.standardised(**sums)


def centres_of(points: Tensor, k: int, seed: int, starts: int = 5) -> Tensor:
    """k-means centres [k, d] of points [n, d] (k-means++, the best of `starts`), in the order of their coordinates.

    If there are at most k distinct points, they are the centres.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    x = points.double().numpy()
    distinct = np.unique(x, axis=0)
    if len(distinct) > k:
        # Sums over several threads differ in the last bits from run to run.
        with _threads().limit(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # points that differ only by rounding
            distinct = KMeans(k, n_init=starts, random_state=seed).fit(x).cluster_centers_
        distinct = distinct[np.lexsort(distinct.T[::-1])]
    return torch.from_numpy(distinct).to(points.dtype)


@cache
def _threads() -> Any:
    """The libraries with threads; cached, because finding them takes longer than a small k-means."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def relate(sets: Sets, settings: RelatednessSettings, seed: int, planted: Any = None) -> Related:
    """Lines 13 to 19: from n clients' centres [k, d] to graph and groups."""
    places = embedded(sets, settings, seed)  # 13, 14: Z = UMAP(M)
    between = np.asarray(_DISTANCES[settings.distance](places))  # 15, 16: A_ij = min |u_ir - u_js|
    needed = settings.cluster == "distances" or settings.gamma == "groups"
    groups = clusters(between, settings) if needed else np.zeros(len(sets), dtype=np.int64)
    gamma = threshold(between, groups, settings.gamma)
    linked = adjacency(between, gamma, settings.adjacency)  # 17: the thresholded A
    np.fill_diagonal(linked, 0.0)
    if settings.cluster == "rows":
        # 18, 19: C = HC(thresholded A), by distances between its rows with self-loops, as the released code has it
        groups = clusters(np.asarray(squareform(pdist(linked + np.eye(len(linked))))), settings)
    linked, groups = controlled(linked, groups, settings.control, seed, planted)
    return Related(linked, groups, gamma, between)


def embedded(fitted: Sets, settings: RelatednessSettings, seed: int, new: Sets | None = None) -> Sets:
    """Lines 13 and 14: the sets of centres in an embedding that is fitted on `fitted`.

    new: other sets to place in this embedding; None: place `fitted`.
    """
    sets = fitted if new is None else new
    if settings.embedding == "none" or not sets:
        return list(sets)
    points, new_points = np.concatenate(fitted), None if new is None else np.concatenate(new)
    if settings.embedding == "pca":
        placed = graph.pca(points, new_points, dims=settings.dims)
    else:
        placed = graph.umap(
            points, new_points, dims=settings.dims, neighbours=settings.neighbours, min_dist=settings.min_dist,
            seed=seed,
        )  # fmt: skip
    return np.split(placed, np.cumsum([len(centres) for centres in sets])[:-1])


def clusters(between: Array, settings: RelatednessSettings) -> Labels:
    """Lines 18 and 19: hierarchical clustering of these distances; the number of groups is given or found."""
    n = len(between)
    if isinstance(settings.groups, int):
        return graph.hierarchical(between, min(settings.groups, n), linkage=settings.linkage)
    most = max(min(n // 2, 30), 2) if settings.most is None else settings.most
    return graph.hierarchical(between, linkage=settings.linkage, choose=settings.groups, most=most)
