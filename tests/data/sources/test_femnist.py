"""FEMNIST from LEAF's json files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.data import federate
from fedkin.data.sources.images import Femnist
from fedkin.errors import DataError

SIZES = {"f0000_14": 10, "f0001_41": 5, "f0002_09": 15}


def leaf(sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """A file of LEAF's: pixels are bytes divided by 255; the first one numbers the writer's samples."""
    rng = np.random.default_rng(seed)
    data = {}
    for user, size in sizes.items():
        pixels = rng.integers(0, 256, (size, 784))
        pixels[:, 0] = np.arange(size)
        data[user] = {"x": (pixels / 255).round(5).tolist(), "y": rng.integers(0, 62, size).tolist()}
    return {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_own_split(tmp_path: Path) -> None:
    train, test = leaf(SIZES), leaf(dict.fromkeys(SIZES, 3), seed=1)
    write(tmp_path / "femnist" / "train" / "all_data_0_niid_0_keep_0_train_9.json", train)
    write(tmp_path / "femnist" / "test" / "all_data_0_niid_0_keep_0_test_9.json", test)
    data = Femnist().load(tmp_path)
    assert (data.task.classes, data.task.shape) == (62, (1, 28, 28))
    for part, made in ((data.train, train), (data.test, test)):
        assert part.client is not None
        assert Counter(part.client.tolist()) == dict(zip(made["users"], made["num_samples"], strict=True))
        for user, own in made["user_data"].items():
            mine = part.client == user
            assert (part.x[mine].reshape(-1, 784).numpy() == np.rint(np.array(own["x"]) * 255)).all()
            assert part.y[mine].tolist() == own["y"]
        row = made["user_data"]["f0001_41"]["x"][2]
        image = part.x[np.flatnonzero(part.client == "f0001_41")[2], 0].numpy()
        assert image[1, 3] / 255 == pytest.approx(row[28 + 3], abs=1e-5), "row after row"


@pytest.mark.parametrize("folder", ["femnist/all_data", "femnist", "mine"])
def test_split_by_writer(tmp_path: Path, folder: str) -> None:
    users = list(SIZES.items())
    write(tmp_path / folder / "all_data_0.json", leaf(dict(users[:2])))
    write(tmp_path / folder / "all_data_1.json", leaf(dict(users[2:]), seed=1))
    source = Femnist(test_fraction=0.2) if "femnist" in folder else Femnist(path=Path(folder))
    data = source.load(tmp_path)
    assert data.train.client is not None
    assert data.test.client is not None
    assert Counter(data.test.client.tolist()) == {"f0000_14": 2, "f0001_41": 1, "f0002_09": 3}
    for user, size in SIZES.items():
        numbers = [part.x[part.client == user][:, 0, 0, 0].tolist() for part in (data.train, data.test)]
        assert sorted(numbers[0] + numbers[1]) == list(range(size)), "every sample in one of the splits"
    federation = federate(data, "natural", min_size=5)
    assert set(federation) == {"f0000_14", "f0002_09"}


GOOD = leaf({"a": 2, "b": 1})


def changed(**data: Any) -> dict[str, Any]:
    """GOOD with other data for user "a"."""
    return {**GOOD, "user_data": {**GOOD["user_data"], "a": {**GOOD["user_data"]["a"], **data}}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not as LEAF writes it .*; expected LEAF's json"),
        (json.dumps(GOOD)[:-40], "not as LEAF writes it"),
        ("[1, 2]", "not as LEAF writes it"),
        ({"users": ["a"]}, "not as LEAF writes it .'num_samples'.; expected LEAF's json"),
        ({**GOOD, "users": ["a", "c"]}, "user 'c': not as LEAF writes it"),
        ({**GOOD, "num_samples": [2]}, "not as LEAF writes it"),
        ({**GOOD, "num_samples": [2, 2]}, "user 'b': 1 images and 1 labels, but num_samples says 2"),
        (leaf({"a": 2, " b": 1}), "users: expected printable ids without spaces around them, got ' b'"),
        (changed(y=[1]), "user 'a': 2 images and 1 labels, but num_samples says 2"),
        (changed(y=[1, 62]), r"user 'a': labels 1 to 62, expected whole numbers 0\.\.61"),
        (changed(y=[1, 0.5]), "user 'a': labels 0.5 to 1.0, expected whole numbers"),
        (changed(x=[[0.0] * 784] * 3), "user 'a': 3 images and 2 labels"),
        (changed(x=[[0.0] * 100] * 2), "user 'a': not as LEAF writes it"),
        (changed(x=[[0.0] * 784, [0.0] * 700]), "user 'a': not as LEAF writes it"),
        (changed(x=[["a"] * 784] * 2), "user 'a': not as LEAF writes it"),
        (changed(x=[[2.0] * 784] * 2), "user 'a': pixels from 2.0 to 2.0, expected 0 to 1"),
        (changed(x=[[float("nan")] * 784] * 2), "user 'a': pixels from nan"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, content: Any, said: str) -> None:
    path = write(tmp_path / "femnist" / "all_data_0.json", content)
    with pytest.raises(DataError, match=said) as caught:
        Femnist().load(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="femnist: no such folder; expected LEAF's json files in train and test"):
        Femnist().load(tmp_path)
    write(tmp_path / "femnist" / "train" / "a.json", GOOD)
    with pytest.raises(DataError, match="test: no json file there"):
        Femnist().load(tmp_path)


def test_a_user_in_two_files(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "a.json", GOOD)
    write(tmp_path / "femnist" / "b.json", GOOD)
    with pytest.raises(DataError, match=r"b\.json: user 'a' is also in a\.json; expected each in one file"):
        Femnist().load(tmp_path)
