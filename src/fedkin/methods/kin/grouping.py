"""Kin's groups: who signs, when groups are found, who is placed in them, what the records say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedkin.flow import Params
from fedkin.graph import Graph, Signature, place
from fedkin.methods.blocks.clusters import continued, mean_of_clusters, members_graph
from fedkin.methods.blocks.signatures import by_content, evidence_of, tests_of, unsigned
from fedkin.methods.kin.finding import Rule, verdicts
from fedkin.methods.kin.state import State
from fedkin.views import ServerView

__all__ = ["Rule", "common", "due_to_sign", "nearest", "take"]


def due_to_sign(server: ServerView[State], sampled: Sequence[str], every: int | None) -> list[str]:
    """Clients without a signature, and all of them after every `every` rounds."""
    again = every is not None and server.round > 1 and (server.round - 1) % every == 0
    return unsigned(server, sampled, () if again else server.state["signatures"])


def take(server: ServerView[State], signed: Mapping[str, Tensor], rule: Rule) -> None:
    """Keep these signatures. They make all groups anew, or their senders join the groups that there are.

    Groups are made anew at first, if a client signed again, and once more clients were placed than groups were made of.
    """
    state = server.state
    new = [id for id in signed if id not in state["group"]]
    founders = len(state["group"]) - len(state["placed"])
    state["signatures"] = {**state["signatures"], **signed}
    if len(new) < len(signed) or len(state["placed"]) + len(new) > founders:
        _make(server, rule)
    else:
        _join(server, new, rule)
    server.graph = _graph(server)


def _make(server: ServerView[State], rule: Rule) -> None:
    """Find all groups; each goes on from the model of the old group that most of its members come from."""
    state = server.state
    state["looks"], state["placed"] = state["looks"] + 1, {}
    found = verdicts(server, list(state["signatures"]), rule)
    before = [int(state["group"][id]) if id in state["group"] else None for id in found.ids]
    numbers = continued(found.labels.tolist(), before, [int(number) for number in state["verdict"]])
    whole = common(server)
    models: dict[str, Params] = {}
    for (number, parent), verdict in zip(numbers, found.verdicts, strict=True):
        start = state["models"].get(str(parent))
        by_itself = start is None and (parent is None or state["verdict"][str(parent)] == "alone")
        # Who is alone goes on from what it has; all others start from a model of the server's.
        if verdict != "alone" or not by_itself:
            models[str(number)] = whole if start is None else start
    state["models"] = models
    state["group"] = {id: str(numbers[label][0]) for id, label in found.groups.items()}
    state["verdict"] = {str(number): verdict for (number, _), verdict in zip(numbers, found.verdicts, strict=True)}
    state["tests"] = tests_of(found)


def _join(server: ServerView[State], ids: Sequence[str], rule: Rule) -> None:
    """Place newcomers in the groups; no other client is moved. Who belongs to none is alone, from the common model."""
    state, whole = server.state, common(server)
    group, verdict, models = dict(state["group"]), dict(state["verdict"]), dict(state["models"])
    free = max(map(int, verdict)) + 1
    joined = nearest(server, {id: state["signatures"][id] for id in ids}, rule)
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


def nearest(server: ServerView[State], signed: Mapping[str, Tensor], rule: Rule) -> dict[str, str | None]:
    """The group that each of these newcomers belongs to, or None: tested against every group found."""
    group, placed = server.state["group"], server.state["placed"]
    found = verdicts(server, [id for id in group if id not in placed], rule)
    number = [group[found.members(label)[0]] for label in range(len(found.verdicts))]
    joins = {id: place(Signature.from_bytes(data.numpy().tobytes()), found).group for id, data in signed.items()}
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
