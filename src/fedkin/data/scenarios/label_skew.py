"""Clients with their own class proportions, of very different sizes, all alike, or in groups with their own classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from fedkin.data.dataset import SPLITS, Dataset, Split
from fedkin.data.scenarios import dealing
from fedkin.data.scenarios.base import Scenario
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.federation.arrays import Floats, Ints
from fedkin.keys import rng


class Dirichlet(Scenario):
    """Every client has its own class proportions, drawn from a Dirichlet distribution.

    sizes = "drawn": each class is divided among all clients by shares from Dirichlet(alpha) (Yurochkin et al., 2019),
    so sizes differ too. The largest clients are cut down to a common level to fill up clients below `min_size`: their
    surplus, drawn at random, is given away class after class, so that a small client receives samples of one or two
    classes. sizes = "equal": every client has the same number of samples; one client after another draws them by class
    proportions from Dirichlet(alpha) (Hsu et al., 2019), among the classes not used up. No draw is repeated, whatever
    the number of clients.

    Test samples follow the proportions of a client's training labels: each class of the test split is divided among
    its owners; or, with `test_per_client`, each client draws that number, and two clients may draw the same sample.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", Dirichlet(clients=100, alpha=0.1, min_size=5), seed=0)
    >>> min(fed.sizes.values()), sum(fed.sizes.values())
    (5, 1438)
    """

    name: Literal["dirichlet"] = "dirichlet"
    clients: PositiveInt = 20
    alpha: PositiveFloat = 0.5
    sizes: Literal["drawn", "equal"] = "drawn"
    min_size: PositiveInt = 1
    test_per_client: PositiveInt | None = None

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if the data have fewer than `min_size` samples for each client."""
        dealing.check_least(self.clients, self.min_size, dataset)
        pools = dataset.train.by_class(dataset.task.classes)
        labels = dataset.train.y.numpy()
        owner = (self._drawn if self.sizes == "drawn" else self._equal)(pools, labels, seed)
        train = dealing.rows_of(owner, self.clients)
        tests = dealing.tests_like(dataset, train, self.test_per_client, seed, self.name)
        return self.assembled(dataset, seed, train, tests)

    def _drawn(self, pools: Sequence[Ints], labels: Ints, seed: int) -> Ints:
        """The client of every row: each class divided by shares, the smallest clients filled up."""
        owner = np.empty(len(labels), np.int64)
        for label, rows in enumerate(pools):
            draw = rng(seed, self.name, "class", label)
            sizes = dealing.apportion(len(rows), dealing.dirichlet(draw, self.alpha, (1, self.clients))[0])
            owner[draw.permutation(rows)] = np.repeat(np.arange(self.clients), sizes)
        sizes = np.bincount(owner, minlength=self.clients)
        wanted = dealing.raised_to_least(sizes, self.min_size)
        return _reassign_surplus(owner, labels, sizes, wanted, rng(seed, self.name, "fill"))

    def _equal(self, pools: Sequence[Ints], labels: Ints, seed: int) -> Ints:
        """The client of every row: one client after another draws its samples; -1 for the few left over."""
        pools = [rng(seed, self.name, "class", label).permutation(rows) for label, rows in enumerate(pools)]
        left = np.array([len(rows) for rows in pools])
        draw = rng(seed, self.name, "clients")
        proportions = dealing.dirichlet(draw, self.alpha, (self.clients, len(pools)))
        owner = np.full(len(labels), -1)
        for client, own in enumerate(proportions):
            taken = _sequential(draw, len(labels) // self.clients, own, left)
            for label in np.flatnonzero(taken):
                stop = left[label]
                owner[pools[label][stop - taken[label] : stop]] = client
            left -= taken
        return owner


def _reassign_surplus(owner: Ints, labels: Ints, sizes: Ints, wanted: Ints, draw: np.random.Generator) -> Ints:
    """The owners after clients above their wanted size gave random samples to clients below theirs."""
    mixed = np.lexsort((draw.random(len(owner)), owner))
    positions = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given = mixed[positions >= wanted[owner[mixed]]]
    given = given[np.lexsort((draw.random(len(given)), labels[given]))]
    takers = draw.permutation(np.flatnonzero(wanted > sizes))
    changed = owner.copy()
    changed[given] = np.repeat(takers, (wanted - sizes)[takers])
    return changed


def _sequential(draw: np.random.Generator, count: int, proportions: Floats, left: Ints) -> Ints:
    """[classes] how many of each class to take: `count` draws by the proportions, among classes with samples left."""
    taken = np.zeros_like(left)
    while (short := count - int(taken.sum())) > 0:
        open_ = taken < left
        weights = np.where(open_, proportions, 0.0)
        # All classes with a positive proportion may be used up: then draw by the numbers of remaining samples.
        weights = weights if weights.sum() > 0 else (left - taken).astype(np.float64)
        # Every repetition uses up at least one class, so there are at most as many repetitions as classes.
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
    clients: PositiveInt = 100
    shards: PositiveInt = 2
    test_per_client: PositiveInt | None = None

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are more shards than training samples."""
        total, count = len(dataset.train), self.clients * self.shards
        if count > total:
            asked = f"{self.clients} clients with {self.shards} shards each are more than the {total} training samples"
            raise ConfigError(f"scenario.clients: {asked} of {dataset.name}; at most {total // self.shards} clients")
        draw = rng(seed, self.name, "shards")
        by_label = np.concatenate([draw.permutation(rows) for rows in dataset.train.by_class(dataset.task.classes)])
        holder = draw.permutation(np.repeat(np.arange(self.clients), self.shards))
        owner = np.empty(total, np.int64)
        owner[by_label] = np.repeat(holder, [len(part) for part in np.array_split(by_label, count)])
        train = dealing.rows_of(owner, self.clients)
        tests = dealing.tests_like(dataset, train, self.test_per_client, seed, self.name)
        about = [{"classes": np.unique(dataset.train.y.numpy()[rows]).tolist()} for rows in train]
        return self.assembled(dataset, seed, train, tests, about=about)


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
    clients: PositiveInt = 30
    classes: PositiveInt = 2
    spare_slots: NonNegativeInt = 1
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
            have = f"{dataset.name} has {total} classes; at most {total}"
            raise ConfigError(f"scenario.classes: {self.classes} per client, but {have}")
        slots = -(-self.clients * self.classes // total) + self.spare_slots
        pools = [self._shuffled(dataset, split, slots, seed) for split in SPLITS]
        shares = rng(seed, self.name, "shares").uniform(*self.share, (total, slots))
        owned = self._assign_classes(total, seed)
        # The client's slot of each of its classes, counted from 1.
        slot = np.cumsum(owned, axis=0) * owned
        parts = []
        for split in pools:
            sizes = [_slots(len(rows), share) for rows, share in zip(split, shares, strict=True)]
            counts = [np.append(0, own)[of] for own, of in zip(sizes, slot.T, strict=True)]
            parts.append(dealing.dealt(split, np.column_stack(counts)))
        train, test = parts
        classes = [np.flatnonzero(own).tolist() for own in owned]
        return self.assembled(dataset, seed, train, test, classes=classes)

    def _shuffled(self, dataset: Dataset, split: Split, slots: int, seed: int) -> list[Ints]:
        """The used rows of every class, in random order; at least as many as slots."""
        fraction = self.train_fraction if split == "train" else 1.0
        used = []
        for label, rows in enumerate(dealing.shuffled_classes(dataset, split, seed, self.name)):
            count = round(len(rows) * fraction)
            if count < slots:
                asked = f"{self.clients} clients with {self.classes} classes each cut every class into {slots} slots"
                have = f"{dataset.name} has {count} {split} samples of class {label}"
                raise ConfigError(f"scenario.clients: {asked}; {have} to deal, so at most {count} slots")
            used.append(rows[:count])
        return used

    def _assign_classes(self, total: int, seed: int) -> Ints:
        """[clients, classes] 1 for the classes of a client: those with most slots left, ties drawn at random."""
        draw = rng(seed, self.name, "classes")
        owned = np.zeros((self.clients, total), np.int64)
        for own in owned:
            own[np.lexsort((draw.random(total), owned.sum(axis=0)))[: self.classes]] = 1
        return owned


def _slots(total: int, shares: Floats) -> Ints:
    """The sizes of a class's slots, none empty."""
    sizes = dealing.apportion(total, shares)
    for empty in np.flatnonzero(sizes == 0):
        sizes[np.argmax(sizes)] -= 1
        sizes[empty] = 1
    return sizes


class Iid(Scenario):
    """Equal random parts of the data set: all clients have the same distribution.

    train_per_client, test_per_client: the number of samples of each client (default: all there are).
    """

    name: Literal["iid"] = "iid"
    clients: PositiveInt = 20
    train_per_client: PositiveInt | None = None
    test_per_client: PositiveInt | None = None

    planted: ClassVar[str] = 'one group, "all"'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are fewer samples than the clients need."""
        train = dealing.deal(dataset, "train", self.clients, self.train_per_client, seed)
        test = dealing.deal(dataset, "test", self.clients, self.test_per_client, seed)
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
    clients: PositiveInt = 20
    law: Literal["dirichlet", "power"] = "dirichlet"
    alpha: PositiveFloat = 0.5
    min_size: PositiveInt = 1
    test_per_client: PositiveInt | None = None

    planted: ClassVar[str] = 'one group, "all"'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are fewer samples than the clients need."""
        dealing.check_least(self.clients, self.min_size, dataset)
        sizes = self._sizes(len(dataset.train), rng(seed, self.name, "sizes"))
        order = rng(seed, "deal", "train").permutation(len(dataset.train))
        train = [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]
        test = dealing.deal(dataset, "test", self.clients, self.test_per_client, seed)
        return self.assembled(dataset, seed, train, test, groups=["all"] * self.clients)

    def _sizes(self, total: int, draw: np.random.Generator) -> Ints:
        if self.law == "dirichlet":
            shares = dealing.dirichlet(draw, self.alpha, (1, self.clients))[0]
        else:
            # In logarithms: k^-alpha itself may be too small for a float.
            shares = np.exp(-self.alpha * np.log(1 + draw.permutation(self.clients)))
        return dealing.raised_to_least(dealing.apportion(total, shares), self.min_size)


# -- groups of clients that own the same few classes --------------------------------------------------------------

# The sets of digits in FLT's released code (the paper has others as examples); used for all data sets of ten classes.
CLASSES = {
    "disjoint": ((3, 5), (7, 9), (2, 6), (0, 1), (4, 8)),
    "ring": ((3, 5, 7), (6, 7, 9), (0, 2, 6), (0, 1, 8), (4, 5, 8)),
}


class GroupedClasses(Scenario):
    """Groups of clients; all clients of a group own the same few classes (FLT, Jamali-Rad et al., 2022).

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
    clients: PositiveInt = 100
    classes: Literal["disjoint", "ring"] | dealing.ClassSets = "disjoint"
    per_class: PositiveInt | None = None
    test_per_class: PositiveInt | None = None

    planted: ClassVar[str] = 'the set of classes, such as "3+5"'

    @property
    def sets(self) -> dealing.Sets:
        """The classes of every group."""
        return CLASSES[self.classes] if isinstance(self.classes, str) else self.classes

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if the data set has too few classes, or too few samples of one."""
        sets = self.sets
        dealing.check_classes("classes", sets, dataset)
        member = dealing.groups_of_clients(self.clients, len(sets), "groups")
        pools = dealing.shuffled_classes(dataset, "test", seed, self.name)
        tests = [np.sort(np.concatenate([pools[label][: self.test_per_class] for label in one])) for one in sets]
        counts = dealing.owners_of(member, sets, dataset.task.classes)
        train = dealing.shuffled_classes(dataset, "train", seed, self.name)
        for label, pool in enumerate(train):
            owners = int(counts[:, label].sum())
            each = self.per_class or len(pool) // max(owners, 1)
            if owners and not 0 < each * owners <= len(pool):
                setting = "clients" if self.per_class is None else "per_class"
                asked = f"{owners} clients own class {label} and would get {max(each, 1)} samples each"
                raise ConfigError(f"scenario.{setting}: {asked}, but {dataset.name} has {len(pool)}")
            counts[:, label] *= each
        return self.assembled(
            dataset, seed, dealing.dealt(train, counts), [tests[group] for group in member],
            classes=[sorted(sets[group]) for group in member],
        )  # fmt: skip


class Mapl(Scenario):
    """Clusters of consecutive classes, disjoint or overlapping, with a fixed number of samples per class and client.

    clusters: their number, each with about equally many consecutive classes, where neighbours have `shared` classes in
    common; or a list of classes for each. The clients are spread evenly over the clusters. A client gets `per_class`
    training samples of each of its cluster's classes (two numbers: drawn between them, for each class and client), and
    `test_per_class` test samples of each; no sample goes to two clients. Raises ConfigError for too few samples.

    With ten classes and the paper's 20 clients: scenario 1 is the default (0-4 | 5-9, 300 of each class), 2 has
    shared = 4 (0-6 | 3-9; the paper's Figure 6 has 0-5 | 4-9), 3 has per_class = [100, 300], 4 has both.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", Mapl(clients=4, shared=4, per_class=(10, 30), test_per_class=5), seed=0)
    >>> sorted(fed.planted.values())
    ['0-6', '0-6', '3-9', '3-9']
    >>> {len(client.test) for client in fed.values()}
    {35}
    """

    name: Literal["mapl"] = "mapl"
    clients: PositiveInt = 20
    clusters: PositiveInt | dealing.ClassSets = 2
    shared: NonNegativeInt = 0
    per_class: int | tuple[int, int] = 300
    test_per_class: NonNegativeInt = 15

    planted: ClassVar[str] = 'the cluster, by its classes: "0-4" when they are consecutive, else such as "0+2+7"'

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
        member = dealing.groups_of_clients(self.clients, len(sets), "clusters")
        owns = dealing.owners_of(member, sets, dataset.task.classes)
        low, high = (self.per_class,) * 2 if isinstance(self.per_class, int) else self.per_class
        counts = rng(seed, self.name, "sizes").integers(low, high + 1, owns.shape) * owns
        train = self._dealt(dataset, "train", "per_class", counts, seed)
        test = self._dealt(dataset, "test", "test_per_class", self.test_per_class * owns, seed)
        return self.assembled(
            dataset, seed, train, test, groups=[_name(sets[number]) for number in member],
            classes=[sets[number] for number in member],
        )  # fmt: skip

    def _sets(self, dataset: Dataset) -> list[tuple[int, ...]]:
        """The classes of every cluster, ascending."""
        if not isinstance(self.clusters, int):
            if self.shared:
                raise ConfigError("scenario.shared: a list of clusters already says which classes they share")
            dealing.check_classes("clusters", self.clusters, dataset)
            return [tuple(sorted(own)) for own in self.clusters]
        total = dataset.task.classes
        asked = f"{self.clusters} clusters of {total} classes"
        if self.clusters > total:
            raise ConfigError(f"scenario.clusters: {asked} of {dataset.name}; at most {total}")
        sets = dealing.blocks(total, self.clusters, self.shared)
        if self.clusters > 1 and min(map(len, sets)) <= self.shared:
            within = f"would lie within one another when neighbours share {self.shared}"
            raise ConfigError(f"scenario.shared: {asked} {within}; expected fewer")
        return sets

    def _dealt(self, dataset: Dataset, split: Split, setting: str, counts: Ints, seed: int) -> list[Ints]:
        """Rows of every client; counts: [clients, classes] how many of each class."""
        pools = dealing.shuffled_classes(dataset, split, seed, self.name)
        wanted, have = counts.sum(axis=0), np.array([len(pool) for pool in pools])
        if (wanted > have).any():
            label = int(np.argmax(wanted / np.maximum(have, 1)))
            takers = int((counts[:, label] > 0).sum())
            asked = f"{takers} clients take {wanted[label]} {split} samples of class {label}"
            raise ConfigError(
                f"scenario.{setting}: {asked}, {counts[:, label].max()} at most each, but {dataset.name} has "
                f"{have[label]}; {have[label] // takers} each would do, or fewer clients"
            )
        return dealing.dealt(pools, counts)


def _name(classes: Sequence[int]) -> str:
    consecutive = classes[-1] - classes[0] == len(classes) - 1
    return f"{classes[0]}-{classes[-1]}" if consecutive and len(classes) > 1 else "+".join(map(str, classes))


class Structured(Scenario):
    """Clusters of clients with their own classes; in each cluster a few clients have most of the samples.

    clusters: their number, each with the same number of consecutive classes (the last cluster gets the rest), or a list
    of classes for each cluster, no class in two lists. The clients are spread evenly over the clusters. The training
    samples of a cluster's classes (at most `per_class` of each) are shuffled and divided among its n clients; the i-th,
    i = 0..n-1, gets floor(F + exp(x i^2)), with F half the mean size and x such that the sizes add up; the last client
    also gets the rounding remainder. So a client may have only some of its cluster's classes. All clients of a cluster
    are tested on the same samples: the test split's samples of the cluster's classes (of which `test_per_client` are
    drawn). Settings that leave a client fewer than `min_size` are refused.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", Structured(clients=20), seed=0)
    >>> sorted(set(fed.planted.values()))
    ['0+1', '2+3', '4+5', '6+7', '8+9']
    >>> min(fed.sizes.values()), max(fed.sizes.values())
    (36, 171)
    """

    name: Literal["structured"] = "structured"
    clients: PositiveInt = 100
    clusters: PositiveInt | dealing.DisjointSets = 5
    per_class: PositiveInt | None = None
    min_size: PositiveInt = 1
    test_per_client: PositiveInt | None = None

    planted: ClassVar[str] = 'the cluster, by its classes, such as "0+1"'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are too few classes, clients or samples."""
        sets = self._sets(dataset)
        dealing.check_classes("clusters", sets, dataset)
        member = dealing.groups_of_clients(self.clients, len(sets), "clusters")
        train, test = (part.by_class(dataset.task.classes) for part in (dataset.train, dataset.test))
        rows: list[Ints] = [np.empty(0, np.int64)] * self.clients
        tests = []
        for number, own in enumerate(sets):
            draw = rng(seed, self.name, "cluster", number)
            pool = np.concatenate([draw.permutation(train[label])[: self.per_class] for label in own])
            members = np.flatnonzero(np.array(member) == number)
            for k, part in zip(draw.permutation(members), self._cut(draw.permutation(pool), own, members), strict=True):
                rows[k] = np.sort(part)
            tested = draw.permutation(np.concatenate([test[label] for label in own]))
            tests.append(np.sort(tested[: self.test_per_client]))
        test, classes = [tests[number] for number in member], [sets[number] for number in member]
        return self.assembled(dataset, seed, rows, test, classes=classes)

    def _sets(self, dataset: Dataset) -> list[tuple[int, ...]]:
        """The classes of every cluster, ascending."""
        if not isinstance(self.clusters, int):
            return [tuple(sorted(own)) for own in self.clusters]
        total = dataset.task.classes
        width = -(-total // self.clusters)
        if (self.clusters - 1) * width >= total:
            asked = f"{self.clusters} clusters of {width} classes need more than the {total} of {dataset.name}"
            raise ConfigError(f"scenario.clusters: {asked}; expected another number, or a list of classes for each")
        return [tuple(range(start, min(start + width, total))) for start in range(0, total, width)]

    def _cut(self, pool: Ints, own: tuple[int, ...], members: Ints) -> list[Ints]:
        """The pool in parts of skewed sizes, one per member."""
        sizes = skewed_sizes(len(pool), len(members))
        if sizes.min() < self.min_size:
            asked = f"share the {len(pool)} training samples of classes {'+'.join(map(str, own))}"
            least = f"the smallest would get {sizes.min()}; expected at least {self.min_size} (min_size)"
            raise ConfigError(f"scenario.clients: {len(members)} clients {asked}, and {least}: take fewer clients")
        return np.split(pool, np.cumsum(sizes)[:-1])


def skewed_sizes(total: int, count: int) -> Ints:
    """[count] sizes floor(F + exp(x i^2)) with sum `total`, F = total / 2 / count (FLT's scenario 4), ascending.

    x is the largest value for which the sum is not above the total; the last size gets the rest.

    >>> skewed_sizes(100, 5).tolist()
    [11, 11, 12, 17, 49]
    """
    if total == 0:
        return np.zeros(count, np.int64)
    half = total / 2 / count
    squares = np.arange(count, dtype=np.float64) ** 2

    def sizes(x: float) -> Ints:
        return np.floor(half + np.exp(x * squares)).astype(np.int64)

    # At the lower end exp(x i^2) is 0 except for i = 0; at the upper end the last size alone is the total.
    low, high = -50.0, math.log(max(total, 2)) / max(squares[-1], 1.0)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sizes(middle).sum() <= total else (low, middle)
    best = sizes(low)
    best[-1] += total - int(best.sum())
    return best
