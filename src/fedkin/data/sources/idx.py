"""Images in idx files, plain or gzipped, in the layout of MNIST and torchvision."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import missing
from fedkin.data.sources.base import Source, locate
from fedkin.errors import DataError
from fedkin.federation import Scale, Task
from fedkin.untrusted import most

__all__ = ["FashionMnist", "Mnist", "idx_file", "read_idx", "read_labelled"]

_CHUNK = 1 << 24
# The third byte of the header; values are big-endian.
_TYPES: dict[str, tuple[int, np.dtype[Any]]] = {"bytes": (0x08, np.dtype(np.uint8)), "ints": (0x0C, np.dtype(">i4"))}


class _Idx(Source):
    """A pair of idx files per split, below `folder`."""

    path: Path | None = None

    folder: ClassVar[str]
    scale: ClassVar[Scale]

    def load(self, root: Path) -> Dataset:
        """Read the four files; raises DataError naming the file and what was expected."""
        folder = root / self.folder if self.path is None else locate(root, self.path)
        train, test = (
            read_labelled(folder / f"{prefix}-images-idx3-ubyte", folder / f"{prefix}-labels-idx1-ubyte", range(10))
            for prefix in ("train", "t10k")
        )
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


def idx_file(path: Path) -> Path:
    """`path`, or `path`.gz if only that exists; raises DataError if neither does."""
    packed = path.with_name(path.name + ".gz")
    for found in (path, packed):
        if found.is_file():
            return found
    raise DataError(
        f"{path}: no such file, nor {packed.name}; expected idx files as torchvision lays them out{missing(path)}"
    )


def read_idx(path: Path, dims: int, kind: Literal["bytes", "ints"] = "bytes") -> npt.NDArray[Any]:
    """The array in an idx file of `dims` dimensions, gzipped if its name ends in .gz: uint8, or int32 for ints.

    Raises DataError naming the file if it cannot be read, is truncated, is longer than its header says,
    is not valid gzip, or is of another type.
    """
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            return _read(file, path, dims, kind)
    except (OSError, EOFError, zlib.error) as error:
        wanted = "a gzipped idx file" if packed else "an idx file"
        raise DataError(f"{path}: cannot be read to its end ({error}); expected {wanted}") from None


def _read(file: BinaryIO | gzip.GzipFile, path: Path, dims: int, kind: str) -> npt.NDArray[Any]:
    code, dtype = _TYPES[kind]
    header = file.read(4 + 4 * dims)
    magic = (code << 8) + dims
    if len(header) >= 4 and int.from_bytes(header[:4]) != magic:
        raise DataError(
            f"{path}: starts with 0x{header[:4].hex()}, expected 0x{magic:08x}, "
            f"which is an idx file of {kind} in {dims} dimensions"
        )
    if len(header) < 4 + 4 * dims:
        raise DataError(f"{path}: truncated: {len(header)} bytes, but its header alone takes {4 + 4 * dims}")
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4")[1:])
    size = math.prod(shape) * dtype.itemsize
    told = f"its header says {size} ({' x '.join(map(str, shape))})"
    stored = path.stat().st_size
    # So much cannot come of this file: it is refused before memory is taken for it.
    if size > (most(stored) if path.suffix == ".gz" else stored):
        raise DataError(f"{path}: truncated: {stored - len(header)} bytes of data; {told}")
    # Read in pieces: a gzip file may never end.
    body = bytearray()
    while len(body) <= size and (piece := file.read(_CHUNK)):
        body += piece
    if len(body) != size:
        found = f"truncated: {len(body)} bytes of data" if len(body) < size else "longer than it should be"
        raise DataError(f"{path}: {found}; {told}")
    values: npt.NDArray[Any] = np.frombuffer(body, dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)


def read_labelled(images_at: Path, labels_at: Path, labels: range) -> Part:
    """A split from two idx files, plain or gzipped: 28x28 images [N, 1, 28, 28], and labels, which become 0, 1, ..

    labels: the values that the file may hold. Raises DataError naming the file and what was expected.
    """
    images_at, labels_at = idx_file(images_at), idx_file(labels_at)
    images, given = read_idx(images_at, 3), read_idx(labels_at, 1)
    if len(images) == 0 or images.shape[1:] != (28, 28):
        found = " x ".join(map(str, images.shape))
        raise DataError(f"{images_at}: holds {found} bytes, expected N x 28 x 28 with N at least 1")
    if len(given) != len(images):
        raise DataError(
            f"{labels_at}: holds {len(given)} labels, expected {len(images)}: one for each image of {images_at.name}"
        )
    wrong = np.flatnonzero((given < labels.start) | (given >= labels.stop))
    if len(wrong):
        raise DataError(
            f"{labels_at}: label {given[wrong[0]]} at position {wrong[0]}, expected {labels.start}..{labels.stop - 1}"
        )
    return Part(torch.from_numpy(images[:, None]), torch.from_numpy(given.astype(np.int64) - labels.start))
