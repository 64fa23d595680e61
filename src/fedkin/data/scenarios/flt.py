"""Clusters of clients that own the same few classes: scenarios 1 and 2 of FLT (Jamali-Rad et al., 2022)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedkin.data.dataset import SPLITS, Dataset, Split
from fedkin.data.scenarios.base import Rows, Scenario, shuffled_ids
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation
from fedkin.keys import rng

__all__ = ["CLASSES", "GroupedClasses"]

# The paper's sets of digits; used for other data sets of ten classes too.
CLASSES = {
    "disjoint": ((3, 5), (7, 9), (2, 6), (0, 1), (4, 8)),
    "ring": ((3, 5, 7), (6, 7, 9), (0, 2, 6), (0, 1, 8), (4, 5, 8)),
}


class GroupedClasses(Scenario):
    """Groups of clients, each with its own classes; clients of a group own the same classes and different samples.

    classes: "disjoint" (scenario 1: five pairs of classes), "ring" (scenario 2: five triples; neighbours share a
    class), or a list of classes for each group. Every class's training samples are distributed evenly over the clients
    that own it, at most `per_class` to each; no sample goes to two clients. All clients of a group are tested on
    the same samples: the test split's samples of the group's classes (at most `test_per_class` of each class).

    >>> from fedkin.data import federate
    >>> fed = federate("digits", GroupedClasses(clients=10), seed=0)
    >>> sorted(set(fed.planted.values()))
    ['0+1', '2+6', '3+5', '4+8', '7+9']
    """

    name: Literal["grouped-classes"] = "grouped-classes"
    clients: int = Field(100, ge=1)
    classes: Literal["disjoint", "ring"] | tuple[tuple[int, ...], ...] = "disjoint"
    per_class: int | None = Field(None, ge=1)
    test_per_class: int | None = Field(None, ge=1)

    planted: ClassVar[str] = 'the set of classes, such as "3+5"'

    @field_validator("classes")
    @classmethod
    def _sets(cls, classes: str | tuple[tuple[int, ...], ...]) -> str | tuple[tuple[int, ...], ...]:
        sets = CLASSES[classes] if isinstance(classes, str) else classes
        if not sets or any(not own or len(set(own)) != len(own) or min(own) < 0 for own in sets):
            raise ValueError("expected a list of lists of classes, none empty, no class twice in a list")
        if len({tuple(sorted(own)) for own in sets}) != len(sets):
            raise ValueError("two groups have the same classes: they would be one group")
        return classes

    @property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """The classes of every group."""
        return CLASSES[self.classes] if isinstance(self.classes, str) else self.classes

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if the data set has too few classes, or too few samples of one."""
        sets, total = self.sets, dataset.task.classes
        if max(max(own) for own in sets) >= total:
            raise ConfigError(
                f"scenario.classes: {[list(own) for own in sets]} name classes that {dataset.name} does not have: "
                f"its classes are 0 to {total - 1}"
            )
        if self.clients < len(sets):
            raise ConfigError(f"scenario.clients: {self.clients} clients for {len(sets)} groups; at least {len(sets)}")
        member = np.arange(self.clients) % len(sets)
        train = self._dealt(dataset, member, seed)
        tests = [dataset.samples("test", self._tests(dataset, own, seed)) for own in sets]
        clients = [
            Client(
                id,
                dataset.samples("train", rows),
                tests[group],
                group="+".join(map(str, sorted(sets[group]))),
                about={"classes": sorted(sets[group])},
            )
            for id, rows, group in zip(shuffled_ids(self.clients, seed), train, member.tolist(), strict=True)
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _dealt(self, dataset: Dataset, member: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int) -> list[Rows]:
        """Training rows of every client: an equal share of each of its classes."""
        rows: list[list[Rows]] = [[] for _ in range(self.clients)]
        for label, pool in enumerate(self._pools(dataset, "train", seed)):
            owners = [k for k in range(self.clients) if label in self.sets[member[k]]]
            if not owners:
                continue
            each = len(pool) // len(owners) if self.per_class is None else self.per_class
            if each == 0 or each * len(owners) > len(pool):
                raise ConfigError(
                    f"scenario.{'clients' if self.per_class is None else 'per_class'}: {len(owners)} clients own "
                    f"class {label} and would get {max(each, 1)} samples each, but {dataset.name} has {len(pool)}"
                )
            for place, k in enumerate(owners):
                rows[k].append(pool[place * each : (place + 1) * each])
        return [np.sort(np.concatenate(own)) for own in rows]

    def _tests(self, dataset: Dataset, own: tuple[int, ...], seed: int) -> Rows:
        pools = self._pools(dataset, "test", seed)
        return np.sort(np.concatenate([pools[label][: self.test_per_class] for label in own]))

    def _pools(self, dataset: Dataset, split: Split, seed: int) -> list[Rows]:
        """The rows of every class, shuffled."""
        assert split in SPLITS
        pools = dataset.part(split).by_class(dataset.task.classes)
        return [rng(seed, self.name, "rows", split, label).permutation(rows) for label, rows in enumerate(pools)]
