"""Groups from tests of clients' signatures (`fedkin.graph.find`): the messages, the signatures, the groups.

A client sends the spread of its samples, receives the plan and sends its signature. Groups are found once; newcomers
are placed in them. A method whose clients can send signatures is a `SigningMethod`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedkin.errors import ConfigError, FedkinError
from fedkin.flow import Ask, Message, ServerFlow, ServerMethod, phase
from fedkin.forms import COUNT, Bytes, Context, Fields, Noised, Shaped, Sums
from fedkin.graph import Evidence, Plan, Signature, Spread, Verdicts, canonical, find, place, same_alpha, sign
from fedkin.graph import private_signatures as private
from fedkin.graph.moments import Moments
from fedkin.keys import key
from fedkin.methods.blocks.numeric_rows import arrays_of, has_columns, width_of
from fedkin.methods.blocks.vectors import Labels
from fedkin.views import ClientView, ServerView

G = TypeVar("G")  # a group's name: a number, or its text


Signatures = dict[str, Tensor]

# A spread this many times the median one is left out of the plan: one client must not set the scale of all.
_FAR = 100.0
# A value this many standard deviations of the noise away is not noise.
_DEVIATIONS = 10.0


# Shares of `privacy.signature_epsilon`: for the votes for a scale, and for the sums that make a signature.
_VOTES, _SUMS = 0.1, 0.9


def _open(at: Context) -> bool:
    return not at.private_signatures


def _private(at: Context) -> bool:
    return at.private_signatures


# The forms of both replies; a client without samples sends nothing.
_SPREAD: tuple[Fields, ...] = (
    {
        "counts": Shaped(3, dtype=torch.int64).when(_open), "target": Sums(3, dtype=torch.float64).when(_open),
        "squares": Sums(lambda at: width_of(at.task) if has_columns(at.task) else 1, dtype=torch.float64).when(_open),
        "votes": Noised(lambda at: private.votes_length(at.task.kind == "regression"), share=_VOTES).when(_private),
        "n": COUNT.when(_private),
    },
    {},
)  # fmt: skip
_BYTES = Bytes(2**20, Signature.from_bytes, usual=2500)
SIGNED: tuple[Fields, ...] = (
    {
        "signature": _BYTES.when(_open),
        "sums": Noised(
            lambda at: private.sums_length(at.task.classes if at.task.labels else 0, at.task.kind == "regression"),
            share=_SUMS,
        ).when(_private),
        "n": COUNT.when(_private),
    },
    {"signature": _BYTES.when(_open), "fresh": _BYTES.when(lambda at: _open(at) and at.method.signs_again)},
    {},
)  # fmt: skip
# Fewer new samples than this wait for the next signature.
_FRESH = 10


class SigningMethod(ServerMethod):
    """A method whose server may ask clients for signatures (`collect_signatures`).

    If samples have persons, a signature is of the first sample of each: tests need independent samples.
    """

    @property
    def reads_order(self) -> bool:
        """Whether the order of a client's samples may mean something (`fedkin.graph.sign`)."""
        return True

    @property
    def signs_again(self) -> bool:
        """Whether a client may be asked again; then it remembers which samples it has signed."""
        return False

    @phase(*_SPREAD)
    def spread(self, client: ClientView, message: Message) -> Message:
        """How much the inputs vary: one number, or one for each column of a table; empty without samples."""
        if not client.size:
            return Message()
        x, y = arrays_of(client.train.one_per_person(), client.task)
        if client.signature_noise is not None:
            votes = private.votes(x, y if client.task.kind == "regression" else None)
            return Message(votes=torch.from_numpy(votes), n=len(x))
        return Message(**tensors(Spread.of(x, y, per_feature=has_columns(client.task)).to_arrays()))

    @phase(*SIGNED)
    def sign_moments(self, client: ClientView, message: Message) -> Message:
        """Sign by the plan in the message; packed bytes are half the size of one tensor per array."""
        if not client.size:
            return Message()
        plan, (x, y) = Plan.from_arrays(arrays(message)), arrays_of(client.train.one_per_person(), client.task)
        if client.signature_noise is not None:
            return Message(sums=torch.from_numpy(private.sums(plan, x, y)), n=len(x))
        fields = {"signature": sign(plan, x, y, ordered=self.reads_order)}
        if self.signs_again and len(new := _new_rows(client, x, y)):
            fields["fresh"] = sign(plan, x[new], None if y is None else y[new], ordered=self.reads_order)
        return Message(**{name: bytes_of(signature) for name, signature in fields.items()})


# -- at a client ------------------------------------------------------------------------------------------------------


def _new_rows(client: ClientView, x: Any, y: Any) -> npt.NDArray[np.int64]:
    """Rows that are new since the client's last signature; none the first time, and while they are few.

    The client's state has `signed_rows`, hashes of all samples that it has signed.
    """
    labels = [b""] * len(x) if y is None else [label.tobytes() for label in y]
    hashes = [blake2b(row.tobytes() + label, digest_size=8).digest() for row, label in zip(x, labels, strict=True)]
    rows = np.frombuffer(b"".join(hashes), dtype=np.int64)
    if "signed_rows" not in client.state:
        client.state["signed_rows"] = torch.from_numpy(np.unique(rows))
        return np.zeros(0, np.int64)
    signed = client.state["signed_rows"].numpy()
    new = np.flatnonzero(~np.isin(rows, signed))
    if len(new) < _FRESH:
        return new[:0]
    client.state["signed_rows"] = torch.from_numpy(np.union1d(signed, rows[new]))
    return new


# -- at the server ----------------------------------------------------------------------------------------------------


def collect_signatures(server: ServerView, state: dict[str, Any], ids: Sequence[str]) -> ServerFlow[Signatures]:
    """Ask these clients for signatures; return the valid ones, {client id: bytes}.

    state: it has the plan, which is made first if there is none, and `fresh`, {client id: signature of the samples that
    are new since its last one}, until these are tested; and `sizes`, {client id: samples}, if clients send them.
    """
    if not ids or not (yield from _make_plan(server, state, ids)):
        return {}
    replies = yield from Ask("sign_moments", {id: Message(**state["plan"]) for id in ids})
    if sizes := {id: reply["size"] for id, reply in replies.items() if "size" in reply}:
        state["sizes"] = {**state["sizes"], **sizes}
    plan = Plan.from_arrays(arrays(state["plan"]))
    if server.signature_noise is not None:
        return _signatures_of_sums(replies, plan, server.signature_noise / math.sqrt(_SUMS))

    def valid(field: str) -> Signatures:
        sent = {id: reply[field] for id, reply in replies.items() if field in reply}
        return {id: data for id, data in sent.items() if read_signature(data, plan) is not None}

    if fresh := valid("fresh"):
        state["fresh"] = fresh
    return valid("signature")


def _make_plan(server: ServerView, state: dict[str, Any], ids: Sequence[str]) -> ServerFlow[bool]:
    """Make the plan once; return False if no spread arrived."""
    if "plan" in state:
        return True
    replies = yield from Ask("spread", {id: Message() for id in ids})
    sent = [reply for _, reply in sorted(replies.items()) if len(reply)]
    noise = server.signature_noise
    plan = _plan_of_spreads(server, sent) if noise is None else _plan_of_votes(server, sent, noise / math.sqrt(_VOTES))
    if plan is None:
        return False
    state["plan"] = tensors(plan.to_arrays())
    return True


def _plan_of_spreads(server: ServerView, replies: Sequence[Message]) -> Plan | None:
    """The plan from the plausible spreads; None if there are none."""
    spreads = _plausible([Spread.from_arrays(arrays(reply)) for reply in replies], server)
    classes = server.task.classes if server.task.labels else None
    return Plan.of(spreads, classes=classes, seed=server.key("plan")) if spreads else None


def _plan_of_votes(server: ServerView, replies: Sequence[Message], noise: float) -> Plan | None:
    """The plan from the plausible votes with this noise; None if there are none."""
    # One client must not set the scale of all by a size far above the others.
    far = _FAR * float(np.median([reply["n"] for reply in replies])) if replies else 0.0
    votes = [
        reply["votes"].numpy() for reply in replies
        if reply["n"] <= far and reply["votes"].abs().max() <= reply["n"] + _DEVIATIONS * noise
    ]  # fmt: skip
    classes = server.task.classes if server.task.labels else 0
    dim, seed = width_of(server.task), server.key("plan")
    return private.plan_of_votes(votes, dim=dim, classes=classes, seed=seed) if votes else None


def _signatures_of_sums(replies: Mapping[str, Message], plan: Plan, noise: float) -> Signatures:
    """The signatures that were sent as sums with noise, except those that no honest client can have sent."""
    signatures = {}
    for id, reply in replies.items():
        if "sums" not in reply:
            continue
        sums = reply["sums"].numpy()
        if np.abs(sums).max() <= reply["n"] + _DEVIATIONS * noise:
            signatures[id] = bytes_of(private.signature_of_sums(plan, reply["n"], sums, noise))
    return signatures


def _plausible(spreads: list[Spread], server: ServerView) -> list[Spread]:
    """Spreads that samples of this task can have, not far above the median in size and variance, by content."""
    width, classes = width_of(server.task), server.task.classes
    spreads = [
        spread for spread in spreads
        if spread.n > 0 and spread.dim == width and spread.classes <= classes and (spread.squares >= 0).all()
    ]  # fmt: skip
    if not spreads:
        return []
    sizes = np.array([spread.n for spread in spreads], dtype=np.float64)
    variances = np.array([spread.squares.sum() for spread in spreads]) / sizes
    near = (variances <= _FAR * np.median(variances)) & (sizes <= _FAR * np.median(sizes))
    order = [(spread.n, spread.squares.tobytes(), spread.target.tobytes()) for spread in spreads]
    return [spreads[row] for row in sorted(np.flatnonzero(near).tolist(), key=order.__getitem__)]


def read_signature(data: Tensor, plan: Plan) -> Signature | None:
    """The signature in these bytes; None if it is damaged, of another plan, or out of range."""
    try:
        signature = signature_in(data)
        widths = {name: len(moments.mean) for name, moments in signature.blocks.items()}
    except FedkinError:
        return None
    form = signature.plan, widths, signature.cells is not None
    if form != (plan.key, private.widths(plan), plan.labelled) or signature.n < 1:
        return None
    # Cosines are bounded by sqrt(2 / features) each; waves and shares by sqrt(2).
    bounds = {"x": math.sqrt(2 / plan.features), "y": math.sqrt(2.0), "xy": math.inf}
    if not all(_is_valid(moments, bounds[name], signature.n) for name, moments in signature.blocks.items()):
        return None
    numbers = () if signature.cells is None else (signature.cells.means, signature.cells.counts)
    return signature if all(np.isfinite(some).all() for some in numbers) else None


def _is_valid(moments: Moments, bound: float, n: int) -> bool:
    """Whether n samples can have these moments, if no number is larger than the bound."""
    traces = moments.traces[np.isfinite(moments.traces)]
    # Samples of length at most b sqrt(D) have a covariance of trace at most b^2 D; unbiased, twice that for n = 2.
    most = 2 * bound**2 * len(moments.mean)
    inside = np.abs(moments.mean).max() <= 1.01 * bound and (not len(traces) or traces[0] <= 1.01 * most)
    return bool(inside and moments.effect >= 1 and moments.n in (0, n) and moments.noise >= 0)


def tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays as tensors, which travel."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def arrays(message: Mapping[str, Tensor]) -> dict[str, Any]:
    """Undo `tensors`."""
    return {name: tensor.numpy() for name, tensor in message.items()}


# Groups nearer than this are merged: a small difference costs less than the lost samples (docs/groups.md).
SMALLEST_DIFFERENCE = 0.01


def _is_same(spec: str) -> str:
    try:
        same_alpha(spec)
    except ConfigError as error:
        raise ValueError(f"{error}, or a number") from None
    return spec


# A setting that is a number of groups or "same[:alpha]" has the type `int | SameStage`.
SameStage = Annotated[str, AfterValidator(_is_same)]

# What the server stores about groups from tests; None before them. signatures: {client id: [bytes] uint8} of the
# clients that the groups were made from. group: {client id: group, counted from 0} of these and of clients that joined
# later. Also plan and fresh, as in `collect_signatures`.
GroupState = dict[str, Any] | None


class Tests(TypedDict):
    """What the server stores of the tests behind groups: {node as text: test}, {client id: its last node}, the level.

    warnings: what weakens the tests, in words.
    """

    tree: dict[str, Any]
    leaf: dict[str, int]
    alpha: float
    warnings: list[str]


def tests_of(verdicts: Verdicts) -> Tests:
    """The tree of tests, without the clients of its inner nodes."""
    names = ("parent", "children", "cut", "p", "rejected", "verdict")
    tree = {str(node["node"]): {name: node[name] for name in names} for node in verdicts.tree}
    return Tests(tree=tree, leaf=dict(verdicts.evidence.leaf), alpha=verdicts.alpha, warnings=list(verdicts.warnings))


def evidence_of(tests: Tests) -> Evidence:
    """Return the tests as a graph records them."""
    nodes = [tests["tree"][str(number)] for number in range(len(tests["tree"]))]
    return Evidence.of(nodes, tests["leaf"], tests["alpha"], tests["warnings"])


def ask_for_groups(
    server: ServerView, groups: GroupState, sampled: Sequence[str], spec: str
) -> ServerFlow[dict[str, Any]]:
    """Ask clients without a group for their signature. The first clients make the groups; later ones join or open one.

    spec: "same" or "same:alpha".
    """
    new = {"signatures": {}, "group": {}} if groups is None else groups.copy()
    signed = yield from collect_signatures(server, new, unsigned(server, sampled, new["group"]))
    if not signed:
        return new
    if not new["group"]:
        new["signatures"] = signed
        new["group"] = verdicts_of(server, signed, same_alpha(spec), SMALLEST_DIFFERENCE).groups
        return new
    group, joins = dict(new["group"]), dict[str, int | None]()
    if new["signatures"]:  # all clients that the groups were made from may have left
        tested = verdicts_of(server, new["signatures"], same_alpha(spec), SMALLEST_DIFFERENCE)
        joins = groups_joined(tested, group, signed)
    for id in by_content(signed, signed):
        number = joins.get(id)
        group[id] = max(group.values()) + 1 if number is None else number
    new["group"] = group
    return new


def groups_joined(tested: Verdicts, group: Mapping[str, G], signed: Mapping[str, Tensor]) -> dict[str, G | None]:
    """Test newcomers against every tested group; return {client id: the group that it joins, or None}.

    group: {client id: group} of the tested clients.
    """
    labels = {id: place(signature_in(data), tested).group for id, data in signed.items()}
    return {id: None if label is None else group[tested.members(label)[0]] for id, label in labels.items()}


def ask_for_count(
    server: ServerView, groups: GroupState, sampled: Sequence[str], clusters: int | str
) -> ServerFlow[GroupState]:
    """For a method that needs only the number of groups: ask for signatures until groups are found from them."""
    if isinstance(clusters, int) or (groups and groups["group"]):
        return groups
    return (yield from ask_for_groups(server, groups, sampled, clusters))


def group_count(clusters: int | str, groups: GroupState) -> int | None:
    """The number of groups: given, or found from signatures; None before these arrive."""
    if isinstance(clusters, int):
        return clusters
    return len(set(groups["group"].values())) if groups and groups["group"] else None


def group_labels(groups: GroupState, ids: Sequence[str]) -> Labels:
    """The group of each of these clients [n]; a client without a signature is its own group."""
    group = {} if groups is None else groups["group"]
    free = max(group.values(), default=-1) + 1
    return canonical([group.get(id, free + place) for place, id in enumerate(ids)])


def due(every: int | None, round: int) -> bool:
    """Whether all clients sign again: every so many rounds, but not in the first."""
    return every is not None and round > 1 and (round - 1) % every == 0


def unsigned(server: ServerView, sampled: Sequence[str], signed: Collection[str]) -> list[str]:
    """The present clients that are not in `signed`."""
    # If all clients take part in every round, a client that is not sampled is absent.
    present = sampled if server.training.clients_per_round == "all" else server.clients
    return sorted(id for id in present if id not in signed)


def by_content(ids: Iterable[str], signatures: Mapping[str, Tensor]) -> list[str]:
    """Sort ids by signature, so that ids decide only between equal signatures."""
    return sorted(ids, key=lambda id: (_bytes(signatures[id]), id))


def verdicts_of(server: ServerView, signatures: Mapping[str, Tensor], alpha: float, least: float) -> Verdicts:
    """Test these clients' signatures (`fedkin.graph.find`)."""
    signed = tuple((id, _bytes(signatures[id])) for id in by_content(signatures, signatures))
    return _cached_groups(signed, alpha, least, key(server.seed, "", "kin") >> 32)


# Newcomers are tested against earlier groups; each process finds these again once, from signatures in the state.
@lru_cache(maxsize=4)
def _cached_groups(signed: tuple[tuple[str, bytes], ...], alpha: float, least: float, seed: int) -> Verdicts:
    return find_groups({id: Signature.from_bytes(data) for id, data in signed}, alpha, least, seed)


def find_groups(signatures: Mapping[str, Signature], alpha: float, least: float, seed: int) -> Verdicts:
    """`fedkin.graph.find`, but no client is alone because of its class shares.

    If clients differ only in class shares and one of them is alone, all are one group of "shares". Groups of clients
    with the same few classes are slightly better off apart, but a client whose classes look like those of all others
    need not train alone.
    """
    tested = find(signatures, alpha=alpha, least=least, seed=seed)
    verdicts, profiles, group = list(tested.verdicts), list(tested.profiles), dict(tested.groups)
    nodes = [0]
    while nodes:
        node = tested.tree[nodes.pop()]
        clients = node["clients"]
        only_shares = "concept" in node["p"] and not {"offset", "concept"} & set(node["rejected"])
        if node["children"] and only_shares and "alone" in {verdicts[group[id]] for id in clients}:
            group |= dict.fromkeys(clients, len(verdicts))
            verdicts.append("shares")
            profiles.append(Signature.total([signatures[id] for id in clients]))
        else:
            nodes.extend(node["children"])
    numbers = np.array(list(group.values()))
    labels = canonical(numbers)
    order = numbers[np.unique(labels, return_index=True)[1]].tolist()
    verdicts, profiles = [verdicts[number] for number in order], [profiles[number] for number in order]
    return replace(tested, labels=labels, verdicts=tuple(verdicts), profiles=tuple(profiles))


def bytes_of(signature: Signature) -> Tensor:
    """The signature's bytes, [bytes] uint8, as it travels and is kept."""
    return torch.frombuffer(bytearray(signature.to_bytes()), dtype=torch.uint8)


def signature_in(data: Tensor) -> Signature:
    """The signature in these bytes, which were checked on arrival."""
    return Signature.from_bytes(_bytes(data))


def _bytes(data: Tensor) -> bytes:
    return data.contiguous().numpy().tobytes()
