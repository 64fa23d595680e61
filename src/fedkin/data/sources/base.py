"""The interface of every source."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.data.dataset import Dataset
from fedkin.errors import DataError
from fedkin.settings import Settings


class Source(Settings):
    """Settings of a data set on disk (or embedded); `source` is its name."""

    source: str

    @abstractmethod
    def load(self, root: Path) -> Dataset:
        """Read it from the folder of data sets; raises DataError naming the file and what was expected."""

    def dataset(self, root: Path) -> Dataset:
        """`load`, with what another process needs to read the same: this source, with absolute paths."""
        made = self.load(root)
        if not everywhere(self):
            return made
        there = {n: locate(root, v).absolute() for n, v in self if isinstance(v, Path)}
        again = partial(self.model_copy(update=there).load, root.absolute())
        return replace(made, again=again, where=f"{self.source} in {next(iter(there.values()), root.absolute())}")


def everywhere(part: Settings) -> bool:
    """Whether these settings, with those inside them, are fedkin's own: another machine has the code of no others."""
    inside = (value for _, value in part if isinstance(value, Settings))
    return type(part).__module__.startswith("fedkin.") and all(map(everywhere, inside))


def locate(root: Path, path: Path) -> Path:
    """`path` unchanged if absolute; else below `root`, or below the current folder if it exists only there."""
    path = path.expanduser()
    below = root / path
    return path if not below.exists() and path.exists() else below


def check_labels(labels: npt.NDArray[Any], allowed: range, where: Path) -> None:
    """Raise DataError that names the file, the first label outside of this range and its position."""
    wrong = np.flatnonzero((labels < allowed.start) | (labels >= allowed.stop) | (labels % 1 != 0))
    if len(wrong):
        raise DataError(
            f"{where}: label {labels[wrong[0]]} at position {wrong[0]}, expected {allowed.start}..{allowed.stop - 1}"
        )
