"""CINIC-10 and image files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedkin.data.sources.folder import read_image, read_images
from fedkin.data.sources.images import Cinic10
from fedkin.errors import ConfigError, DataError

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r'reads images with Pillow: pip install "fedkin\[images\]"'):
        read_image(tmp_path / "a.png", (32, 32))


def test_folders_before_pillow(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="CINIC-10: no such folder; expected CINIC-10's folders train, valid and test"):
        Cinic10().load(tmp_path)
    (tmp_path / "CINIC-10").mkdir()
    with pytest.raises(DataError, match=r"train: expected ten folders, airplane, .*; missing or foreign: airplane"):
        Cinic10().load(tmp_path)
    for name in CLASSES[:-1]:
        (tmp_path / "CINIC-10" / "train" / name).mkdir(parents=True)
    with pytest.raises(DataError, match=r"train: expected ten folders, airplane, .*; missing or foreign: truck"):
        Cinic10().load(tmp_path)
    (tmp_path / "CINIC-10" / "train" / "truck").mkdir()
    with pytest.raises(DataError, match="airplane: no image in it; expected files"):
        Cinic10().load(tmp_path)


def write(path: Path, pixels: np.ndarray) -> Path:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path)
    return path


def pictures(root: Path, each: int = 2) -> dict[str, np.ndarray]:
    """CINIC-10's layout; returns [10 * each, 32, 32, 3] for every split, in the order of classes and file names."""
    made = {}
    for number, split in enumerate(("train", "valid", "test")):
        made[split] = np.random.default_rng(number).integers(0, 256, (10 * each, 32, 32, 3)).astype(np.uint8)
        for row, pixels in enumerate(made[split]):
            write(root / "CINIC-10" / split / CLASSES[row // each] / f"n{row % each:08d}_7.png", pixels)
    return made


def test_reads(tmp_path: Path) -> None:
    made = pictures(tmp_path)
    (tmp_path / "CINIC-10" / "README.md").touch()
    (tmp_path / "CINIC-10" / "train" / ".cache").mkdir()
    (tmp_path / "CINIC-10" / "train" / "cat" / "Thumbs.db").touch()
    data = Cinic10().load(tmp_path)
    for split, part in (("train", data.train), ("test", data.test)):
        assert np.array_equal(part.x.numpy(), made[split].transpose(0, 3, 1, 2))
        assert part.y.tolist() == [row // 2 for row in range(20)]
    assert (data.task.classes, data.task.shape) == (10, (3, 32, 32))


def test_what_to_do_with_valid(tmp_path: Path) -> None:
    made = pictures(tmp_path, each=1)
    more = Cinic10(valid="train").load(tmp_path)
    assert np.array_equal(more.train.x[10:].numpy(), made["valid"].transpose(0, 3, 1, 2))
    assert (len(more.train), len(more.test)) == (20, 10)
    more = Cinic10(valid="test", path=tmp_path / "CINIC-10").load(Path("nowhere"))
    assert (len(more.train), len(more.test)) == (10, 20)


def test_bad_pictures(tmp_path: Path) -> None:
    pictures(tmp_path, each=1)
    path = next((tmp_path / "CINIC-10" / "test" / "deer").iterdir())
    data = path.read_bytes()
    for content in (b"", b"<html>", data[:40], data[: len(data) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as an image") as caught:
            Cinic10().load(tmp_path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
    write(path, np.zeros((32, 30, 3), np.uint8))
    with pytest.raises(DataError, match="32 x 30 pixels, expected 32 x 32"):
        Cinic10().load(tmp_path)


def test_kinds_of_images(tmp_path: Path) -> None:
    """Grey, see-through and others become three channels; sizes are (height, width)."""
    grey = np.arange(32 * 20, dtype=np.uint8).reshape(32, 20)
    for pixels in (grey, np.dstack([grey] * 3), np.dstack([grey] * 3 + [np.full_like(grey, 255)])):
        found = read_image(write(tmp_path / "a.png", pixels), (32, 20), resize=False)
        assert np.array_equal(found, np.stack([grey] * 3))
    small = read_image(tmp_path / "a.png", (8, 10))
    assert small.shape == (3, 8, 10)
    flat = write(tmp_path / "b.png", np.full((9, 5, 3), (10, 200, 90), np.uint8))
    both = read_images([flat, flat], (4, 7))
    assert both.shape == (2, 3, 4, 7)
    assert [both[:, channel].unique().tolist() for channel in range(3)] == [[10], [200], [90]]  # type: ignore[no-untyped-call]
    with pytest.raises(DataError, match=r"none\.png: no such file"):
        read_image(tmp_path / "none.png", (4, 7))
