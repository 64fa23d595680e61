"""MNIST and Fashion-MNIST from idx files."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.data import SOURCES
from fedkin.data.sources.images import FashionMnist, Mnist, read_idx
from fedkin.errors import DataError
from fedkin.federation import Scale

Write = Callable[..., Path]
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize(
    ("source", "folder", "scale"),
    [
        (Mnist(), "MNIST/raw", Scale((0.1307,), (0.3081,), 255.0)),
        (FashionMnist(), "FashionMNIST/raw", Scale((0.2860,), (0.3530,), 255.0)),
    ],
)  # fmt: skip
def test_reads(tmp_path: Path, write_mnist: Write, gz: bool, source: Mnist, folder: str, scale: Scale) -> None:
    write_mnist(tmp_path / folder, gz=gz)
    data = source.load(tmp_path)
    expected = np.random.default_rng(3).integers(0, 256, (30, 28, 28))
    assert np.array_equal(data.train.x[:, 0].numpy(), expected)
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.tolist() == [i % 10 for i in range(30)]
    assert data.test.x.shape == (12, 1, 28, 28)
    assert data.task.shape == (1, 28, 28)
    assert data.task.classes == 10
    assert data.scale == scale
    assert SOURCES[data.name] is type(source)


def header(magic: int, *sizes: int) -> bytes:
    return struct.pack(f">I{len(sizes)}I", magic, *sizes)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (IMAGES, None, f"{IMAGES}: no such file, nor {IMAGES}.gz; expected idx files as torchvision"),
        (LABELS, None, f"{LABELS}: no such file"),
        (IMAGES, b"", f"{IMAGES}: truncated: 0 bytes, but its header alone takes 16"),
        (IMAGES, header(0x803, 30), f"{IMAGES}: truncated: 8 bytes"),
        (IMAGES, header(0x803, 30, 28, 28) + b"1" * 99, f"{IMAGES}: truncated: 99 bytes of data; .* 23520 "),
        (IMAGES, header(0x803, 1, 28, 28) + b"1" * 785, r"longer than it should be; .* 784 \(1 x 28 x 28\)"),
        (IMAGES, header(0x803, 2**32 - 1, 2**32 - 1, 28) + b"1" * 9, "truncated: 9 bytes"),
        (IMAGES, header(0x801, 30) + b"1" * 30, f"{IMAGES}: starts with 0x00000801, expected 0x00000803"),
        (IMAGES, b"<!DOCTYPE html> not found", f"{IMAGES}: starts with 0x3c21444f"),
        (IMAGES, header(0x803, 30, 32, 32) + b"1" * 30720, "holds 30 x 32 x 32 bytes, expected N x 28 x 28"),
        (IMAGES, header(0x803, 0, 28, 28), "holds 0 x 28 x 28 bytes, .* N at least 1"),
        (LABELS, header(0x801, 29) + bytes(29), f"{LABELS}: holds 29 labels, expected 30: one for each"),
        (LABELS, header(0x801, 30) + bytes(29) + b"\x0b", f"{LABELS}: label 11 at position 29, expected"),
        (LABELS, header(0x803, 30) + bytes(30), f"{LABELS}: starts with 0x00000803, expected 0x00000801"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, write_mnist: Write, name: str, content: bytes | None, said: str) -> None:
    path = write_mnist(tmp_path / "MNIST" / "raw") / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        Mnist().load(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def damaged(data: bytes) -> list[bytes]:
    broken = bytearray(data)
    broken[len(data) // 2] ^= 255
    return [data[: len(data) // 2], data[:-4], b"no gzip at all", bytes(broken), data + b"and more", b""]


def test_bad_gzip(tmp_path: Path) -> None:
    path = tmp_path / "x-idx1-ubyte.gz"
    good = gzip.compress(header(0x801, 5000) + np.random.default_rng(0).bytes(5000))
    path.write_bytes(good)
    assert len(read_idx(path, 1)) == 5000
    for content in damaged(good):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x-idx1-ubyte\.gz: (cannot be read to its end|truncated)"):
            read_idx(path, 1)


def test_a_file_is_read_to_the_size_of_its_header_only(tmp_path: Path) -> None:
    path = tmp_path / "x-idx1-ubyte.gz"
    # Reading on would come to the damaged end.
    path.write_bytes(gzip.compress(header(0x801, 1500) + np.random.default_rng(0).bytes(10**6))[:-1000])
    with pytest.raises(DataError, match="longer than it should be"):
        read_idx(path, 1)
