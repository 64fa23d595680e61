"""The interface of every scenario, and steps that several share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedkin.data.dataset import Dataset, Split
from fedkin.data.scenarios.pooled import pooled
from fedkin.data.scenarios.unseen import GROUP, UnseenTest, set_apart
from fedkin.data.sources.base import everywhere
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.federation.samples import Origin
from fedkin.keys import rng
from fedkin.settings import Settings

__all__ = ["Rows", "Scenario", "cut", "deal", "shuffled_ids"]

Rows = npt.NDArray[np.int64]


class Scenario(Settings):
    """Settings that say which client gets which samples; `name` is the scenario, `planted` what its groups are.

    unseen: clients that never take part and are only evaluated: a share of them, drawn by the seed; an id, or a group
    as "group:NAME"; or a list of these. unseen_test: the samples they are tested on: their test samples, or all.
    pooled: all participating clients become one, "pooled": training on all data in one place, as a baseline.
    """

    name: str
    unseen: Annotated[float, Field(gt=0, lt=1)] | str | tuple[str, ...] | None = None
    unseen_test: UnseenTest = "test"
    pooled: bool = False

    planted: ClassVar[str]

    def federation(self, dataset: Dataset, seed: int) -> Federation:
        """`build`, then sets the unseen clients apart: those of `unseen`, or of the groups that the data set names.

        With `pooled` the remaining clients are joined. Raises ConfigError also if `unseen` differs from the
        groups that the data set excluded when it was prepared.
        """
        apart = self._apart(dataset, seed)
        made = pooled(apart) if self.pooled else apart
        made.encoding, made.target = dataset.encoding, dataset.target
        if dataset.again is not None and everywhere(self):
            made.origin = Origin(partial(_read, self, dataset.again, seed), dict(made), dataset.where)
        return made

    def _apart(self, dataset: Dataset, seed: int) -> Federation:
        made = self.build(dataset, seed)
        unseen, own = self.unseen, tuple(GROUP + name for name in dataset.unseen)
        if unseen is None:
            return set_apart(made, own, self.unseen_test, seed) if own else made
        given = (unseen,) if isinstance(unseen, str) else unseen
        if own and (isinstance(given, float) or set(given) != set(own)):
            raise ConfigError(
                f"scenario.unseen: {unseen!r}, but {dataset.name} was prepared without {', '.join(own)}; "
                "choose who is unseen in [data], and leave scenario.unseen out"
            )
        return set_apart(made, unseen, self.unseen_test, seed)

    @abstractmethod
    def build(self, dataset: Dataset, seed: int) -> Federation:
        """Assign the samples to clients; the same seed gives the same federation, bit for bit.

        Training samples come from the training split, test samples from the test split, and no sample goes
        to two clients. Raises ConfigError naming the setting, or DataError, if the data are not enough.
        """


def _read(scenario: Scenario, again: Callable[[], Dataset], seed: int) -> Federation:
    return scenario.federation(again(), seed)


def shuffled_ids(count: int, seed: int) -> list[str]:
    """Ids "c00", "c01", ... for `count` clients in order of creation; no id equals its client's position.

    The numbers follow one random cycle through all positions: ids tell nothing about groups, and code that
    uses an id's number as a position is wrong for every client.

    >>> sorted(shuffled_ids(3, seed=0))
    ['c00', 'c01', 'c02']
    """
    order = rng(seed, "client-ids").permutation(count)
    numbers = np.empty(count, np.int64)
    numbers[order] = np.roll(order, -1)
    width = max(2, len(str(count - 1)))
    return [f"c{number:0{width}d}" for number in numbers]


def deal(dataset: Dataset, split: Split, clients: int, per_client: int | None, seed: int) -> list[Rows]:
    """The rows of a split in random parts, one per client, with sizes that differ by at most one.

    per_client: the number of samples for each client. Raises ConfigError if there are too few samples.
    """
    total = len(dataset.part(split))
    if per_client is not None and clients * per_client > total:
        raise ConfigError(
            f"scenario.{split}_per_client: {clients} clients x {per_client} are more than the {total} "
            f"{split} samples of {dataset.name}; at most {total // clients}"
        )
    if clients > total:
        raise ConfigError(
            f"scenario.clients: {clients} clients cannot share the {total} {split} samples of "
            f"{dataset.name}; at most {total}"
        )
    order = rng(seed, "deal", split).permutation(total)
    return [part[:per_client] for part in np.array_split(order, clients)]


def cut(rows: Rows, shares: npt.NDArray[np.float64]) -> list[Rows]:
    """`rows` in consecutive parts proportional to `shares`, to within a sample; no part is empty.

    All rows are used. There must be at least as many rows as shares.

    >>> [part.tolist() for part in cut(np.arange(6), np.array([2.0, 1.0]))]
    [[0, 1, 2, 3], [4, 5]]
    """
    exact = shares / shares.sum() * len(rows)
    sizes = np.floor(exact).astype(np.int64)
    short = len(rows) - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:short]] += 1
    for empty in np.flatnonzero(sizes == 0):
        sizes[np.argmax(sizes)] -= 1
        sizes[empty] = 1
    return np.split(rows, np.cumsum(sizes)[:-1])
