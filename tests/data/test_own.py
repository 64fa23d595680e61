"""The samples of one participant: files and functions of its own, and what is wrong with them, in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin.data.own import own_client, own_images
from fedkin.data.sources.folder import Folder
from fedkin.errors import ConfigError, DataError
from fedkin.tasks import Task
from image_folders import wards


def test_an_archive_and_bytes(tmp_path: Path) -> None:
    x, y = np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2), np.arange(10) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    client, task = own_client("ann", str(tmp_path / "a.npz"), classes=5, group="north")
    assert task == Task(5, (1, 2, 2))
    assert (client.size, len(client.test), client.group) == (8, 2, "north")
    assert float(client.train.inputs(slice(None)).max()) == pytest.approx(39 / 255)
    again, _ = own_client("ann", str(tmp_path / "a.npz"), classes=5)
    assert torch.equal(again.test.labels(), client.test.labels())


def test_a_function_of_the_owner(here: Path) -> None:
    (here / "wards.py").write_text(
        "import numpy as np\n"
        "def read():\n    return {'x': np.ones((4, 3), np.float32), 'y': [0, 1, 0, 1]}\n"
        "def fail():\n    raise KeyError('ward 7')\n"
        "def wrong():\n    return 3\n"
    )
    client, task = own_client("ann", "wards:read")
    assert task == Task(2, (3,))
    assert client.size == 3
    for name, said in (
        ("fail", "KeyError: 'ward 7'$"), ("wrong", 'expected a dict with "x" and "y"'), ("none", "AttributeError"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=f"^wards:{name}: {said}"):
            own_client("ann", f"wards:{name}")


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        ("a.csv", ConfigError, "a table, and the .* reads none; expected data.source = .csv. in the experiment, or"),
        ("a.npz", DataError, "a.npz: no such file"),
        ("a.txt", ConfigError, r"expected a .npz file or MODULE:FUNCTION"),
        ("no_such_module:f", DataError, "ModuleNotFoundError"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_cannot_be_read(data: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        own_client("ann", data)


# -- folders of images ------------------------------------------------------------------------------------------------


def test_a_folder_of_images_is_that_client_of_a_simulation(tmp_path: Path) -> None:
    place, settings = wards(tmp_path), {"size": 6, "folders": "clients", "seed": 3}
    simulation = fedkin.federate("folder", "natural", data={"path": place, **settings})
    source = Folder.model_validate({"path": "elsewhere", **settings})
    for name in ("north", "south"):
        client, task = own_images(name, str(place / name), source, group="coast")
        assert task == simulation.task == Task(3, (3, 6, 6))
        assert (client.id, client.group) == (name, "coast")
        for part in ("train", "test"):
            mine, theirs = getattr(client, part), getattr(simulation[name], part)
            assert torch.equal(mine.inputs(slice(None)), theirs.inputs(slice(None)))
            assert torch.equal(mine.labels(), theirs.labels())
        assert client.about["columns"] == ["(class) cat", "(class) dog", "(class) horse"]


def test_named_classes_have_the_same_numbers_at_a_site_that_lacks_some(tmp_path: Path) -> None:
    place = wards(tmp_path)
    for file in (place / "south" / "cat").iterdir():
        file.unlink()
    source = Folder(path=Path(), size=6, classes=("horse", "dog", "cat"))
    client, task = own_images("south", str(place / "south"), source, classes=3)
    assert task.classes == 3
    assert set(client.train.labels().tolist()) == {0, 1}
    # Without the names the numbers would be those of other classes, which participants find by comparing them.
    client, task = own_images("south", str(place / "south"), Folder(path=Path(), size=6))
    assert (task.classes, client.about["columns"]) == (2, ["(class) dog", "(class) horse"])
    with pytest.raises(DataError, match=r"images of 2 classes, and network.classes is 3; name all .* in data.classes"):
        own_images("south", str(place / "south"), Folder(path=Path(), size=6), classes=3)
    with pytest.raises(DataError, match=r"south: data.classes has no class 'horse'; did you mean 'hors'"):
        own_images("south", str(place / "south"), Folder(path=Path(), size=6, classes=("dog", "hors")))


def test_what_is_wrong_with_a_folder_of_images(tmp_path: Path) -> None:
    place, source = wards(tmp_path), Folder(path=Path(), size="same")
    with pytest.raises(DataError, match="nowhere: no such folder; expected a folder of images for each class"):
        own_images("ann", str(tmp_path / "nowhere"), source)
    with pytest.raises(DataError, match=r"images: no image in it; expected folders CLASS/ of \.jpg or \.png"):
        own_images("ann", str(place), source)
    with pytest.raises(DataError, match=r"9 x 7 pixels, expected 8 x 7"):
        own_images("ann", str(place / "north"), source)
    (place / "north" / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cat/0\.png: cannot be read as an image"):
        own_images("ann", str(place / "north"), source)
    with pytest.raises(ConfigError, match=r'a folder, and the .* reads none; expected data.source = "folder"'):
        own_client("ann", str(place / "north"))
