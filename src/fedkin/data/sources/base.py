"""The interface of every source."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from fedkin.data.dataset import Dataset
from fedkin.settings import Settings

__all__ = ["Source", "locate"]


class Source(Settings):
    """Settings of a data set on disk (or embedded); `source` is its name."""

    source: str

    @abstractmethod
    def load(self, root: Path) -> Dataset:
        """Read it from the folder of data sets; raises DataError naming the file and what was expected."""


def locate(root: Path, path: Path) -> Path:
    """`path` unchanged if absolute; else below `root`, or below the current folder if it exists only there."""
    path = path.expanduser()
    below = root / path
    return path if not below.exists() and path.exists() else below
