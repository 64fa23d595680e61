"""SVHN from MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedkin.data.sources.images import Svhn
from fedkin.errors import DataError


def write(folder: Path, names: tuple[str, ...] = ("train", "test"), count: int = 25) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for number, name in enumerate(names):
        x = np.random.default_rng(number).integers(0, 256, (32, 32, 3, count)).astype(np.uint8)
        savemat(folder / f"{name}_32x32.mat", {"X": x, "y": 1 + np.arange(count, dtype=np.uint8)[:, None] % 10})
        made[name] = x
    return made


def test_reads(tmp_path: Path) -> None:
    made = write(tmp_path / "SVHN")
    data = Svhn().load(tmp_path)
    assert data.train.x.shape == (25, 3, 32, 32)
    for name, part in (("train", data.train), ("test", data.test)):
        assert np.array_equal(part.x[3, 2].numpy(), made[name][:, :, 2, 3]), "rows stay rows"
        assert part.x.is_contiguous()
        assert part.y.tolist() == [(1 + i) % 10 for i in range(25)], "a zero is called 10 in the files"
    assert data.task.classes == 10


def test_extra_and_folders(tmp_path: Path) -> None:
    made = write(tmp_path, ("train", "test", "extra"), count=6)
    data = Svhn(path=tmp_path, extra=True).load(Path("nowhere"))
    assert (len(data.train), len(data.test)) == (12, 6)
    assert np.array_equal(data.train.x[6:].numpy(), made["extra"].transpose(3, 2, 0, 1))
    (tmp_path / "extra_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"extra_32x32\.mat: no such file"):
        Svhn(path=tmp_path, extra=True).load(tmp_path)


X, Y = np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file; expected SVHN's train_32x32.mat and test_32x32.mat"),
        (b"", "cannot be read"),
        (b"<!DOCTYPE html>" * 50, "cannot be read"),
        ({"X": X}, "no y in it; expected SVHN's cropped digits"),
        ({"a": X}, "no X and no y in it"),
        ({"X": X.astype(float), "y": Y}, r"X is \[32, 32, 3, 4\] float64; expected"),
        ({"X": X[:, :30], "y": Y}, r"X is \[32, 30, 3, 4\] uint8"),
        ({"X": X, "y": Y[:3]}, r"y is \[3\] uint8, one for each of 4 images"),
        ({"X": X, "y": 0 * Y}, "label 0 at position 0, expected 1..10"),
        ({"X": X, "y": np.array([[1], [2], [11], [3]])}, "label 11 at position 2"),
        ({"X": X, "y": Y * 1.5}, "label 1.5 at position 0"),
    ],
)
@pytest.mark.parametrize("name", ["train_32x32.mat", "test_32x32.mat"])
def test_bad_files(tmp_path: Path, name: str, content: bytes | dict[str, np.ndarray] | None, said: str) -> None:
    write(tmp_path / "SVHN")
    path = tmp_path / "SVHN" / name
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        savemat(path, content)
    with pytest.raises(DataError, match=said) as caught:
        Svhn().load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
