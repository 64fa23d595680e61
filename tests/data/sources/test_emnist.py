"""EMNIST from idx files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.data.sources.images import Emnist
from fedkin.errors import DataError

CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write(folder: Path, split: str, gz: bool = False, count: int = 70, first: int = 0) -> np.ndarray:
    """The four files, images lying on their side as in the real ones; returns them upright."""
    images = np.random.default_rng(5).integers(0, 256, (count, 28, 28))
    folder.mkdir(parents=True)
    labels = first + np.arange(count) % CLASSES[split]
    for name in ("train", "test"):
        for kind, array in (("images-idx3", images.transpose(0, 2, 1)), ("labels-idx1", labels)):
            data = idx(np.ascontiguousarray(array))
            path = folder / f"emnist-{split}-{name}-{kind}-ubyte{'.gz' if gz else ''}"
            path.write_bytes(gzip.compress(data, 1) if gz else data)
    return images


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("split", CLASSES)
def test_every_split(tmp_path: Path, split: Any, gz: bool) -> None:
    upright = write(tmp_path / "EMNIST" / "raw", split, gz, first=int(split == "letters"))
    data = Emnist(split=split).load(tmp_path)
    assert data.name == f"emnist-{split}"
    assert data.task.classes == CLASSES[split]
    for part in (data.train, data.test):
        assert part.x.shape == (70, 1, 28, 28)
        assert part.x.is_contiguous()
        assert np.array_equal(part.x[:, 0].numpy(), upright)
        assert part.y.tolist() == [i % CLASSES[split] for i in range(70)], "labels begin at 0"


def test_labels_of_another_split(tmp_path: Path) -> None:
    write(tmp_path / "EMNIST" / "raw", "letters", first=0)
    with pytest.raises(
        DataError, match=r"emnist-letters-train-labels-idx1-ubyte: label 0 at position 0, expected 1..26"
    ):
        Emnist(split="letters").load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("emnist-digits-test-images-idx3-ubyte", b"", "truncated: 0 bytes"),
        ("emnist-digits-train-labels-idx1-ubyte", b"<html>", "starts with 0x3c68746d, expected 0x00000801"),
        ("emnist-digits-train-labels-idx1-ubyte", idx(np.full(70, 10)), "label 10 at position 0, expected 0..9"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    write(tmp_path / "EMNIST" / "raw", "digits")
    path = tmp_path / "EMNIST" / "raw" / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        Emnist(split="digits").load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
