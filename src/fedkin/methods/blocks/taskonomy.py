"""FLT's rounds (Algorithm 3), for any signature of clients and any way from signatures to a graph and groups.

H. Jamali-Rad, M. Abdizadeh, A. Singh. Federated learning with taskonomy for non-IID data. IEEE Transactions on Neural
Networks and Learning Systems 34(11), 2022. Line numbers are the paper's; Algorithm 2 is in `methods/flt.py`.

    2        form client relatedness (Algorithm 2): a graph of clients, A, and groups
    4-13     the clients m of S^t train E epochs from w_m, and raise a flag if their data have changed
    16, 17   Case I:  w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j  over neighbours
    18-20    Case II: w_c = sum of n_m w_m / sum of n_m          over the members of a group
    21-27    once lambda flags are up, or every tau rounds: Algorithm 2 again
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from fedkin import graph
from fedkin.federation import AnyRoster
from fedkin.federation.samples import hash_of
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import COUNT, NET, Flag
from fedkin.keys import key, rng
from fedkin.learning.aggregate import Rule, aggregated, weighted_mean
from fedkin.methods.blocks import stage_settings
from fedkin.methods.blocks.averaging import mean_asked
from fedkin.methods.blocks.clusters import cluster_means, continued
from fedkin.methods.blocks.signatures import by_content, due, unsigned
from fedkin.methods.blocks.vectors import Array, Labels
from fedkin.settings import Settings
from fedkin.views import ClientView, ServerView

Sets = Sequence[Any]  # each client's centres [k, d], or another signature

_MEMBERS = 10  # members of each group that a client is compared with if there are too many pairs
_ROWS = 2000  # clients that are compared at a time
_DENSE = 1000  # up to this many clients, a graph is recorded as a dense matrix


def at_least(low: int) -> AfterValidator:
    """The check of a setting that is a number of at least `low`, or a text."""

    def check(value: float | str) -> float | str:
        if not isinstance(value, str) and value < low:
            raise ValueError(f"expected a number of at least {low}")
        return value

    return AfterValidator(check)


Gamma = Annotated[float | Literal["groups", "gap"], at_least(0)]


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
        {client id: n_j}, with `stale` only.

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
        order = ids_by_row(state)
        remaining = [id for id in order if id not in ids]
        if len(remaining) == len(order):
            return
        founders = sum(id not in ids for id in order[: state["founders"]])
        rows = [state["row"][id] for id in remaining if state["row"][id] < len(state["adjacency"])]
        state["adjacency"] = state["adjacency"][rows][:, rows]
        state["row"], state["founders"] = {id: row for row, id in enumerate(remaining)}, founders or len(remaining)

    # Each kind of signature defines the following.

    @abstractmethod
    def signatures(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        """Ask these clients for their `signature`, with `stale` also for n (Algorithm 2, lines 1 to 11)."""

    def decoded(self, signature: Tensor) -> Any:
        """Return a signature in the form that the following methods read: here the centres."""
        return np.asarray(signature.double().numpy())

    @abstractmethod
    def related(self, server: ServerView, ids: Sequence[str], sets: Sets) -> Related:
        """The learned graph and groups of these clients, from their signatures (Algorithm 2, lines 13 to 19)."""

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
        # One mean per group is enough if nobody else's model enters.
        means = self.average == "groups" and not self.stale
        mean = mean_asked("samples", self.aggregate, group) if means else None
        replies = yield from Ask("train", {id: self.offer(server, id) for id in training}, mean)
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
        related = self.controlled(server, ids, self.related(server, ids, self.signed(server, ids)))  # 13 to 19
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
        state["group"], state["row"] = group, {id: row for row, id in enumerate(ids)}
        state["founders"], state["gamma"], state["adjacency"] = len(ids), related.gamma, stored(related.adjacency)
        return related

    def controlled(self, server: ServerView, ids: Sequence[str], related: Related) -> Related:
        """The control graph in place of the learned one, and its groups; random and shuffled keep the groups' sizes."""
        control, labels, seed = self.graph.control, related.groups, seed_of(server)
        if control == "none":
            return related
        planted = stage_settings.planted_labels(server, ids)
        changed: Any = graph.control_stage(control)(related.adjacency, seed=seed, planted=planted)
        if control == "oracle":
            groups = graph.canonical(planted)
        elif control in ("self", "uniform"):
            groups = np.arange(len(labels)) if control == "self" else np.zeros(len(labels), dtype=np.int64)
        else:  # the permutation that `graph.shuffled` draws from this seed
            groups = labels[np.random.default_rng(seed).permutation(len(labels))]
        return related._replace(adjacency=changed, groups=groups)

    def attach(self, server: ServerView) -> None:
        """Put clients without a group into the nearest group, with a model from there; no other client moves.

        A newcomer's group is the one whose founders are nearest on average.
        """
        state = server.state
        new = by_content((id for id in state["signatures"] if id not in state["row"]), state["signatures"])
        if not new:
            return
        in_order = ids_by_row(state)
        founders, others = in_order[: state["founders"]], in_order[state["founders"] :]
        fitted, moved = self.placed(
            self.signed(server, founders), self.signed(server, [*others, *new]), seed_of(server)
        )
        places, n, m = [*fitted, *moved], len(in_order), len(new)
        fresh = places[n:]
        labels = np.array([state["group"][id] for id in founders])
        joins, closest = self.nearest(fresh, fitted, labels, seed_of(server))
        group = dict(zip(new, joins, strict=True))
        if self.average == "groups":
            model = {id: str(number) for id, number in group.items()}
        else:
            model = {id: state["model"][founders[row]] for id, row in zip(new, closest, strict=True)}
        if n + m <= stage_settings.LARGEST:
            grown = np.zeros((n + m, n + m))
            grown[:n, :n] = state["adjacency"].double().numpy()
            rows = adjacency(self.distances(fresh, places), state["gamma"], self.graph.adjacency)
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


def ids_by_row(state: Mapping[str, Any]) -> list[str]:
    """The clients of the graph, in the order of their rows."""
    return sorted(state["row"], key=lambda id: state["row"][id])


def along_edges(
    state: dict[str, Any], sent: Mapping[str, Message], aggregate: Rule
) -> tuple[dict[str, Params], dict[str, str]]:
    """Case I, lines 16 and 17: w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j, with A_mm = 1.

    Returns the new models, and the number of each client's model. All means are over the models as the clients sent
    them. A client keeps its model if neither it nor a neighbour sent one. Clients with equal rows share one model; with
    a rule other than the mean only if they shared one before, because updates are measured from it.
    """
    order = ids_by_row(state)
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


def linked_below(
    between: Array, labels: Labels, gamma: float | str, form: Literal["hard", "soft"] = "hard"
) -> tuple[Array, float]:
    """Line 17: (the adjacency with a zero diagonal, the number gamma) from distances and groups."""
    number = threshold(between, labels, gamma)
    weights = adjacency(between, number, form)
    np.fill_diagonal(weights, 0.0)
    return weights, number


def nearest_group(between: Array, labels: Labels) -> Labels:
    """For each row of distances [m, n] to clients with these labels, the label that is nearest on average."""
    groups, member = np.unique(labels, return_inverse=True)
    belongs = sp.csr_array((np.ones(len(labels)), (np.arange(len(labels)), member)))
    total: Any = belongs.T @ between.T
    return np.asarray(groups[np.argmin(total.T / np.bincount(member), axis=1)])
