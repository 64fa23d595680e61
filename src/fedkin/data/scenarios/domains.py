"""Domains, each divided into clients (as TFL, 2024, divides PACS and OfficeHome)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin.data.dataset import SPLITS, Dataset, Split
from fedkin.data.scenarios.base import Rows, Scenario
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Client, Federation
from fedkin.federation.split import rows_by_name
from fedkin.keys import rng

__all__ = ["Domains"]


class Domains(Scenario):
    """Each group of the data set, such as a domain of images, is cut into `per_domain` equal random parts: the clients.

    Clients are named after their domain: "sketch-0", "sketch-1", ... With `unseen = "group:sketch"` that domain is
    left out; `fedkin compare --leave-out each` leaves out one domain after another.
    """

    name: Literal["domains"] = "domains"
    per_domain: int = Field(5, ge=1)

    planted: ClassVar[str] = "the domain"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises DataError if the data set states no groups, ConfigError for too few samples."""
        train, test = (self._cut(dataset, split, seed) for split in SPLITS)
        none = np.empty(0, np.int64)
        made = [
            Client(
                f"{domain}-{number}",
                dataset.samples("train", rows),
                dataset.samples("test", test[domain][number] if domain in test else none),
                group=domain,
            )
            for domain, parts in train.items()
            for number, rows in enumerate(parts)
        ]
        order = rng(seed, self.name, "order").permutation(len(made))
        return Federation([made[place] for place in order], dataset.task, f"{dataset.name}-{self.name}")

    def _cut(self, dataset: Dataset, split: Split, seed: int) -> dict[str, list[Rows]]:
        """The rows of each domain's clients; sizes differ by at most one."""
        groups = dataset.part(split).group
        if groups is None:
            raise DataError(
                f"scenario domains: {dataset.name} does not say which group its samples are of; expected one each"
            )
        parts = {}
        for domain, rows in sorted(rows_by_name(groups).items()):
            if split == "train" and len(rows) < self.per_domain:
                raise ConfigError(
                    f"scenario.per_domain: {self.per_domain} clients cannot share the {len(rows)} training samples of "
                    f"{domain!r}; at most {len(rows)}"
                )
            drawn = rng(seed, self.name, split, domain).permutation(rows)
            parts[domain] = [np.sort(part) for part in np.array_split(drawn, self.per_domain)]
        return parts
