"""Arrays from a numpy archive."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data.dataset import Dataset
from fedkin.data.sources.npz import Npz
from fedkin.errors import DataError
from fedkin.federation import Scale
from support import present

OWNER, SPLIT = np.repeat(["ann", "bob"], 5), np.array(["train", "test"] * 5)


def arrays(**changes: Any) -> dict[str, Any]:
    made = {"x": np.arange(20, dtype=np.float32).reshape(10, 2), "y": np.arange(10) % 2, "client": OWNER, **changes}
    return {name: value for name, value in made.items() if value is not None}


def load(folder: Path, settings: dict[str, Any] | None = None, **changes: Any) -> Dataset:
    np.savez(folder / "mine.npz", **arrays(**changes))
    return Npz(path=Path("mine.npz"), **(settings or {})).load(folder)


def test_reads(tmp_path: Path) -> None:
    data = load(tmp_path, split=SPLIT, group=np.where(OWNER == "ann", 1, 2), note=np.array("free text"))
    assert data.name == "mine"
    assert data.train.x.tolist() == arrays()["x"][::2].tolist()
    assert data.test.y.tolist() == [1] * 5
    assert present(data.train.client).tolist() == OWNER[::2].tolist()
    assert present(data.test.group).tolist() == ["1", "1", "2", "2", "2"]
    assert data.scale is None


def test_holds_out_of_every_client_or_class(tmp_path: Path) -> None:
    data = load(tmp_path)
    assert present(data.test.client).tolist() == ["ann", "bob"]
    data = load(tmp_path, client=None, settings={"test_fraction": 0.4})
    assert sorted(data.test.y.tolist()) == [0, 0, 1, 1]
    assert data.train.client is None
    assert len(load(tmp_path, settings={"test_fraction": 0}).test) == 0


@pytest.mark.parametrize(
    ("channels", "shape", "became"),
    [("last", (10, 4, 5, 3), (3, 4, 5)), ("none", (10, 4, 5), (1, 4, 5)), ("first", (10, 3, 4, 5), (3, 4, 5))],
)
def test_channels(tmp_path: Path, channels: str, shape: tuple[int, ...], became: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    data = load(tmp_path, {"channels": channels}, x=x, split=np.array(["train"] * 10))
    assert data.task.shape == became
    moved = {"last": np.moveaxis(x, -1, 1), "none": x[:, None], "first": x}[channels]
    assert np.array_equal(data.train.x.numpy(), moved)
    assert data.scale == Scale(divide=255.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": None}, "no array x; it holds y, client"),
        ({"y": None}, "no array y; it holds x, client"),
        ({"client": None, "Clients": OWNER}, "array Clients is not one of .*; expected client"),
        ({"x": np.array([["a"]] * 10)}, "array x: expected numbers, got dtype <U1"),
        ({"x": np.ones(10)}, r"array x: expected shape \[N, ...\] with at least one sample, got \[10\]"),
        ({"x": np.array([[0.0]] * 9 + [[np.nan]])}, "array x: row 9 holds NaN or an infinite value"),
        ({"x": np.array([[None]] * 10)}, "cannot be read .*; expected a numpy .npz file of plain arrays"),
        ({"y": np.arange(9)}, r"array y: expected shape \[10\], one value per sample, got \[9\]"),
        ({"y": np.ones(10)}, "array y: expected whole numbers or texts, got dtype float64"),
        ({"y": np.ones(10, int)}, "array y: all labels are 1; expected at least 2 different ones"),
        ({"client": OWNER[:4]}, r"array client: expected shape \[10\]"),
        ({"client": np.array([" a"] * 10)}, "array client: expected printable ids .* got ' a'"),
        ({"client": None, "group": OWNER}, "array group is there, but no array client; expected both"),
        ({"group": np.array(["g", "h"] * 5)}, "array group: client 'ann' is in 'g' and in 'h'; expected one"),
        ({"split": np.array(["train"] * 9 + ["val"])}, "array split: expected 'train' or 'test' .* 'val'"),
        ({"split": np.array(["test"] * 10)}, "array split leaves no training sample"),
        ({"settings": {"classes": 2}, "y": np.arange(10)}, "row 2, of client 'ann', has label 2; expected whole"),
        ({"settings": {"classes": 2}, "y": OWNER}, "array y: expected whole numbers 0..1, got dtype <U3"),
        ({"settings": {"mean": [0, 0, 0]}}, r"\[data\]: mean has 3 values; expected 1, or 2"),
        ({"settings": {"channels": "last"}}, r'array x: expected \[N, H, W, C\], as channels = "last" says, got'),
        ({"settings": {"channels": "none"}}, r"array x: expected \[N, H, W\]"),
    ],
)  # fmt: skip
def test_bad_arrays(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        load(tmp_path, **changes)
    assert str(caught.value).startswith(f"{tmp_path / 'mine.npz'}: ")
    assert "\n" not in str(caught.value)


def test_risks_are_judged_by_their_ranking(tmp_path: Path) -> None:
    """Accuracy says .93 of a model that never predicts an event that 7 % have."""
    made = load(tmp_path, {"kind": "risk"}, y=np.array(["no", "yes"] * 5))
    assert (made.task.kind, made.task.metric.name) == ("risk", "auc")
    assert set(made.train.y.tolist()) == {0, 1}
    with pytest.raises(DataError, match="array y: 3 different labels, and"):
        load(tmp_path, {"kind": "risk"}, y=np.arange(10) % 3)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_the_event_of_a_risk_sorts_last_whatever_its_capital_letters(tmp_path: Path, kind: str) -> None:
    made = load(tmp_path, {"kind": "risk"}, y=np.array(["Yes", "no"] * 5).astype(kind), split=SPLIT)
    assert (made.train.y.tolist(), made.test.y.tolist()) == ([1] * 5, [0] * 5)


def test_numbers_are_regressed(tmp_path: Path) -> None:
    y = np.arange(20.0).reshape(10, 2)
    made = load(tmp_path, {"kind": "regression"}, y=y)
    assert made.task.metric.name == "squared_error"
    assert sorted(torch.cat([made.train.y, made.test.y]).tolist()) == y.tolist()
    nan, numbers = "row 0, of client 'ann', holds NaN", "expected numbers"
    for wrong, said in ((np.full(10, np.inf), nan), (np.arange(9.0), numbers), (OWNER, numbers)):
        with pytest.raises(DataError, match=f"array y: .*{said}"):
            load(tmp_path, {"kind": "regression"}, y=wrong)
    with pytest.raises(DataError, match="a regression has none"):
        load(tmp_path, {"kind": "regression", "classes": 2}, y=y)


def test_token_ids_stay_whole_numbers(tmp_path: Path) -> None:
    ids = np.arange(40).reshape(10, 4)
    made = load(tmp_path, {"codes": True}, x=ids)
    assert (made.train.x.dtype, made.scale) == (torch.int64, None)
    assert load(tmp_path, x=ids).train.x.dtype == torch.float32
    with pytest.raises(DataError, match="array x: expected int32 or int64, as"):
        load(tmp_path, {"codes": True}, x=ids / 2)


def member(data: bytes) -> bytes:
    """A zip archive whose member x.npy is no numpy array."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", data)
        archive.writestr("y.npy", data)
    return out.getvalue()


def test_other_files(tmp_path: Path) -> None:
    np.save(tmp_path / "bare.npy", np.ones((3, 3)))
    bare = (tmp_path / "bare.npy").read_bytes()
    huge = bare.replace(b"(3, 3)", b"(9999999, 9999999)")
    for content in (b"", b"PK\x03\x04 half", b"x,y\n1,2\n", b"\x80\x04pickled", bare, member(b"junk"), member(huge)):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.npz: .*expected") as caught:
            Npz(path=Path("bad.npz")).load(tmp_path)
        assert "\n" not in str(caught.value)
