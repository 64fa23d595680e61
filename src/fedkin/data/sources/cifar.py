"""CIFAR in its official binary layout: records of one label byte and three planes of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate
from fedkin.errors import DataError
from fedkin.federation import Scale, Task

__all__ = ["Cifar10"]

_FOLDER = "cifar-10-batches-bin"
_PIXELS = 3 * 32 * 32
_SCALE = Scale((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


class Cifar10(Source):
    """CIFAR-10: 50,000 / 10,000 pictures of ten kinds, 32x32 colour, official binary files.

    Below the data root: cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin; `path` names the folder of
    these six files instead. x [N, 3, 32, 32] uint8.
    """

    source: Literal["cifar10"] = "cifar10"
    path: Path | None = None

    def load(self, root: Path) -> Dataset:
        """Read the six files; raises DataError naming the file and what was expected."""
        folder = root / _FOLDER if self.path is None else locate(root, self.path)
        if not folder.is_dir():
            raise DataError(_missing(root, folder))
        train = _read([folder / f"data_batch_{number}.bin" for number in range(1, 6)])
        return Dataset("cifar10", train, _read([folder / "test_batch.bin"]), Task(10, (3, 32, 32)), _SCALE)


def _missing(root: Path, folder: Path) -> str:
    said = f"{folder}: no such folder; expected CIFAR-10's files data_batch_1..5.bin and test_batch.bin in it"
    if (root / "cifar-10-webp").is_dir() and (root / "unpack.py").is_file():
        return f"{said}; to write it run `python {root / 'unpack.py'} OUT`, then use --data-root OUT"
    return said


def _read(files: Sequence[Path]) -> Part:
    """The records of these files, one after another."""
    counts = [_count(path) for path in files]
    x = np.empty((sum(counts), 3, 32, 32), np.uint8)
    y = np.empty(sum(counts), np.int64)
    start = 0
    for path, count in zip(files, counts, strict=True):
        try:
            records = np.fromfile(path, np.uint8).reshape(count, 1 + _PIXELS)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error})") from None
        stop = start + count
        x[start:stop].reshape(count, _PIXELS)[:] = records[:, 1:]
        y[start:stop] = records[:, 0]
        if y[start:stop].max() > 9:
            row = int(np.argmax(records[:, 0] > 9))
            raise DataError(f"{path}: label {records[row, 0]} in record {row}, expected 0..9")
        start = stop
    return Part(torch.from_numpy(x), torch.from_numpy(y))


def _count(path: Path) -> int:
    """How many records a file holds, by its size."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected data_batch_1..5.bin and test_batch.bin of CIFAR-10 beside it")
    size = path.stat().st_size
    if size == 0 or size % (1 + _PIXELS):
        raise DataError(
            f"{path}: {size} bytes, truncated or another file; expected records of {1 + _PIXELS} bytes "
            f"(the official file: 10,000, which is 30,730,000 bytes)"
        )
    return size // (1 + _PIXELS)
