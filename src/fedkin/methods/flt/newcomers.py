"""FLT's newcomers: clients that join the groups that there are, during training or for evaluation.

The paper leaves this as future work: "assign them to the existing cluster formation based on their distance".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from fedkin.flow import Params, ServerFlow
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods.flt import crowd
from fedkin.methods.flt.dynamic import take_signatures
from fedkin.methods.flt.encoder import EncoderSettings
from fedkin.methods.flt.relatedness import Array, Labels, RelatednessSettings, Sets, adjacency, distances, embedded
from fedkin.methods.flt.signature import signatures
from fedkin.methods.flt.stage import by_content, decoded, record, seed_of
from fedkin.methods.flt.state import State, matrix_of, stored
from fedkin.views import ServerView

__all__ = ["attach", "near_in_a_crowd", "nearest", "welcome"]


def attach(server: ServerView[State], settings: RelatednessSettings, average: str) -> None:
    """Give clients that signed for the first time the group and the model of their nearest; no other client moves."""
    state = server.state
    known = sorted(state["row"], key=lambda id: state["row"][id])
    new = by_content((id for id in state["signatures"] if id not in state["row"]), state["signatures"])
    founders, others = known[: state["founders"]], known[state["founders"] :]
    numbers = sorted({state["group"][id] for id in founders})
    label = {number: place for place, number in enumerate(numbers)}
    labels = np.array([label[state["group"][id]] for id in founders])
    fresh, made, late = (decoded(state["signatures"], ids) for ids in (new, founders, others))
    find = nearest if isinstance(state["adjacency"], Tensor) else near_in_a_crowd
    rows, joins, closest = find(fresh, made, late, labels, state["gamma"], settings, seed_of(server))
    group = {id: numbers[label] for id, label in zip(new, joins.tolist(), strict=True)}
    if average == "groups":
        model = {id: str(number) for id, number in group.items()}
    else:
        model = {id: state["model"][founders[place]] for id, place in zip(new, closest.tolist(), strict=True)}
    state["adjacency"] = stored(_grown(matrix_of(state["adjacency"]), rows))
    state["group"], state["model"] = {**state["group"], **group}, {**state["model"], **model}
    state["row"] = {**state["row"], **{id: len(known) + place for place, id in enumerate(new)}}
    record(server)


def nearest(
    new: Sets, founders: Sets, others: Sets, labels: Labels, gamma: float,
    settings: RelatednessSettings, seed: int,
) -> tuple[Array, Labels, Labels]:  # fmt: skip
    """Of newcomers: (rows of the adjacency, group, nearest founder).

    founders: signatures of the clients from which the groups were made, with their groups `labels`; others: those of
    clients that joined since. A newcomer's group is the one whose founders are nearest on average. A row runs over
    founders, others and newcomers.
    """
    late = embedded(founders, settings, seed, [*others, *new])
    fresh, first = late[len(others) :], len(founders) + len(others)
    between = distances(fresh, settings, [*embedded(founders, settings, seed), *late])
    rows = adjacency(between, gamma, settings)
    rows[np.arange(len(fresh)), first + np.arange(len(fresh))] = 0.0
    known = between[:, : len(founders)]
    return rows, crowd.to_groups(known, labels).argmin(1), known.argmin(1)


def near_in_a_crowd(
    new: Sets, founders: Sets, others: Sets, labels: Labels, gamma: float,
    settings: RelatednessSettings, seed: int,
) -> tuple[sp.csr_array, Labels, Labels]:  # fmt: skip
    """As `nearest`, where each client has only its neighbours, and the drawn founders say which group is nearest."""
    drawn = crowd.drawn(len(founders), seed)
    made = [founders[row] for row in drawn.tolist()]
    every, known = crowd.placed([*founders, *others, *new], made, drawn, settings, seed)
    first = len(founders) + len(others)
    fresh = np.arange(first, len(every))
    joins, near = crowd.joining(every[first:], known, labels[drawn], settings, seed)
    found = crowd.neighbours(every, settings, seed, fresh)
    rows = crowd.linked(found, fresh, len(every), gamma, settings)[first:]
    apart = np.where(found.columns < len(founders), found.distances, np.inf)
    closest = np.take_along_axis(found.columns, apart.argmin(1)[:, None], axis=1)[:, 0]
    # None of the neighbours may be a founder: then the nearest of some drawn ones.
    closest = np.where(np.isfinite(apart.min(1)), closest, drawn[near])
    return rows, labels[closest] if settings.control == "self" else joins, closest


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


def welcome(
    server: ServerView[State], ids: Sequence[str], encoder: EncoderSettings | None, settings: RelatednessSettings,
    average: str,
) -> ServerFlow[tuple[set[str], Params]]:  # fmt: skip
    """Attach clients that never took part: which of these have a model now, and what the others get.

    That is the mean of all clients' models, for a client without samples to sign with.
    """
    state = server.state
    if not state["row"]:
        return set(ids), server.initial
    held = Counter(state["model"].values())
    clients = {number: float(held[number]) for number in state["models"]}
    new = yield from signatures(server, encoder, sorted(ids), sizes=False)
    if new:
        take_signatures(state, new)
        attach(server, settings, average)
    return set(new), weighted_mean(state["models"], clients) if len(new) < len(ids) else server.initial
