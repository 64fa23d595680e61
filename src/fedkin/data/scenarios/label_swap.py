"""Groups with permuted labels: concept shift."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Split
from fedkin.data.scenarios.base import Rows, Scenario, deal, shuffled_ids
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples
from fedkin.keys import rng

__all__ = ["LabelSwap"]


class LabelSwap(Scenario):
    """All clients have all classes, but each group of clients has its own permutation of the labels.

    Each split is shuffled and cut into equal parts, one per client; the clients are spread evenly over `groups`. The
    first group, "swap0", keeps its labels. how = "pairs": group g swaps classes 2g - 2 and 2g - 1; "shift": class c
    becomes (c + g) mod C; "random": the group has its own random permutation. Training and test samples
    are treated alike. train_per_client, test_per_client: the number of samples of each client (default: all
    there are). `Client.about["labels"]` lists the client's labels of class 0, 1, ...

    >>> from fedkin.data import federate
    >>> fed = federate("digits", LabelSwap(clients=6, groups=3), seed=0)
    >>> sorted(fed.planted.values())
    ['swap0', 'swap0', 'swap1', 'swap1', 'swap2', 'swap2']
    >>> next(client.about["labels"] for client in fed.values() if client.group == "swap2")
    [0, 1, 3, 2, 4, 5, 6, 7, 8, 9]
    """

    name: Literal["label-swap"] = "label-swap"
    clients: int = Field(20, ge=1)
    groups: int = Field(4, ge=1)
    how: Literal["pairs", "shift", "random"] = "pairs"
    train_per_client: int | None = Field(None, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = 'the permutation of labels: "swap0", "swap1", ...'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError for more groups than clients, or than possible permutations."""
        self._check(dataset)
        renamed = self._permutations(dataset.task.classes, seed)
        train_y, test_y = (
            [torch.from_numpy(names)[part.y] for names in renamed] for part in (dataset.train, dataset.test)
        )
        train = deal(dataset, "train", self.clients, self.train_per_client, seed)
        test = deal(dataset, "test", self.clients, self.test_per_client, seed)

        def samples(split: Split, labels: torch.Tensor, rows: Rows) -> Samples:
            return Samples(dataset.part(split).x, labels, torch.from_numpy(rows), dataset.scale)

        clients = [
            Client(
                id,
                samples("train", train_y[group], own),
                samples("test", test_y[group], tested),
                group=f"swap{group}",
                about={"labels": renamed[group].tolist()},
            )
            for id, group, own, tested in zip(
                shuffled_ids(self.clients, seed),
                (np.arange(self.clients) % self.groups).tolist(),
                train,
                test,
                strict=True,
            )
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _check(self, dataset: Dataset) -> None:
        if self.clients < self.groups:
            raise ConfigError(
                f"scenario.clients: {self.clients} clients for {self.groups} groups; at least {self.groups}"
            )
        total = len(dataset.train.by_class(dataset.task.classes))
        # Beyond 20 classes there are more permutations than clients.
        most = {"pairs": total // 2 + 1, "shift": total, "random": math.factorial(min(total, 20))}[self.how]
        if self.groups > most:
            raise ConfigError(
                f'scenario.groups: {self.groups}, but with how = "{self.how}" the {total} classes of {dataset.name} '
                f"give at most {most}"
            )

    def _permutations(self, total: int, seed: int) -> list[Rows]:
        """Each group's labels of class 0, 1, ..; all different, the first one the identity."""
        same = np.arange(total)
        if self.how == "shift":
            return [(same + group) % total for group in range(self.groups)]
        if self.how == "pairs":
            found = [same.copy() for _ in range(self.groups)]
            for group in range(1, self.groups):
                found[group][[2 * group - 2, 2 * group - 1]] = 2 * group - 1, 2 * group - 2
            return found
        draw = rng(seed, self.name, "permutations")
        distinct = {tuple(same.tolist()): same}
        while len(distinct) < self.groups:
            drawn = draw.permutation(total)
            distinct.setdefault(tuple(drawn.tolist()), drawn)
        return list(distinct.values())
