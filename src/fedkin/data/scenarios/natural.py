"""The data set's own clients and groups: unchanged, with small clients joined, or with groups divided into clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from fedkin.data.dataset import SPLITS, Dataset, Split
from fedkin.data.scenarios.base import Scenario
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Federation
from fedkin.federation.arrays import Ints, group_of_each, rows_by_name
from fedkin.keys import rng

_NONE = np.empty(0, np.int64)


class _OwnClients(Scenario):
    """Clients as the data set states them."""

    def _clients_of(self, dataset: Dataset) -> tuple[dict[str, Ints], dict[str, Ints], dict[str, str]]:
        """(each client's training rows, its test rows, its group); no groups if the data set states none."""
        train, test = dataset.train, dataset.test
        if train.client is None or test.client is None:
            lacks = f"{dataset.name} does not say whose its samples are"
            raise DataError(f"scenario {self.name}: {lacks}; expected a client each")
        groups = {}
        if train.group is not None and test.group is not None:
            whole = rows_by_name(np.concatenate([train.client, test.client]))
            groups = group_of_each(whole, np.concatenate([train.group, test.group]), dataset.name)
        return rows_by_name(train.client), rows_by_name(test.client), groups


class Natural(_OwnClients):
    """The data set's own clients with their own ids, such as writers or hospitals, in a shuffled order.

    min_size, min_test: clients with fewer training or test samples are left out. clients: how many of the others to
    draw (default: all). With min_test = 0 a client may have no test samples.
    """

    name: Literal["natural"] = "natural"
    clients: PositiveInt | None = None
    min_size: PositiveInt = 1
    min_test: NonNegativeInt = 0

    planted: ClassVar[str] = "the data set's own groups, where it states them"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises DataError if the data set states no clients, ConfigError if there are too few."""
        train, test, groups = self._clients_of(dataset)
        ids = self._ids(train, test, dataset.name)
        order = rng(seed, self.name, "order").permutation(len(ids))[: self.clients]
        chosen = [ids[index] for index in order]
        return self.assembled(
            dataset, seed, [train[id] for id in chosen], [test.get(id, _NONE) for id in chosen],
            groups=[groups[id] for id in chosen] if groups else None, ids=chosen,
        )  # fmt: skip

    def _ids(self, train: Mapping[str, Ints], test: Mapping[str, Ints], name: str) -> list[str]:
        """The clients with enough samples, sorted."""
        large, enough = [id for id in train if len(train[id]) >= self.min_size], f"{self.min_size} training samples"
        if not large:
            most = max(map(len, train.values()), default=0)
            raise ConfigError(f"scenario.min_size: no client of {name} has {enough}; the largest has {most}")
        tests = {id: len(test.get(id, _NONE)) for id in large}
        ids = sorted(id for id in large if tests[id] >= self.min_test)
        if not ids:
            lacks = f"no client of {name} with at least {enough} has {self.min_test} test samples"
            raise ConfigError(f"scenario.min_test: {lacks}; the most is {max(tests.values())}")
        if self.clients is not None and self.clients > len(ids):
            have = f"{name} has {len(ids)} clients with at least {enough} and {self.min_test} test samples"
            raise ConfigError(f"scenario.clients: {self.clients}, but {have}")
        return ids


class Regions(_OwnClients):
    """The data set's own clients, such as hospitals; small ones are joined within their group.

    Clients with fewer than `min_size` training samples are taken in random order within their group and joined until
    they have that number; clients that remain are added to the last joined client (if all small clients of a group
    together have fewer, they still become one client). A joined client is named after its group: "Midwest-0", ...;
    `Client.about["members"]` lists the clients in it.
    """

    name: Literal["regions"] = "regions"
    min_size: PositiveInt = 40

    planted: ClassVar[str] = "the data set's own groups, such as regions"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises DataError if the data set states no clients or no groups."""
        train, test, group = self._clients_of(dataset)
        if not group:
            raise DataError(f"scenario regions: {dataset.name} does not say in which group its clients are")
        joined = self._joined({id: len(rows) for id, rows in train.items()}, group, seed)
        ids = list(joined)
        ids = [ids[index] for index in rng(seed, self.name, "order").permutation(len(ids))]
        return self.assembled(
            dataset, seed,
            *([np.sort(np.concatenate([rows.get(member, _NONE) for member in joined[id]])) for id in ids]
              for rows in (train, test)),
            groups=[group[joined[id][0]] for id in ids], about=[{"members": joined[id]} for id in ids], ids=ids,
        )  # fmt: skip

    def _joined(self, sizes: Mapping[str, int], group: Mapping[str, str], seed: int) -> dict[str, list[str]]:
        """Members of each client, sorted, by the client's id."""
        clients = {id: [id] for id, size in sorted(sizes.items()) if size >= self.min_size}
        for region in sorted(set(group.values())):
            small = sorted(id for id, size in sizes.items() if group[id] == region and size < self.min_size)
            order = rng(seed, self.name, region).permutation(len(small))
            for number, members in enumerate(self._bundles([small[index] for index in order], sizes)):
                name = f"{region}-{number}"
                if name in sizes:
                    raise DataError(f"scenario regions: a client of the data set is itself called {name!r}; rename it")
                clients[name] = sorted(members)
        return clients

    def _bundles(self, ids: Iterable[str], sizes: Mapping[str, int]) -> list[list[str]]:
        """Join clients in this order; a last bundle with too few samples is added to the one before."""
        bundles, size = list[list[str]](), self.min_size
        for id in ids:
            if size >= self.min_size:
                bundles.append([])
                size = 0
            bundles[-1].append(id)
            size += sizes[id]
        if len(bundles) > 1 and size < self.min_size:
            left = bundles.pop()
            bundles[-1] += left
        return bundles


class Domains(Scenario):
    """Each group of the data set, such as a domain of images, is cut into `per_domain` equal random parts: the clients.

    Clients are named after their domain: "sketch-0", "sketch-1", ... With `unseen = "group:sketch"` that domain is
    left out; `fedkin compare --leave-out each` leaves out one domain after another.
    """

    name: Literal["domains"] = "domains"
    per_domain: PositiveInt = 5

    planted: ClassVar[str] = "the domain"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises DataError if the data set states no groups, ConfigError for too few samples."""
        train, test = (self._cut(dataset, split, seed) for split in SPLITS)
        clients = [(domain, number) for domain, parts in train.items() for number in range(len(parts))]
        clients = [clients[index] for index in rng(seed, self.name, "order").permutation(len(clients))]
        return self.assembled(
            dataset, seed, [train[domain][number] for domain, number in clients],
            [test[domain][number] if domain in test else _NONE for domain, number in clients],
            groups=[domain for domain, _ in clients], ids=[f"{domain}-{number}" for domain, number in clients],
        )  # fmt: skip

    def _cut(self, dataset: Dataset, split: Split, seed: int) -> dict[str, list[Ints]]:
        """The rows of each domain's clients; sizes differ by at most one."""
        groups = dataset.part(split).group
        if groups is None:
            raise DataError(f"scenario domains: {dataset.name} does not say which group its samples are of")
        parts = {}
        for domain, rows in sorted(rows_by_name(groups).items()):
            if split == "train" and len(rows) < self.per_domain:
                asked = f"{self.per_domain} clients cannot share the {len(rows)} training samples of {domain!r}"
                raise ConfigError(f"scenario.per_domain: {asked}; at most {len(rows)}")
            drawn = rng(seed, self.name, split, domain).permutation(rows)
            parts[domain] = [np.sort(part) for part in np.array_split(drawn, self.per_domain)]
        return parts
