"""Clusters of classes, and clients of very different sizes: scenario 4 of FLT (Jamali-Rad et al., 2022)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.apportion import check_classes
from fedkin.data.scenarios.base import Rows, Scenario, shuffled_ids
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation
from fedkin.keys import rng

__all__ = ["Structured", "skewed_sizes"]


class Structured(Scenario):
    """Clusters of clients with their own classes; in each cluster a few clients have most of the samples.

    clusters: their number, each with the same number of consecutive classes (the last cluster gets what is left), or
    a list of classes for each cluster, no class in two. The clients are spread evenly over the
    clusters. The training samples of a cluster's classes (at most `per_class` of each) are shuffled and divided among
    its n clients; the i-th, i = 0..n-1, gets floor(F + exp(x i^2)), with F half the mean size and x such that the
    sizes add up; the last client gets what rounding leaves. So a client may have only some of its cluster's classes.
    All clients of a cluster are tested on the same samples: the test split's samples of the cluster's classes (of
    which `test_per_client` are drawn). Settings that leave a client fewer than `min_size` are refused.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", Structured(clients=20), seed=0)
    >>> sorted(set(fed.planted.values()))
    ['0+1', '2+3', '4+5', '6+7', '8+9']
    >>> min(fed.sizes.values()), max(fed.sizes.values())
    (36, 171)
    """

    name: Literal["structured"] = "structured"
    clients: int = Field(100, ge=1)
    clusters: int | tuple[tuple[int, ...], ...] = 5
    per_class: int | None = Field(None, ge=1)
    min_size: int = Field(1, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = 'the cluster, by its classes, such as "0+1"'

    @field_validator("clusters")
    @classmethod
    def _disjoint(cls, clusters: int | tuple[tuple[int, ...], ...]) -> int | tuple[tuple[int, ...], ...]:
        if isinstance(clusters, int):
            if clusters < 1:
                raise ValueError("expected at least 1")
            return clusters
        flat = [label for own in clusters for label in own]
        if not clusters or not all(clusters) or len(set(flat)) < len(flat) or min(flat) < 0:
            raise ValueError("expected a list of lists of classes, none empty, no class twice")
        return clusters

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are too few classes, clients or samples."""
        sets = self._sets(dataset)
        check_classes("clusters", sets, dataset)
        if self.clients < len(sets):
            raise ConfigError(
                f"scenario.clients: {self.clients} clients for {len(sets)} clusters; at least {len(sets)}"
            )
        train, test = (part.by_class(dataset.task.classes) for part in (dataset.train, dataset.test))
        member = np.arange(self.clients) % len(sets)
        rows: list[Rows] = [np.empty(0, np.int64)] * self.clients
        tests = []
        for number, own in enumerate(sets):
            draw = rng(seed, self.name, "cluster", number)
            pool = np.concatenate([draw.permutation(train[label])[: self.per_class] for label in own])
            members = np.flatnonzero(member == number)
            for k, part in zip(draw.permutation(members), self._cut(draw.permutation(pool), own, members), strict=True):
                rows[k] = np.sort(part)
            tested = draw.permutation(np.concatenate([test[label] for label in own]))
            tests.append(dataset.samples("test", np.sort(tested[: self.test_per_client])))
        clients = [
            Client(
                id,
                dataset.samples("train", own),
                tests[number],
                group="+".join(map(str, sets[number])),
                about={"classes": list(sets[number])},
            )
            for id, own, number in zip(shuffled_ids(self.clients, seed), rows, member.tolist(), strict=True)
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _sets(self, dataset: Dataset) -> list[tuple[int, ...]]:
        """The classes of every cluster, ascending."""
        if not isinstance(self.clusters, int):
            return [tuple(sorted(own)) for own in self.clusters]
        total = dataset.task.classes
        width = -(-total // self.clusters)
        if (self.clusters - 1) * width >= total:
            raise ConfigError(
                f"scenario.clusters: {self.clusters} clusters of {width} classes need more than the {total} of "
                f"{dataset.name}; expected another number, or a list of classes for each cluster"
            )
        return [tuple(range(start, min(start + width, total))) for start in range(0, total, width)]

    def _cut(self, pool: Rows, own: tuple[int, ...], members: Rows) -> list[Rows]:
        """The pool in parts of skewed sizes, one per member."""
        sizes = skewed_sizes(len(pool), len(members))
        if sizes.min() < self.min_size:
            raise ConfigError(
                f"scenario.clients: {len(members)} clients share the {len(pool)} training samples of classes "
                f"{'+'.join(map(str, own))}, and the smallest would get {sizes.min()}; expected at least "
                f"{self.min_size} (min_size): take fewer clients"
            )
        return np.split(pool, np.cumsum(sizes)[:-1])


def skewed_sizes(total: int, count: int) -> Rows:
    """[count] sizes floor(F + exp(x i^2)) with sum `total`, F = total / 2 / count (FLT's scenario 4), ascending.

    x is the largest value for which the sum is not above the total; the last size gets the rest.

    >>> skewed_sizes(100, 5).tolist()
    [11, 11, 12, 17, 49]
    """
    if total == 0:
        return np.zeros(count, np.int64)
    half = total / 2 / count
    squares = np.arange(count, dtype=np.float64) ** 2

    def sizes(x: float) -> Rows:
        return np.floor(half + np.exp(x * squares)).astype(np.int64)

    # At the lower end exp(x i^2) is 0 except for i = 0; at the upper end the last size alone is the total.
    low, high = -50.0, math.log(max(total, 2)) / max(squares[-1], 1.0)
    for _ in range(100):
        middle = (low + high) / 2
        if sizes(middle).sum() <= total:
            low = middle
        else:
            high = middle
    found = sizes(low)
    found[-1] += total - int(found.sum())
    return found
