"""What every scenario states, and the steps that several share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedkin.data.dataset import Dataset, Split
from fedkin.data.scenarios.pooled import pooled
from fedkin.data.scenarios.unseen import GROUP, UnseenTest, set_apart
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.keys import rng
from fedkin.settings import Settings

__all__ = ["Rows", "Scenario", "cut", "deal", "shuffled_ids"]

Rows = npt.NDArray[np.int64]


class Scenario(Settings):
    """Settings of who gets which samples; `name` tells which, `planted` what its groups are.

    unseen: clients that never take part and are only evaluated: a share of them, drawn by the seed; an id, or a group
    as "group:NAME"; or a list of these. unseen_test: what they are tested on: their test samples, or all they have.
    pooled: all clients that take part become one, "pooled": training on all data in one place, as a reference.
    """

    name: str
    unseen: Annotated[float, Field(gt=0, lt=1)] | str | tuple[str, ...] | None = None
    unseen_test: UnseenTest = "test"
    pooled: bool = False

    planted: ClassVar[str]

    def federation(self, dataset: Dataset, seed: int) -> Federation:
        """`build`, then the unseen clients set apart: those of `unseen`, or of the groups that the data set names.

        With `pooled` those that are left are joined. Raises ConfigError also when `unseen` names others than the
        groups without which the data set was prepared.
        """
        made = self._apart(dataset, seed)
        return pooled(made) if self.pooled else made

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
        """Deal the data set out; the same seed gives the same federation, bit for bit.

        Training samples come from the training split, test samples from the test split, and no sample goes
        to two clients. Raises ConfigError naming the setting, or DataError, when the data cannot give this.
        """


def shuffled_ids(count: int, seed: int) -> list[str]:
    """Ids "c00", "c01", ... for `count` clients in the order of their making, none at its own place.

    The numbers follow one random cycle through all places: ids tell nothing about groups, and code that
    mistakes an id's number for a position is wrong for every client.

    >>> sorted(shuffled_ids(3, seed=0))
    ['c00', 'c01', 'c02']
    """
    order = rng(seed, "client-ids").permutation(count)
    numbers = np.empty(count, np.int64)
    numbers[order] = np.roll(order, -1)
    width = max(2, len(str(count - 1)))
    return [f"c{number:0{width}d}" for number in numbers]


def deal(dataset: Dataset, split: Split, clients: int, per_client: int | None, seed: int) -> list[Rows]:
    """The rows of a split in random parts, one per client, whose sizes differ by at most one.

    per_client: take only so many for each. Raises ConfigError when there are too few samples.
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
    """`rows` in consecutive parts proportional to `shares`, to within a sample, none of them empty.

    All rows are used; there must be at least as many rows as shares.

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
