"""MNIST by writer."""

from __future__ import annotations

import gzip
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.data.sources.images import Mnist, Qmnist
from fedkin.errors import DataError

Write = Callable[..., Path]
# Writers of the 30 training and the 12 test digits; as in the real files, none wrote digits of both.
TRAIN = [7] * 12 + [310] * 10 + [2045] * 8
TEST = [99] * 7 + [3] * 5


def ints(array: np.ndarray) -> bytes:
    """An idx file of 32-bit integers, written by its description."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 0x0C, array.ndim, *array.shape) + array.astype(">i4").tobytes()


def rows(writers: list[int], more: int = 0) -> np.ndarray:
    """[N, 8] labels as QMNIST has them, with `more` rows about digits that MNIST does not have."""
    table = np.full((len(writers) + more, 8), -7)
    table[:, 0] = np.arange(len(table)) % 10
    table[:, 2] = [*writers, *[4000] * more]
    return table


def write(root: Path, write_mnist: Write, gz: bool = False) -> Path:
    write_mnist(root / "MNIST" / "raw", 30, 12)
    folder = root / "QMNIST" / "raw"
    folder.mkdir(parents=True)
    for name, data in (("train", ints(rows(TRAIN))), ("test", ints(rows(TEST, more=20)))):
        path = folder / f"qmnist-{name}-labels-idx2-int{'.gz' if gz else ''}"
        path.write_bytes(gzip.compress(data) if gz else data)
    return folder


@pytest.mark.parametrize("gz", [False, True])
def test_mnists_own_split(tmp_path: Path, write_mnist: Write, gz: bool) -> None:
    write(tmp_path, write_mnist, gz)
    data, mnist = Qmnist(split="mnist").load(tmp_path), Mnist().load(tmp_path)
    assert torch.equal(data.train.x, mnist.train.x)
    assert torch.equal(data.test.y, mnist.test.y)
    assert data.train.client is not None
    assert data.test.client is not None
    assert data.train.client.tolist() == [f"w{writer:04d}" for writer in TRAIN]
    assert data.test.client.tolist() == [f"w{writer:04d}" for writer in TEST]
    assert data.scale == mnist.scale


def test_split_by_writer(tmp_path: Path, write_mnist: Write) -> None:
    write(tmp_path, write_mnist)
    data, mnist = Qmnist(test_fraction=0.25).load(tmp_path), Mnist().load(tmp_path)
    assert data.train.client is not None
    assert data.test.client is not None
    assert Counter(data.test.client.tolist()) == {"w0007": 3, "w0310": 2, "w2045": 2, "w0099": 2, "w0003": 1}
    whole = Counter(data.train.client.tolist()) + Counter(data.test.client.tolist())
    assert whole == Counter(f"w{writer:04d}" for writer in TRAIN + TEST)
    # Each image with its own label and writer, found again by its pixels.
    known = {}
    for part, writers in ((mnist.train, TRAIN), (mnist.test, TEST)):
        for x, y, writer in zip(part.x, part.y, writers, strict=True):
            known[x.numpy().tobytes()] = int(y), f"w{writer:04d}"
    for part in (data.train, data.test):
        assert part.client is not None
        for x, y, writer in zip(part.x, part.y, part.client, strict=True):
            assert known.pop(x.numpy().tobytes()) == (int(y), writer)
    assert not known
    assert not torch.equal(Qmnist(test_fraction=0.25, seed=1).load(tmp_path).test.x, data.test.x)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file, nor qmnist-train-labels-idx2-int.gz"),
        (ints(rows(TRAIN))[:-1], "truncated: 959 bytes of data; its header says 960 .30 x 8."),
        (ints(rows(TRAIN[:-1])), "holds 29 x 8 numbers, expected N x 8 with N at least 30, MNIST's digits"),
        (ints(rows(TRAIN)[:, :7]), "holds 30 x 7 numbers"),
        (ints(rows(TRAIN)[::-1]), "row 0 is about a 9, but MNIST's digit 0 is a 0"),
        (
            b"\0\0\x08\x02" + bytes(8),
            "starts with 0x00000802, expected 0x00000c02, .* idx file of ints in 2 dimensions",
        ),
    ],
)
def test_bad_files(tmp_path: Path, write_mnist: Write, content: bytes | None, said: str) -> None:
    path = write(tmp_path, write_mnist) / "qmnist-train-labels-idx2-int"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        Qmnist().load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
