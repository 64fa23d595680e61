"""CIFAR-10 from its binary files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedkin.data.sources.cifar import Cifar10
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


def test_path_names_the_folder(tmp_path: Path, write_cifar: Write) -> None:
    write_cifar(tmp_path / "elsewhere")
    assert len(Cifar10(path=tmp_path / "elsewhere").load(Path("nowhere")).train) == 60
    assert len(Cifar10(path=Path("elsewhere")).load(tmp_path).train) == 60


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-batches-bin: no such folder; expected .*test_batch\.bin in it$"):
        Cifar10().load(tmp_path)


def test_missing_folder_beside_sheets(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-webp").mkdir()
    (tmp_path / "unpack.py").write_text("")
    command = f"run `python {tmp_path / 'unpack.py'} OUT`, then use --data-root OUT"
    with pytest.raises(DataError) as caught:
        Cifar10().load(tmp_path)
    assert command in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file; expected data_batch_1..5.bin and test_batch.bin"),
        (b"", "0 bytes, truncated"),
        (bytes(3073 * 2 - 1), "6145 bytes, truncated or another file; expected records of 3073 bytes"),
        (bytes(3073) + b"\x63" + bytes(3072), "label 99 in record 1, expected 0..9"),
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
