"""Clients as stated by the data set; small clients are joined with others of their region."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import Rows, Scenario
from fedkin.errors import DataError
from fedkin.federation import Client, Federation
from fedkin.federation.arrays import group_of_each
from fedkin.federation.split import rows_by_name
from fedkin.keys import rng

__all__ = ["Regions"]


class Regions(Scenario):
    """The data set's own clients, such as hospitals; small ones are joined within their group.

    Clients with fewer than `min_size` training samples are taken in random order within their group and joined until
    they have that number; the remaining ones join the last of them (if all small clients of a group together have
    fewer, they still become one client). A joined client is named after its group: "Midwest-0", ...;
    `Client.about["members"]` lists the clients in it.
    """

    name: Literal["regions"] = "regions"
    min_size: int = Field(40, ge=1)

    planted: ClassVar[str] = "the data set's own groups, such as regions"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises DataError if the data set states no clients or no groups."""
        parts = dataset.train, dataset.test
        if any(part.client is None or part.group is None for part in parts):
            raise DataError(
                f"scenario regions: {dataset.name} does not say whose its samples are and in which group; expected both"
            )
        owners, groups = (
            np.concatenate([getattr(part, what) for part in parts]) for what in ("client", "group")
        )  # fmt: skip
        group = group_of_each(rows_by_name(owners), groups, dataset.name)
        train, test = (rows_by_name(part.client) for part in parts if part.client is not None)
        joined = self._joined({id: len(rows) for id, rows in train.items()}, group, seed)
        made = [
            Client(
                id,
                dataset.samples("train", _rows(train, members)),
                dataset.samples("test", _rows(test, members)),
                group[members[0]],
                {"members": members},
            )
            for id, members in joined.items()
        ]
        order = rng(seed, self.name, "order").permutation(len(made))
        return Federation([made[place] for place in order], dataset.task, f"{dataset.name}-{self.name}")

    def _joined(self, sizes: Mapping[str, int], group: Mapping[str, str], seed: int) -> dict[str, list[str]]:
        """Members of each client, sorted, by the client's id."""
        made = {id: [id] for id, size in sorted(sizes.items()) if size >= self.min_size}
        for region in sorted({group[id] for id in sizes}):
            small = sorted(id for id, size in sizes.items() if group[id] == region and size < self.min_size)
            bundles: list[list[str]] = [[]]
            for place in rng(seed, self.name, region).permutation(len(small)):
                if sum(sizes[id] for id in bundles[-1]) >= self.min_size:
                    bundles.append([])
                bundles[-1].append(small[place])
            if len(bundles) > 1 and sum(sizes[id] for id in bundles[-1]) < self.min_size:
                left = bundles.pop()
                bundles[-1] += left
            for number, members in enumerate(bundle for bundle in bundles if bundle):
                name = f"{region}-{number}"
                if name in sizes:
                    raise DataError(f"scenario regions: a client of the data set is itself called {name!r}; rename it")
                made[name] = sorted(members)
        return made


def _rows(rows: Mapping[str, Rows], members: list[str]) -> Rows:
    none = np.empty(0, np.int64)
    return np.sort(np.concatenate([rows.get(id, none) for id in members]))
