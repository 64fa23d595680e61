"""Images in idx files, plain or gzipped, as MNIST began and torchvision lays them out."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate
from fedkin.errors import DataError
from fedkin.federation import Scale, Task

__all__ = ["FashionMnist", "Mnist", "idx_file", "read_idx"]

_CHUNK = 1 << 24


class _Idx(Source):
    """A pair of idx files per split, below `folder`."""

    path: Path | None = None

    folder: ClassVar[str]
    scale: ClassVar[Scale]

    def load(self, root: Path) -> Dataset:
        """Read the four files; raises DataError naming the file and what was expected."""
        folder = root / self.folder if self.path is None else locate(root, self.path)
        train, test = (_split(folder, prefix) for prefix in ("train", "t10k"))
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
    """Fashion-MNIST: 60,000 / 10,000 pictures of clothes, 28x28 grey, as idx or idx.gz.

    Below the data root: FashionMNIST/raw/{train,t10k}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz];
    `path` names the folder of these four files instead. x [N, 1, 28, 28] uint8; 10 classes.
    """

    source: Literal["fashion-mnist"] = "fashion-mnist"

    folder = "FashionMNIST/raw"
    scale = Scale((0.2860,), (0.3530,))


def idx_file(path: Path) -> Path:
    """`path`, or `path`.gz when only that exists; raises DataError when neither does."""
    packed = path.with_name(path.name + ".gz")
    for found in (path, packed):
        if found.is_file():
            return found
    raise DataError(f"{path}: no such file, nor {packed.name}; expected idx files as torchvision lays them out")


def read_idx(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """The array of bytes in an idx file of `dims` dimensions, gzipped if its name ends in .gz.

    Raises DataError naming the file for one that cannot be read, is truncated, longer than its header says,
    no valid gzip, or of another type.
    """
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            return _read(file, path, dims)
    except (OSError, EOFError, zlib.error) as error:
        kind = "a gzipped idx file" if packed else "an idx file"
        raise DataError(f"{path}: cannot be read to its end ({error}); expected {kind}") from None


def _read(file: BinaryIO | gzip.GzipFile, path: Path, dims: int) -> npt.NDArray[np.uint8]:
    header = file.read(4 + 4 * dims)
    magic = (8 << 8) + dims
    if len(header) >= 4 and int.from_bytes(header[:4]) != magic:
        raise DataError(
            f"{path}: starts with 0x{header[:4].hex()}, expected 0x{magic:08x}, "
            f"which is an idx file of bytes in {dims} dimensions"
        )
    if len(header) < 4 + 4 * dims:
        raise DataError(f"{path}: truncated: {len(header)} bytes, but its header alone takes {4 + 4 * dims}")
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4")[1:])
    size = math.prod(shape)
    # Piece by piece: a header may promise more than there is memory for, and a gzip file may never end.
    body = bytearray()
    while len(body) <= size and (piece := file.read(_CHUNK)):
        body += piece
    if len(body) != size:
        found = f"truncated: {len(body)} bytes of data" if len(body) < size else "longer than it should be"
        raise DataError(f"{path}: {found}; its header says {size} ({' x '.join(map(str, shape))})")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _split(folder: Path, prefix: str) -> Part:
    images_at = idx_file(folder / f"{prefix}-images-idx3-ubyte")
    labels_at = idx_file(folder / f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(images_at, 3), read_idx(labels_at, 1)
    if len(images) == 0 or images.shape[1:] != (28, 28):
        found = " x ".join(map(str, images.shape))
        raise DataError(f"{images_at}: holds {found} bytes, expected N x 28 x 28 with N at least 1")
    if len(labels) != len(images):
        raise DataError(
            f"{labels_at}: holds {len(labels)} labels, expected {len(images)}: one for each image of {images_at.name}"
        )
    if labels.max() > 9:
        row = int(np.argmax(labels > 9))
        raise DataError(f"{labels_at}: label {labels[row]} at position {row}, expected 0..9")
    return Part(torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64)))
