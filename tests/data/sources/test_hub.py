"""Hugging Face datasets from disk, made here; and by name, from a folder of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.data.guess import choose_columns, columns_of_saved, is_saved
from fedkin.data.sources.hub import Hub
from fedkin.errors import DataError
from fedkin.federation import Federation
from support import present

# Reading its own copies, the package asks for nothing outside.
os.environ["HF_HUB_OFFLINE"] = "1"
datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed: pip install 'fedkin[hub]'")
pytestmark = [
    pytest.mark.slow,  # the package is installed before the slow tests only
    # What the package itself leaves open or calls, which is not ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]  # fmt: skip
Save = Callable[..., Path]
SITES = ["north", "south", "west"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """save(columns, features): a folder that save_to_disk wrote."""

    def saved(columns: dict[str, Any], features: Any = None, name: str = "data") -> Path:
        datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / name))
        return tmp_path / name

    return saved


def rows(count: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"site": [SITES[row % 3] for row in range(count)], "age": rng.normal(size=count).tolist(),
            "ward": [["icu", "er", None][row % 3] for row in range(count)],
            "label": rng.integers(0, 2, count).tolist()}  # fmt: skip


def with_names(columns: dict[str, Any], **other: Any) -> Any:
    """The features of these columns, with named classes."""
    held = datasets.Dataset.from_dict(columns).features.copy()
    return datasets.Features({**held, "label": datasets.ClassLabel(names=["well", "ill"]), **other})


def test_columns_are_those_of_a_table(save: Save) -> None:
    columns = rows()
    path = save(columns, with_names(columns))
    federation = fedkin.federate("hub", "natural", data={"path": path, "target": "label", "client": "site"})
    assert federation.task.kind == "risk"
    assert federation.sizes == dict.fromkeys(federation, 16)
    frame = {**columns, "label": [["well", "ill"][label] for label in columns["label"]]}
    same = Federation.from_frame(frame, target="label", client="site", positive="well")
    assert same.target is not None
    x = {id: client.train.inputs(slice(None)) for id, client in same.items()}
    for id, client in federation.items():
        torch.testing.assert_close(client.train.inputs(slice(None)), x[id])
    assert fedkin.run("fedavg", federation, rounds=1, model="linear").scores


def test_token_ids_stay_whole_numbers(save: Save) -> None:
    columns: dict[str, Any] = {
        "ids": [[row % 7, 3, 4][: 1 + row % 3] for row in range(30)], "label": [int(row % 3 == 0) for row in range(30)],
        "who": [row // 10 for row in range(30)], "say": ["hm"] * 30,
    }  # fmt: skip
    path = save(columns, with_names(columns))
    made = Hub(path=path, target="label", client="who", tokens="ids", padding=9).load(Path())
    assert made.task.shape == (3,)
    assert made.train.x.dtype == torch.int64
    # Classes are numbered as the dataset numbers them, not by the alphabet.
    assert present(made.target).classes == ("well", "ill")
    assert int(torch.cat([made.train.y, made.test.y]).sum()) == 10
    federation = fedkin.federate(made, "natural")
    assert set(federation) == {"0", "1", "2"}
    assert federation.task.codes == ("x",)
    both = torch.cat([made.train.x, made.test.x]).tolist()
    assert sorted(both) == sorted([[*ids, 9, 9][:3] for ids in columns["ids"]])
    assert Hub(path=path, target="label", tokens="ids", length=2).load(Path()).task.shape == (2,)
    assert Hub(path=path, target="label", tokens="who").load(Path()).task.shape == (1,)
    with pytest.raises(DataError, match="row 0: 'say': expected a list of whole numbers, got 'hm'; tokenise texts fir"):
        Hub(path=path, target="label", tokens="say").load(Path())


def test_rows_of_a_person_stay_on_one_side(save: Save) -> None:
    columns = {"ids": [[row] for row in range(40)], "label": [row % 2 for row in range(40)], "who": ["a"] * 40,
               "person": [row // 4 for row in range(40)]}  # fmt: skip
    made = Hub(path=save(columns), target="label", client="who", tokens="ids", person="person").load(Path())
    train, test = (set((part.x[:, 0] // 4).tolist()) for part in (made.train, made.test))
    assert (len(train), len(test)) == (8, 2)
    assert not train & test


def test_numbers_are_deviations_from_their_mean_as_in_tables(save: Save) -> None:
    path = save({"ids": [[row, 1] for row in range(20)], "stars": [float(row % 5) for row in range(20)]})
    made = Hub(path=path, target="stars", tokens="ids").load(Path())
    assert made.task.kind == "regression"
    assert (len(made.train), len(made.test)) == (16, 4)
    assert made.target is not None
    stars = made.train.y[:, 0] * made.target.deviation + made.target.mean
    torch.testing.assert_close(stars, made.train.x[:, 0] % 5.0)


def test_pictures_are_bytes(save: Save) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install fedkin[images]")
    pictures = [image.new("L", (4, 4 + (row == 7)), row) for row in range(20)]
    numbers = [row % 2 for row in range(20)]
    columns = {"image": pictures, "label": numbers, "site": [SITES[number] for number in numbers]}
    path = save(columns, datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"]),
                                            "site": datasets.Value("string")}))  # fmt: skip
    data = {"path": path, "target": "label", "client": "site", "image": "image"}
    with pytest.raises(DataError, match=r"row 7: a picture of \[1, 5, 4\], those before have \[1, 4, 4\]"):
        fedkin.federate("hub", "natural", data=data)
    federation = fedkin.federate("hub", "natural", data={**data, "size": 4})
    assert federation.task.shape == (1, 4, 4)
    x = federation["north"].train.inputs(slice(None))
    assert set(torch.round(x[:, 0, 0, 0] * 255).int().tolist()) < {*range(0, 20, 2)}
    assert len(fedkin.federate("hub", "iid", data={**data, "size": 4, "client": None}, clients=3)) == 3


def test_splits_of_the_dataset_are_kept(tmp_path: Path) -> None:
    columns = rows()
    parts = {name: datasets.Dataset.from_dict({key: values[start:end] for key, values in columns.items()})
             for name, start, end in (("train", 0, 40), ("test", 40, 60), ("extra", 0, 12))}  # fmt: skip
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    data = {"path": tmp_path / "both", "target": "label", "client": "site"}
    federation = fedkin.federate("hub", "natural", data=data)
    assert sum(len(client.train) for client in federation.values()) == 40
    assert sum(len(client.test) for client in federation.values()) == 20
    extra = fedkin.federate("hub", "natural", data={**data, "test": "extra"})
    assert sum(len(client.test) for client in extra.values()) == 12
    with pytest.raises(DataError, match="no split 'tests'; did you mean 'test'"):
        fedkin.federate("hub", "natural", data={**data, "test": "tests"})


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may be a folder of files: the same way in, without the network."""
    import pandas as pd

    (tmp_path / "named").mkdir()
    pd.DataFrame(rows()).to_parquet(tmp_path / "named" / "train.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = {"hub": str(tmp_path / "named"), "target": "label", "client": "site"}
    assert len(fedkin.federate("hub", "natural", data=data)) == 3
    with pytest.raises(DataError, match=r"nobody/nothing: cannot be opened .*; expected the name of a dataset on the"):
        fedkin.federate("hub", "natural", data={**data, "hub": "nobody/nothing"})


@pytest.mark.parametrize(("changes", "words"), [
    ({"target": "lable"}, "data.target: no column 'lable'; did you mean 'label'"),
    ({"path": "nowhere"}, "nowhere: cannot be opened .*; expected a folder that save_to_disk wrote"),
])  # fmt: skip
def test_what_is_wrong_is_named(save: Save, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Hub.model_validate({"path": save(rows()), "target": "label", "client": "site", **changes}).load(Path())


def test_unknown_labels_are_refused(save: Save) -> None:
    columns = {"ids": [[1], [2], [3]], "label": [0, -1, 1]}
    path = save(columns, with_names(columns))
    with pytest.raises(DataError, match=r"target 'label' is unknown in 1 rows, .* is row 1; leave such rows out"):
        Hub(path=path, target="label", tokens="ids").load(Path())


# -- the columns of a saved dataset, from its features as the package has them -------------------------------------


def dataset(*columns: str) -> Any:
    """A dataset of one empty row that has these columns."""
    value, many = datasets.Value, datasets.Sequence
    features = {
        "text": value("string"), "input_ids": many(value("int32")), "attention_mask": many(value("int8")),
        "scores": many(value("float32")), "picture": datasets.Image(), "topic": datasets.ClassLabel(names=["a", "b"]),
        "old": [value("int64")], "label": value("string"),
    }  # fmt: skip
    kept = datasets.Features({name: features[name] for name in columns})
    return datasets.Dataset.from_dict({name: [None] for name in columns}, kept)


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
