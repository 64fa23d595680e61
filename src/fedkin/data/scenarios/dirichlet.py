"""Label skew by Dirichlet draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.apportion import apportion, check_least, dirichlet, label_counts, lifted, rows_of, tests_like
from fedkin.data.scenarios.base import Rows, Scenario, shuffled_ids
from fedkin.federation import Client, Federation
from fedkin.keys import rng

__all__ = ["Dirichlet"]


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
        clients = [
            Client(id, dataset.samples("train", own), dataset.samples("test", tested))
            for id, own, tested in zip(
                shuffled_ids(self.clients, seed), rows_of(owner, self.clients), tests, strict=True
            )
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

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
