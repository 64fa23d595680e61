"""FLT's graph and groups in the server's state: made anew, stored, recorded; and the models that go with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.graph import Graph, Signature
from fedkin.keys import key
from fedkin.methods.blocks.clusters import continued
from fedkin.methods.blocks.signatures import Tests, by_content, evidence_of, tests_of
from fedkin.methods.flt import crowd
from fedkin.methods.flt.relatedness import Related, RelatednessSettings, Sets
from fedkin.methods.flt.state import State, matrix_of, stored
from fedkin.views import ServerView

__all__ = ["by_content", "continued", "decoded", "inputs", "keep", "record", "seed_of"]

_DENSE = 1000  # clients up to which a graph is recorded as a dense matrix


def inputs(server: ServerView[State]) -> tuple[list[str], Sets, list[str] | None]:
    """Of all clients with a signature: their ids in an order that ids do not decide, signatures, planted groups."""
    order = by_content(server.state["signatures"], server.state["signatures"])
    planted = None if server.planted is None else [server.planted.get(id, "") for id in order]
    return order, decoded(server.state["signatures"], order), planted


def keep(
    server: ServerView[State], order: Sequence[str], signed: Sets, found: Related, average: str,
    settings: RelatednessSettings,
) -> None:  # fmt: skip
    """Set graph and groups of these clients; a new group starts from the model of the group it comes from.

    average: "groups", or "neighbours", where models belong to clients.
    """
    state = server.state
    labels = found.groups.tolist()
    numbers = continued(labels, [state["group"].get(id) for id in order], state["group"].values())
    group = {id: numbers[label][0] for id, label in zip(order, labels, strict=True)}
    if average == "groups":
        state["models"] = {
            str(number): server.initial if parent is None else state["models"][str(parent)]
            for number, parent in numbers
        }
        state["model"] = {id: str(number) for id, number in group.items()}
    else:
        _adopt_models(server, order, signed, found, settings)
    state["group"], state["row"] = group, {id: place for place, id in enumerate(order)}
    state["founders"], state["gamma"] = len(order), found.gamma
    state["adjacency"], state["tests"] = stored(found.adjacency), None
    if found.verdicts is not None:
        tests = tests_of(found.verdicts)
        leaf = {order[found.drawn[int(place)]]: node for place, node in tests["leaf"].items()}
        state["tests"] = Tests(**{**tests, "leaf": leaf})
        state["verdict"] = {str(numbers[label][0]): said for label, said in enumerate(found.verdicts.verdicts)}
    record(server)


def _adopt_models(
    server: ServerView[State], order: Sequence[str], signed: Sets, found: Related, settings: RelatednessSettings
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
    between = sp.csr_array(found.adjacency[new][:, old])
    linked = np.diff(between.indptr) > 0
    giver = np.full(len(order), -1)
    giver[new[linked]] = old[np.asarray(between.argmax(axis=1)).ravel()[linked]]
    alone = new[~linked]
    for group in np.unique(found.groups[alone]).tolist():
        asks, there = alone[found.groups[alone] == group], old[found.groups[old] == group]
        if len(there):
            wanted, known = ([signed[row] for row in rows.tolist()] for rows in (asks, there))
            _, near = crowd.joining(wanted, known, found.groups[there], settings, seed_of(server))
            giver[asks] = there[near]
    initial = str(1 + max(map(int, state["models"])))
    if (giver[new] < 0).any():
        state["models"] = {**state["models"], initial: server.initial}
    adopted = {order[row]: state["model"][order[giver[row]]] if giver[row] >= 0 else initial for row in new.tolist()}
    state["model"] = {**state["model"], **adopted}


# -- storing and recording ----------------------------------------------------------------------------------------


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
