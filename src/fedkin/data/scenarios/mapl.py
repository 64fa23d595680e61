"""Scenarios 1 to 4 of MAPL (Mukherjee et al., 2024): a fixed number of samples of each of a cluster's classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedkin.data.dataset import Dataset, Split
from fedkin.data.scenarios.apportion import blocks, check_classes
from fedkin.data.scenarios.base import Rows, Scenario, shuffled_ids
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation
from fedkin.keys import rng

__all__ = ["Mapl"]


class Mapl(Scenario):
    """Clusters of consecutive classes, disjoint or overlapping, with a fixed number of samples per class and client.

    clusters: their number, each with about equally many consecutive classes, of which neighbours have `shared` in
    common; or a list of classes for each. The clients are spread evenly over them. A client gets `per_class` training
    samples of each of its cluster's classes (two numbers: drawn between them, for each class and client), and
    `test_per_class` test samples of each; no sample goes to two clients. Raises ConfigError if there are too few.

    With ten classes and the paper's 20 clients: scenario 1 is the default (0-4 | 5-9, 300 of each class), 2 has
    shared = 4 (0-6 | 3-9), 3 has per_class = [100, 300], 4 has both.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", Mapl(clients=4, shared=4, per_class=(10, 30), test_per_class=5), seed=0)
    >>> sorted(fed.planted.values())
    ['0-6', '0-6', '3-9', '3-9']
    >>> {len(client.test) for client in fed.values()}
    {35}
    """

    name: Literal["mapl"] = "mapl"
    clients: int = Field(20, ge=1)
    clusters: int | tuple[tuple[int, ...], ...] = 2
    shared: int = Field(0, ge=0)
    per_class: int | tuple[int, int] = 300
    test_per_class: int = Field(15, ge=0)

    planted: ClassVar[str] = 'the cluster, by its classes: "0-4" when they are consecutive, else such as "0+2+7"'

    @field_validator("clusters")
    @classmethod
    def _sets_of_classes(cls, clusters: int | tuple[tuple[int, ...], ...]) -> int | tuple[tuple[int, ...], ...]:
        if isinstance(clusters, int):
            if clusters < 1:
                raise ValueError("expected at least 1")
            return clusters
        if not clusters or any(not own or len(set(own)) < len(own) or min(own) < 0 for own in clusters):
            raise ValueError("expected a list of lists of classes, none empty, no class twice in a list")
        if len({tuple(sorted(own)) for own in clusters}) < len(clusters):
            raise ValueError("two clusters have the same classes: they would be one")
        return clusters

    @field_validator("per_class")
    @classmethod
    def _range(cls, per_class: int | tuple[int, int]) -> int | tuple[int, int]:
        low, high = (per_class, per_class) if isinstance(per_class, int) else per_class
        if not 1 <= low <= high:
            raise ValueError("expected a number of at least 1, or a range [low, high] of such")
        return per_class

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are too few classes, or too few samples of one."""
        sets = self._sets(dataset)
        if self.clients < len(sets):
            raise ConfigError(
                f"scenario.clients: {self.clients} clients for {len(sets)} clusters; at least {len(sets)}"
            )
        member = (np.arange(self.clients) % len(sets)).tolist()
        owns = np.zeros((self.clients, dataset.task.classes), bool)
        for client, number in enumerate(member):
            owns[client, list(sets[number])] = True
        low, high = (self.per_class,) * 2 if isinstance(self.per_class, int) else self.per_class
        counts = rng(seed, self.name, "sizes").integers(low, high + 1, owns.shape) * owns
        train = self._dealt(dataset, "train", "per_class", counts, seed)
        test = self._dealt(dataset, "test", "test_per_class", self.test_per_class * owns.astype(np.int64), seed)
        clients = [
            Client(
                id,
                dataset.samples("train", own),
                dataset.samples("test", tested),
                group=_name(sets[number]),
                about={"classes": list(sets[number])},
            )
            for id, own, tested, number in zip(shuffled_ids(self.clients, seed), train, test, member, strict=True)
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _sets(self, dataset: Dataset) -> list[tuple[int, ...]]:
        """The classes of every cluster, ascending."""
        if not isinstance(self.clusters, int):
            if self.shared:
                raise ConfigError("scenario.shared: a list of clusters already says which classes they share")
            check_classes("clusters", self.clusters, dataset)
            return [tuple(sorted(own)) for own in self.clusters]
        total = dataset.task.classes
        if self.clusters > total:
            raise ConfigError(
                f"scenario.clusters: {self.clusters}, but {dataset.name} has {total} classes; at most {total}"
            )
        sets = blocks(total, self.clusters, self.shared)
        if self.clusters > 1 and min(map(len, sets)) <= self.shared:
            raise ConfigError(
                f"scenario.shared: {self.clusters} clusters of {total} classes would lie within one another when "
                f"neighbours share {self.shared}; expected fewer"
            )
        return sets

    def _dealt(self, dataset: Dataset, split: Split, setting: str, counts: Rows, seed: int) -> list[Rows]:
        """Rows of every client; counts: [clients, classes] how many of each class."""
        pools = dataset.part(split).by_class(dataset.task.classes)
        self._check(dataset, split, setting, counts, np.array([len(pool) for pool in pools]))
        rows: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in counts]
        for label, pool in enumerate(pools):
            order = rng(seed, self.name, "rows", split, label).permutation(pool)
            for own, part in zip(rows, np.split(order, np.cumsum(counts[:, label]))[:-1], strict=True):
                own.append(part)
        return [np.sort(np.concatenate(own)) for own in rows]

    def _check(self, dataset: Dataset, split: Split, setting: str, counts: Rows, have: Rows) -> None:
        wanted = counts.sum(axis=0)
        if not (wanted > have).any():
            return
        label = int(np.argmax(wanted / np.maximum(have, 1)))
        takers = int((counts[:, label] > 0).sum())
        raise ConfigError(
            f"scenario.{setting}: {takers} clients take {wanted[label]} {split} samples of class {label}, "
            f"{counts[:, label].max()} at most each, but {dataset.name} has {have[label]}; "
            f"{have[label] // takers} each would do, or fewer clients"
        )


def _name(classes: Sequence[int]) -> str:
    consecutive = classes[-1] - classes[0] == len(classes) - 1
    return f"{classes[0]}-{classes[-1]}" if consecutive and len(classes) > 1 else "+".join(map(str, classes))
