"""The page's data of a run's graphs: rounds as pictures, groups over the rounds, weights beside what clients share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedkin.analysis.figures import class_overlap, correlation, mean_by_level, tree
from fedkin.graph import Graph
from fedkin.records.run import Result
from fedkin.report.drawing import NOTHING, blocks, evenly, layout, pack, strongest
from fedkin.report.following import Follower, moves
from fedkin.report.verdicts import choice_words, drawn

__all__ = ["LARGEST", "affordable", "dense", "graph_of", "learned_weights", "matrix_side", "sharing_of", "undrawn"]

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LARGEST = 5000  # clients of a graph that is drawn
# Of a run: rounds of graphs and of groups, rows of a matrix, moves. More of them make nothing clearer.
_ROUNDS = 40
_HISTORY = 200
_SIDE = 200
_MOVES = 2000
# Of a page, shared equally by its runs. Cells: 40 matrices of a large graph, and that of its tree.
_EDGES = 200_000
_NODES = 100_000
_CELLS = 41 * _SIDE * _SIDE
_HISTORY_CELLS = 300_000
_LEAVES = 30_000
_PICTURES = 400_000
_ALL_MOVES = 20_000
# Values that a graph may have for its clients (TFL).
_VALUES = ("centrality", "prior", "lambda")
_WEIGHT_ROUNDS = 40
_WEIGHT_PICTURES = 3
_WEIGHT_SIDE = 100
_ALIKE = 0.75  # mean overlap of classes from which clients are treated as having the same
_ABSENT = 255  # in packed bytes: these two were not both present


def undrawn(run: Result, ids: Sequence[str]) -> bool:
    """Whether the run has graphs of more clients than the page can draw: their matrices would not fit into memory."""
    return bool(run.graphs) and len(_in_graphs(run, ids)) > LARGEST


def _in_graphs(run: Result, ids: Sequence[str]) -> list[int]:
    """Numbers of the clients that are drawn: all of a few, of many those of some graph."""
    if len(ids) <= LARGEST:
        return list(range(len(ids)))
    known: set[str] = set()
    for round in sorted(run.graphs):
        known.update(run.graph_at(round).ids)
        if len(known) > LARGEST:
            break
    return [number for number, id in enumerate(ids) if id in known]


def graph_of(run: Result, ids: Sequence[str], runs: int = 1) -> dict[str, Any] | None:
    """The page's data of a run's graphs, with clients numbered as in `ids`; None if there is none.

    A frame is a kept round: clients present, their groups (with stable numbers), strongest edges, and
    the weights as a matrix in the groups' order. It is valid `until` the last round before the next recorded graph.
    `history` and `moves` use the groups of all rounds, `verdicts` those of the last graph.
    runs: how many runs with graphs share the page.
    """
    there = _in_graphs(run, ids) if run.graphs else []
    if not there or len(there) > LARGEST:
        return None
    number = {id: i for i, id in enumerate(ids)}
    # Some methods' graphs hold all clients, not only a round's participants.
    present = max(len(run.graph_at(round).ids) for round in {min(run.graphs), max(run.graphs)})
    per_node = min(5 if present <= 60 else 3 if present <= 300 else 2, max(1, _EDGES // runs // (2 * present)))
    side = matrix_side(runs)
    until = _until(run)
    kept = evenly(sorted(run.graphs), min(_ROUNDS, affordable(present, per_node, runs)))
    # A large graph's tree needs its own matrix: one is enough.
    trees = evenly(kept, max(1, _LEAVES // runs // present) if present <= side else 1)
    follower, ties = Follower(), _Ties(there)
    named: dict[int, dict[str, int]] = {}
    frames: list[dict[str, Any]] = []
    # Graphs are read one at a time: each of 1,000 clients is 8 MB.
    for round in sorted(run.graphs):
        graph = run.graph_at(round)
        if graph.groups is not None:
            named[round] = follower.name(graph.groups)
        if round in kept:
            frame = _frame(graph, named.get(round), number, per_node, side, round in trees, ties)
            frames.append({"round": round, "until": until[round], **frame})
    place = np.zeros((len(ids), 2))
    place[there] = layout(ties.strongest(), iterations=120 if len(there) <= 300 else 60)
    return {
        "x": np.round(place[:, 0], 3).tolist(),
        "y": np.round(place[:, 1], 3).tolist(),
        "perNode": per_node,
        "frames": frames,
        "allRounds": len(run.graphs),
        "verdicts": drawn(graph, named.get(round), number, choice_words(run.rounds)),
        **_followed(named, until, number, runs),
    }


def _until(run: Result) -> dict[int, int]:
    """The last round in which each recorded graph is valid: an unchanged graph is not recorded again."""
    rounds = sorted(run.graphs)
    last = max(int(run.summary["rounds"]), rounds[-1])
    return {**{one: after - 1 for one, after in pairwise(rounds)}, rounds[-1]: last}


def _followed(
    named: Mapping[int, Mapping[str, int]], until: Mapping[int, int], number: Mapping[str, int], runs: int
) -> dict[str, Any]:
    """Groups over the rounds and moves between them; empty if the graphs have no groups."""
    if not named:
        return {"history": None, "moves": [], "allMoves": 0}
    rounds = evenly(sorted(named), max(2, min(_HISTORY, _HISTORY_CELLS // runs // len(number))))
    changed = moves(named)
    last = changed[-max(1, min(_MOVES, _ALL_MOVES // runs)) :]
    return {
        "history": {
            "rounds": rounds,
            "until": [until[round] for round in rounds],
            "group": pack(_history(named, rounds, number), "u2"),
        },
        "moves": [[round, number[id], old, new] for round, id, old, new in last],
        "allMoves": len(changed),
    }


def matrix_side(runs: int) -> int:
    """Rows of a matrix, so that two rounds' and a tree's fit into a run's part of the page."""
    return max(2, min(_SIDE, isqrt(_CELLS // runs // 3)))


def affordable(clients: int, per_node: int, runs: int) -> int:
    """Rounds of a graph of so many clients for which a run's part of the page has room."""
    side = min(clients, matrix_side(runs))
    trees = 1 if clients > side else 0
    matrices = _CELLS // runs // (side * side) - trees
    return max(1, min(_EDGES // runs // (clients * per_node), _NODES // runs // clients, matrices))


class _Ties:
    """Mean weight of each pair over the rounds in which both were present: determines clients' positions."""

    def __init__(self, clients: Sequence[int]) -> None:
        self.clients = np.array(clients)
        self.total = np.zeros((len(clients), len(clients)))
        self.rounds = np.zeros((len(clients), len(clients)))

    def add(self, weights: Array, clients: Indices) -> None:
        scale = float(weights.max())
        own = np.searchsorted(self.clients, clients)
        place = np.ix_(own, own)
        self.total[place] += weights / scale if scale > 0 else 0.0
        self.rounds[place] += 1

    def strongest(self) -> Array:
        mean = self.total / np.maximum(self.rounds, 1)
        row, column = strongest(mean, 6)
        kept = np.zeros_like(mean)
        kept[row, column] = kept[column, row] = mean[row, column]
        return kept


def dense(matrix: Any) -> Array:
    """A graph's matrix as a writable array."""
    return np.array(matrix if isinstance(matrix, np.ndarray) else sp.csr_array(matrix).toarray(), dtype=np.float64)


def _frame(
    graph: Graph, named: Mapping[str, int] | None, number: Mapping[str, int], per_node: int, side: int, treed: bool,
    ties: _Ties,
) -> dict[str, Any]:  # fmt: skip
    """One round: clients sorted by group, so that the matrix has that order."""
    weights = dense(graph.weights)
    both = np.maximum(weights, weights.T)
    np.fill_diagonal(both, 0.0)
    group = np.array([named[id] for id in graph.ids] if named else [0] * len(graph.ids))
    client = np.array([number[id] for id in graph.ids])
    order = np.lexsort((client, group))
    both, group, client = both[np.ix_(order, order)], group[order], client[order]
    ties.add(both, client)
    row, column = strongest(both, per_node)
    return {
        "clients": client.tolist(),
        "groups": group.tolist() if named else None,
        "strength": [_short(value) for value in both.sum(1).tolist()],
        "from": client[row].tolist(),
        "to": client[column].tolist(),
        "weight": [_short(value) for value in both[row, column].tolist()],
        "values": {name: [_short(value) for value in each[order].tolist()] for name, each in _numbers(graph).items()},
        "tree": _tree(both, side) if treed and len(both) > 1 else None,
        **_matrix(both, side),
    }


def _numbers(graph: Graph) -> dict[str, npt.NDArray[Any]]:
    """The values that the page draws, where they are one finite number per client: a file may hold any others."""
    values = {name: graph.values[name] for name in _VALUES if name in graph.values}
    return {
        name: each for name, each in values.items()
        if each.ndim == 1 and each.dtype.kind in "biuf" and np.isfinite(each).all()
    }  # fmt: skip


def _tree(both: Array, side: int) -> dict[str, Any]:
    """The hierarchy of the frame's clients: their order, the highest branches, and the matrix in this order if large.

    A branch: x of both feet, their heights, its own, and its first and last leaf, as in `analysis.figures`.
    """
    hierarchy = tree(both)
    ordered = both[np.ix_(hierarchy.order, hierarchy.order)]
    return {
        "order": hierarchy.order.tolist(),
        "branches": [[_short(value) for value in branch] for branch in hierarchy.branches[-side:].tolist()],
        "matrix": _matrix(ordered, side)["matrix"] if len(both) > side else None,
    }


def _matrix(both: Array, side: int) -> dict[str, Any]:
    """The weights in 1/255 of the range between different clients; means of neighbours if there are many.

    few: the values, if there are at most two different ones, so that they are no scale.
    """
    matrix, starts = blocks(both, side)
    apart = matrix[~np.eye(len(matrix), dtype=bool)] if len(matrix) > 1 else matrix.ravel()
    low, high = (float(apart.min()), float(apart.max())) if apart.size else (0.0, 0.0)
    scaled = np.clip((matrix - low) / (high - low), 0, 1) if high > low else np.zeros_like(matrix)
    return {
        "side": len(matrix),
        "starts": starts.tolist() if len(matrix) < len(both) else None,
        "low": low,
        "high": high,
        "matrix": pack(np.round(255 * scaled), "u1"),
        **({"few": sorted(few)} if len(few := set(apart.tolist())) <= 2 and len(matrix) == len(both) else {}),
    }


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _history(
    named: Mapping[int, Mapping[str, int]], rounds: Sequence[int], number: Mapping[str, int]
) -> npt.NDArray[np.uint16]:
    """[clients, rounds] of groups; NOTHING where a client was not in the round's graph."""
    table = np.full((len(number), len(rounds)), NOTHING, dtype=np.uint16)
    for column, round in enumerate(rounds):
        for id, group in named[round].items():
            table[number[id], column] = group
    return table


# -- weights beside what clients have in common (MAPL, Fig. 3 and 4) -------------------------------------------------


def sharing_of(run: Result, ids: Sequence[str], runs: int = 1) -> dict[str, Any] | None:
    """The page's data: overlap and weights as pictures of a few rounds, and figures of many; None without either.

    `none`, `some`, `all`: mean weight of pairs that share nothing, something, everything; `correlation`: of weights
    and overlap over pairs; `until`: the last round in which the last graph was valid. runs: as of `graph_of`.
    """
    known = None if not run.graphs or len(ids) > LARGEST else _shared(run, ids)
    if known is None:
        return None
    by, overlap = known
    number = {id: i for i, id in enumerate(ids)}
    order = _order(run, ids)
    rounds = evenly(sorted(run.graphs), _WEIGHT_ROUNDS)
    shown = evenly(rounds, _WEIGHT_PICTURES)
    most = max(2, min(_WEIGHT_SIDE, isqrt(_PICTURES // runs // (1 + _WEIGHT_PICTURES))))
    figures: dict[str, list[Any]] = {name: [] for name in ("round", "none", "some", "all", "correlation")}
    pictures: list[Array] = []
    learned = False
    for round in rounds:
        graph = run.graph_at(round)
        weights, learned = learned_weights(graph)
        place = np.array([number[id] for id in graph.ids])
        here = overlap[np.ix_(place, place)]
        told = (round, *mean_by_level(weights, here), correlation(weights, here))
        for name, value in zip(figures, told, strict=True):
            figures[name].append(value if name == "round" or value is None else float(f"{value:.4g}"))
        if round in shown:
            whole = np.full((len(ids), len(ids)), np.nan)
            whole[np.ix_(place, place)] = weights
            # A client's weight to itself may be far larger than any other weight.
            np.fill_diagonal(whole, np.nan)
            pictures.append(_small(whole[np.ix_(order, order)], most))
    side, starts = blocks(overlap[np.ix_(order, order)], most)
    known_weights = np.concatenate([one[np.isfinite(one)] for one in pictures])
    low, high = (float(known_weights.min()), float(known_weights.max())) if known_weights.size else (0.0, 0.0)
    return {
        "by": by,
        "directed": learned,
        "order": order.tolist(),
        "starts": starts.tolist(),
        "overlap": _packed(side, 0.0, 1.0),
        "rounds": shown,
        "until": max(int(run.summary["rounds"]), rounds[-1]),
        "low": low,
        "high": high,
        "matrices": [_packed(one, low, high) for one in pictures],
        "figures": figures,
    }


def learned_weights(graph: Graph) -> tuple[Array, bool]:
    """The weights that a method learned, and whether row i is what client i takes from each (MAPL's W).

    This is the case if the recorded weights are the symmetric mean of the recorded mixing matrix.
    """
    weights = dense(graph.weights)
    if graph.mixing is None:
        return weights, False
    mixing = dense(graph.mixing)
    mean = (mixing + mixing.T) / 2
    np.fill_diagonal(mean, 0.0)
    return (mixing, True) if np.allclose(mean, weights, atol=1e-9) else (weights, False)


def _shared(run: Result, ids: Sequence[str]) -> tuple[str, Array] | None:
    """("classes" or "groups", overlap [n, n]): classes if clients differ much in them, else planted groups."""
    classes = [set(run.client_facts[id].get("labels", {})) for id in ids]
    overlap = class_overlap(classes)
    # With few samples some clients lack a class by chance, which is no structure to follow.
    if all(classes) and len(ids) > 1 and float(overlap[~np.eye(len(ids), dtype=bool)].mean()) < _ALIKE:
        return "classes", overlap
    if run.planted is None or len(set(run.planted.values())) < 2:
        return None
    return "groups", class_overlap([{run.planted[id]} for id in ids])


def _order(run: Result, ids: Sequence[str]) -> Indices:
    """Clients ordered by planted group, then by their classes."""

    def key(place: int) -> tuple[str, list[str], str]:
        facts = run.client_facts[ids[place]]
        return str(facts.get("group")), sorted(facts.get("labels", {})), ids[place]

    return np.array(sorted(range(len(ids)), key=key))


def _small(matrix: Array, most: int) -> Array:
    """At most `most` rows: means of the known values of neighbours, nan if there are none."""
    known = np.isfinite(matrix)
    total, _ = blocks(np.where(known, matrix, 0.0), most)
    share, _ = blocks(known.astype(np.float64), most)
    return np.where(share > 0, total / np.where(share > 0, share, 1.0), np.nan)


def _packed(matrix: Array, low: float, high: float) -> str:
    """Values in 1/254 of the range."""
    scaled = np.clip((matrix - low) / (high - low), 0, 1) if high > low else np.zeros_like(matrix)
    return pack(np.where(np.isfinite(matrix), np.round(254 * np.nan_to_num(scaled)), _ABSENT), "u1")
