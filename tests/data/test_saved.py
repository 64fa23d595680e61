"""The columns of a saved dataset, from its JSON files as two versions of the package write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedkin.data.guess import is_saved, saved
from fedkin.errors import DataError

FEATURES: dict[str, Any] = {
    "text": {"dtype": "string", "_type": "Value"},
    "input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"},
    "attention_mask": {"feature": {"dtype": "int8", "_type": "Value"}, "length": -1, "_type": "Sequence"},
    "scores": {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "List"},
    "picture": {"_type": "Image"},
    "topic": {"names": ["a", "b"], "_type": "ClassLabel"},
    "old": [{"dtype": "int64", "_type": "Value"}],
}


def write(folder: Path, features: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def test_roles_of_columns(tmp_path: Path) -> None:
    assert not is_saved(tmp_path)
    found = saved(write(tmp_path / "one", FEATURES))
    assert found.train is None
    assert found.roles == {"text": "other", "input_ids": "ids", "attention_mask": "ids", "scores": "other",
                           "picture": "image", "topic": "classes", "old": "ids"}  # fmt: skip
    assert (found.target(), found.image("topic"), found.tokens("topic")) == ("topic", "picture", "input_ids")
    assert found.target(but=("topic",)) is None
    two = saved(write(tmp_path / "two", {"label": FEATURES["text"], "old": FEATURES["old"]}))
    assert (two.target(), two.image("label"), two.tokens("label"), two.tokens("old")) == ("label", None, "old", None)


@pytest.mark.parametrize(("splits", "train"), [(["test", "train"], "train"), (["all"], "all")])
def test_the_split_to_train_on(tmp_path: Path, splits: list[str], train: str) -> None:
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    for name in splits:
        write(tmp_path / name, FEATURES)
    assert is_saved(tmp_path)
    assert saved(tmp_path).train == train


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("dataset_info.json", "{", "dataset_info.json: cannot be read"),
        ("dataset_info.json", "[]", "it is no table"),
        ("dataset_info.json", '{"features": null}', "it names no columns"),
        ("dataset_dict.json", '{"splits": [1]}', "it names no splits"),
        ("dataset_dict.json", '{"splits": ["train"]}', "train/dataset_info.json: cannot be read"),
    ],
)
def test_what_is_no_saved_dataset_is_said(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=why):
        saved(tmp_path)
