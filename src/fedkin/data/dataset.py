"""A data set as a source returns it: two splits of samples, and the task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import ConfigError, DataError
from fedkin.federation import Samples, Scale, Task
from fedkin.federation.arrays import Flags, Floats, Ints, Names

if TYPE_CHECKING:
    from fedkin.federation.table_encoding import Encoding, Target

Split = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")


@dataclass(frozen=True)
class Part:
    """One split. x: [N, ...] uint8 or float, images channels first; y: [N, ...] targets in the task's form.

    client, group: [N] names of each sample's client and of that client's planted group, if the data set states
    clients. person: [N] numbers, equal for samples of one person; None: each sample is independent. time: [N] numbers,
    ascending with time; None: unknown.
    """

    x: Tensor
    y: Tensor
    client: Names | None = field(default=None, repr=False)
    group: Names | None = field(default=None, repr=False)
    person: Ints | None = field(default=None, repr=False)
    time: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        columns = {"labels": self.y, "clients": self.client, "groups": self.group, "persons": self.person,
                   "times": self.time}  # fmt: skip
        for what, values in columns.items():
            if values is not None and len(values) != len(self.x):
                raise DataError(f"samples and {what} differ in number: {len(self.x)} and {len(values)}")

    def __len__(self) -> int:
        return len(self.y)

    def by_class(self, classes: int) -> list[Ints]:
        """The rows of every class 0..classes-1, ascending; raises ConfigError if samples have no class label."""
        if self.y.ndim != 1 or self.y.is_floating_point():
            raise ConfigError("scenario.name: it deals samples out by their class labels, and these have none")
        labels = self.y.numpy()
        order = np.argsort(labels, kind="stable")
        return np.split(order, np.searchsorted(labels[order], np.arange(1, classes)))

    def split(self, is_test: Flags) -> tuple[Part, Part]:
        """Return (training part, held-out part); is_test: [N] True for held-out samples."""
        known = {name: values for name, values in vars(self).items() if values is not None}
        train, test = (Part(**{name: values[rows] for name, values in known.items()}) for rows in (~is_test, is_test))
        return train, test


@dataclass(frozen=True)
class Dataset:
    """Samples to assign to clients. Scenarios index or copy them, and never change them.

    unseen: groups whose samples the source did not use to fit anything (means, deviations); their clients must
    not take part. encoding, target: how columns became inputs, and what the targets mean, if the data are from a table.
    """

    name: str
    train: Part
    test: Part
    task: Task
    scale: Scale | None = None
    unseen: tuple[str, ...] = ()
    encoding: Encoding | None = None
    target: Target | None = None

    def __post_init__(self) -> None:
        for split in SPLITS:
            shape = tuple(self.part(split).x.shape[1:])
            if shape != self.task.shape:
                raise DataError(f"{self.name}: {split} inputs have shape {shape}, the task's is {self.task.shape}")

    def part(self, split: Split) -> Part:
        """The split of that name."""
        return self.train if split == "train" else self.test

    def samples(self, split: Split, rows: Ints) -> Samples:
        """These rows of a split, without copying a sample."""
        part = self.part(split)
        person, time = (None if each is None else torch.from_numpy(each) for each in (part.person, part.time))
        return Samples(part.x, part.y, torch.from_numpy(rows.astype(np.int64)), self.scale, person, time)

    @property
    def white(self) -> float:
        """The brightest stored value: `scale.divide` for bytes, otherwise the largest value."""
        if self.scale is not None and self.train.x.dtype == torch.uint8:
            return self.scale.divide
        return float(self.train.x.max())
