"""Clients with one distribution: of equal sizes, or of very different ones."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import Rows, Scenario
from fedkin.data.scenarios.dealing import apportion, check_least, deal, dirichlet, lifted
from fedkin.federation import Federation
from fedkin.keys import rng

__all__ = ["Iid", "QuantitySkew"]


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
        return self.assembled(dataset, seed, train, test, groups=["all"] * self.clients)


class QuantitySkew(Scenario):
    """Random parts of the data set of very different sizes; all clients have the same label distribution.

    law = "dirichlet": shares of the training split from Dirichlet(alpha); a smaller alpha gives larger differences.
    "power": the k-th client's share, k = 1, 2, .. in a random order, is proportional to k^-alpha; a larger alpha gives
    larger differences. Clients below `min_size` are filled up to it from the largest, which are cut down to a
    common level. The test split is cut into equal parts; `test_per_client` takes fewer.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", QuantitySkew(clients=10, law="power", alpha=1.5), seed=0)
    >>> sorted(fed.sizes.values())
    [23, 27, 32, 39, 49, 64, 90, 139, 255, 720]
    """

    name: Literal["quantity-skew"] = "quantity-skew"
    clients: int = Field(20, ge=1)
    law: Literal["dirichlet", "power"] = "dirichlet"
    alpha: float = Field(0.5, gt=0)
    min_size: int = Field(1, ge=1)
    test_per_client: int | None = Field(None, ge=1)

    planted: ClassVar[str] = 'one group, "all"'

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError if there are fewer samples than the clients need."""
        check_least(self.clients, self.min_size, dataset)
        sizes = self._sizes(len(dataset.train), rng(seed, self.name, "sizes"))
        order = rng(seed, "deal", "train").permutation(len(dataset.train))
        train = [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]
        test = deal(dataset, "test", self.clients, self.test_per_client, seed)
        return self.assembled(dataset, seed, train, test, groups=["all"] * self.clients)

    def _sizes(self, total: int, draw: np.random.Generator) -> Rows:
        if self.law == "dirichlet":
            shares = dirichlet(draw, self.alpha, (1, self.clients))[0]
        else:
            # In logarithms: k^-alpha itself may be too small for a float.
            shares = np.exp(-self.alpha * np.log(1 + draw.permutation(self.clients)))
        return lifted(apportion(total, shares), self.min_size)
