"""The graphs of a run as the page draws them: a bounded number of rounds, edges and matrix cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedkin.graph import Graph
from fedkin.report.drawing import blocks, evenly, layout, strongest
from fedkin.report.following import follow, moves
from fedkin.report.packing import NOTHING, pack
from fedkin.report.reading import Run

__all__ = ["GraphBudget", "graph_of"]

# Of one run: more rounds than this make the slider no clearer.
_ROUNDS = 40
_HISTORY = 200
_MOVES = 2000
# Of all runs of a page together.
_EDGES = 500_000
_CELLS = 2_500_000
_HISTORY_CELLS = 1_000_000
_SIDE = 200


@dataclass(frozen=True)
class GraphBudget:
    """How much of each run's graphs is kept, so that a page with many runs stays small."""

    edges: int
    cells: int
    history: int

    @classmethod
    def shared(cls, runs: Iterable[Run]) -> GraphBudget:
        """Equal parts for each run that has graphs."""
        count = max(1, sum(1 for _ in runs))
        return cls(_EDGES // count, _CELLS // count, _HISTORY_CELLS // count)


def graph_of(run: Run, ids: Sequence[str], budget: GraphBudget) -> dict[str, Any] | None:
    """The page's data of a run's graphs, clients numbered as in `ids`; None when there is none.

    A round: clients present, their group (numbers that stay over rounds), strongest edges, and the affinity matrix
    reordered by group.
    """
    if not run.graphs:
        return None
    number = {id: i for i, id in enumerate(ids)}
    groups, sizes = _groups(run)
    per_node = 5 if max(sizes.values()) <= 60 else 3 if max(sizes.values()) <= 300 else 2
    most = min(_ROUNDS, _affordable(max(sizes.values()), per_node, budget))
    kept = evenly(sorted(run.graphs), most)
    named = follow(groups) if groups else {}
    graphs = {round: run.graph(round) for round in kept}
    frames = [_frame(graphs[round], named.get(round), number, per_node) for round in kept]
    order = evenly(sorted(named), max(2, min(_HISTORY, budget.history // len(ids)))) if named else []
    changed = moves(named)
    place = layout(_attraction(graphs.values(), number), iterations=120 if len(ids) <= 300 else 60)
    return {
        "x": np.round(place[:, 0], 4).tolist(),
        "y": np.round(place[:, 1], 4).tolist(),
        "perNode": per_node,
        "frames": [{"round": round, **frame} for round, frame in zip(kept, frames, strict=True)],
        "allRounds": len(run.graphs),
        "history": {"rounds": order, "group": pack(_history(named, order, number), "u2")} if order else None,
        "moves": [[round, number[id], old, new] for round, id, old, new in changed[-_MOVES:]],
        "allMoves": len(changed),
    }


def _affordable(clients: int, per_node: int, budget: GraphBudget) -> int:
    side = min(clients, _SIDE)
    return max(2, min(budget.edges // (clients * per_node), budget.cells // (side * side)))


def _groups(run: Run) -> tuple[dict[int, dict[str, int]], dict[int, int]]:
    """(groups of every round that has some, how many clients are in each round's graph)."""
    groups: dict[int, dict[str, int]] = {}
    sizes: dict[int, int] = {}
    for round in sorted(run.graphs):
        graph = run.graph(round)
        sizes[round] = len(graph.ids)
        if graph.groups is not None:
            groups[round] = dict(graph.groups)
    return groups, sizes


def _dense(graph: Graph) -> npt.NDArray[np.float64]:
    weights = graph.weights
    return weights if isinstance(weights, np.ndarray) else sp.csr_array(weights).toarray()


def _frame(
    graph: Graph, named: Mapping[str, int] | None, number: Mapping[str, int], per_node: int
) -> dict[str, Any]:
    """One round: clients sorted by group, so that the matrix is in that order."""
    weights = _dense(graph)
    group = np.array([named[id] for id in graph.ids] if named else [0] * len(graph.ids))
    client = np.array([number[id] for id in graph.ids])
    order = np.lexsort((client, group))
    weights, group, client = weights[np.ix_(order, order)], group[order], client[order]
    row, column = strongest(weights, per_node)
    both = np.maximum(weights, weights.T)
    np.fill_diagonal(both, 0.0)
    matrix, starts = blocks(both, _SIDE)
    largest = float(matrix.max())
    return {
        "clients": client.tolist(),
        "groups": group.tolist() if named else None,
        "strength": [_short(value) for value in both.sum(1).tolist()],
        "from": client[row].tolist(),
        "to": client[column].tolist(),
        "weight": [_short(value) for value in both[row, column].tolist()],
        "side": len(matrix),
        "starts": starts.tolist() if len(matrix) < len(client) else None,
        "largest": largest,
        "matrix": pack(np.round(255 * matrix / largest) if largest > 0 else np.zeros_like(matrix), "u1"),
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


def _attraction(graphs: Iterable[Graph], number: Mapping[str, int]) -> npt.NDArray[np.float64]:
    """What draws clients together on the page: mean edge weight, kept for the strongest few, over the kept rounds."""
    n = len(number)
    total, seen = np.zeros((n, n)), np.zeros((n, n))
    for graph in graphs:
        place = np.ix_(*2 * ([number[id] for id in graph.ids],))
        weights = _dense(graph)
        scale = float(weights.max())
        total[place] += np.maximum(weights, weights.T) / scale if scale > 0 else 0.0
        seen[place] += 1
    mean = total / np.maximum(seen, 1)
    row, column = strongest(mean, 6)
    kept = np.zeros((n, n))
    kept[row, column] = kept[column, row] = mean[row, column]
    return kept
