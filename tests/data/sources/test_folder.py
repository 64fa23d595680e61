"""Folders of images by domain and class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.sources.folder import Folder, read_image
from fedkin.errors import ConfigError, DataError

COLOURS = {"photo": (200, 10, 10), "sketch": (10, 200, 10), "art": (10, 10, 200)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three domains of two or three classes, five images each, of one colour a domain, in several sizes and formats."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install fedkin[images]")
    for domain, colour in COLOURS.items():
        for label, name in enumerate(("cat", "dog", "horse")):
            if (domain, name) == ("art", "horse"):
                continue
            folder = tmp_path / "images" / domain / name
            folder.mkdir(parents=True)
            for number in range(5):
                made = image.new("RGB", (20 + number, 30), (colour[0], colour[1], colour[2] + label))
                made.save(folder / f"{number}.{('png', 'PNG')[number % 2]}")
    (tmp_path / "images" / "photo" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "images" / "README.md").write_text("no domain")
    return tmp_path / "images"


def test_images_labels_and_domains(place: Path) -> None:
    data = Folder(path=place, size=8).load(Path())
    assert (data.task.classes, data.task.shape) == (3, (3, 8, 8))
    assert (len(data.train), len(data.test)) == (32, 8)
    for part in (data.train, data.test):
        assert part.group is not None
        for x, y, domain in zip(part.x, part.y, part.group, strict=True):
            red, green, blue = COLOURS[str(domain)]
            assert bool((x == x[:, :1, :1]).all())
            assert x[:, 0, 0].tolist() == [red, green, blue + int(y)]
    assert set(data.train.y[data.train.group == "art"].tolist()) == {0, 1}


def test_one_domain_left_out(place: Path) -> None:
    data = {"path": place, "size": 8}
    fed = fedkin.federate("folder", "domains", data=data, per_domain=2, unseen="group:sketch", unseen_test="all")
    assert fed.unseen == ("sketch-0", "sketch-1")
    assert sum(len(fed[id].test) for id in fed.unseen) == 15
    two = Folder(path=place, size=8, domains=("sketch", "art")).load(Path())
    assert set(two.train.group.tolist()) == {"sketch", "art"}  # type: ignore[union-attr]


def test_a_folder_can_be_a_client(place: Path) -> None:
    data = {"path": place, "size": 8, "grey": True, "folders": "clients"}
    fed = fedkin.federate("folder", "natural", data=data)
    assert set(fed) == set(COLOURS)
    assert fed.planted is None
    assert fed.task.shape == (1, 8, 8)
    assert len(fed["photo"].train) == 12
    # ITU-R 601: .299 red + .587 green + .114 blue.
    shade = fed["photo"].train.x.flatten(1)[fed["photo"].train.rows].unique().tolist()  # type: ignore[union-attr]
    assert shade == [round(0.299 * 200 + 0.587 * 10 + 0.114 * (10 + label)) for label in range(3)][: len(shade)]


def test_images_as_they_are(place: Path) -> None:
    with pytest.raises(DataError, match=r"\d.(png|PNG): 30 x 2\d pixels, expected 30 x 20"):
        Folder(path=place, size="same").load(Path())
    for file in place.glob("*/*/[1-4].*"):
        file.unlink()
    assert Folder(path=place, size="same", test_fraction=0).load(Path()).task.shape == (3, 30, 20)


def test_folders_that_are_something_else(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder; expected folders DOMAIN/CLASS/"):
        Folder(path=tmp_path / "nowhere").load(Path())
    (tmp_path / "photo").mkdir()
    with pytest.raises(DataError, match="no image in it"):
        Folder(path=tmp_path).load(Path())
    with pytest.raises(ConfigError, match=r"data\.domains: no folder 'foto' in .*did you mean 'photo'"):
        Folder(path=tmp_path, domains=("foto",)).load(Path())
    (tmp_path / "photo" / "cat").mkdir()
    (tmp_path / "photo" / "cat" / "1.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="all images are of class 'cat'"):
        Folder(path=tmp_path).load(Path())


def test_deep_greys_keep_their_values_or_are_refused(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = pytest.importorskip("PIL.Image")
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    for name in ("cat", "dog"):
        folder = place.parent / "deep" / "north" / name
        folder.mkdir(parents=True)
        image.fromarray(grey).save(folder / "0.png")
    source = Folder(path=place.parent / "deep", size=8, grey=True, test_fraction=0)
    assert source.load(Path()).train.x[0, 0].tolist() == np.rint(grey / 257).astype(int).tolist()
    (place.parent / "deep" / "north" / "cat" / "deeper").mkdir()
    image.fromarray(grey).save(place.parent / "deep" / "north" / "cat" / "deeper" / "1.png")
    source.load(Path())
    (line,) = caplog.messages
    assert "1 pictures are left out, such as north/cat/deeper/1.png: expected DOMAIN/CLASS/ of .jpg" in line


def test_pictures_are_turned_as_the_camera_noted(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    made = image.new("L", (4, 2))
    made.putpixel((0, 0), 200)
    about = made.getexif()
    about[0x0112] = 6  # turn by 90 degrees clockwise
    made.save(tmp_path / "turned.png", exif=about)
    assert read_image(tmp_path / "turned.png", (4, 2), resize=False, grey=True)[0, 0].tolist() == [0, 200]
