"""Learned weights beside what clients have in common: classes, or else the planted group (MAPL, Fig. 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.analysis.figures import class_overlap, correlation, mean_by_level
from fedkin.graph import Graph
from fedkin.report.drawing import blocks, evenly
from fedkin.report.graphs import LARGEST, GraphBudget, dense
from fedkin.report.packing import pack
from fedkin.report.reading import Run

__all__ = ["learned_weights", "sharing_of"]

Array = npt.NDArray[np.float64]

_ROUNDS = 40
_PICTURES = 3
_SIDE = 100
_ALIKE = 0.75  # mean overlap of classes from which clients are treated as having the same
_NOTHING = 255  # in packed bytes: these two were not both present


def sharing_of(run: Run, ids: Sequence[str], budget: GraphBudget) -> dict[str, Any] | None:
    """The page's data: overlap and weights as pictures of a few rounds, and figures of many; None without either.

    `none`, `some`, `all`: mean weight of pairs that share nothing, something, everything; `correlation`: of weights
    and overlap over pairs; `until`: the last round in which the last graph was valid.
    """
    known = None if not run.graphs or len(ids) > LARGEST else _shared(run, ids)
    if known is None:
        return None
    by, overlap = known
    number = {id: i for i, id in enumerate(ids)}
    order = _order(run, ids)
    rounds = evenly(sorted(run.graphs), _ROUNDS)
    shown = evenly(rounds, _PICTURES)
    most = max(2, min(_SIDE, isqrt(budget.pictures // (1 + _PICTURES))))
    figures: dict[str, list[Any]] = {name: [] for name in ("round", "none", "some", "all", "correlation")}
    pictures: list[Array] = []
    learned = False
    for round in rounds:
        graph = run.graph(round)
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


def _shared(run: Run, ids: Sequence[str]) -> tuple[str, Array] | None:
    """("classes" or "groups", overlap [n, n]): classes if clients differ much in them, else planted groups."""
    classes = [set(run.clients[id].get("labels", {})) for id in ids]
    overlap = class_overlap(classes)
    # With few samples some clients lack a class by chance, which is no structure to follow.
    if all(classes) and len(ids) > 1 and float(overlap[~np.eye(len(ids), dtype=bool)].mean()) < _ALIKE:
        return "classes", overlap
    if run.planted is None or len(set(run.planted.values())) < 2:
        return None
    return "groups", class_overlap([{run.planted[id]} for id in ids])


def _order(run: Run, ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """Clients ordered by planted group, then by their classes."""

    def key(place: int) -> tuple[str, list[str], str]:
        facts = run.clients[ids[place]]
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
    return pack(np.where(np.isfinite(matrix), np.round(254 * np.nan_to_num(scaled)), _NOTHING), "u1")
