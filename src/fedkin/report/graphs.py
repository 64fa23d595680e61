"""The page's data of a run's graphs: pictures of rounds, groups over rounds, weights against what clients share."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import scipy.sparse as sp

from fedkin.analysis.figures import class_overlap, correlation, mean_by_level
from fedkin.graph import Graph
from fedkin.graph.picture import places
from fedkin.records.run import Result
from fedkin.report.verdicts import verdict_data

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LARGEST = 5000  # clients of a graph that can be drawn
NOTHING = 65535  # in packed uint16: no value for this client and round
# Limits per run: rounds of graphs and weights, rounds of groups, rows of a matrix.
_ROUNDS, _HISTORY, _SIDE = 40, 200, 200
# Limits per page, shared equally by its runs: clients of all rounds, cells of all matrices, cells of all histories.
_CLIENTS, _CELLS, _HISTORY_CELLS = 100_000, 1_600_000, 300_000
# Values that a graph may have for its clients (TFL).
_VALUES = ("centrality", "prior", "lambda")
_ALIKE = 0.75  # from this mean overlap on, clients count as having the same classes


# -- compact numbers for the page --------------------------------------------------------------------------------------


def evenly(rounds: Sequence[int], most: int) -> list[int]:
    """At most `most` of the rounds, evenly spread, including the first and the last (the last if only one).

    >>> evenly([1, 2, 3, 4, 5], 3), evenly([1, 2], 3), evenly([1, 2, 3], 1)
    ([1, 3, 5], [1, 2], [3])
    """
    if most == 1 or len(rounds) <= most:
        return list(rounds[-1:] if most == 1 else rounds)
    return [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int)).tolist()]


def strongest(weights: Array, per_node: int) -> tuple[Indices, Indices]:
    """Pairs (rows, columns; row < column) among the `per_node` largest positive weights of at least one of their nodes.

    >>> [part.tolist() for part in strongest(np.array([[0, 3, 1], [3, 0, 2], [1, 2, 0]]), 1)]
    [[0, 1], [1, 2]]
    """
    n = len(weights)
    both = np.maximum(weights, weights.T).astype(np.float64)
    np.fill_diagonal(both, 0.0)
    keep = max(0, min(per_node, n - 1))
    # The sort is stable: ties go to the first client, on every machine.
    order = np.argsort(-both, axis=1, kind="stable")[:, :keep]
    row, column = np.repeat(np.arange(n), keep), order.ravel()
    positive = both[row, column] > 0
    low, high = np.minimum(row, column)[positive], np.maximum(row, column)[positive]
    pairs = np.unique(low * n + high)
    return pairs // n, pairs % n


def blocks(matrix: Array, most: int) -> tuple[Array, Indices]:
    """Shrink a matrix to at most `most` rows by averaging neighbours; returns it with the first row of each block.

    >>> blocks(np.arange(16.0).reshape(4, 4), 2)[0]
    array([[ 2.5,  4.5],
           [10.5, 12.5]])
    """
    n = len(matrix)
    if n <= most:
        return matrix, np.arange(n)
    starts = np.unique(np.linspace(0, n, most, endpoint=False).astype(np.int64))
    summed = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    sizes = np.diff(np.append(starts, n))
    return summed / np.outer(sizes, sizes), starts


def pack(values: npt.ArrayLike, kind: str) -> str:
    """An array as base64 of its little-endian bytes; kind: "u1" or "u2".

    >>> pack([1, 256], "u2")
    'AQAAAQ=='
    """
    return base64.b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode()


def pack_matrix(matrix: Array, flat: int) -> dict[str, Any]:
    """A matrix in steps of 1/255 of the range of its cells outside the diagonal; flat: each step if the range is 0."""
    apart = matrix[~np.eye(len(matrix), dtype=bool)] if len(matrix) > 1 else matrix.ravel()
    low, high = (float(apart.min()), float(apart.max())) if apart.size else (0.0, 0.0)
    scaled = np.clip((matrix - low) / (high - low), 0, 1) if high > low else np.full_like(matrix, flat)
    return {"low": low, "high": high, "matrix": pack(np.round(255 * scaled), "u1")}


def pack_values(
    by_round: Mapping[int, Mapping[str, float]], ids: Sequence[str], most: int, share: bool = True
) -> dict[str, Any]:
    """Values of clients over at most `most` rounds: uint16, one client after another.

    share: values in [0, 1], in units of 1/10,000. Otherwise "low" is the smallest value, and "step" is one unit.
    """
    rounds = evenly(sorted(by_round), most)
    kept = [value for round in rounds for value in by_round[round].values()]
    low, step = (0.0, 1e-4) if share or not kept else (min(kept), (max(kept) - min(kept)) / (NOTHING - 1) or 1.0)
    table = np.full((len(ids), len(rounds)), NOTHING, dtype=np.uint16)
    at = {id: row for row, id in enumerate(ids)}
    for column, round in enumerate(rounds):
        for id, value in by_round[round].items():
            table[at[id], column] = int((value - low) / step + 0.5)
    scale = {} if share else {"low": low, "step": step}
    return {"rounds": rounds, "all": len(by_round), "share": pack(table, "u2"), **scale}


def _short(values: Array) -> list[float]:
    """The values, rounded to three significant digits."""
    return [float(f"{value:.3g}") for value in values.tolist()]


# -- groups followed over the rounds -----------------------------------------------------------------------------------


class Follower:
    """Gives the groups of successive rounds stable numbers.

    A round's groups take the former numbers of their members, such that the overlap is largest and each number is used
    once (an assignment problem); a group that gets none takes the lowest free number.

    >>> follower = Follower()
    >>> follower.name({"a": 0, "b": 0, "c": 1})
    {'a': 0, 'b': 0, 'c': 1}
    >>> follower.name({"a": 1, "b": 1, "c": 0})
    {'a': 0, 'b': 0, 'c': 1}
    """

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.moves = 0

    def name(self, groups: Mapping[str, int]) -> dict[str, int]:
        """Return the next round's groups with stable numbers; counts the clients that changed group."""
        sizes = Counter(groups.values())
        labels = sorted(sizes, key=lambda label: (-sizes[label], label))
        names = self._former_numbers(groups, labels)
        taken = set(names.values()) | set(self.last.values())
        free = (number for number in count() if number not in taken)
        for label in labels:
            if label not in names:
                names[label] = next(free)
        named = {id: names[label] for id, label in groups.items()}
        self.moves += sum(self.last.get(id, number) != number for id, number in named.items())
        self.last |= named
        return named

    def _former_numbers(self, groups: Mapping[str, int], labels: Sequence[int]) -> dict[int, int]:
        """The numbers that groups take over from the round before, by label."""
        overlap = Counter((label, self.last[id]) for id, label in groups.items() if id in self.last)
        numbers = sorted({number for _, number in overlap})
        if not numbers:
            return {}
        table = np.array([[overlap[label, number] for number in numbers] for label in labels])
        rows, columns = scipy.optimize.linear_sum_assignment(table, maximize=True)
        pairs = zip(rows.tolist(), columns.tolist(), strict=True)
        return {labels[row]: numbers[column] for row, column in pairs if table[row, column]}


# -- graphs ------------------------------------------------------------------------------------------------------------


def graph_of(run: Result, ids: Sequence[str], runs: int = 1) -> dict[str, Any] | None:
    """The page's data of a run's graphs, with clients numbered as in `ids`; None if there is no graph to draw.

    A frame is a kept round: clients present, their groups (with stable numbers), strongest edges, and
    the weights as a matrix in the groups' order. It is valid `until` the last round before the next recorded graph.
    `history` uses the groups of all rounds, `verdicts` the groups of the last graph.
    runs: number of runs with graphs on the page.
    """
    if not run.graphs or len(ids) > LARGEST:
        return None
    number = {id: i for i, id in enumerate(ids)}
    rounds = sorted(run.graphs)
    # Some methods' graphs contain all clients, not only a round's participants.
    present = max(len(run.graph_at(round).ids) for round in (rounds[0], rounds[-1]))
    per_node = 5 if present <= 60 else 3 if present <= 300 else 2
    side = matrix_side(runs)
    kept = evenly(rounds, rounds_kept(present, runs))
    # For each round with a graph, the last round before the next graph.
    until = dict(zip(rounds, [*(after - 1 for after in rounds[1:]), _last_round(run)], strict=True))
    follower = Follower()
    named: dict[int, dict[str, int]] = {}
    frames: list[dict[str, Any]] = []
    total, seen = np.zeros((len(ids), len(ids))), np.zeros((len(ids), len(ids)))
    # Read graphs one at a time: a graph of 1,000 clients takes 8 MB.
    for round in rounds:
        graph = run.graph_at(round)
        if graph.groups is not None:
            named[round] = follower.name(graph.groups)
        if round in kept:
            frame, weights, clients = _frame(graph, named.get(round), number, per_node, side)
            frames.append({"round": round, "until": until[round], **frame})
            total[np.ix_(clients, clients)] += weights / (float(weights.max()) or 1.0)
            seen[np.ix_(clients, clients)] += 1
    x, y = _positions(total / np.maximum(seen, 1))
    return {
        "x": x, "y": y, "perNode": per_node, "frames": frames, "allRounds": len(rounds),
        "verdicts": verdict_data(graph, named.get(round), number, run.rounds), "moves": follower.moves,
        "history": _history(named, until, number, runs) if named else None,
    }  # fmt: skip


def _positions(mean: Array) -> tuple[list[float], list[float]]:
    """Positions of clients, from each pair's mean weight over the rounds in which both clients were present."""
    row, column = strongest(mean, 6)
    links = sp.coo_array((mean[row, column], (row, column)), shape=mean.shape)
    xy = places(links + links.T, 0)
    x, y = np.round(xy / max(1.0, float(np.abs(xy).max())), 3).T.tolist()
    return x, y


def rounds_kept(clients: int, runs: int) -> int:
    """The number of rounds, with graphs of this many clients, that fit into a run's part of the page."""
    side = min(clients, matrix_side(runs))
    return max(1, min(_ROUNDS, _CLIENTS // runs // clients, _CELLS // runs // (side * side)))


def matrix_side(runs: int) -> int:
    """The number of rows of a matrix such that two rounds fit into a run's part of the page."""
    return max(2, min(_SIDE, isqrt(_CELLS // runs // 2)))


def _last_round(run: Result) -> int:
    """The last round in which the last graph is valid: an unchanged graph is not recorded again."""
    return max(int(run.summary["rounds"]), *run.graphs)


def dense(matrix: Any) -> Array:
    """A graph's matrix as a writable array."""
    return np.array(matrix if isinstance(matrix, np.ndarray) else sp.csr_array(matrix).toarray(), dtype=np.float64)


def _frame(
    graph: Graph, named: Mapping[str, int] | None, number: Mapping[str, int], per_node: int, side: int
) -> tuple[dict[str, Any], Array, Indices]:
    """Return (the frame of one round, its weights, its clients); clients and matrix are sorted by group."""
    weights = dense(graph.weights)
    weights = np.maximum(weights, weights.T)
    np.fill_diagonal(weights, 0.0)
    group = np.array([named[id] for id in graph.ids] if named else [0] * len(graph.ids))
    client = np.array([number[id] for id in graph.ids])
    order = np.lexsort((client, group))
    weights, group, client = weights[np.ix_(order, order)], group[order], client[order]
    row, column = strongest(weights, per_node)
    matrix, starts = blocks(weights, side)
    frame = {
        "clients": client.tolist(), "groups": group.tolist() if named else None, "strength": _short(weights.sum(1)),
        "from": client[row].tolist(), "to": client[column].tolist(), "weight": _short(weights[row, column]),
        "values": {name: _short(graph.values[name][order]) for name in _VALUES if _has_numbers(graph, name)},
        "side": len(matrix), "starts": starts.tolist() if len(matrix) < len(weights) else None,
        **pack_matrix(matrix, 0),
    }  # fmt: skip
    return frame, weights, client


def _has_numbers(graph: Graph, name: str) -> bool:
    """Whether a graph has this value as one finite number for each client: a file may hold any values."""
    values = graph.values.get(name)
    return values is not None and values.ndim == 1 and values.dtype.kind in "biuf" and bool(np.isfinite(values).all())


def _history(
    named: Mapping[int, Mapping[str, int]], until: Mapping[int, int], number: Mapping[str, int], runs: int
) -> dict[str, Any]:
    """Groups [clients, rounds]; NOTHING if a client was not in the round's graph."""
    rounds = evenly(sorted(named), max(2, min(_HISTORY, _HISTORY_CELLS // runs // len(number))))
    table = np.full((len(number), len(rounds)), NOTHING, dtype=np.uint16)
    for column, round in enumerate(rounds):
        for id, group in named[round].items():
            table[number[id], column] = group
    return {"rounds": rounds, "until": [until[round] for round in rounds], "group": pack(table, "u2")}


# -- weights compared with what clients have in common (MAPL, Fig. 4) --------------------------------------------------


def sharing_of(run: Result, ids: Sequence[str]) -> dict[str, Any] | None:
    """The page's data: weights compared with what clients have in common, over the rounds; None if one is missing.

    `none`, `some`, `all`: mean weight of pairs that share nothing, something, everything; `correlation`: of weights
    and overlap over pairs; `until`: the last round in which the last graph was valid.
    """
    shared = None if not run.graphs or len(ids) > LARGEST else _shared(run, ids)
    if shared is None:
        return None
    by, overlap = shared
    number = {id: i for i, id in enumerate(ids)}
    rounds = evenly(sorted(run.graphs), _ROUNDS)
    figures: dict[str, list[Any]] = {"round": rounds, "none": [], "some": [], "all": [], "correlation": []}
    for round in rounds:
        graph = run.graph_at(round)
        weights = learned_weights(graph)
        indices = np.array([number[id] for id in graph.ids])
        present = overlap[np.ix_(indices, indices)]
        values = (*mean_by_level(weights, present), correlation(weights, present))
        for name, value in zip(("none", "some", "all", "correlation"), values, strict=True):
            figures[name].append(None if value is None else float(f"{value:.4g}"))
    return {"by": by, "until": _last_round(run), "figures": figures}


def learned_weights(graph: Graph) -> Array:
    """The weights that a method learned; row i: the weights that client i gives to each client (MAPL's W).

    This is the mixing matrix if the recorded weights are its symmetric mean.
    """
    weights = dense(graph.weights)
    if graph.mixing is None:
        return weights
    mixing = dense(graph.mixing)
    mean = (mixing + mixing.T) / 2
    np.fill_diagonal(mean, 0.0)
    return mixing if np.allclose(mean, weights, atol=1e-9) else weights


def _shared(run: Result, ids: Sequence[str]) -> tuple[str, Array] | None:
    """("classes" or "groups", overlap [n, n]): classes if clients differ much in them, else planted groups."""
    classes = [set(run.client_facts[id].get("labels", {})) for id in ids]
    overlap = class_overlap(classes)
    # With few samples, some clients lack a class only by chance.
    if all(classes) and len(ids) > 1 and float(overlap[~np.eye(len(ids), dtype=bool)].mean()) < _ALIKE:
        return "classes", overlap
    if run.planted is None or len(set(run.planted.values())) < 2:
        return None
    return "groups", class_overlap([{run.planted[id]} for id in ids])
