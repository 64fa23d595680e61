"""Partitioners of Flower Datasets as a scenario of your own.

    pip install "fedkin[flwr-datasets]"
    fedkin run E.toml --set scenario.name=examples/flower_partitioner.py:Partitioned --set scenario.partitioner=...

`docs/flower.md` has a whole section of an experiment.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin.data.dataset import Dataset, Split
from fedkin.data.scenarios.base import Scenario
from fedkin.data.scenarios.dealing import tests_like
from fedkin.errors import ConfigError, nearest
from fedkin.federation import Federation
from fedkin.federation.arrays import Ints
from fedkin.keys import rng
from fedkin.settings import choose
from fedkin.untrusted import error_text

_TITLE = "scenario flwr-datasets"
_ROW = "row"


class Partitioned(Scenario):
    """The partitions of a partitioner of Flower Datasets, one for each client.

    partitioner: a class of `flwr_datasets.partitioner`, such as "DirichletPartitioner". arguments: what it is made
    with. Columns for `partition_by`: "label" (the target) and, where the data set states them, "client" and "group".
    It is given the samples in an order drawn by the run's seed, and that seed, unless `arguments` has one. test:
    "alike": test samples follow the labels of each client's training samples; "partitioned": the same partitioner
    divides the test samples too. Partitioners that divide columns between clients are refused.
    """

    name: Literal["flwr-datasets"] = "flwr-datasets"
    partitioner: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    test: Literal["alike", "partitioned"] = "alike"

    planted: ClassVar[str] = "none"

    def build(self, dataset: Dataset, seed: int) -> Federation:
        """The federation; raises ConfigError without flwr-datasets, and for what the partitioner refuses."""
        train = self._parts(dataset, "train", seed)
        if self.test == "partitioned":
            test = self._parts(dataset, "test", seed)
            if len(test) != len(train):
                raise ConfigError(
                    f"scenario.test: {len(train)} partitions of training samples, and {len(test)} of test samples"
                )
        else:
            dataset.train.by_class(dataset.task.classes)  # raises if samples have no class
            test = tests_like(dataset, train, None, seed, self.name)
        if empty := [number for number, rows in enumerate(train) if len(rows) == 0]:
            raise ConfigError(
                f"scenario.arguments: {len(empty)} of {len(train)} partitions of {self.partitioner} have no sample"
            )
        return self.assembled(dataset, seed, train, test)

    def _parts(self, dataset: Dataset, split: Split, seed: int) -> list[Ints]:
        """The rows of each partition of a split, in the partitioner's order."""
        part, partitioner = dataset.part(split), self._made(seed)
        order = rng(seed, self.name, split, "order").permutation(len(part))
        columns = {_ROW: order, "label": part.y.numpy().squeeze()[order]}
        named = {"client": part.client, "group": part.group}
        columns |= {name: names[order] for name, names in named.items() if names is not None}
        from datasets import Dataset as Table

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of packages to each other
                partitioner.dataset = Table.from_dict(columns)
                tables = [partitioner.load_partition(number) for number in range(partitioner.num_partitions)]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
            raise ConfigError(f"{_TITLE}: {self.partitioner}, {split} samples: {error_text(error)}") from None
        if any(_ROW not in table.column_names for table in tables):
            raise ConfigError(
                f"scenario.partitioner: {self.partitioner} divides columns, and all clients need the same"
            )
        rows = [np.asarray(table[_ROW], np.int64).reshape(-1) for table in tables]
        if sum(map(len, rows)) != len(np.unique(np.concatenate([*rows, np.empty(0, np.int64)]))):
            raise ConfigError(f"scenario.partitioner: {self.partitioner} deals a sample to two clients")
        return rows

    def _made(self, seed: int) -> Any:
        """A new partitioner; raises ConfigError."""
        try:
            from flwr_datasets import partitioner as known
        except ImportError:
            raise ConfigError(f'{_TITLE}: needs Flower Datasets: pip install "fedkin[flwr-datasets]"') from None
        kinds = {name: getattr(known, name) for name in known.__all__ if not inspect.isabstract(getattr(known, name))}
        kind = choose(kinds, self.partitioner, "scenario.partitioner")
        names = inspect.signature(kind).parameters
        if wrong := sorted(set(self.arguments) - set(names)):
            raise ConfigError(f"scenario.arguments.{wrong[0]}: {self.partitioner} has none; {nearest(wrong[0], names)}")
        own = {"seed": seed} if "seed" in names else {}
        try:
            return kind(**{**own, **self.arguments})
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"scenario.arguments: {self.partitioner}: {error_text(error)}") from None
