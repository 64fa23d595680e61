"""A few shards of sorted labels per client."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.apportion import label_counts, rows_of, tests_like
from fedkin.data.scenarios.base import Scenario, shuffled_ids
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation
from fedkin.keys import rng

__all__ = ["Shards"]


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
        clients = [
            Client(
                id,
                dataset.samples("train", own),
                dataset.samples("test", tested),
                about={"classes": np.flatnonzero(labelled).tolist()},
            )
            for id, own, tested, labelled in zip(
                shuffled_ids(self.clients, seed), rows_of(owner, self.clients), tests, counts, strict=True
            )
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")
