"""CINIC-10: folders of small images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import missing
from fedkin.data.sources._images import class_folders, image_files, read_images
from fedkin.data.sources.base import Source, locate
from fedkin.errors import DataError
from fedkin.federation import Scale, Task

__all__ = ["Cinic10"]

# In the order of CIFAR-10's labels, which is alphabetical.
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Cinic10(Source):
    """CINIC-10: 90,000 / 90,000 images of ten classes from CIFAR-10 and ImageNet, 32x32 colour (Darlow et al., 2018).

    Below the data root: CINIC-10/{train,valid,test}/CLASS/*.png; `path` names the folder of these instead. valid: the
    use of the 90,000 images there: "unused", or added to "train" or to "test". x [N, 3, 32, 32] uint8;
    labels are CIFAR-10's. Needs Pillow.
    """

    source: Literal["cinic10"] = "cinic10"
    path: Path | None = None
    valid: Literal["unused", "train", "test"] = "unused"

    def load(self, root: Path) -> Dataset:
        """Read all images; raises DataError naming the file or folder, ConfigError without Pillow."""
        folder = root / "CINIC-10" if self.path is None else locate(root, self.path)
        if not folder.is_dir():
            raise DataError(
                f"{folder}: no such folder; expected CINIC-10's folders train, valid and test in it{missing(folder)}"
            )
        train, test = (
            _read([folder / name, *([folder / "valid"] if self.valid == name else [])]) for name in ("train", "test")
        )
        scale = Scale((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587))
        return Dataset("cinic10", train, test, Task(10, (3, 32, 32)), scale)


def _read(folders: list[Path]) -> Part:
    files: list[Path] = []
    labels: list[int] = []
    for folder in folders:
        found = class_folders(folder)
        if tuple(found) != _CLASSES:
            odd = sorted(set(found) ^ set(_CLASSES))
            raise DataError(f"{folder}: expected ten folders, {', '.join(_CLASSES)}; missing or foreign: {odd[0]}")
        for label, name in enumerate(_CLASSES):
            own = image_files(folder / name)
            files += own
            labels += [label] * len(own)
    return Part(read_images(files, (32, 32), resize=False), torch.tensor(labels))
