"""Small files in the layouts of the real ones, and small data sets."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.federation import Scale, Task
from support import idx_bytes


def write_idx(folder: Path, arrays: Mapping[str, Any], gz: bool = False, code: int = 8) -> None:
    """An idx file of each array, plain or gzipped."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        data = idx_bytes(array, code)
        path = folder / f"{name}{'.gz' if gz else ''}"
        path.write_bytes(gzip.compress(data, 1) if gz else data)


def write_mnist(folder: Path, train: int = 30, test: int = 12, gz: bool = False) -> Path:
    """The four files of MNIST, with every label there."""
    rng = np.random.default_rng(3)
    for prefix, count in (("train", train), ("t10k", test)):
        images, labels = rng.integers(0, 256, (count, 28, 28)), np.arange(count) % 10
        write_idx(folder, {f"{prefix}-images-idx3-ubyte": images, f"{prefix}-labels-idx1-ubyte": labels}, gz)
    return folder


def write_records(folder: Path, names: Sequence[str], each: int, classes: Sequence[int]) -> Path:
    """Files NAME.bin of CIFAR; record r has the label r % classes, and the first pixel of file f is each f + r."""
    rng = np.random.default_rng(4)
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        records = rng.integers(0, 256, (each, len(classes) + 3072)).astype(np.uint8)
        for place, count in enumerate(classes):
            records[:, place] = np.arange(each) % count
        records[:, len(classes)] = each * number + np.arange(each)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def toy(train: int = 200, test: int = 100, classes: int = 10, shape: tuple[int, ...] = (1, 4, 4)) -> Dataset:
    """Every sample is a different number, so that samples can be followed.

    Sample i of the training split holds 1 + i / 1000 throughout, of the test split minus that.
    """

    def part(count: int, sign: int) -> Part:
        values = sign * (1 + torch.arange(count) / 1000)
        x = values.reshape(-1, *[1] * len(shape)).expand(count, *shape).contiguous()
        return Part(x, torch.arange(count) % classes)

    return Dataset("toy", part(train, 1), part(test, -1), Task(classes, shape), Scale(divide=1.0))


def owned(clients: int = 9, groups: int = 2) -> Dataset:
    """The toy data set with clients "w0", "w1", ... of unlike sizes, in groups by turns."""

    def part(given: Part) -> Part:
        owner = np.sqrt(np.arange(len(given)) / len(given) * clients**2).astype(int)
        return replace(given, client=np.char.mod("w%d", owner), group=np.char.mod("g%d", owner % groups))

    dataset = toy()
    return replace(dataset, train=part(dataset.train), test=part(dataset.test))


def labelled(per_class: int, tests: int, classes: int = 10) -> Dataset:
    """A data set of any size that is all labels, its samples empty."""

    def part(count: int) -> Part:
        y = torch.from_numpy(np.random.default_rng(count).permutation(np.repeat(np.arange(classes), count)))
        return Part(torch.zeros(len(y), 1, dtype=torch.uint8), y)

    return Dataset("labels", part(per_class), part(tests), Task(classes, (1,)))
