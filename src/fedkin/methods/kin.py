"""Kin: clients say once what their samples are like; tests find who may share a model, and how.

A method of fedkin's own. `docs/methods/kin.md` says what is ours, what is known, and what it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict

import torch
from pydantic import Field
from torch import Tensor

from fedkin.federation import Samples
from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, NET, Choice
from fedkin.graph import Graph, Signature, Verdicts, place
from fedkin.keys import rng
from fedkin.learning.losses import per_sample
from fedkin.learning.robust import Rule
from fedkin.methods.blocks.averaging import Weights
from fedkin.methods.blocks.clusters import cluster_means, continued, mean_of_clusters, members_graph
from fedkin.methods.blocks.personal import has_place, own_view, shared_view
from fedkin.methods.blocks.signatures import (
    Planned,
    SigningMethod,
    Tests,
    by_content,
    collect_signatures,
    evidence_of,
    tests_of,
    unsigned,
    verdicts_of,
)
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView

__all__ = ["ClientState", "Kin", "State"]


class State(Planned):
    """At the server. Groups are numbered from 0, as text.

    plan: what went down for the signatures. signatures: {client id: [bytes] uint8}, as they came.
    group: {client id: group} of every client with a signature. verdict: {group: "same", "shares", "offsets" or
    "alone"}. models: {group: params}; a client that is alone keeps its model itself, and has an entry here only until
    it has started from that.
    placed: {client id: True} of clients that joined groups found before. looks: how often groups were found.
    tests: those of the last time that groups were found.
    keeps: {client id: "group" or "own"}, the model that the client says it uses.
    """

    signatures: dict[str, Tensor]
    group: dict[str, str]
    verdict: dict[str, str]
    models: dict[str, Params]
    placed: dict[str, bool]
    looks: int
    tests: Tests
    keeps: dict[str, str]


class ClientState(TypedDict, total=False):
    """At a client: own, the model that it trains by itself; keeps, which of the two it uses, "group" or "own".

    look: when the groups were found that it is on trial in; tried: how many trials it had in these.
    """

    own: Params
    keeps: str
    look: int
    tried: int


class Kin(SigningMethod):
    """One signature of each client, groups that no test can tell apart, and for each group what its verdict asks for.

    same: one model of the group. shares: one model, with each client's log class shares in its logits. offsets: one
    model of inputs less each client's mean. alone: local training.

    alpha: how often clients of one distribution may be told apart, over all times that groups are found.
    least: groups that differ by less share a model all the same (`fedkin.graph.find`).
    regroup_every: after how many rounds all sign again and groups are found anew (None: never).
    trials: in so many of its first rounds, and for as long as it keeps its own, a client trains a model of its own too.
    It holds out the share `holdout` of its samples, at least `min_holdout`. It keeps its own where that is better on
    these by `margin_se` standard errors, and ends its trials where the group's is (0 trials: it never keeps its own).
    ordered: the order of samples may mean something (`fedkin.graph.sign`). weights, aggregate: as in FedAvg.
    """

    name: ClassVar[str] = "kin"
    title: ClassVar[str] = "Kin"
    paper: ClassVar[str] = "(fedkin)"
    kind: ClassVar[Literal["clustered"]] = "clustered"
    travels: ClassVar[str] = "once: a signature of 2 KB up; then the whole model of the client's group"
    renamed: ClassVar[Mapping[str, str]] = {
        "every": "regroup_every", "held": "holdout", "fewest": "min_holdout", "margin": "margin_se",
    }  # fmt: skip

    alpha: float = Field(0.001, gt=0, lt=1)
    least: float = Field(0.01, ge=0)
    regroup_every: int | None = Field(None, ge=1)
    trials: int = Field(10, ge=0)
    holdout: float = Field(0.2, gt=0, lt=1)
    min_holdout: int = Field(10, ge=1)
    margin_se: float = Field(2.0, ge=0)
    ordered: bool = True
    weights: Weights = "samples"
    aggregate: Rule = "mean"

    @property
    def reads_order(self) -> bool:
        return self.ordered

    def start(self, server: ServerView[State]) -> None:
        server.state = State(
            signatures={}, group={}, verdict={}, models={}, placed={}, looks=0, keeps={},
            tests=Tests(tree={}, leaf={}, alpha=self.alpha),
        )  # fmt: skip

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(n=COUNT, params=NET.when(lambda at: at.asked["verdict"] != "alone"), keeps=Choice("group", "own") | None)
    def train(self, client: ClientView[ClientState], message: Message) -> ClientFlow[Message]:
        """Train the group's model as this client sees it; and its own beside it, where samples are held out."""
        verdict = message["verdict"]
        if verdict == "alone":
            fitted = yield from Fit(self.use(client, message))
            client.state["own"] = fitted.params
            return Message(n=client.size)
        group, own = own_view(client, message.params, verdict), client.state.get("own", client.initial)
        trial = on_trial(client, message["look"], self.trials, self.holdout, self.min_holdout)
        if trial is None:
            fitted = yield from Fit(group)
            return Message(params=shared_view(client, fitted.params, verdict), n=client.size)
        kept, held_out = trial
        better = yield from better_of(client, group, own, held_out, self.margin_se)
        if better == "group":
            won(client, self.trials)
            fitted = yield from Fit(group)
            return Message(params=shared_view(client, fitted.params, verdict), n=client.size)
        client.state["keeps"] = "own" if better == "own" else "group"
        fitted = yield from Fit(group, data=kept)
        alone = yield from Fit(own, data=kept)
        client.state["own"] = alone.params
        return Message(params=shared_view(client, fitted.params, verdict), n=len(kept), keeps=client.state["keeps"])

    def use(self, client: ClientView[ClientState], message: Message) -> Params:
        """What the client keeps: its group's model as it sees it, or its own."""
        own = client.state.get("own")
        if message["verdict"] == "alone":
            own = client.initial if own is None else own
            return message.params if "params" in message else own
        if own is not None and client.state.get("keeps") == "own":
            return own
        return own_view(client, message.params, message["verdict"])

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        # Once: whoever has not signed does; groups are found, and newcomers placed in them.
        signed = yield from collect_signatures(server, server.state, due_to_sign(server, sampled, self.regroup_every))
        if signed:
            take(server, signed, self)
        # Each round: train, and average inside groups.
        training = [id for id in sampled if id in state["group"]]
        replies = (yield from Ask("train", {id: self.offer(server, id) for id in training})) if training else {}
        shared = {id: reply for id, reply in replies.items() if "params" in reply}
        # Who trained alone has started from the model that it was sent.
        gone = {state["group"][id] for id in replies if state["verdict"][state["group"][id]] == "alone"}
        models = {number: model for number, model in state["models"].items() if number not in gone}
        state["models"] = cluster_means(models, state["group"], shared, self.weights, self.aggregate)
        state["keeps"] = {**state["keeps"], **{id: shared[id].get("keeps", "group") for id in shared}}
        server.info = self.figures(server)

    def figures(self, server: ServerView[State]) -> dict[str, float | None]:
        """For the records: groups of several clients; clients alone, and that keep their own model; smallest p.

        unserved: groups whose verdict asks for what the net has no place for; they have one model for all.
        """
        state = server.state
        verdicts = [state["verdict"][number] for number in state["group"].values()]
        p = [value for node in state["tests"]["tree"].values() for value in node["p"].values()]
        return {
            "groups": sum(verdict != "alone" for verdict in state["verdict"].values()),
            "alone": verdicts.count("alone"),
            "keep_own": sum(keeps == "own" for keeps in state["keeps"].values()),
            "smallest_p": min(p, default=None),
            "unserved": sum(not has_place(server.net, server.task, verdict) for verdict in state["verdict"].values()),
        }

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView[State], id: str) -> Message:
        state = server.state
        if id not in state["group"]:
            return Message(params=common(server), verdict="same", look=0)
        number = state["group"][id]
        model = {"params": state["models"][number]} if number in state["models"] else {}
        return Message(**model, verdict=state["verdict"][number], look=state["looks"])

    def welcome(self, server: ServerView[State], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part sign, and get the model of the group that they belong to, if any."""
        offers = {id: self.offer(server, id) for id in ids}
        if not server.state["group"]:
            return offers
        signed = yield from collect_signatures(server, server.state, sorted(ids))
        for id, number in nearest(server, signed, self).items():
            if number is not None and server.state["verdict"][number] != "alone":
                model, verdict = server.state["models"][number], server.state["verdict"][number]
                offers[id] = Message(params=model, verdict=verdict, look=0)
        return offers


# -- at the server: who signs, when groups are found, who joins them --------------------------------------------------


def level(alpha: float, look: int) -> float:
    """alpha of this look, 1, 2, ..: alpha / (look (look + 1)), so that all looks together spend at most alpha.

    >>> sum(level(0.001, look) for look in range(1, 1000)) < 0.001
    True
    """
    return alpha / (look * (look + 1))


def verdicts(server: ServerView[State], ids: Iterable[str], how: Kin) -> Verdicts:
    """What these clients' signatures say, at the level of the last look."""
    state = server.state
    signatures = {id: state["signatures"][id] for id in ids}
    return verdicts_of(server, signatures, level(how.alpha, state["looks"]), how.least)


def due_to_sign(server: ServerView[State], sampled: Sequence[str], rounds: int | None) -> list[str]:
    """Clients without a signature, and all of them after so many rounds."""
    again = rounds is not None and server.round > 1 and (server.round - 1) % rounds == 0
    return unsigned(server, sampled, () if again else server.state["signatures"])


def take(server: ServerView[State], signed: Mapping[str, Tensor], how: Kin) -> None:
    """Keep these signatures. They make all groups anew, or their senders join the groups that there are.

    Groups are made anew at first, if a client signed again, and once more clients were placed than groups were made of.
    """
    state = server.state
    new = [id for id in signed if id not in state["group"]]
    founders = len(state["group"]) - len(state["placed"])
    state["signatures"] = {**state["signatures"], **signed}
    if len(new) < len(signed) or len(state["placed"]) + len(new) > founders:
        _make(server, how)
    else:
        _join(server, new, how)
    server.graph = _graph(server)


def _make(server: ServerView[State], how: Kin) -> None:
    """Find all groups; each goes on from the model of the old group that most of its members come from."""
    state = server.state
    state["looks"], state["placed"] = state["looks"] + 1, {}
    result = verdicts(server, list(state["signatures"]), how)
    before = [int(state["group"][id]) if id in state["group"] else None for id in result.ids]
    numbers = continued(result.labels.tolist(), before, [int(number) for number in state["verdict"]])
    whole = common(server)
    models: dict[str, Params] = {}
    for (number, parent), verdict in zip(numbers, result.verdicts, strict=True):
        start = state["models"].get(str(parent))
        by_itself = start is None and (parent is None or state["verdict"][str(parent)] == "alone")
        # Who is alone goes on from what it has; all others start from a model of the server's.
        if verdict != "alone" or not by_itself:
            models[str(number)] = whole if start is None else start
    state["models"] = models
    state["group"] = {id: str(numbers[label][0]) for id, label in result.groups.items()}
    state["verdict"] = {str(number): verdict for (number, _), verdict in zip(numbers, result.verdicts, strict=True)}
    state["tests"] = tests_of(result)


def _join(server: ServerView[State], ids: Sequence[str], how: Kin) -> None:
    """Place newcomers in the groups; no other client is moved. Who belongs to none is alone, from the common model."""
    state, whole = server.state, common(server)
    group, verdict, models = dict(state["group"]), dict(state["verdict"]), dict(state["models"])
    free = max(map(int, verdict)) + 1
    joined = nearest(server, {id: state["signatures"][id] for id in ids}, how)
    for id in by_content(ids, state["signatures"]):
        number = joined[id]
        if number is None:
            number, free = str(free), free + 1
            verdict[number] = "alone"
            models[number] = whole
        elif verdict[number] == "alone":
            verdict[number] = "same"
            models.setdefault(number, whole)
        group[id] = number
    state["group"], state["verdict"], state["models"] = group, verdict, models
    state["placed"] = {**state["placed"], **dict.fromkeys(ids, True)}


def nearest(server: ServerView[State], signed: Mapping[str, Tensor], how: Kin) -> dict[str, str | None]:
    """The group that each of these newcomers belongs to, or None: tested against every group found."""
    group, placed = server.state["group"], server.state["placed"]
    known = verdicts(server, [id for id in group if id not in placed], how)
    number = [group[known.members(label)[0]] for label in range(len(known.verdicts))]
    joins = {id: place(Signature.from_bytes(data.numpy().tobytes()), known).group for id, data in signed.items()}
    return {id: None if label is None else number[label] for id, label in joins.items()}


def common(server: ServerView[State]) -> Params:
    """The mean of all groups' models, each weighted by its members: for clients of whom nothing is known."""
    state = server.state
    shared = {number: model for number, model in state["models"].items() if state["verdict"][number] != "alone"}
    return mean_of_clusters(shared, state["group"]) if shared else server.initial


# -- the records ------------------------------------------------------------------------------------------------------


def _graph(server: ServerView[State]) -> Graph:
    """Weights of 1 inside groups; each client's verdict, and the tests behind the groups."""
    state = server.state
    graph = members_graph(state["group"], sorted(state["verdict"], key=int), server.round)
    each = {id: state["verdict"][number] for id, number in state["group"].items()}
    return graph.tested(each, evidence_of(state["tests"]))


# -- at a client: do no harm ------------------------------------------------------------------------------------------


def on_trial(
    client: ClientView[ClientState], look: int, trials: int, holdout: float, min_holdout: int
) -> tuple[Samples, Samples] | None:
    """(samples to train on, samples held out), the same in every trial; None once its trials are over.

    A client has `trials` of them each time that groups were found, at that `look`. They end once its group's model has
    won (`won`), and go on while it keeps its own. It has none if it would hold out fewer than `min_holdout` samples: it
    then keeps its group's model.
    """
    if client.state.get("look") != look:
        client.state["look"], client.state["tried"] = look, 0
        client.state.pop("keeps", None)
    count = int(holdout * client.size)
    if count < min_holdout:
        client.state.pop("keeps", None)
        return None
    if client.state["tried"] >= trials and client.state.get("keeps") != "own":
        return None
    client.state["tried"] += 1
    order = rng(client.seed, client.id, "held out").permutation(client.size)
    return client.train.take(sorted(order[count:])), client.train.take(sorted(order[:count]))


def better_of(
    client: ClientView[Any], group: Params, own: Params, held_out: Samples, margin_se: float
) -> ClientFlow[str | None]:  # fmt: skip
    """Which of the two costs less on the held-out samples, "group" or "own", by more than `margin_se` standard errors.

    None: neither.
    """
    theirs = yield from Infer(group, "logits", data=held_out)
    mine = yield from Infer(own, "logits", data=held_out)
    gain = costs(client.task, theirs, held_out.labels()) - costs(client.task, mine, held_out.labels())
    error = float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else 0.0
    mean = float(gain.mean())
    return None if abs(mean) <= margin_se * error else "own" if mean > 0 else "group"


def won(client: ClientView[ClientState], trials: int) -> None:
    """The group's model is the better one: no more trials until groups are found again."""
    client.state["tried"], client.state["keeps"] = trials, "group"


def costs(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """What each sample costs [n]: 1 for a wrong class, else the task's loss."""
    if task.kind == "classification":
        return (outputs.argmax(1) != targets).double()
    return per_sample(task)(outputs.double(), targets).to(torch.float64)
