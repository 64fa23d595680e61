"""Figures of a round: how good the clients' models are, how even, and what the graph found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedkin.engines import Score, Traffic
from fedkin.engines.base import SERVER

if TYPE_CHECKING:
    from fedkin.graph import Graph

__all__ = ["accuracy", "groups", "traffic", "worst"]


def worst(values: npt.NDArray[np.float64], share: float) -> float:
    """Mean of the lowest `share` of the values, at least one of them.

    >>> worst(np.array([0.2, 0.9, 0.8, 0.7]), 0.25)
    0.2
    """
    count = max(1, math.ceil(share * len(values) - 1e-9))
    return float(np.sort(values)[:count].mean())


def accuracy(scores: Mapping[str, Score]) -> dict[str, float | None]:
    """Statistics over clients of their test accuracy; clients without test samples are left out.

    mean, std (population), variance (of the percentage), worst10 and worst20 (mean of the worst 10 % and 20 %
    of the clients), pooled (all test samples as one), stderr (binomial: sqrt(p (1 - p) / N) of the pooled
    share p of N samples), loss (mean over clients; None when a model has diverged), clients
    (how many are in these figures).
    """
    tested = [score for _, score in sorted(scores.items()) if score.n]
    if not tested:
        return {"clients": 0}
    shares = np.array([score.right / score.n for score in tested])
    count = sum(score.n for score in tested)
    pooled = sum(score.right for score in tested) / count
    return {
        "mean": float(shares.mean()),
        "std": float(shares.std()),
        "worst10": worst(shares, 0.1),
        "worst20": worst(shares, 0.2),
        "variance": float((100 * shares).var()),
        "pooled": pooled,
        "stderr": math.sqrt(pooled * (1 - pooled) / count),
        "loss": _finite(float(np.mean([score.loss for score in tested]))),
        "clients": len(tested),
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def groups(graph: Graph | None, planted: Mapping[str, str] | None) -> dict[str, Any]:
    """found: how many groups; modularity; and against the planted groups: ari, nmi (None when unknown)."""
    from fedkin import graph as room

    if graph is None or graph.groups is None:
        return {}
    ids = graph.ids
    labels = np.array([graph.groups[id] for id in ids])
    row: dict[str, Any] = {
        "found": len(set(labels.tolist())),
        "modularity": room.modularity(graph.weights, labels),
        "ari": None,
        "nmi": None,
    }
    if planted is not None:
        truth = np.unique([planted[id] for id in ids], return_inverse=True)[1]
        row |= {"ari": room.ari(truth, labels), "nmi": room.nmi(truth, labels)}
    return row


def traffic(messages: Iterable[Traffic]) -> dict[str, dict[str, int]]:
    """Totals of messages: {"bytes": {"up", "down"}, "floats": {"up", "down"}, "messages": {"up", "down"}}.

    Up is what clients send, down what they receive; between peers a message is both.
    """
    total = {what: {"up": 0, "down": 0} for what in ("bytes", "floats", "messages")}
    for message in messages:
        ways = (("up", message.sender != SERVER), ("down", message.receiver != SERVER))
        for way, counts in ways:
            if counts:
                total["bytes"][way] += message.bytes
                total["floats"][way] += message.floats
                total["messages"][way] += 1
    return total
