"""MNIST and its relatives: images in idx files, plain or gzipped, as torchvision lays them out."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import missing
from fedkin.data.sources.base import Source, check_labels, locate
from fedkin.errors import DataError
from fedkin.federation import Scale, Task
from fedkin.federation.arrays import hold_out
from fedkin.untrusted import most

# The third byte of the header; values are big-endian.
_TYPES: dict[str, tuple[int, np.dtype[Any]]] = {"bytes": (0x08, np.dtype(np.uint8)), "ints": (0x0C, np.dtype(">i4"))}
# EMNIST's labels in the files; those of the letters begin at 1.
_LABELS = {
    "balanced": range(47), "byclass": range(62), "bymerge": range(47), "digits": range(10), "letters": range(1, 27),
    "mnist": range(10),
}  # fmt: skip
# QMNIST's column of the writer.
_WRITER = 2


class _Idx(Source):
    """A pair of idx files per split, below `folder`."""

    path: Path | None = None

    folder: ClassVar[str]
    scale: ClassVar[Scale]

    def load(self, root: Path) -> Dataset:
        """Read the four files; raises DataError naming the file and what was expected."""
        folder = root / self.folder if self.path is None else locate(root, self.path)
        train, test = (_labelled(folder / prefix, range(10)) for prefix in ("train", "t10k"))
        return Dataset(self.source, train, test, Task(10, (1, 28, 28)), self.scale)


class Mnist(_Idx):
    """MNIST: 60,000 / 10,000 handwritten digits, 28x28 grey, as idx or idx.gz.

    Below the data root: MNIST/raw/{train,t10k}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz]; `path`
    names the folder of these four files instead. x [N, 1, 28, 28] uint8; 10 classes.
    """

    source: Literal["mnist"] = "mnist"

    folder = "MNIST/raw"
    scale = Scale((0.1307,), (0.3081,))


class FashionMnist(_Idx):
    """Fashion-MNIST: 60,000 / 10,000 images of clothes, 28x28 grey, as idx or idx.gz.

    Below the data root: FashionMNIST/raw/{train,t10k}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz];
    `path` names the folder of these four files instead. x [N, 1, 28, 28] uint8; 10 classes.
    """

    source: Literal["fashion-mnist"] = "fashion-mnist"

    folder = "FashionMNIST/raw"
    scale = Scale((0.2860,), (0.3530,))


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
        stored = [_labelled(folder / f"emnist-{self.split}-{name}", labels) for name in ("train", "test")]
        train, test = (Part(part.x.transpose(2, 3).contiguous(), part.y) for part in stored)
        return Dataset(f"emnist-{self.split}", train, test, Task(len(labels), (1, 28, 28)), Scale((0.1736,), (0.3248,)))


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
        parts = []
        for split, part in (("train", digits.train), ("test", digits.test)):
            writers = _writers(folder / f"qmnist-{split}-labels-idx2-int", part.y.numpy())
            parts.append(Part(part.x, part.y, writers))
        if self.split == "writers":
            x, y = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y"))
            writers = np.concatenate([part.client for part in parts if part.client is not None])
            held = hold_out(writers, self.test_fraction, self.seed)
            parts = [Part(x[rows], y[rows], writers[rows]) for rows in (~held, held)]
        train, test = parts
        return Dataset("qmnist", train, test, digits.task, digits.scale)


def _writers(path: Path, digits: npt.NDArray[np.int64]) -> npt.NDArray[np.str_]:
    """The writer of each digit; raises DataError unless the file describes these digits."""
    path = _packed_or_not(path)
    labels = read_idx(path, 2, "ints")
    if len(labels) < len(digits) or labels.shape[1] != 8:
        size = " x ".join(map(str, labels.shape))
        raise DataError(f"{path}: holds {size} numbers, expected N x 8 with N at least {len(digits)}, MNIST's digits")
    labels = labels[: len(digits)]
    wrong = np.flatnonzero(labels[:, 0] != digits)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"{path}: row {row} is about a {labels[row, 0]}, but MNIST's digit {row} is a {digits[row]}")
    return np.char.mod("w%04d", labels[:, _WRITER])


def _labelled(stem: Path, labels: range) -> Part:
    """A split from two idx files: 28x28 images [N, 1, 28, 28], and labels, which become 0, 1, ..

    labels: the values that the file may hold. Raises DataError naming the file and what was expected.
    """
    images_at = _packed_or_not(stem.with_name(f"{stem.name}-images-idx3-ubyte"))
    labels_at = _packed_or_not(stem.with_name(f"{stem.name}-labels-idx1-ubyte"))
    images, given = read_idx(images_at, 3), read_idx(labels_at, 1)
    if len(images) == 0 or images.shape[1:] != (28, 28):
        size = " x ".join(map(str, images.shape))
        raise DataError(f"{images_at}: holds {size} bytes, expected N x 28 x 28 with N at least 1")
    if len(given) != len(images):
        raise DataError(
            f"{labels_at}: holds {len(given)} labels, expected {len(images)}: one for each image of {images_at.name}"
        )
    check_labels(given, labels, labels_at)
    return Part(torch.from_numpy(images[:, None]), torch.from_numpy(given.astype(np.int64) - labels.start))


def _packed_or_not(path: Path) -> Path:
    """`path`, or `path`.gz if only that exists; raises DataError if neither does."""
    packed = path.with_name(path.name + ".gz")
    if path.is_file():
        return path
    if not packed.is_file():
        raise DataError(
            f"{path}: no such file, nor {packed.name}; expected idx files as torchvision lays them out{missing(path)}"
        )
    return packed


def read_idx(path: Path, dims: int, kind: Literal["bytes", "ints"] = "bytes") -> npt.NDArray[Any]:
    """The array in an idx file of `dims` dimensions, gzipped if its name ends in .gz: uint8, or int32 for ints.

    Raises DataError naming the file if it cannot be read, is truncated, is longer than its header says,
    is not valid gzip, or is of another type.
    """
    code, dtype = _TYPES[kind]
    packed = path.suffix == ".gz"
    try:
        stored = path.stat().st_size
        with cast(BinaryIO, (gzip.open if packed else open)(path, "rb")) as file:
            header = file.read(4 + 4 * dims)
            shape = tuple(int.from_bytes(header[at : at + 4]) for at in range(4, len(header), 4))
            size = math.prod(shape) * dtype.itemsize
            # What cannot come of this file is refused before memory is taken for it.
            body, fits = bytearray(), size <= (most(stored) if packed else stored)
            while fits and len(body) <= size and (piece := file.read(size + 1 - len(body))):
                body += piece
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read to its end ({error}); expected {'a gzipped' if packed else 'an'} idx file"
        ) from None
    magic = bytes((0, 0, code, dims))
    if len(header) >= 4 and header[:4] != magic:
        raise DataError(
            f"{path}: starts with 0x{header[:4].hex()}, expected 0x{magic.hex()}, "
            f"which is an idx file of {kind} in {dims} dimensions"
        )
    if len(header) < 4 + 4 * dims:
        raise DataError(f"{path}: truncated: {len(header)} bytes, but its header alone takes {4 + 4 * dims}")
    if len(body) != size:
        count = len(body) if fits else stored - len(header)
        what = f"truncated: {count} bytes of data" if count < size else "longer than it should be"
        raise DataError(f"{path}: {what}; its header says {size} ({' x '.join(map(str, shape))})")
    values: npt.NDArray[Any] = np.frombuffer(body, dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)
