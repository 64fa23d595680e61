"""Small files in the layouts of the real ones, and small data sets."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.images import Digits
from fedkin.federation import Scale, Task
from support import idx_bytes

WriteIdx = Callable[..., Path]


@pytest.fixture
def write_mnist() -> WriteIdx:
    """write_mnist(folder, train=30, test=12, gz=False): the four files, with every label there."""

    def write(folder: Path, train: int = 30, test: int = 12, gz: bool = False) -> Path:
        rng = np.random.default_rng(3)
        folder.mkdir(parents=True)
        for prefix, count in (("train", train), ("t10k", test)):
            images = rng.integers(0, 256, (count, 28, 28))
            for name, array in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
                data = idx_bytes(array)
                path = folder / f"{prefix}-{name}-ubyte{'.gz' if gz else ''}"
                path.write_bytes(gzip.compress(data, 1) if gz else data)
        return folder

    return write


@pytest.fixture
def write_cifar() -> Callable[..., Path]:
    """write_cifar(folder, each=12): the six files; the first pixel of record r of file f is 10 f + r."""

    def write(folder: Path, each: int = 12) -> Path:
        rng = np.random.default_rng(4)
        folder.mkdir(parents=True)
        for number, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
            records = rng.integers(0, 256, (each, 3073)).astype(np.uint8)
            records[:, 0] = np.arange(each) % 10
            records[:, 1] = 10 * number + np.arange(each)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        return folder

    return write


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return Digits().load(Path())


@pytest.fixture(scope="session")
def toy() -> Callable[..., Dataset]:
    """toy(train, test, classes, shape): every sample is a different number, so that samples can be followed.

    Sample i of the training split holds 1 + i / 1000 throughout, of the test split minus that.
    """

    def make(train: int = 200, test: int = 100, classes: int = 10, shape: tuple[int, ...] = (1, 4, 4)) -> Dataset:
        def part(count: int, sign: int) -> Part:
            values = sign * (1 + torch.arange(count) / 1000)
            x = values.reshape(-1, *[1] * len(shape)).expand(count, *shape).contiguous()
            return Part(x, torch.arange(count) % classes)

        return Dataset("toy", part(train, 1), part(test, -1), Task(classes, shape), Scale(divide=1.0))

    return make


@pytest.fixture(scope="session")
def owned(toy: Callable[..., Dataset]) -> Callable[..., Dataset]:
    """owned(clients=9, groups=2): the toy data set with clients "w0", "w1", ... of unlike sizes, in groups by turns."""

    def make(clients: int = 9, groups: int = 2) -> Dataset:
        def part(given: Part) -> Part:
            owner = np.sqrt(np.arange(len(given)) / len(given) * clients**2).astype(int)
            return replace(given, client=np.char.mod("w%d", owner), group=np.char.mod("g%d", owner % groups))

        dataset = toy()
        return replace(dataset, train=part(dataset.train), test=part(dataset.test))

    return make


@pytest.fixture(scope="session")
def labelled() -> Callable[..., Dataset]:
    """labelled(per_class, tests, classes=10): a data set of any size that is all labels, its samples empty."""

    def make(per_class: int, tests: int, classes: int = 10) -> Dataset:
        def part(count: int) -> Part:
            y = torch.from_numpy(np.random.default_rng(count).permutation(np.repeat(np.arange(classes), count)))
            return Part(torch.zeros(len(y), 1, dtype=torch.uint8), y)

        return Dataset("labels", part(per_class), part(tests), Task(classes, (1,)))

    return make
