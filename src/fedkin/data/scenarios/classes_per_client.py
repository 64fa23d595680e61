"""Heterogeneous CIFAR-10 (SFMTL-Graph, 2025), on any labelled data set."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from fedkin.data.dataset import SPLITS, Dataset, Split
from fedkin.data.scenarios.base import Rows, Scenario, cut, shuffled_ids
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation
from fedkin.keys import rng

__all__ = ["ClassesPerClient"]


class ClassesPerClient(Scenario):
    """Each client owns samples of only a few classes, in unequal amounts.

    Every class is cut into slots: the number that clients need if they are spread evenly over the classes,
    plus `spare_slots`, which stay unused. One client after another takes a slot in each of `classes` different
    classes: those with most slots left, ties drawn at random. A slot's share of its class is U(share),
    normalised over the class's slots, and the same in training and test. Of each class's training samples,
    `train_fraction` are used. `Client.about["classes"]` lists the client's classes.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", ClassesPerClient(clients=10), seed=0)
    >>> {len(client.about["classes"]) for client in fed.values()}
    {2}
    """

    name: Literal["classes-per-client"] = "classes-per-client"
    clients: int = Field(30, ge=1)
    classes: int = Field(2, ge=1)
    spare_slots: int = Field(1, ge=0)
    share: tuple[float, float] = (0.4, 0.6)
    train_fraction: float = Field(0.8, gt=0, le=1)

    planted: ClassVar[str] = 'the set of classes, such as "0+7"'

    @field_validator("share")
    @classmethod
    def _range(cls, share: tuple[float, float]) -> tuple[float, float]:
        if not 0 < share[0] <= share[1]:
            raise ValueError("expected a range [low, high] with 0 < low <= high")
        return share

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are too few classes, or too few samples of one."""
        total = dataset.task.classes
        if self.classes > total:
            raise ConfigError(
                f"scenario.classes: {self.classes} per client, but {dataset.name} has {total} classes; at most {total}"
            )
        slots = -(-self.clients * self.classes // total) + self.spare_slots
        train, test = (self._shuffled(dataset, split, slots, seed) for split in SPLITS)
        shares = rng(seed, self.name, "shares").uniform(*self.share, (total, slots))
        owned = self._owned(total, seed)
        clients = [
            Client(
                id,
                dataset.samples("train", own),
                dataset.samples("test", tested),
                group="+".join(map(str, classes)),
                about={"classes": classes},
            )
            for id, classes, own, tested in zip(
                shuffled_ids(self.clients, seed),
                owned,
                _dealt(train, shares, owned),
                _dealt(test, shares, owned),
                strict=True,
            )
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _shuffled(self, dataset: Dataset, split: Split, slots: int, seed: int) -> list[Rows]:
        """The used rows of every class, in random order; at least as many as slots."""
        fraction = self.train_fraction if split == "train" else 1.0
        dealt = []
        for label, rows in enumerate(dataset.part(split).by_class(dataset.task.classes)):
            count = round(len(rows) * fraction)
            if count < slots:
                raise ConfigError(
                    f"scenario.clients: {self.clients} clients with {self.classes} classes each cut every "
                    f"class into {slots} slots; {dataset.name} has {count} {split} samples of class {label} "
                    f"to deal, so at most {count} slots"
                )
            dealt.append(rng(seed, self.name, "rows", split, label).permutation(rows)[:count])
        return dealt

    def _owned(self, total: int, seed: int) -> list[list[int]]:
        """The classes of every client, ascending: those with most slots left, ties drawn at random."""
        draw = rng(seed, self.name, "classes")
        taken = np.zeros(total, np.int64)
        owned = []
        for _ in range(self.clients):
            chosen = np.lexsort((draw.random(total), taken))[: self.classes]
            taken[chosen] += 1
            owned.append(sorted(int(label) for label in chosen))
        return owned


def _dealt(pool: list[Rows], shares: npt.NDArray[np.float64], owned: list[list[int]]) -> list[Rows]:
    """The rows of every client: the next slot of each of its classes."""
    slots = [iter(cut(rows, share)) for rows, share in zip(pool, shares, strict=True)]
    return [np.sort(np.concatenate([next(slots[label]) for label in classes])) for classes in owned]
