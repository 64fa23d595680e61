"""Facts of clients for records and reports, computed where the samples are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedkin.federation import Client, Federation
from fedkin.tasks import Task

__all__ = ["facts_of"]


def facts_of(federation: Federation) -> dict[str, Any]:
    """Return the facts of the clients: sizes, counts of labels, planted groups and a hash, but no samples."""
    task = federation.task
    told: dict[str, Any] = {"classes": task.classes, "shape": _shape(task)}
    if task.kind != "classification":
        told |= {"kind": task.kind, "outputs": task.outputs, "metric": task.metric.name}
    return {
        "name": federation.name,
        "fingerprint": federation.fingerprint(),
        "task": told,
        "clients": {id: _client(client, task) for id, client in sorted(federation.items())},
    }


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
    }
