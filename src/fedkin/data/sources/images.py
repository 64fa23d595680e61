"""Public data sets of images: digits, MNIST and its relatives, FEMNIST and CIFAR."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, NonNegativeInt

from fedkin.data.dataset import SPLITS, Dataset, Part
from fedkin.data.sources.base import Published, Source, check_labels, need_file, need_folder, packed_or_not
from fedkin.errors import DataError
from fedkin.federation import Scale, Task
from fedkin.federation.arrays import check_ids, hold_out
from fedkin.untrusted import error_text, most


class Digits(Source):
    """1,797 handwritten digits, 8x8 grey, embedded in scikit-learn: needs no file.

    x [N, 1, 8, 8] uint8, 0..16; 10 classes. Of every class, `test_fraction` is held out, drawn by `seed`:
    1,438 training and 359 test samples by default, independent of the seed of the run.

    >>> from pathlib import Path
    >>> data = Digits().load(Path("data"))
    >>> len(data.train), len(data.test), data.task.shape
    (1438, 359, (1, 8, 8))
    """

    source: Literal["digits"] = "digits"
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: NonNegativeInt = 0

    def load(self, root: Path) -> Dataset:
        """The data set; `root` is not used."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        is_test = hold_out(y.astype(np.str_), self.test_fraction, self.seed)
        images = torch.from_numpy(x.astype(np.uint8).reshape(-1, 1, 8, 8))
        train, test = Part(images, torch.from_numpy(y.astype(np.int64))).split(is_test)
        return Dataset("digits", train, test, Task(10, (1, 8, 8)), Scale(divide=16.0))


# -- MNIST and its relatives: idx files, plain or gzipped, as torchvision lays them out ----------------------------

# The third byte of the header; values are big-endian.
_TYPES: dict[str, tuple[int, np.dtype[Any]]] = {"bytes": (0x08, np.dtype(np.uint8)), "ints": (0x0C, np.dtype(">i4"))}
# EMNIST's labels in the files; those of the letters begin at 1.
_EMNIST = {
    "balanced": range(47), "byclass": range(62), "bymerge": range(47), "digits": range(10), "letters": range(1, 27),
    "mnist": range(10),
}  # fmt: skip
_IDX = "idx files as torchvision lays them out"
# QMNIST's column of the writer.
_WRITER = 2


class _Idx(Published):
    """A pair of idx files of each split."""

    scale: ClassVar[Scale]

    def load(self, root: Path) -> Dataset:
        """Read the four files; raises DataError naming the file and what was expected."""
        train, test = (_labelled(self.place(root) / prefix, range(10)) for prefix in ("train", "t10k"))
        return Dataset(self.source, train, test, Task(10, (1, 28, 28)), self.scale)


class Mnist(_Idx):
    """MNIST: 60,000 / 10,000 handwritten digits, 28x28 grey, as idx or idx.gz.

    Below the data root: MNIST/raw/{train,t10k}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz]; `path`
    names the folder of these four files instead. x [N, 1, 28, 28] uint8; 10 classes.
    """

    source: Literal["mnist"] = "mnist"

    below = "MNIST/raw"
    scale = Scale((0.1307,), (0.3081,))


class FashionMnist(_Idx):
    """Fashion-MNIST: 60,000 / 10,000 images of clothes, 28x28 grey, as idx or idx.gz.

    Below the data root: FashionMNIST/raw/{train,t10k}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz];
    `path` names the folder of these four files instead. x [N, 1, 28, 28] uint8; 10 classes.
    """

    source: Literal["fashion-mnist"] = "fashion-mnist"

    below = "FashionMNIST/raw"
    scale = Scale((0.2860,), (0.3530,))


class Emnist(Published):
    """EMNIST: digits and letters, 28x28 grey, as idx or idx.gz (Cohen et al., 2017).

    Below the data root: EMNIST/raw/emnist-SPLIT-{train,test}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz];
    `path` names the folder of these files instead. split: "balanced" (47 classes, 112,800 / 18,800), "byclass" (62,
    697,932 / 116,323), "bymerge" (47, the same images), "letters" (26, 124,800 / 20,800; labels 1..26 become 0..25),
    "digits" (10, 240,000 / 40,000), "mnist" (10, 60,000 / 10,000). x [N, 1, 28, 28] uint8, upright: the files store
    rows and columns exchanged.
    """

    source: Literal["emnist"] = "emnist"
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced"

    below = "EMNIST/raw"

    def load(self, root: Path) -> Dataset:
        """Read the four files; raises DataError naming the file and what was expected."""
        labels = _EMNIST[self.split]
        stored = [_labelled(self.place(root) / f"emnist-{self.split}-{name}", labels) for name in ("train", "test")]
        train, test = (Part(part.x.transpose(2, 3).contiguous(), part.y) for part in stored)
        return Dataset(f"emnist-{self.split}", train, test, Task(len(labels), (1, 28, 28)), Scale((0.1736,), (0.3248,)))


class Qmnist(Published):
    """MNIST by writer: its digits, and the writer of each by QMNIST's labels (Yadav and Bottou, 2019).

    Below the data root: the files of `mnist`, and QMNIST/raw/qmnist-{train,test}-labels-idx2-int[.gz], whose
    first rows describe MNIST's digits in their order; `path` and `mnist` name the two folders instead.

    split = "writers": all 70,000 digits, of 539 + 297 writers; `test_fraction` of every writer's digits is held out,
    drawn by `seed`. split = "mnist": MNIST's own split, in which no writer is in both parts. Clients are the writers,
    "w" and NIST's number of four digits; x [N, 1, 28, 28] uint8; 10 classes.
    """

    source: Literal["qmnist"] = "qmnist"
    mnist: Path | None = None
    split: Literal["writers", "mnist"] = "writers"
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: NonNegativeInt = 0

    below = "QMNIST/raw"

    def load(self, root: Path) -> Dataset:
        """Read the six files; raises DataError naming the file and what was expected."""
        digits = Mnist(path=self.mnist).load(root)
        files = [self.place(root) / f"qmnist-{split}-labels-idx2-int" for split in SPLITS]
        both = [digits.train, digits.test]
        writers = np.concatenate([_writers(file, part.y.numpy()) for file, part in zip(files, both, strict=True)])
        is_test = np.arange(len(writers)) >= len(digits.train)
        if self.split == "writers":
            is_test = hold_out(writers, self.test_fraction, self.seed)
        x, y = (torch.cat([getattr(part, name) for part in both]) for name in ("x", "y"))
        train, test = Part(x, y, writers).split(is_test)
        return Dataset("qmnist", train, test, digits.task, digits.scale)


def _writers(path: Path, digits: npt.NDArray[np.int64]) -> npt.NDArray[np.str_]:
    """The writer of each digit; raises DataError unless the file describes these digits."""
    path = packed_or_not(path, _IDX)
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
    images_at = packed_or_not(stem.with_name(f"{stem.name}-images-idx3-ubyte"), _IDX)
    labels_at = packed_or_not(stem.with_name(f"{stem.name}-labels-idx1-ubyte"), _IDX)
    images, given = read_idx(images_at, 3), read_idx(labels_at, 1)
    if len(images) == 0 or images.shape[1:] != (28, 28):
        size = " x ".join(map(str, images.shape))
        raise DataError(f"{images_at}: holds {size} bytes, expected N x 28 x 28 with N at least 1")
    if len(given) != len(images):
        expected = f"expected {len(images)}: one for each image of {images_at.name}"
        raise DataError(f"{labels_at}: holds {len(given)} labels, {expected}")
    check_labels(given, labels, labels_at)
    return Part(torch.from_numpy(images[:, None]), torch.from_numpy(given.astype(np.int64) - labels.start))


def _check_header(path: Path, header: bytes, magic: bytes, kind: str) -> None:
    dims = magic[3]
    if len(header) >= 4 and header[:4] != magic:
        expected = f"0x{magic.hex()}, which is an idx file of {kind} in {dims} dimensions"
        raise DataError(f"{path}: starts with 0x{header[:4].hex()}, expected {expected}")
    if len(header) < 4 + 4 * dims:
        raise DataError(f"{path}: truncated: {len(header)} bytes, but its header alone takes {4 + 4 * dims}")


def read_idx(path: Path, dims: int, kind: Literal["bytes", "ints"] = "bytes") -> npt.NDArray[Any]:
    """The array in an idx file of `dims` dimensions, gzipped if its name ends in .gz: uint8, or int32 for ints.

    Raises DataError naming the file if it cannot be read, is truncated, is longer than its header says,
    is not valid gzip, or is of another type.
    """
    code, dtype = _TYPES[kind]
    packed = path.suffix == ".gz"
    opened: Callable[..., Any] = gzip.open if packed else open
    try:
        stored = path.stat().st_size
        with opened(path, "rb") as file:
            header = file.read(4 + 4 * dims)
            shape = tuple(int.from_bytes(header[at : at + 4]) for at in range(4, len(header), 4))
            size = math.prod(shape) * dtype.itemsize
            # The file's size limits the memory, whatever the header says.
            body = file.read(min(size, most(stored) if packed else stored) + 1)
    except (OSError, EOFError, zlib.error) as error:
        expected = f"{'a gzipped' if packed else 'an'} idx file"
        raise DataError(f"{path}: cannot be read to its end ({error}); expected {expected}") from None
    _check_header(path, header, bytes((0, 0, code, dims)), kind)
    if len(body) != size:
        what = f"truncated: {len(body)} bytes of data" if len(body) < size else "longer than it should be"
        raise DataError(f"{path}: {what}; its header says {size} ({' x '.join(map(str, shape))})")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


# -- FEMNIST -------------------------------------------------------------------------------------------------------

_WRITTEN = 62
_LEAF = "LEAF's json: users, num_samples, and user_data with x (rows of 784 numbers) and y for each user"


class Femnist(Published):
    """FEMNIST: digits and letters of about 3,500 writers, 28x28 grey, LEAF's json files (Caldas et al., 2018).

    Below the data root: femnist/train/*.json and femnist/test/*.json, LEAF's own split; or, without these folders,
    femnist/all_data/*.json or femnist/*.json, of which `test_fraction` of every writer's samples is held out, drawn by
    `seed`. `path` names the folder instead. Clients are the writers. x [N, 1, 28, 28] uint8: LEAF's numbers from 0 to
    1 times 255, which restores the original bytes; paper is white, 255. 62 classes: 0-9, A-Z, a-z.
    """

    source: Literal["femnist"] = "femnist"
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: NonNegativeInt = 0

    below = "femnist"

    def load(self, root: Path) -> Dataset:
        """Read all files; raises DataError naming the file, the user and what was expected."""
        folder = self.place(root)
        need_folder(folder, "LEAF's json files in train and test, or in all_data")
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            train, test = (Part(*_of_leaf(folder / name)) for name in SPLITS)
        else:
            x, y, writers = _of_leaf(folder / "all_data" if (folder / "all_data").is_dir() else folder)
            train, test = Part(x, y, writers).split(hold_out(writers, self.test_fraction, self.seed))
        return Dataset("femnist", train, test, Task(_WRITTEN, (1, 28, 28)), Scale())


def _of_leaf(folder: Path) -> tuple[torch.Tensor, torch.Tensor, npt.NDArray[np.str_]]:
    """The images of all files in a folder, their labels and writers."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise DataError(f"{folder}: no json file there; expected {_LEAF}")
    images, labels, writers, file_of = [], [], list[str](), dict[str, Path]()
    for path in files:
        try:
            content = json.loads(path.read_bytes())
            users = list(zip(map(str, content["users"]), content["num_samples"], strict=True))
            samples = {str(user): own for user, own in content["user_data"].items()}
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: not as LEAF writes it ({error_text(error)}); expected {_LEAF}") from None
        check_ids((user for user, _ in users), f"{path}: users")
        for user, count in users:
            if user in file_of:
                raise DataError(f"{path}: user {user!r} is also in {file_of[user].name}; expected each in one file")
            file_of[user] = path
            x, y = _of_user(samples.get(user), count, f"{path}: user {user!r}")
            images.append(x)
            labels.append(y)
            writers += [user] * len(y)
    if not writers:
        raise DataError(f"{folder}: no sample in its json files; expected {_LEAF}")
    x = np.concatenate(images).reshape(-1, 1, 28, 28)
    return torch.from_numpy(x), torch.from_numpy(np.concatenate(labels)), np.array(writers)


def _of_user(samples: Any, count: Any, where: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """(images [n, 784], labels [n]) of a user."""
    try:
        x = np.asarray(samples["x"], np.float64).reshape(-1, 784)
        y = np.asarray(samples["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: not as LEAF writes it ({error_text(error)}); expected {_LEAF}") from None
    if not len(x) == y.size == count:
        raise DataError(f"{where}: {len(x)} images and {y.size} labels, but num_samples says {count}")
    if len(x) and not (x.min() >= 0 and x.max() <= 1):
        raise DataError(f"{where}: pixels from {x.min()} to {x.max()}, expected 0 to 1")
    if len(y) and (y.dtype.kind != "i" or y.min() < 0 or y.max() >= _WRITTEN):
        raise DataError(f"{where}: labels {y.min()} to {y.max()}, expected whole numbers 0..{_WRITTEN - 1}")
    return np.rint(x * 255).astype(np.uint8), y.reshape(-1).astype(np.int64)


# -- CIFAR: records of one or two label bytes and three planes of pixels -------------------------------------------


class Cifar10(Published):
    """CIFAR-10: 50,000 / 10,000 images of ten classes, 32x32 colour, official binary files.

    Below the data root: cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin; `path` names the folder of
    these six files instead. x [N, 3, 32, 32] uint8.
    """

    source: Literal["cifar10"] = "cifar10"

    below = "cifar-10-batches-bin"

    def load(self, root: Path) -> Dataset:
        """Read the six files; raises DataError naming the file and what was expected."""
        names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
        files = [self.place(root) / name for name in names]
        expected = "data_batch_1..5.bin and test_batch.bin of CIFAR-10"
        train, test = (_records(some, expected, (10,), 0) for some in (files[:5], files[5:]))
        scale = Scale((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
        return Dataset("cifar10", train, test, Task(10, (3, 32, 32)), scale)


class Cifar100(Published):
    """CIFAR-100: 50,000 / 10,000 images of a hundred classes, 32x32 colour, official binary files.

    Below the data root: cifar-100-binary/{train,test}.bin; `path` names the folder of these two files instead.
    labels: the 100 "fine" ones, or the 20 "coarse" ones, each of five classes. x [N, 3, 32, 32] uint8.
    """

    source: Literal["cifar100"] = "cifar100"
    labels: Literal["fine", "coarse"] = "fine"

    below = "cifar-100-binary"

    def load(self, root: Path) -> Dataset:
        """Read the two files; raises DataError naming the file and what was expected."""
        counts, which = (20, 100), int(self.labels == "fine")
        train, test = (
            _records([self.place(root) / f"{name}.bin"], "train.bin and test.bin of CIFAR-100", counts, which)
            for name in SPLITS
        )
        scale = Scale((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
        return Dataset("cifar100", train, test, Task(counts[which], (3, 32, 32)), scale)


def _records(files: Sequence[Path], expected: str, labels: tuple[int, ...], which: int) -> Part:
    """The records of these files, one after another.

    labels: how many values each label byte of a record may have; which: the one to use.
    """
    length = len(labels) + 3 * 32 * 32
    parts = []
    for path in files:
        need_file(path, f"{expected} beside it")
        try:
            values = np.fromfile(path, np.uint8)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error})") from None
        if values.size == 0 or values.size % length:
            expected = f"expected records of {length} bytes"
            raise DataError(f"{path}: {values.size} bytes, truncated or another file; {expected}")
        parts.append(values.reshape(-1, length))
        # Check all label bytes: in another kind of file one of them may be valid by chance, but hardly both.
        for column, count in enumerate(labels):
            check_labels(parts[-1][:, column], range(count), path)
    records = np.concatenate(parts)
    x = records[:, len(labels) :].reshape(-1, 3, 32, 32)
    return Part(torch.from_numpy(x), torch.from_numpy(records[:, which].astype(np.int64)))
