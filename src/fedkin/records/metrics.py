"""Figures of a round and a run: quality, its spread over clients, groups, traffic, missing messages, privacy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedkin.engines import Missing, Score, Traffic
from fedkin.engines.privacy import Privacy
from fedkin.engines.results import SERVER
from fedkin.errors import first_few
from fedkin.learning.metrics import Measure, pooled
from fedkin.tasks import METRICS, Metric, Task

if TYPE_CHECKING:
    from fedkin.federation import AnyRoster
    from fedkin.graph import Graph


def worst(values: npt.NDArray[np.float64], share: float) -> float:
    """Return the mean of the lowest `share` of the values, of at least one value.

    >>> worst(np.array([0.2, 0.9, 0.8, 0.7]), 0.25)
    0.2
    """
    count = max(1, math.ceil(share * len(values) - 1e-9))
    return float(np.sort(values)[:count].mean())


def statistics(values: Sequence[float], metric: Metric) -> dict[str, float]:
    """Return mean, std (population), worst10 and worst20 of a metric over clients; empty without values.

    worst10 and worst20 are the means of the worst 10 % and 20 % of the clients, also if a lower metric is better.
    """
    if not values:
        return {}
    array, sign = np.array(values, dtype=np.float64), 1.0 if metric.higher else -1.0
    return {
        "mean": float(array.mean()), "std": float(array.std()), "worst10": sign * worst(sign * array, 0.1),
        "worst20": sign * worst(sign * array, 0.2),
    }  # fmt: skip


def figures(scores: Mapping[str, Score], task: Task) -> dict[str, Any]:
    """Return statistics over clients of the task's metric; clients without test samples are left out.

    They are those of `statistics`, variance (of the percentage, if the metric is a share), pooled (over all test
    samples together; in a risk task this compares scores of different clients' models with each other), loss (mean over
    clients; None if a model has diverged), and clients (the number of clients in these figures).
    Classification also has stderr (binomial: sqrt(p (1 - p) / N) of the pooled share p of N samples). Other tasks have
    weighted (the mean with the clients' numbers of test samples as weights), left_out (the number of clients whose
    samples do not determine the metric: one class only in a risk task, no foreground in segmentation), and the further
    figures of the task under their names, each with mean and pooled.
    """
    tested = [score for _, score in sorted(scores.items()) if score.n]
    if not tested:
        return {"clients": 0}
    classification = task.kind == "classification"
    values = [value for score in tested if (value := value_of(score)) is not None]
    row: dict[str, Any] = dict(statistics(values, task.metric))
    if values:
        row["variance"] = float(((100 if task.metric.share else 1) * np.array(values)).var())
    if classification:
        count = sum(score.n for score in tested)
        share = sum(score.right for score in tested) / count
        row |= {"pooled": share, "stderr": math.sqrt(share * (1 - share) / count)}
    else:
        row |= _further_figures(tested, task)
    row |= {"loss": _finite(float(np.mean([score.loss for score in tested]))), "clients": len(values)}
    return row if classification else row | {"left_out": len(tested) - len(values)}


def _further_figures(tested: Sequence[Score], task: Task) -> dict[str, Any]:
    """The figures that tasks other than classification have."""
    row: dict[str, Any] = {}
    together = pooled(task, [(score.n, score) for score in tested])
    determined = [(value, score.n) for score in tested if (value := value_of(score)) is not None]
    if determined:
        values, weights = zip(*determined, strict=True)
        row["weighted"] = float(np.average(values, weights=weights))
    for index, other in enumerate(task.figures[1:], 1):
        each = [value for score in tested if (value := score.figures[index]) is not None]
        row[other.name] = {"mean": float(np.mean(each)) if each else None, "pooled": together[index]}
    return row | {"pooled": together[0]}


def further(
    measures: Sequence[Measure], scores: Mapping[str, Score], unseen: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return the summary's entry for each metric in `run.metrics`: direction, statistics, and values by client.

    Statistics are over the clients that take part. values: also of unseen clients; None if not determined.
    """
    rows: dict[str, dict[str, Any]] = {}
    for index, measure in enumerate(measures):
        values = {id: scores[id].further[index] for id in sorted(scores)}
        seen = [value for id, value in values.items() if id not in unseen]
        determined = [value for value in seen if value is not None]
        rows[measure.name] = {
            "title": measure.title, "higher": measure.higher, "share": measure.share,
            **statistics(determined, Metric(measure.name, measure.title, measure.higher, measure.share)),
            "clients": len(determined), "left_out": len(seen) - len(determined), "values": values,
        }  # fmt: skip
    return rows


def metric_figures(scores: Mapping[str, Score], clients: AnyRoster) -> dict[str, Any]:
    """Return `figures` under the metric's name; with unseen clients also their figures ("unseen") and the "gap".

    The entry under the metric's name is over the clients that take part. gap: the difference of the two means, above 0
    if unseen clients are worse (None if one mean is not known). All entries are None if no client was scored.
    """
    task, metric = clients.task, clients.task.metric
    unseen = set(clients.unseen)
    if not scores:
        return {metric.name: None, **({"unseen": None, "gap": None} if unseen else {})}
    seen_figures = figures({id: score for id, score in scores.items() if id not in unseen}, task)
    if not unseen:
        return {metric.name: seen_figures}
    others = figures({id: score for id, score in scores.items() if id in unseen}, task)
    seen_mean, unseen_mean = seen_figures.get("mean"), others.get("mean")
    gap = None if seen_mean is None or unseen_mean is None else metric.better(seen_mean, unseen_mean)
    return {metric.name: seen_figures, "unseen": others, "gap": gap}


def metric_of(row: Mapping[str, Any]) -> Metric:
    """Return the metric of a round's line or a summary; accuracy if there is none."""
    return next((metric for name, metric in METRICS.items() if name in row), METRICS["accuracy"])


def value_of(score: Score) -> float | None:
    """Return a client's value of the task's metric; None if its test samples do not determine it."""
    if not score.n:
        return None
    return score.figures[0] if score.figures else score.right / score.n


def _finite(value: float) -> float | None:
    """Replace NaN and infinity by None, since JSON has neither."""
    return value if math.isfinite(value) else None


def groups(graph: Graph | None, planted: Mapping[str, str] | None) -> dict[str, Any]:
    """Return number of groups (found), modularity, and ari and nmi with the planted groups (None if unknown).

    verdicts: the number of groups with each verdict, if the graph holds verdicts.
    """
    from fedkin import graph as graphs

    if graph is None or graph.groups is None:
        return {}
    ids = graph.ids
    labels = np.array([graph.groups[id] for id in ids])
    row: dict[str, Any] = {
        "found": len(set(labels.tolist())), "modularity": graphs.modularity(graph.weights, labels), "ari": None,
        "nmi": None,
    }  # fmt: skip
    if "verdict" in graph.values:
        of_group = dict(zip(labels.tolist(), graph.values["verdict"].tolist(), strict=True))
        row["verdicts"] = dict(Counter(sorted(map(str, of_group.values()))))
    if planted is not None:
        truth = np.unique([planted[id] for id in ids], return_inverse=True)[1]
        row |= {"ari": graphs.ari(truth, labels), "nmi": graphs.nmi(truth, labels)}
    return row


def traffic(messages: Iterable[Traffic]) -> dict[str, dict[str, int]]:
    """Sum messages: {"bytes": {"up", "down"}, "floats": {"up", "down"}, "messages": {"up", "down"}}.

    "up" is the sum over messages that clients send, "down" over messages that they receive. A message between peers is
    in both. A message that could not be sent has no bytes and is in neither.
    """
    total = {what: {"up": 0, "down": 0} for what in ("bytes", "floats", "messages")}
    for message in messages:
        if not message.bytes:
            continue
        ways = (("up", message.sender != SERVER), ("down", message.receiver != SERVER))
        for way, counts in ways:
            if counts:
                total["bytes"][way] += message.bytes
                total["floats"][way] += message.floats
                total["messages"][way] += 1
    return total


def missing_kinds(kinds: Iterable[str | None]) -> dict[str, int]:
    """Return the number of missing messages of each kind (see `engines.Missing`); None or empty: not missing.

    >>> missing_kinds(["lost", None, "refused", "lost"])
    {'lost': 2, 'refused': 1}
    """
    counts = Counter(kinds)
    return {kind.value: counts[kind] for kind in Missing if counts[kind]}


def missing_summary(messages: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Return the entry `missing` of a summary, from the rows of messages.parquet; empty if nothing is missing.

    kinds: number of missing messages of each kind. clients: for each client that failed, whose messages were refused or
    whose privacy budget is spent: number of messages, and the round, phase and reason of the first one.
    """
    kinds: list[str] = []
    clients: dict[str, dict[str, Any]] = {}
    for round, sender, receiver, phase, _, _, kind, reason in messages:
        if not kind:
            continue
        kinds.append(kind)
        if kind in (Missing.REFUSED, Missing.FAILED, Missing.SPENT):
            id = receiver if sender == SERVER else sender
            first = {"count": 0, "round": round, "phase": phase, "reason": f"{kind}: {reason}"}
            clients.setdefault(id, first)["count"] += 1
    if not kinds:
        return {}
    return {"kinds": missing_kinds(kinds), "clients": {id: clients[id] for id in sorted(clients)}}


def missing_sentence(missing: Mapping[str, Any]) -> str:
    """Return the entry `missing` of a summary in words, with up to three clients.

    >>> first = {"count": 2, "round": 3, "phase": "train", "reason": "refused: n is missing"}
    >>> missing_sentence({"kinds": {"lost": 4, "refused": 2}, "clients": {"a": first}})
    "4 lost on the way, 2 refused by validation; client 'a' in round 3, phase 'train': refused: n is missing"
    """
    counts = ", ".join(f"{count:,} {Missing(kind).text}" for kind, count in missing["kinds"].items())
    sentences = [
        f"client {id!r} in round {one['round']}, phase {one['phase']!r}: {one['reason']}"
        for id, one in missing["clients"].items()
    ]
    return "; ".join(filter(None, [counts, first_few(sentences, 3, "; ")]))


def privacy_spent(privacy: Privacy, releases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry `privacy` of a summary, from `Engine.releases`.

    epsilon: maximum and mean over clients, and each client's value; None: unbounded, without noise. releases: the
    number of each client's releases. open: the fields that were sent without noise, by phase.
    """
    each = {id: privacy.spent(one) for id, one in sorted(releases.items())}
    open: dict[str, set[str]] = {}
    for one in releases.values():
        for phase, fields in one["open"].items():
            open.setdefault(phase, set()).update(fields)
    return {
        **{name: getattr(privacy, name) for name in ("clip", "noise", "signature_epsilon", "delta", "budget")},
        **({"sample_epsilon": privacy.sample_epsilon} if privacy.sample_epsilon is not None else {}),
        "epsilon": {
            "max": _finite(max(each.values(), default=0.0)),
            "mean": _finite(sum(each.values()) / max(len(each), 1)),
            "clients": {id: _finite(value) for id, value in each.items()},
        },
        "releases": {id: one["releases"] for id, one in sorted(releases.items())},
        "open": {phase: sorted(open[phase]) for phase in sorted(open)},
    }


def privacy_sentence(entry: Mapping[str, Any]) -> str:
    """Return the entry `privacy` of a summary in words.

    >>> epsilon, open = {"max": 10.72, "mean": 9.5}, {"train": ["n"]}
    >>> privacy_sentence({"epsilon": epsilon, "delta": 1e-5, "releases": {"a": 100}, "open": open})
    'epsilon 10.72 (mean over clients 9.50) at delta 1e-05, at most 100 releases; sent as they are: n (train)'
    >>> entry = {"epsilon": {"max": 1.0, "mean": 1.0}, "delta": 1e-5, "releases": {}, "open": {}, "sample_epsilon": 1.0}
    >>> privacy_sentence(entry).rpartition("; ")[2]
    'one more row costs epsilon 1.00: whether it is there can be guessed in at most 73.11% of cases (chance: 50%)'
    """
    most, mean = (entry["epsilon"][name] for name in ("max", "mean"))
    number = "no finite epsilon (no noise)" if most is None else f"epsilon {most:.2f} (mean over clients {mean:.2f})"
    count = max(entry["releases"].values(), default=0)
    if entry.get("signature_epsilon"):
        number += f", signatures ({entry['signature_epsilon']:g}, of one sample) included"
    open = ", ".join(f"{', '.join(fields)} ({phase})" for phase, fields in entry["open"].items())
    of_what = "of one sample, in private training" if entry.get("sample_epsilon") else f"at most {count:,} releases"
    sentence = f"{number} at delta {entry['delta']:g}, {of_what}; sent as they are: {open or 'nothing'}"
    in_training = bool(entry.get("sample_epsilon"))
    if most is None or not (entry.get("signature_epsilon") or in_training):
        return sentence
    # Of two equally likely data sets, the right one is found in at most (e^epsilon + delta) / (e^epsilon + 1) of cases.
    right = (1 + entry["delta"] * math.exp(-most)) / (1 + math.exp(-most))
    # With a signature, n is known, so data sets differ in one row's value. In training, they differ in one row more.
    row, what = ("one more row", "whether it is there") if in_training else ("one row", "which of two values it has")
    costs = f"{row} costs epsilon {most:.2f}: {what} can be guessed in at most {right:.2%} of cases (chance: 50%)"
    return f"{sentence}; {costs}"
