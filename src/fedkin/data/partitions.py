"""The clients of a federation as the partitions of a Flower app: by a number, as arrays or as Hugging Face datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedkin.errors import ConfigError, DataError
from fedkin.federation import Client, Federation

if TYPE_CHECKING:
    from fedkin.federation import Samples

Array = npt.NDArray[Any]


class Partition(NamedTuple):
    """The samples of one client. x: [n, ...] float32, scaled; y: [n, ...] targets in the task's form."""

    id: str
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


class Partitions:
    """The clients of a federation by number, in the order of their ids: what `partition-id` stands for in a Flower app.

    Those that never take part (`scenario.unseen`) have none. Raises ConfigError for clients that come later or whose
    samples change, because a partition is of all rounds.

    >>> from fedkin.data import federate
    >>> partitions = Partitions(federate("digits", "dirichlet", clients=4, alpha=0.3, seed=0))
    >>> len(partitions), partitions.ids
    (4, ('c00', 'c01', 'c02', 'c03'))
    >>> partitions[2].train_x.shape[1:]
    (1, 8, 8)
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.ids = tuple(sorted(id for id, client in federation.items() if client.seen))
        if late := [id for id in self.ids if not federation[id].still]:
            raise ConfigError(f"client {late[0]!r} comes later or changes, and a partition is of all rounds")

    def __len__(self) -> int:
        return len(self.ids)

    def client(self, number: int) -> Client:
        """The client of this number; raises DataError for another one, as for a string of `node_config`."""
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self):
            raise DataError(f"partition {number!r}: expected a whole number from 0 to {len(self) - 1}")
        return self.federation[self.ids[number]]

    def __getitem__(self, number: int) -> Partition:
        """The samples of the client of this number; raises DataError for another one, or if inputs have names."""
        client = self.client(number)
        return Partition(client.id, *_arrays(client.train), *_arrays(client.test))

    def dataset(self, number: int) -> Any:
        """The same as a `datasets.DatasetDict` with "train" and "test", each with columns "x" and "y", as NumPy arrays.

        Raises ConfigError without the package datasets.
        """
        try:
            from datasets import Dataset, DatasetDict
        except ImportError:
            raise ConfigError('partitions: needs Hugging Face datasets: pip install "fedkin[hub]"') from None
        _, *each = self[number]
        parts = {"train": each[:2], "test": each[2:]}
        return DatasetDict(
            {
                name: Dataset.from_dict({"x": list(x), "y": list(y)}).with_format("numpy")
                for name, (x, y) in parts.items()
            }
        )


def _arrays(samples: Samples) -> tuple[Array, Array]:
    x = samples.inputs(slice(None))
    if isinstance(x, dict):
        raise DataError("inputs with names are no single array: take them from the client of `client(number)`")
    return np.asarray(x), samples.labels().numpy()
