"""EMNIST: handwritten digits and letters in idx files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate
from fedkin.data.sources.idx import read_labelled
from fedkin.federation import Scale, Task

__all__ = ["Emnist"]

# The labels in the files; those of the letters begin at 1.
_LABELS = {
    "balanced": range(47),
    "byclass": range(62),
    "bymerge": range(47),
    "digits": range(10),
    "letters": range(1, 27),
    "mnist": range(10),
}


class Emnist(Source):
    """EMNIST: digits and letters, 28x28 grey, as idx or idx.gz (Cohen et al., 2017).

    Below the data root: EMNIST/raw/emnist-SPLIT-{train,test}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz];
    `path` names the folder of these files instead. split: "balanced" (47 classes, 112,800 / 18,800), "byclass" (62,
    697,932 / 116,323), "bymerge" (47, the same images), "letters" (26, 124,800 / 20,800; labels 1..26 become 0..25),
    "digits" (10, 240,000 / 40,000), "mnist" (10, 60,000 / 10,000). x [N, 1, 28, 28] uint8, upright: the files store
    rows and columns exchanged.
    """

    source: Literal["emnist"] = "emnist"
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced"
    path: Path | None = None

    def load(self, root: Path) -> Dataset:
        """Read the four files; raises DataError naming the file and what was expected."""
        folder = root / "EMNIST" / "raw" if self.path is None else locate(root, self.path)
        labels = _LABELS[self.split]
        train, test = (self._part(folder, name, labels) for name in ("train", "test"))
        return Dataset(f"emnist-{self.split}", train, test, Task(len(labels), (1, 28, 28)), Scale((0.1736,), (0.3248,)))

    def _part(self, folder: Path, name: str, labels: range) -> Part:
        stem = f"emnist-{self.split}-{name}"
        part = read_labelled(folder / f"{stem}-images-idx3-ubyte", folder / f"{stem}-labels-idx1-ubyte", labels)
        return Part(part.x.transpose(2, 3).contiguous(), part.y)
