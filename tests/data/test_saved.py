"""The columns of a saved dataset, from its features as the package datasets has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkin.data.guess import choose_columns, columns_of_saved, is_saved
from fedkin.errors import DataError

datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed: pip install 'fedkin[hub]'")
pytestmark = [
    pytest.mark.slow,  # the package is installed before the slow tests only
    pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # fmt: skip


def dataset(*columns: str) -> Any:
    """A dataset of one empty row that has these columns."""
    value, many = datasets.Value, datasets.Sequence
    features = {
        "text": value("string"), "input_ids": many(value("int32")), "attention_mask": many(value("int8")),
        "scores": many(value("float32")), "picture": datasets.Image(), "topic": datasets.ClassLabel(names=["a", "b"]),
        "old": [value("int64")], "label": value("string"),
    }  # fmt: skip
    return datasets.Dataset.from_dict(
        {name: [None] for name in columns}, datasets.Features({n: features[n] for n in columns})
    )


def test_roles_of_columns(tmp_path: Path) -> None:
    assert not is_saved(tmp_path)
    one = dataset("text", "input_ids", "attention_mask", "scores", "picture", "topic", "old")
    one.save_to_disk(tmp_path / "one")
    roles, train = columns_of_saved(tmp_path / "one")
    assert train is None
    assert roles == {"text": "other", "input_ids": "ids", "attention_mask": "ids", "scores": "other",
                     "picture": "image", "topic": "classes", "old": "ids"}  # fmt: skip
    assert choose_columns(roles) == ("topic", "picture", "input_ids")
    assert choose_columns(roles, but=("topic",))[0] is None
    dataset("label", "old").save_to_disk(tmp_path / "two")
    roles, _ = columns_of_saved(tmp_path / "two")
    assert choose_columns(roles) == ("label", None, "old")
    assert choose_columns(roles, "old") == ("old", None, None)


@pytest.mark.parametrize(("splits", "train"), [(["test", "train"], "train"), (["all"], "all")])
def test_the_split_to_train_on(tmp_path: Path, splits: list[str], train: str) -> None:
    datasets.DatasetDict({name: dataset("text", "topic") for name in splits}).save_to_disk(tmp_path / "both")
    assert is_saved(tmp_path / "both")
    assert columns_of_saved(tmp_path / "both")[1] == train


@pytest.mark.parametrize("name", ["dataset_info.json", "dataset_dict.json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"features": null, "splits": [1]}', "{}"])
def test_what_is_no_saved_dataset_is_said(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=r"cannot be opened .*expected a folder that save_to_disk wrote"):
        columns_of_saved(tmp_path)
