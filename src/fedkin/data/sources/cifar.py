"""CIFAR in its official binary layout, records of one or two label bytes and three planes of pixels; and CINIC-10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import missing
from fedkin.data.sources.base import Source, check_labels, locate
from fedkin.data.sources.folder import ENDINGS, read_images
from fedkin.errors import DataError
from fedkin.federation import Scale, Task

_FOLDER = "cifar-10-batches-bin"
_FOLDER_100 = "cifar-100-binary"
_FILES = "data_batch_1..5.bin and test_batch.bin of CIFAR-10"
_LABELS_100 = (20, 100)
_PIXELS = 3 * 32 * 32
# CINIC-10's folders, in the order of CIFAR-10's labels, which is alphabetical.
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SCALE = Scale((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_SCALE_100 = Scale((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


class Cifar10(Source):
    """CIFAR-10: 50,000 / 10,000 images of ten classes, 32x32 colour, official binary files.

    Below the data root: cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin; `path` names the folder of
    these six files instead. x [N, 3, 32, 32] uint8.
    """

    source: Literal["cifar10"] = "cifar10"
    path: Path | None = None

    def load(self, root: Path) -> Dataset:
        """Read the six files; raises DataError naming the file and what was expected."""
        folder = root / _FOLDER if self.path is None else locate(root, self.path)
        train = _read([folder / f"data_batch_{number}.bin" for number in range(1, 6)], (10,), 0, _FILES)
        test = _read([folder / "test_batch.bin"], (10,), 0, _FILES)
        return Dataset("cifar10", train, test, Task(10, (3, 32, 32)), _SCALE)


class Cifar100(Source):
    """CIFAR-100: 50,000 / 10,000 images of a hundred classes, 32x32 colour, official binary files.

    Below the data root: cifar-100-binary/{train,test}.bin; `path` names the folder of these two files instead.
    labels: the 100 "fine" ones, or the 20 "coarse" ones, each of five classes. x [N, 3, 32, 32] uint8.
    """

    source: Literal["cifar100"] = "cifar100"
    path: Path | None = None
    labels: Literal["fine", "coarse"] = "fine"

    def load(self, root: Path) -> Dataset:
        """Read the two files; raises DataError naming the file and what was expected."""
        folder = root / _FOLDER_100 if self.path is None else locate(root, self.path)
        which = int(self.labels == "fine")
        train, test = (
            _read([folder / f"{name}.bin"], _LABELS_100, which, "train.bin and test.bin of CIFAR-100")
            for name in ("train", "test")
        )
        return Dataset("cifar100", train, test, Task(_LABELS_100[which], (3, 32, 32)), _SCALE_100)


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
            _images([folder / name, *([folder / "valid"] if self.valid == name else [])]) for name in ("train", "test")
        )
        scale = Scale((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587))
        return Dataset("cinic10", train, test, Task(10, (3, 32, 32)), scale)


def _images(folders: list[Path]) -> Part:
    files: list[Path] = []
    labels: list[int] = []
    for folder in folders:
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
        if odd := sorted(names ^ set(_CLASSES)):
            raise DataError(f"{folder}: expected ten folders, {', '.join(_CLASSES)}; missing or foreign: {odd[0]}")
        for label, name in enumerate(_CLASSES):
            pictures = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in ENDINGS)
            if not pictures:
                raise DataError(f"{folder / name}: no image in it; expected files {', '.join(ENDINGS)}")
            files += pictures
            labels += [label] * len(pictures)
    return Part(read_images(files, (32, 32), resize=False), torch.tensor(labels))


def _read(files: Sequence[Path], labels: tuple[int, ...], which: int, expected: str) -> Part:
    """The records of these files, one after another.

    labels: how many values each label byte of a record may have; which: the one to use.
    """
    records = np.concatenate([_records(path, labels, expected) for path in files])
    x = records[:, len(labels) :].reshape(-1, 3, 32, 32)
    return Part(torch.from_numpy(x), torch.from_numpy(records[:, which].astype(np.int64)))


def _records(path: Path, labels: tuple[int, ...], expected: str) -> npt.NDArray[np.uint8]:
    """[records, label bytes and pixels] of a file."""
    length = len(labels) + _PIXELS
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {expected} beside it{missing(path)}")
    try:
        values = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if values.size == 0 or values.size % length:
        raise DataError(f"{path}: {values.size} bytes, truncated or another file; expected records of {length} bytes")
    records = values.reshape(-1, length)
    # All label bytes are checked: in another kind of file one of them may fit by chance, hardly both.
    for place, count in enumerate(labels):
        check_labels(records[:, place], range(count), path)
    return records
