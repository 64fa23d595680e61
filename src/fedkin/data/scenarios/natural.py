"""Clients as stated by the data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios.base import Rows, Scenario
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Client, Federation
from fedkin.federation.arrays import group_of_each
from fedkin.federation.split import rows_by_name
from fedkin.keys import rng

__all__ = ["Natural"]


class Natural(Scenario):
    """The data set's own clients with their own ids, such as writers or hospitals, in a shuffled order.

    min_size, min_test: clients with fewer training or test samples are left out. clients: how many of the others to
    draw (default: all). With min_test = 0 a client may have no test samples.
    """

    name: Literal["natural"] = "natural"
    clients: int | None = Field(None, ge=1)
    min_size: int = Field(1, ge=1)
    min_test: int = Field(0, ge=0)

    planted: ClassVar[str] = "the data set's own groups, where it states them"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises DataError if the data set states no clients, ConfigError if there are too few."""
        if dataset.train.client is None or dataset.test.client is None:
            raise DataError(
                f"scenario natural: {dataset.name} does not say whose its samples are; expected a client each"
            )
        train, test = rows_by_name(dataset.train.client), rows_by_name(dataset.test.client)
        groups = _groups(dataset.train, dataset.test, dataset.name)
        ids = self._ids(train, test, dataset.name)
        order = rng(seed, self.name, "order").permutation(len(ids))[: self.clients]
        none = np.empty(0, np.int64)
        clients = [
            Client(
                id,
                dataset.samples("train", train[id]),
                dataset.samples("test", test.get(id, none)),
                groups.get(id),
            )
            for id in (ids[place] for place in order)
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _ids(self, train: Mapping[str, Rows], test: Mapping[str, Rows], name: str) -> list[str]:
        """The clients with enough samples, sorted."""
        large = [id for id, rows in train.items() if len(rows) >= self.min_size]
        if not large:
            most = max((len(rows) for rows in train.values()), default=0)
            raise ConfigError(
                f"scenario.min_size: no client of {name} has {self.min_size} training samples; the largest has {most}"
            )
        tests = {id: len(test[id]) if id in test else 0 for id in large}
        ids = sorted(id for id in large if tests[id] >= self.min_test)
        if not ids:
            most = max(tests.values())
            raise ConfigError(
                f"scenario.min_test: no client of {name} with at least {self.min_size} training samples has "
                f"{self.min_test} test samples; the most is {most}"
            )
        if self.clients is not None and self.clients > len(ids):
            raise ConfigError(
                f"scenario.clients: {self.clients}, but {name} has {len(ids)} clients with at least "
                f"{self.min_size} training samples and {self.min_test} test samples"
            )
        return ids


def _groups(train: Part, test: Part, name: str) -> dict[str, str]:
    """The group of each client, as stated by its samples of both splits."""
    if train.client is None or test.client is None or train.group is None or test.group is None:
        return {}
    owners = np.concatenate([train.client, test.client])
    return group_of_each(rows_by_name(owners), np.concatenate([train.group, test.group]), name)
