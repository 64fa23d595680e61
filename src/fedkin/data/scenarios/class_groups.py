"""Groups of clients that own the same few classes: the scenarios of FLT, of MAPL, and of clusters of uneven sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedkin.data.dataset import Dataset, Split
from fedkin.data.scenarios.base import Rows, Scenario
from fedkin.data.scenarios.dealing import blocks, check_classes, check_groups, check_sets, shuffled_classes
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.keys import rng

# Their number, or the classes of each.
Clusters = Annotated[int, Field(ge=1)] | tuple[tuple[int, ...], ...]
# The paper's sets of digits; used for other data sets of ten classes too.
CLASSES = {
    "disjoint": ((3, 5), (7, 9), (2, 6), (0, 1), (4, 8)),
    "ring": ((3, 5, 7), (6, 7, 9), (0, 2, 6), (0, 1, 8), (4, 5, 8)),
}


class GroupedClasses(Scenario):
    """Groups of clients with their own classes (FLT, Jamali-Rad et al., 2022), the same ones for all of a group.

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
        check_sets(CLASSES[classes] if isinstance(classes, str) else classes, "groups")
        return classes

    @property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """The classes of every group."""
        return CLASSES[self.classes] if isinstance(self.classes, str) else self.classes

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if the data set has too few classes, or too few samples of one."""
        sets = self.sets
        check_classes("classes", sets, dataset)
        check_groups(self.clients, len(sets), "groups")
        member = (np.arange(self.clients) % len(sets)).tolist()
        pools = shuffled_classes(dataset, "test", seed, self.name)
        tests = [np.sort(np.concatenate([pools[label][: self.test_per_class] for label in one])) for one in sets]
        return self.assembled(
            dataset, seed, self._dealt(dataset, member, seed), [tests[group] for group in member],
            groups=["+".join(map(str, sorted(sets[group]))) for group in member],
            about=[{"classes": sorted(sets[group])} for group in member],
        )  # fmt: skip

    def _dealt(self, dataset: Dataset, member: Sequence[int], seed: int) -> list[Rows]:
        """Training rows of every client: an equal share of each of its classes."""
        rows: list[list[Rows]] = [[] for _ in range(self.clients)]
        for label, pool in enumerate(shuffled_classes(dataset, "train", seed, self.name)):
            owners = [client for client in range(self.clients) if label in self.sets[member[client]]]
            if not owners:
                continue
            each = len(pool) // len(owners) if self.per_class is None else self.per_class
            if each == 0 or each * len(owners) > len(pool):
                raise ConfigError(
                    f"scenario.{'clients' if self.per_class is None else 'per_class'}: {len(owners)} clients own "
                    f"class {label} and would get {max(each, 1)} samples each, but {dataset.name} has {len(pool)}"
                )
            for place, client in enumerate(owners):
                rows[client].append(pool[place * each : (place + 1) * each])
        return [np.sort(np.concatenate(own)) for own in rows]


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
    clusters: Clusters = 2
    shared: int = Field(0, ge=0)
    per_class: int | tuple[int, int] = 300
    test_per_class: int = Field(15, ge=0)

    planted: ClassVar[str] = 'the cluster, by its classes: "0-4" when they are consecutive, else such as "0+2+7"'

    @field_validator("clusters")
    @classmethod
    def _sets_of_classes(cls, clusters: Clusters) -> Clusters:
        if not isinstance(clusters, int):
            check_sets(clusters, "clusters")
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
        check_groups(self.clients, len(sets), "clusters")
        member = (np.arange(self.clients) % len(sets)).tolist()
        owns = np.zeros((self.clients, dataset.task.classes), bool)
        for client, number in enumerate(member):
            owns[client, list(sets[number])] = True
        low, high = (self.per_class,) * 2 if isinstance(self.per_class, int) else self.per_class
        counts = rng(seed, self.name, "sizes").integers(low, high + 1, owns.shape) * owns
        train = self._dealt(dataset, "train", "per_class", counts, seed)
        test = self._dealt(dataset, "test", "test_per_class", self.test_per_class * owns.astype(np.int64), seed)
        return self.assembled(
            dataset, seed, train, test, groups=[_name(sets[number]) for number in member],
            about=[{"classes": list(sets[number])} for number in member],
        )  # fmt: skip

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
        for label, order in enumerate(shuffled_classes(dataset, split, seed, self.name)):
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
    clusters: Clusters = 5
    per_class: int | None = Field(None, ge=1)
    min_size: int = Field(1, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = 'the cluster, by its classes, such as "0+1"'

    @field_validator("clusters")
    @classmethod
    def _disjoint(cls, clusters: Clusters) -> Clusters:
        if not isinstance(clusters, int):
            check_sets(clusters, "clusters", apart=True)
        return clusters

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are too few classes, clients or samples."""
        sets = self._sets(dataset)
        check_classes("clusters", sets, dataset)
        check_groups(self.clients, len(sets), "clusters")
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
            tests.append(np.sort(tested[: self.test_per_client]))
        return self.assembled(
            dataset, seed, rows, [tests[number] for number in member],
            groups=["+".join(map(str, sets[number])) for number in member],
            about=[{"classes": list(sets[number])} for number in member],
        )  # fmt: skip

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
    best = sizes(low)
    best[-1] += total - int(best.sum())
    return best
