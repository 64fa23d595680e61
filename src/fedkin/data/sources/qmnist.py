"""MNIST's digits with their writers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate
from fedkin.data.sources.idx import Mnist, idx_file, read_idx
from fedkin.errors import DataError
from fedkin.federation.split import hold_out

__all__ = ["Qmnist"]

_WRITER = 2


class Qmnist(Source):
    """MNIST by writer: its digits, and the writer of each by QMNIST's labels (Yadav and Bottou, 2019).

    Below the data root: the files of `mnist`, and QMNIST/raw/qmnist-{train,test}-labels-idx2-int[.gz], whose
    first rows describe MNIST's digits in their order; `path` and `mnist` name the two folders instead.

    split = "writers": all 70,000 digits, of 539 + 297 writers; `test_fraction` of every writer's is held out, drawn by
    `seed`. split = "mnist": MNIST's own split, in which no writer is in both parts. Clients are the writers,
    "w" and NIST's number of four digits; x [N, 1, 28, 28] uint8; 10 classes.
    """

    source: Literal["qmnist"] = "qmnist"
    path: Path | None = None
    mnist: Path | None = None
    split: Literal["writers", "mnist"] = "writers"
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0)

    def load(self, root: Path) -> Dataset:
        """Read the six files; raises DataError naming the file and what was expected."""
        folder = root / "QMNIST" / "raw" if self.path is None else locate(root, self.path)
        digits = Mnist(path=self.mnist).load(root)
        train, test = (
            Part(part.x, part.y, _writers(idx_file(folder / f"qmnist-{name}-labels-idx2-int"), part.y.numpy()))
            for name, part in (("train", digits.train), ("test", digits.test))
        )
        if self.split == "writers":
            train, test = self._held_out(train, test)
        return Dataset("qmnist", train, test, digits.task, digits.scale)

    def _held_out(self, *parts: Part) -> tuple[Part, Part]:
        """Both parts as one, with a share of every writer's digits held out."""
        x, y = (torch.cat(values) for values in ([part.x for part in parts], [part.y for part in parts]))
        writers = np.concatenate([part.client for part in parts if part.client is not None])
        held = hold_out(writers, self.test_fraction, self.seed)

        def part(chosen: npt.NDArray[np.bool_]) -> Part:
            rows = torch.from_numpy(chosen)
            return Part(x[rows], y[rows], writers[chosen])

        return part(~held), part(held)


def _writers(path: Path, digits: npt.NDArray[np.int64]) -> npt.NDArray[np.str_]:
    """The writer of each digit; raises DataError unless the file describes these digits."""
    labels = read_idx(path, 2, "ints")
    if len(labels) < len(digits) or labels.shape[1] != 8:
        found = " x ".join(map(str, labels.shape))
        raise DataError(f"{path}: holds {found} numbers, expected N x 8 with N at least {len(digits)}, MNIST's digits")
    labels = labels[: len(digits)]
    wrong = np.flatnonzero(labels[:, 0] != digits)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"{path}: row {row} is about a {labels[row, 0]}, but MNIST's digit {row} is a {digits[row]}")
    return np.char.mod("w%04d", labels[:, _WRITER])
