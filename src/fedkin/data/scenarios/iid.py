"""Identically distributed clients."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import Scenario, deal, shuffled_ids
from fedkin.federation import Client, Federation

__all__ = ["Iid"]


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
        clients = [
            Client(id, dataset.samples("train", own), dataset.samples("test", tested), "all")
            for id, own, tested in zip(shuffled_ids(self.clients, seed), train, test, strict=True)
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")
