"""The interface of all sources, and functions for files that several sources share."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt

from fedkin.data.dataset import Dataset
from fedkin.data.fetching import missing
from fedkin.errors import DataError
from fedkin.settings import Settings, errors_in, expect


class Source(Settings):
    """Settings of a data set on disk (or embedded); `source` is its name."""

    source: str

    @abstractmethod
    def load(self, root: Path) -> Dataset:
        """Read the data set from the folder `root`; raises DataError naming the file and what was expected."""

    def loaded(self, root: Path) -> Dataset:
        """Return what `load` returns; raises DataError also for any error in the user's own file."""
        with errors_in(self):
            dataset = self.load(root)
        expect(dataset, Dataset, f"data.source: {type(self).__name__}.load", "to get a fedkin.data.Dataset")
        return dataset


class Published(Source):
    """A published data set. path: where its files are; None: in their usual place, `below` the data root."""

    below: ClassVar[str]

    path: Path | None = None

    def place(self, root: Path) -> Path:
        """The file or folder to read."""
        return root / self.below if self.path is None else locate(root, self.path)


def locate(root: Path, path: Path) -> Path:
    """`path` unchanged if absolute; else below `root`, or below the current folder if it exists only there."""
    path = path.expanduser()
    below = root / path
    return path if not below.exists() and path.exists() else below


def need_file(path: Path, expected: str) -> None:
    """Raise DataError if there is no such file."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {expected}{missing(path)}")


def packed_or_not(path: Path, expected: str) -> Path:
    """`path`, or `path`.gz if only that exists; raises DataError if neither does."""
    packed = path.with_name(f"{path.name}.gz")
    if path.is_file() or packed.is_file():
        return path if path.is_file() else packed
    raise DataError(f"{path}: no such file, nor {packed.name}; expected {expected}{missing(path)}")


def need_folder(path: Path, expected: str) -> None:
    """Raise DataError if there is no such folder."""
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; expected {expected}{missing(path)}")


def check_labels(labels: npt.NDArray[Any], allowed: range, where: Path) -> None:
    """Raise DataError that names the file, the first label outside of this range and its position."""
    wrong = (labels < allowed.start) | (labels >= allowed.stop) | (labels % 1 != 0)
    if wrong.any():
        at, expected = int(wrong.argmax()), f"{allowed.start}..{allowed.stop - 1}"
        raise DataError(f"{where}: label {labels[at]} at position {at}, expected {expected}")
