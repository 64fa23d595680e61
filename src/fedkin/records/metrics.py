"""Figures of a round: how good the clients' models are, how even, and what the graph found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedkin.engines import Score, Traffic
from fedkin.engines.base import SERVER
from fedkin.learning.scoring import pooled
from fedkin.tasks import METRICS, Metric, Task

if TYPE_CHECKING:
    from fedkin.engines.roster import Roster
    from fedkin.federation import Federation
    from fedkin.graph import Graph

__all__ = ["accuracy", "figures", "groups", "judged", "metric_of", "traffic", "value_of", "worst"]


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


def figures(scores: Mapping[str, Score], task: Task) -> dict[str, Any]:
    """Statistics over clients of the task's metric: `accuracy` for classification, and alike for other tasks.

    Clients without test samples are left out; so are those whose samples do not say (one class only in a risk task, no
    foreground in segmentation), which `left_out` counts. worst10 and worst20 are the worst clients whichever way the
    metric points; variance is of the percentage where the metric is a share; pooled takes all test samples as one (in a
    risk task, scores of different clients' models are then compared with each other). Further figures of the task
    stand beside these by their names, each with mean and pooled.
    """
    if task.kind == "classification":
        return dict(accuracy(scores))
    tested = [score for _, score in sorted(scores.items()) if score.n]
    if not tested:
        return {"clients": 0}
    metric, *more = task.figures
    together = pooled(task, [(score.n, score.marks) for score in tested])
    known = np.array([score.figures[0] for score in tested if score.figures[0] is not None], dtype=np.float64)
    sign = 1.0 if metric.higher else -1.0
    row: dict[str, Any] = {}
    if len(known):
        row = {
            "mean": float(known.mean()),
            "std": float(known.std()),
            "worst10": sign * worst(sign * known, 0.1),
            "worst20": sign * worst(sign * known, 0.2),
            "variance": float(((100 if metric.share else 1) * known).var()),
        }
    for place, other in enumerate(more, 1):
        each = [value for score in tested if (value := score.figures[place]) is not None]
        row[other.name] = {"mean": float(np.mean(each)) if each else None, "pooled": together[place]}
    row["pooled"] = together[0]
    row["loss"] = _finite(float(np.mean([score.loss for score in tested])))
    return row | {"clients": len(known), "left_out": len(tested) - len(known)}


def judged(scores: Mapping[str, Score], clients: Federation | Roster) -> dict[str, Any]:
    """`figures` under the metric's name; with unseen clients also theirs ("unseen") and the "gap".

    The metric's own entry is of the clients that take part. gap: how much worse unseen clients do, mean against mean
    (None when one is not known). All are None when nobody was scored.
    """
    task, metric = clients.task, clients.task.metric
    unseen = set(clients.unseen)
    if not scores:
        return {metric.name: None, **({"unseen": None, "gap": None} if unseen else {})}
    own = figures({id: score for id, score in scores.items() if id not in unseen}, task)
    if not unseen:
        return {metric.name: own}
    others = figures({id: score for id, score in scores.items() if id in unseen}, task)
    seen_mean, unseen_mean = own.get("mean"), others.get("mean")
    gap = None if seen_mean is None or unseen_mean is None else metric.better(seen_mean, unseen_mean)
    return {metric.name: own, "unseen": others, "gap": gap}


def metric_of(row: Mapping[str, Any]) -> Metric:
    """The metric of a round's line or of a summary: the one whose figures stand in it, else accuracy."""
    return next((metric for name, metric in METRICS.items() if name in row), METRICS["accuracy"])


def value_of(score: Score) -> float | None:
    """A client's value of its task's metric; None when its test samples do not say."""
    if not score.n:
        return None
    return score.figures[0] if score.figures else score.right / score.n


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
