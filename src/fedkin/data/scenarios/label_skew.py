"""Clients with their own shares of the classes, of very different sizes, or all alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from fedkin.data.dataset import SPLITS, Dataset, Split
from fedkin.data.scenarios.base import Rows, Scenario
from fedkin.data.scenarios.dealing import (
    apportion,
    check_least,
    cut,
    deal,
    dirichlet,
    label_counts,
    lifted,
    rows_of,
    shuffled_classes,
    tests_like,
)
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.keys import rng


class Dirichlet(Scenario):
    """Every client has its own class proportions, drawn from a Dirichlet distribution.

    sizes = "drawn": each class is divided among all clients by shares from Dirichlet(alpha) (Yurochkin et al., 2019),
    so sizes differ too. Clients below `min_size` are filled up with samples of the largest clients: these are cut down
    to a common level, by samples drawn at random, which are given away class after class, so that a small client's
    samples are of one or two classes. sizes = "equal": every client has the same number of samples; one client after
    another draws them by class proportions from Dirichlet(alpha) (Hsu et al., 2019), among the classes not used up.
    No draw is repeated, whatever the number of clients.

    Test samples follow the proportions of a client's training labels: each class of the test split is divided among
    its owners; or, with `test_per_client`, each client draws that number, and two clients may draw the same sample.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", Dirichlet(clients=100, alpha=0.1, min_size=5), seed=0)
    >>> min(fed.sizes.values()), sum(fed.sizes.values())
    (5, 1438)
    """

    name: Literal["dirichlet"] = "dirichlet"
    clients: int = Field(20, ge=1)
    alpha: float = Field(0.5, gt=0)
    sizes: Literal["drawn", "equal"] = "drawn"
    min_size: int = Field(1, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = "none"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if the data have fewer than `min_size` samples for each client."""
        check_least(self.clients, self.min_size, dataset)
        pools = dataset.train.by_class(dataset.task.classes)
        labels = dataset.train.y.numpy()
        owner = (self._drawn if self.sizes == "drawn" else self._equal)(pools, labels, seed)
        counts = label_counts(labels, owner, self.clients, dataset.task.classes)
        tests = tests_like(dataset, counts, self.test_per_client, seed, self.name)
        return self.assembled(dataset, seed, rows_of(owner, self.clients), tests)

    def _drawn(self, pools: Sequence[Rows], labels: Rows, seed: int) -> Rows:
        """The client of every row: each class divided by shares, the smallest clients filled up."""
        owner = np.empty(len(labels), np.int64)
        for label, rows in enumerate(pools):
            draw = rng(seed, self.name, "class", label)
            sizes = apportion(len(rows), dirichlet(draw, self.alpha, (1, self.clients))[0])
            owner[draw.permutation(rows)] = np.repeat(np.arange(self.clients), sizes)
        sizes = np.bincount(owner, minlength=self.clients)
        wanted = lifted(sizes, self.min_size)
        return _handed_over(owner, labels, sizes, wanted, rng(seed, self.name, "fill"))

    def _equal(self, pools: Sequence[Rows], labels: Rows, seed: int) -> Rows:
        """The client of every row: one client after another draws its samples; -1 for the few left over."""
        pools = [rng(seed, self.name, "class", label).permutation(rows) for label, rows in enumerate(pools)]
        left = np.array([len(rows) for rows in pools])
        draw = rng(seed, self.name, "clients")
        proportions = dirichlet(draw, self.alpha, (self.clients, len(pools)))
        owner = np.full(len(labels), -1)
        for client, own in enumerate(proportions):
            taken = _sequential(draw, len(labels) // self.clients, own, left)
            for label in np.flatnonzero(taken):
                stop = left[label]
                owner[pools[label][stop - taken[label] : stop]] = client
            left -= taken
        return owner


def _handed_over(owner: Rows, labels: Rows, sizes: Rows, wanted: Rows, draw: np.random.Generator) -> Rows:
    """The owners after clients above their wanted size gave random samples to clients below theirs."""
    mixed = np.lexsort((draw.random(len(owner)), owner))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given = mixed[place >= wanted[owner[mixed]]]
    given = given[np.lexsort((draw.random(len(given)), labels[given]))]
    takers = draw.permutation(np.flatnonzero(wanted > sizes))
    changed = owner.copy()
    changed[given] = np.repeat(takers, (wanted - sizes)[takers])
    return changed


def _sequential(draw: np.random.Generator, count: int, proportions: npt.NDArray[np.float64], left: Rows) -> Rows:
    """[classes] how many of each class to take: `count` draws by the proportions, among classes with samples left."""
    taken = np.zeros_like(left)
    while (short := count - int(taken.sum())) > 0:
        open_ = taken < left
        weights = np.where(open_, proportions, 0.0)
        # All its proportions may be on classes that are used up: then the remaining samples decide.
        weights = weights if weights.sum() > 0 else (left - taken).astype(np.float64)
        # Every repetition uses up at least one class, so there are at most as many as classes.
        taken = np.minimum(taken + draw.multinomial(short, weights / weights.sum()), left)
    return taken


class Shards(Scenario):
    """The samples are sorted by label and cut into shards; each client gets a few at random (McMahan et al., 2017).

    There are clients x `shards` shards, equal in size to within one sample, so most clients have `shards`
    classes; a shard on a border between labels has two. Within a label the order is random. Test samples follow
    the proportions of a client's training labels: each class of the test split is divided among its owners; or, with
    `test_per_client`, each client draws that number, and two clients may draw the same sample.
    `Client.about["classes"]` lists the client's classes.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", Shards(clients=10), seed=0)
    >>> max(len(client.about["classes"]) for client in fed.values())
    3
    """

    name: Literal["shards"] = "shards"
    clients: int = Field(100, ge=1)
    shards: int = Field(2, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = "none"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are more shards than training samples."""
        total, count = len(dataset.train), self.clients * self.shards
        if count > total:
            raise ConfigError(
                f"scenario.clients: {self.clients} clients with {self.shards} shards each are more than the {total} "
                f"training samples of {dataset.name}; at most {total // self.shards} clients"
            )
        draw = rng(seed, self.name, "shards")
        by_label = np.concatenate([draw.permutation(rows) for rows in dataset.train.by_class(dataset.task.classes)])
        holder = draw.permutation(np.repeat(np.arange(self.clients), self.shards))
        owner = np.empty(total, np.int64)
        owner[by_label] = np.repeat(holder, [len(part) for part in np.array_split(by_label, count)])
        counts = label_counts(dataset.train.y.numpy(), owner, self.clients, dataset.task.classes)
        tests = tests_like(dataset, counts, self.test_per_client, seed, self.name)
        about = [{"classes": np.flatnonzero(count).tolist()} for count in counts]
        return self.assembled(dataset, seed, rows_of(owner, self.clients), tests, about=about)


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
        return self.assembled(
            dataset, seed, _dealt(train, shares, owned), _dealt(test, shares, owned),
            groups=["+".join(map(str, classes)) for classes in owned], about=[{"classes": one} for one in owned],
        )  # fmt: skip

    def _shuffled(self, dataset: Dataset, split: Split, slots: int, seed: int) -> list[Rows]:
        """The used rows of every class, in random order; at least as many as slots."""
        fraction = self.train_fraction if split == "train" else 1.0
        used = []
        for label, rows in enumerate(shuffled_classes(dataset, split, seed, self.name)):
            count = round(len(rows) * fraction)
            if count < slots:
                raise ConfigError(
                    f"scenario.clients: {self.clients} clients with {self.classes} classes each cut every "
                    f"class into {slots} slots; {dataset.name} has {count} {split} samples of class {label} "
                    f"to deal, so at most {count} slots"
                )
            used.append(rows[:count])
        return used

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


class Iid(Scenario):
    """Equal random parts of the data set: all clients have the same distribution.

    train_per_client, test_per_client: the number of samples of each client (default: all there are).
    """

    name: Literal["iid"] = "iid"
    clients: int = Field(20, ge=1)
    train_per_client: int | None = Field(None, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = 'one group, "all"'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are fewer samples than the clients need."""
        train = deal(dataset, "train", self.clients, self.train_per_client, seed)
        test = deal(dataset, "test", self.clients, self.test_per_client, seed)
        return self.assembled(dataset, seed, train, test, groups=["all"] * self.clients)


class QuantitySkew(Scenario):
    """Random parts of the data set of very different sizes; all clients have the same label distribution.

    law = "dirichlet": shares of the training split from Dirichlet(alpha); a smaller alpha gives larger differences.
    "power": the k-th client's share, k = 1, 2, .. in a random order, is proportional to k^-alpha; a larger alpha gives
    larger differences. Clients below `min_size` are filled up to it from the largest, which are cut down to a
    common level. The test split is cut into equal parts; `test_per_client` takes fewer.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", QuantitySkew(clients=10, law="power", alpha=1.5), seed=0)
    >>> sorted(fed.sizes.values())
    [23, 27, 32, 39, 49, 64, 90, 139, 255, 720]
    """

    name: Literal["quantity-skew"] = "quantity-skew"
    clients: int = Field(20, ge=1)
    law: Literal["dirichlet", "power"] = "dirichlet"
    alpha: float = Field(0.5, gt=0)
    min_size: int = Field(1, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = 'one group, "all"'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are fewer samples than the clients need."""
        check_least(self.clients, self.min_size, dataset)
        sizes = self._sizes(len(dataset.train), rng(seed, self.name, "sizes"))
        order = rng(seed, "deal", "train").permutation(len(dataset.train))
        train = [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]
        test = deal(dataset, "test", self.clients, self.test_per_client, seed)
        return self.assembled(dataset, seed, train, test, groups=["all"] * self.clients)

    def _sizes(self, total: int, draw: np.random.Generator) -> Rows:
        if self.law == "dirichlet":
            shares = dirichlet(draw, self.alpha, (1, self.clients))[0]
        else:
            # In logarithms: k^-alpha itself may be too small for a float.
            shares = np.exp(-self.alpha * np.log(1 + draw.permutation(self.clients)))
        return lifted(apportion(total, shares), self.min_size)
