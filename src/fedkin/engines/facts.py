"""Facts of the clients of a run for its records, without their samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fedkin.federation import Client, Federation
from fedkin.federation.samples import Absence
from fedkin.tasks import Task


def facts_of(federation: Federation) -> dict[str, Any]:
    """Return the facts of the clients: sizes, counts of labels, planted groups and a hash, but no samples."""
    task = federation.task
    facts: dict[str, Any] = {"classes": task.classes, "shape": _shape(task)}
    if task.kind != "classification":
        facts |= {"kind": task.kind, "outputs": task.outputs, "metric": task.metric.name}
    return {
        "name": federation.name,
        "fingerprint": federation.fingerprint(),
        "task": facts,
        "clients": {id: _client(client, task) for id, client in sorted(federation.items())},
    }


def times_of(joins: int, away: Iterable[Absence]) -> dict[str, Any]:
    """Return when a client is present, for its facts; empty if it always is.

    >>> times_of(1, ()), times_of(4, [(6, None)])
    ({}, {'joins': 4, 'away': [[6, None]]})
    """
    times = [list(absence) for absence in away]
    return {**({"joins": joins} if joins > 1 else {}), **({"away": times} if times else {})}


def _shape(task: Task) -> list[int] | dict[str, list[int]]:
    if isinstance(task.shape, Mapping):
        return {name: list(shape) for name, shape in task.shape.items()}
    return list(task.shape)


def _client(client: Client, task: Task) -> dict[str, Any]:
    labels = Counter(client.train.labels().tolist()) if task.labels else {}
    return {
        "n_train": len(client.train),
        "n_test": len(client.test),
        "group": client.group,
        "labels": {str(y): n for y, n in sorted(labels.items())},
        "about": dict(client.about),
        **({} if client.seen else {"seen": False}),
        **times_of(client.joins, client.away),
    }
