"""CIFAR-10 from its binary files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from fedkin.data.sources.images import Cifar10, Cifar100
from fedkin.errors import DataError

Write = Callable[..., Path]


def test_reads(tmp_path: Path, write_cifar: Write) -> None:
    folder = write_cifar(tmp_path / "cifar-10-batches-bin")
    data = Cifar10().load(tmp_path)
    assert data.train.x.shape == (60, 3, 32, 32)
    assert data.train.x.dtype == torch.uint8
    assert data.train.x[:, 0, 0, 0].tolist() == [10 * f + r for f in range(5) for r in range(12)]
    assert data.test.x[:, 0, 0, 0].tolist() == [50 + r for r in range(12)]
    assert data.train.y.tolist() == [r % 10 for r in range(12)] * 5
    record = (folder / "data_batch_2.bin").read_bytes()[3073 * 4 : 3073 * 5]
    assert data.train.x[16].flatten().tolist() == list(record[1:])
    assert data.scale is not None
    assert data.scale.divide == 255
    assert len(data.scale.mean) == len(data.scale.std) == 3


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; expected .*CIFAR-10 beside it; .*data fetch cifar10"):
        Cifar10().load(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file; expected data_batch_1..5.bin and test_batch.bin"),
        (b"", "0 bytes, truncated"),
        (bytes(3073 * 2 - 1), "6145 bytes, truncated or another file; expected records of 3073 bytes"),
        (bytes(3073) + b"\x63" + bytes(3072), "label 99 at position 1, expected 0..9"),
    ],
)
@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin"])
def test_bad_files(tmp_path: Path, write_cifar: Write, name: str, content: bytes | None, said: str) -> None:
    path = write_cifar(tmp_path / "cifar-10-batches-bin") / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        Cifar10().load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def write_cifar100(folder: Path, each: int = 120) -> Path:
    """Record r has coarse label r % 20, fine label r % 100, and its first pixel is r."""
    rng = np.random.default_rng(4)
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        records = rng.integers(0, 256, (each, 3074)).astype(np.uint8)
        records[:, 0], records[:, 1], records[:, 2] = np.arange(each) % 20, np.arange(each) % 100, np.arange(each)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def test_reads_a_hundred_classes(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path / "cifar-100-binary")
    fine, coarse = Cifar100().load(tmp_path), Cifar100(labels="coarse", path=folder).load(Path("nowhere"))
    assert fine.train.x.shape == fine.test.x.shape == (120, 3, 32, 32)
    assert fine.train.x[:, 0, 0, 0].tolist() == list(range(120))
    assert fine.train.y.tolist() == [r % 100 for r in range(120)]
    assert coarse.train.y.tolist() == [r % 20 for r in range(120)]
    assert torch.equal(fine.test.x, coarse.test.x)
    assert (fine.task.classes, coarse.task.classes) == (100, 20)
    record = (folder / "test.bin").read_bytes()[3074 * 7 : 3074 * 8]
    assert fine.test.x[7].flatten().tolist() == list(record[2:])
    assert fine.scale is not None
    assert len(fine.scale.mean) == len(fine.scale.std) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file; expected train.bin and test.bin of CIFAR-100 beside it"),
        (bytes(3073 * 2), "6146 bytes, truncated or another file; expected records of 3074 bytes"),
        (bytes(3074) + b"\x14\x00" + bytes(3072), "label 20 at position 1, expected 0..19"),
        (b"\x13\x64" + bytes(3072), "label 100 at position 0, expected 0..99"),
    ],
)
@pytest.mark.parametrize("name", ["train.bin", "test.bin"])
@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_bad_files_of_a_hundred_classes(
    tmp_path: Path, name: str, labels: Literal["fine", "coarse"], content: bytes | None, said: str
) -> None:
    path = write_cifar100(tmp_path / "cifar-100-binary") / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        Cifar100(labels=labels).load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
