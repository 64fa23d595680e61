"""FLT: clients send k centres of their encoded data once; the server finds who is related, and averages accordingly.

Jamali-Rad, Abdizadeh, Singh. Federated learning with taskonomy for non-IID data. IEEE TNNLS 2022. Line numbers are
those of the paper's Algorithm 3 (FLT); its Algorithm 2 (FCR, form client relatedness) is in `relatedness.py`.
`docs/methods/flt.md` says where paper, released code and this package differ.

    2          FCR: signatures, a graph of related clients, groups
    4-13       the clients m of S^t train E epochs from w_m, and raise a flag if their data have changed
    16, 17     Case I:  w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j  over neighbours
    18-20      Case II: w_c = sum of n_m w_m / sum of n_m          over the members of a group
    21-27      once lambda flags are up, or every tau rounds: FCR again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, NotRequired, TypeAlias, TypedDict

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Flag, Number, Shaped, Sums, Upto
from fedkin.graph import Graph, Signature
from fedkin.keys import key
from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.encoders import moments
from fedkin.learning.robust import Rule, aggregated
from fedkin.methods.blocks.clusters import continued
from fedkin.methods.blocks.neighbours import check_all_pairs
from fedkin.methods.blocks.signatures import (
    SIGNED,
    Planned,
    SigningMethod,
    Tests,
    by_content,
    collect_signatures,
    evidence_of,
    tests_of,
    unsigned,
)
from fedkin.methods.blocks.stages import needs_planted
from fedkin.methods.flt import relatedness
from fedkin.methods.flt.relatedness import (
    EncoderSettings,
    Related,
    RelatednessSettings,
    Sets,
    centres_of,
    codes,
    content,
    relate,
)
from fedkin.views import ClientView, ServerView

__all__ = ["ClientState", "EncoderSettings", "Flt", "RelatednessSettings", "State", "along_edges", "inside_groups"]

_DENSE = 1000  # clients up to which a graph is recorded as a dense matrix


class Edges(TypedDict):
    """A csr_array: the entries of row i are columns[starts[i] : starts[i + 1]]."""

    starts: Tensor
    columns: Tensor
    weights: Tensor


Adjacency: TypeAlias = Tensor | Edges


class State(Planned):
    """At the server. The numbers of groups and of models are counted from 0.

    signatures: {client id: its centres [k, d], or its signature of moments [bytes] uint8}.
    row: {client id: row} in the adjacency. adjacency: [n, n], booleans if all weights are 0 or 1, else floats; zero
    diagonal; of neighbours only, the parts of a csr_array. gamma: the distance below which two clients are neighbours.
    founders: from how many clients graph and groups were made; they have the first rows, newcomers those after them.
    group: {client id: number of its group}.
    models: {number as text: params}. model: {client id: number as text} of the model that the client has. In Case II
    these are the groups' numbers.
    changed: {client id: True} of clients whose data are no longer those of their signature (the paper's Delta).
    sizes: {client id: n_j}, with `stale` only.
    tests: those behind the groups, None without. verdict: {group as text: its verdict} by these tests.
    encoder: what clients need of the encoder. moments: count, total and squares of the inputs that it was trained on,
    or of the clients' inputs; empty for images.
    """

    signatures: dict[str, Tensor]
    row: dict[str, int]
    founders: int
    group: dict[str, int]
    models: dict[str, Params]
    model: dict[str, str]
    changed: dict[str, bool]
    sizes: dict[str, int]
    tests: NotRequired[Tests | None]
    verdict: NotRequired[dict[str, str]]
    adjacency: NotRequired[Adjacency]
    gamma: NotRequired[float]
    encoder: NotRequired[Params]
    moments: NotRequired[dict[str, Any]]


class ClientState(TypedDict, total=False):
    """At a client.

    signed: a hash of the samples that its signature stands for. encoder: its own, fine-tuned, if `encoder.keep`.
    """

    signed: str
    encoder: Params


# Sums over the clients' inputs, per feature; k centres of codes.
_SUMS = Sums(lambda at: at.task.numbers("method.encoder")[0], dtype=torch.float64)
_CENTRES = Shaped(
    Upto(lambda at: at.method.k),
    lambda at: at.method.encoder.length(at.task.numbers("method.encoder")),
    dtype=torch.float32,
)


class Flt(SigningMethod):
    """Signatures once, from which the server makes a graph and groups; then rounds of averaging along these.

    signature: the paper's "centres" of encoded samples, or "moments" (ours, `fedkin.graph.sign`), which tests need and
    for which no encoder travels. None: moments where groups are found by the test: where no number or rule is given.
    k: centres that a client sends, at most as many as it has distinct samples.
    average: inside "groups" (Case II) or over "neighbours" (Case I), weighted by n_j over the round's participants.
    stale: clients that did not take part enter the averages with the model that they have. aggregate: as in FedAvg.
    regroup_changed: lambda, the number of clients with changed data at which these sign again and the groups are made
    anew (None: never). regroup_every: tau, after how many rounds all do so (None: never).
    """

    name: ClassVar[str] = "flt"
    title: ClassVar[str] = "FLT"
    paper: ClassVar[str] = "Jamali-Rad et al., TNNLS 2022"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "once: a signature up (k centres, or moments); then the whole model of the client's group"

    signature: Literal["centres", "moments"] | None = None
    k: int = Field(5, ge=1)
    average: Literal["groups", "neighbours"] = "groups"
    stale: bool = False
    aggregate: Rule = "mean"
    regroup_changed: int | None = Field(1, ge=1)
    regroup_every: int | None = Field(None, ge=1)
    encoder: EncoderSettings = EncoderSettings()
    graph: RelatednessSettings = RelatednessSettings()

    @model_validator(mode="after")
    def _fits(self) -> Flt:
        if not self.moments and self.graph.from_test:
            raise ValueError("graph.groups: 'same' tests signatures of moments; take signature = 'moments', or give "
                             "graph.groups a number or another rule")  # fmt: skip
        unused = {"encoder": self.encoder != EncoderSettings(), "k": self.k != 5,
                  "graph.embedding": self.graph.embedding != "none"}  # fmt: skip
        for name, given in unused.items() if self.moments else ():
            if given:
                raise ValueError(f"{name}: for signatures of centres only, and these are of moments; leave it out, or "
                                 "give graph.groups a number or another rule than 'same'")  # fmt: skip
        return self

    @property
    def moments(self) -> bool:
        """Whether clients sign with moments, and not with centres."""
        return self.graph.from_test if self.signature is None else self.signature == "moments"

    @property
    def encoder_sent(self) -> EncoderSettings | None:
        """The encoder's settings; None for signatures of moments, which need none."""
        return None if self.moments else self.encoder

    def check(self, federation: Federation) -> None:
        groups, clients = self.graph.groups, len(federation.seen)
        if isinstance(groups, int) and groups > clients:
            raise ConfigError(f"method.graph.groups: {groups} groups, but the federation has {clients} clients")
        needs_planted(federation, control=self.graph.control)
        check_all_pairs(clients, control=self.graph.control)
        if not self.moments:
            self.encoder.check(federation)

    def start(self, server: ServerView[State]) -> None:
        server.state = State(signatures={}, row={}, founders=0, group={}, models={}, model={}, changed={}, sizes={})

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(count=Number(low=1), total=_SUMS, squares=_SUMS)
    def measure(self, client: ClientView[ClientState], message: Message) -> Message:
        """Only for tables, not in the paper: count, sum and sum of squares of the inputs, to standardise them."""
        count, total, squares = moments(client.train)
        return Message(count=count, total=total, squares=squares)

    @phase(centres=_CENTRES, n=COUNT.when(lambda at: at.method.stale))
    def sign(self, client: ClientView[ClientState], message: Message) -> ClientFlow[Message]:
        """Algorithm 2, lines 2 to 11: the client's signature."""
        embedding = yield from codes(client, message, self.encoder)  # 3 to 7: fine-tune, E_m = G(D_m)
        centres = centres_of(embedding, self.k, int(client.rng("k-means").integers(2**31)))  # 8, 9: M_m = kMEANS(E_m)
        client.state["signed"] = content(client.train)
        return Message(centres=centres, n=client.size) if self.stale else Message(centres=centres)  # 10

    @phase(*SIGNED)
    def sign_moments(self, client: ClientView[ClientState], message: Message) -> Message:
        """Ours, in place of `sign`: a signature that tests can read."""
        client.state["signed"] = content(client.train)
        return super().sign_moments(client, message)

    @phase(params=NET, n=COUNT, changed=Flag() | None)
    def train(self, client: ClientView[ClientState], message: Message) -> ClientFlow[Message]:
        """Algorithm 3, lines 7 to 13: E epochs from w_m, and the flag delta if the data have changed."""
        fitted = yield from Fit(message.params)
        changed = self.regroup_changed is not None and client.state["signed"] != content(client.train)
        return Message(params=fitted.params, n=client.size, **({"changed": True} if changed else {}))

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        """Algorithm 3, one round. Lines 21 to 27, which end a round in the paper, open the next one here."""
        state, first = server.state, not server.state["row"]
        # 1: all clients in the first round; later, lines 23 and 24.
        due = due_to_sign(server, sampled, self.regroup_changed, self.regroup_every)
        joined = yield from self.form_relatedness(server, due)  # 2, 25: FCR
        # 4 to 6: w_m goes to the clients m of S^t. After the first round, newcomers train from the next one on.
        training = [id for id in sampled if id in state["model"] and (first or id not in joined)]
        replies = (yield from Ask("train", {id: self.offer(server, id) for id in training})) if training else {}
        if not replies:
            return
        take_flags(state, replies)  # 22: Delta
        if self.average == "neighbours":
            state["models"], state["model"] = along_edges(state, replies, self.stale, self.aggregate)  # 16, 17: Case I
        else:
            state["models"] = inside_groups(state, replies, self.stale, self.aggregate)  # 18 to 20: Case II

    def form_relatedness(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[frozenset[str]]:
        """Algorithm 2 with new signatures of these clients; gives those of them that had no model before."""
        state = server.state
        replies = yield from signatures(server, self.encoder_sent, ids, self.stale)  # 1 to 11
        if not replies:
            return frozenset()
        joined = frozenset(id for id in replies if id not in state["model"])
        anew = regroups(state, replies, self.graph.control)
        take_signatures(state, replies)  # 12
        if anew:
            order, signed, planted = inputs(server)
            related = relate(signed, self.graph, seed_of(server), planted)  # 13 to 19
            keep(server, order, signed, related, self.average, self.graph)
        else:
            attach(server, self.graph, self.average)
        return joined

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView[State], id: str) -> Message:
        number = server.state["model"].get(id)
        return Message(params=server.initial if number is None else server.state["models"][number])

    def use(self, client: ClientView[ClientState], message: Message) -> Params:
        return message.params

    def welcome(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part send their signature, and get the model of the nearest group (or client)."""
        state = server.state
        if not state["row"]:
            return {id: self.offer(server, id) for id in ids}
        # Who has no samples to sign with gets the mean of all clients' models.
        clients = Counter(state["model"].values())
        models, sizes = state["models"], {number: float(clients[number]) for number in state["models"]}
        signed = yield from signatures(server, self.encoder_sent, sorted(ids), sizes=False)
        if signed:
            take_signatures(state, signed)
            attach(server, self.graph, self.average)
        common = weighted_mean(models, sizes) if len(signed) < len(ids) else server.initial
        return {id: self.offer(server, id) if id in signed else Message(params=common) for id in ids}


# -- lines 15 to 20: the two averages ---------------------------------------------------------------------------------


def along_edges(
    state: State, replies: Mapping[str, Message], stale: bool, aggregate: Rule = "mean"
) -> tuple[dict[str, Params], dict[str, str]]:
    """Case I, lines 16 and 17: w_m = sum_j A_mj n_j w_j / sum_j A_mj n_j, with A_mm = 1.

    Returns the new models, and which of them each client has. All means are of the models as the clients sent them.
    stale: clients that did not take part enter with the model that they have. A client without a neighbour that
    enters keeps its model. Clients with equal rows share one model; with another rule than the mean only if they
    shared one before, because updates are measured from it.
    """
    order = sorted(state["row"], key=lambda id: state["row"][id])
    entering = [id for id in order if id in replies or stale]
    n = np.array([float(replies[id]["n"] if id in replies else state["sizes"][id]) for id in entering])
    held = {id: replies[id].params if id in replies else state["models"][state["model"][id]] for id in entering}
    weights = sp.csr_array(matrix_of(state["adjacency"])) + sp.eye_array(len(order), format="csr")
    weights = sp.csr_array(weights[:, [state["row"][id] for id in entering]] @ sp.diags_array(n))
    weights.eliminate_zeros()
    weights.sort_indices()
    # The number of the new model for each row of weights, with what its updates start from, or each old model kept.
    numbers: dict[tuple[bytes, str], str] = {}
    models: dict[str, Params] = {}
    model: dict[str, str] = {}
    for id, (left, right) in zip(order, pairwise(weights.indptr.tolist()), strict=True):
        near, row = weights.indices[left:right], weights.data[left:right]
        old = state["model"][id]
        entries = near.tobytes() + row.tobytes()
        content = (entries, "" if entries and aggregate == "mean" else old)
        if content not in numbers:
            numbers[content] = str(len(numbers))
            share = {entering[place]: weight for place, weight in zip(near.tolist(), row.tolist(), strict=True)}
            there, kept = {other: held[other] for other in share}, state["models"][old]
            models[numbers[content]] = aggregated(there, share, aggregate, kept) if entries else kept
        model[id] = numbers[content]
    return models, model


def inside_groups(
    state: State, replies: Mapping[str, Message], stale: bool, aggregate: Rule = "mean"
) -> dict[str, Params]:
    """Case II, lines 18 to 20: w_c = sum of n_m w_m / sum of n_m over the members of c that took part.

    stale: members that did not take part enter with the group's model. A group without participants keeps its model.
    To rules that weigh all alike, the members that did not take part count as one.
    """
    models = dict(state["models"])
    present: dict[str, list[str]] = {}
    for id in replies:
        present.setdefault(state["model"][id], []).append(id)
    absent = dict.fromkeys(present, 0.0)
    for id, number in state["model"].items() if stale else ():
        if number in absent and id not in replies:
            absent[number] += state["sizes"][id]
    for number, ids in sorted(present.items()):
        params = {id: replies[id].params for id in ids}
        n = {id: float(replies[id]["n"]) for id in ids}
        if absent[number]:
            # No client has an empty id: it stands for all members that have the group's model.
            params[""] = models[number]
            n[""] = absent[number]
        models[number] = aggregated(params, n, aggregate, models[number])
    return models


# -- lines 13 and 21 to 27: who signs, and when groups are made anew --------------------------------------------------


def take_flags(state: State, replies: Mapping[str, Message]) -> None:
    """Note which clients say that their data have changed, line 22."""
    state["changed"] = {**state["changed"], **{id: True for id, reply in replies.items() if "changed" in reply}}


def due_to_sign(
    server: ServerView[State], sampled: Sequence[str], changed: int | None, rounds: int | None
) -> list[str]:
    """Clients that send a signature in this round, line 23.

    These are clients without one; those whose data changed, once there are `changed` of them; and all after every
    `rounds` rounds.
    """
    state = server.state
    if rounds is not None and server.round > 1 and (server.round - 1) % rounds == 0:
        return unsigned(server, sampled, ())
    flagged = state["changed"] if changed is not None and len(state["changed"]) >= changed else {}
    return unsigned(server, sampled, [id for id in state["signatures"] if id not in flagged])


def regroups(state: State, replies: Mapping[str, Message], control: str) -> bool:
    """Whether these signatures make all groups anew; if not, their senders join the groups that there are.

    They do before there are groups; if a client signed again; once newcomers outnumber founders; and with a control
    graph, which has no place for
    """
    newcomers = len({*state["signatures"], *replies}) - state["founders"]
    again = any(id in state["row"] for id in replies)
    return again or newcomers > state["founders"] or control != "none"


def take_signatures(state: State, replies: Mapping[str, Message]) -> None:
    """Keep the signatures that came; their senders' flags are done with, line 26."""
    state["signatures"] = {**state["signatures"], **{id: reply["signature"] for id, reply in replies.items()}}
    state["sizes"] = {**state["sizes"], **{id: reply["n"] for id, reply in replies.items() if "n" in reply}}
    state["changed"] = {id: True for id in state["changed"] if id not in replies}


def signatures(
    server: ServerView[State], settings: EncoderSettings | None, ids: Sequence[str], sizes: bool
) -> ServerFlow[dict[str, Message]]:
    """Of these clients the `signature`, with `sizes` also n: k centres, Algorithm 2, lines 1 to 11.

    Makes the encoder if need be. A client that signs again is not sent an encoder that it has kept.
    settings: None for signatures of moments, in place of centres.
    """
    if settings is None:
        signed = yield from collect_signatures(server, server.state, ids)
        n = {id: {"n": _count(data)} if sizes else {} for id, data in signed.items()}
        return {id: Message(signature=data, **n[id]) for id, data in signed.items()}
    replies = yield from _centres(server, settings, ids)
    return {
        id: Message(signature=reply["centres"], **({"n": reply["n"]} if sizes else {})) for id, reply in replies.items()
    }


def _count(data: Tensor) -> int:
    return int(Signature.from_bytes(data.numpy().tobytes()).n)


def _centres(
    server: ServerView[State], settings: EncoderSettings, ids: Sequence[str]
) -> ServerFlow[dict[str, Message]]:
    state = server.state
    if not ids or not (yield from _encoder_made(server, settings, ids)):
        return {}
    fields = {"encoder": state["encoder"], "moments": state["moments"]}
    # An empty field does not travel.
    whole = Message(**{name: value for name, value in fields.items() if value})
    light = Message(**{name: value for name, value in whole.items() if name != "encoder"})
    messages = {id: light if settings.keep and id in state["signatures"] else whole for id in ids}
    return dict((yield from Ask("sign", messages)))


def _encoder_made(server: ServerView[State], settings: EncoderSettings, ids: Sequence[str]) -> ServerFlow[bool]:
    """Make the encoder, once; False if the moments that it needs did not come."""
    state, shape = server.state, server.task.numbers("method.encoder")
    if "encoder" in state:
        return True
    sums: dict[str, Any] = {}
    if settings.measures(shape):
        replies = yield from Ask("measure", {id: Message() for id in ids})
        if not replies:
            return False
        came = [reply for _, reply in sorted(replies.items())]
        sums = {name: sum(reply[name] for reply in came) for name in ("count", "total", "squares")}
    params, pretrained_on = settings.trained(shape, server.public)
    state["encoder"], state["moments"] = settings.sent(params), pretrained_on or sums
    return True


# -- graph and groups in the state ------------------------------------------------------------------------------------


def inputs(server: ServerView[State]) -> tuple[list[str], Sets, list[str] | None]:
    """Of all clients with a signature: their ids in an order that ids do not decide, signatures, planted groups."""
    order = by_content(server.state["signatures"], server.state["signatures"])
    planted = None if server.planted is None else [server.planted.get(id, "") for id in order]
    return order, decoded(server.state["signatures"], order), planted


def keep(
    server: ServerView[State], order: Sequence[str], signed: Sets, related: Related, average: str,
    settings: RelatednessSettings,
) -> None:  # fmt: skip
    """Set graph and groups of these clients; a new group starts from the model of the group it comes from.

    average: "groups", or "neighbours", where models belong to clients.
    """
    state = server.state
    labels = related.groups.tolist()
    numbers = continued(labels, [state["group"].get(id) for id in order], state["group"].values())
    group = {id: numbers[label][0] for id, label in zip(order, labels, strict=True)}
    if average == "groups":
        state["models"] = {
            str(number): server.initial if parent is None else state["models"][str(parent)]
            for number, parent in numbers
        }
        state["model"] = {id: str(number) for id, number in group.items()}
    else:
        _adopt_models(server, order, signed, related, settings)
    state["group"], state["row"] = group, {id: place for place, id in enumerate(order)}
    state["founders"], state["gamma"] = len(order), related.gamma
    state["adjacency"], state["tests"] = stored(related.adjacency), None
    if related.verdicts is not None:
        tests = tests_of(related.verdicts)
        leaf = {order[related.drawn[int(place)]]: node for place, node in tests["leaf"].items()}
        state["tests"] = Tests(**{**tests, "leaf": leaf})
        state["verdict"] = {str(numbers[label][0]): verdict for label, verdict in enumerate(related.verdicts.verdicts)}
    record(server)


def _adopt_models(
    server: ServerView[State], order: Sequence[str], signed: Sets, related: Related, settings: RelatednessSettings
) -> None:
    """Case I: a client without a model takes that of its strongest neighbour that has one.

    Without such a neighbour it takes that of a near client of its group, by their signatures, and in a group without
    any model the initial one.
    """
    state = server.state
    had = np.array([id in state["model"] for id in order])
    old, new = np.flatnonzero(had), np.flatnonzero(~had)
    if not len(new):
        return
    if not len(old):
        state["models"], state["model"] = {"0": server.initial}, dict.fromkeys(order, "0")
        return
    between = sp.csr_array(related.adjacency[new][:, old])
    linked = np.diff(between.indptr) > 0
    giver = np.full(len(order), -1)
    giver[new[linked]] = old[np.asarray(between.argmax(axis=1)).ravel()[linked]]
    alone = new[~linked]
    for group in np.unique(related.groups[alone]).tolist():
        takers, givers = alone[related.groups[alone] == group], old[related.groups[old] == group]
        if len(givers):
            wanted, known = ([signed[row] for row in rows.tolist()] for rows in (takers, givers))
            _, near = relatedness.joining(wanted, known, related.groups[givers], settings, seed_of(server))
            giver[takers] = givers[near]
    initial = str(1 + max(map(int, state["models"])))
    if (giver[new] < 0).any():
        state["models"] = {**state["models"], initial: server.initial}
    adopted = {order[row]: state["model"][order[giver[row]]] if giver[row] >= 0 else initial for row in new.tolist()}
    state["model"] = {**state["model"], **adopted}


def attach(server: ServerView[State], settings: RelatednessSettings, average: str) -> None:
    """Give clients that signed for the first time the group and the model of their nearest; no other client moves."""
    state = server.state
    placed = sorted(state["row"], key=lambda id: state["row"][id])
    new = by_content((id for id in state["signatures"] if id not in state["row"]), state["signatures"])
    founders, others = placed[: state["founders"]], placed[state["founders"] :]
    numbers = sorted({state["group"][id] for id in founders})
    label = {number: place for place, number in enumerate(numbers)}
    labels = np.array([label[state["group"][id]] for id in founders])
    dense = isinstance(state["adjacency"], Tensor)
    relate_newcomers: Any = relatedness.newcomers_relatedness if dense else relatedness.newcomers_of_many
    signed = [decoded(state["signatures"], ids) for ids in (new, founders, others)]
    rows, joins, closest = relate_newcomers(*signed, labels, state["gamma"], settings, seed_of(server))
    group = {id: numbers[label] for id, label in zip(new, joins.tolist(), strict=True)}
    if average == "groups":
        model = {id: str(number) for id, number in group.items()}
    else:
        model = {id: state["model"][founders[place]] for id, place in zip(new, closest.tolist(), strict=True)}
    state["adjacency"] = stored(_grown(matrix_of(state["adjacency"]), rows))
    state["group"], state["model"] = {**state["group"], **group}, {**state["model"], **model}
    state["row"] = {**state["row"], **{id: len(placed) + place for place, id in enumerate(new)}}
    record(server)


def _grown(known: Any, rows: Any) -> Any:
    """The adjacency [n, n] with the rows [m, n + m] of newcomers, and their columns."""
    n, m = known.shape[0], rows.shape[0]
    if isinstance(known, np.ndarray):
        grown = np.zeros((n + m,) * 2)
        grown[:n, :n] = known
        grown[n:] = rows
        grown[:, n:] = rows.T
        return grown
    return sp.csr_array(sp.block_array([[known, rows[:, :n].T], [rows[:, :n], rows[:, n:]]], format="csr"))


# -- storing and recording --------------------------------------------------------------------------------------------


def decoded(signatures: Mapping[str, Tensor], ids: Iterable[str]) -> Sets:
    """Of each of these clients its centres in double precision, or its signature of moments."""
    held = [signatures[id] for id in ids]
    if held and held[0].dtype == torch.uint8:
        return [Signature.from_bytes(data.numpy().tobytes()) for data in held]
    return [np.asarray(centres.double().numpy()) for centres in held]


def seed_of(server: ServerView[Any]) -> int:
    """The seed of embeddings and of control graphs: the same in every round, so that a fit can be made again."""
    return key(server.seed, "", "relatedness") >> 32


def record(server: ServerView[State]) -> None:
    """Record the graph in this round; only rounds that change it have one."""
    state = server.state
    ids = tuple(sorted(state["row"]))
    rows = np.array([state["row"][id] for id in ids])
    weights: Any = matrix_of(state["adjacency"])[rows][:, rows]
    if len(ids) > _DENSE:
        weights = sp.csr_array(weights)
    graph = Graph(ids, weights, groups={id: state["group"][id] for id in ids}, round=server.round)
    tests = state.get("tests")
    if tests:
        # Who was alone is so no more once a newcomer has joined.
        joined = {str(group): "same" for group, count in Counter(state["group"].values()).items() if count > 1}
        said = {group: joined.get(group, verdict) if verdict == "alone" else verdict
                for group, verdict in state["verdict"].items()}  # fmt: skip
        graph = graph.tested({id: said[str(state["group"][id])] for id in ids}, evidence_of(tests))
    server.graph = graph


def stored(adjacency: Any) -> Adjacency:
    """The adjacency, an array or a csr_array, for the state: booleans if all weights are 0 or 1, else floats."""
    whole = isinstance(adjacency, np.ndarray)
    weights = torch.from_numpy(adjacency if whole else adjacency.data)
    weights = weights.bool() if bool(((weights == 0) | (weights == 1)).all()) else weights.float()
    if whole:
        return weights
    starts, columns = (torch.from_numpy(part.astype(np.int64)) for part in (adjacency.indptr, adjacency.indices))
    return Edges(starts=starts, columns=columns, weights=weights)


def matrix_of(adjacency: Adjacency) -> Any:
    """What `stored` was given, rounded as it rounds."""
    if isinstance(adjacency, Tensor):
        return adjacency.double().numpy()
    size = len(adjacency["starts"]) - 1
    parts = (adjacency["weights"].double(), adjacency["columns"], adjacency["starts"])
    return sp.csr_array(tuple(part.numpy() for part in parts), shape=(size, size))
