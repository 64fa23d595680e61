"""Federation.from_arrays: what it makes of arrays, and what it says of bad ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import DataError
from fedkin.federation import Federation, Scale
from support import stored

OWNERS = ["b", "b", "a", "b", "a", "a", "b", "a"]


def arrays(**changes: Any) -> dict[str, Any]:
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    return {"x": x, "y": [0, 1, 2, 0, 1, 2, 0, 1], "client": OWNERS, **changes}


def make(**changes: Any) -> Federation:
    return Federation.from_arrays(**arrays(**changes))


def test_rows_go_to_their_clients() -> None:
    federation = make(split=["train"] * 6 + ["test"] * 2, name="two sites")
    assert list(federation) == ["b", "a"], "clients come in the order of their first sample"
    assert federation["a"].train.inputs(slice(None)).tolist() == [[4, 5], [8, 9], [10, 11]]
    assert federation["a"].train.labels().tolist() == [2, 1, 2]
    assert federation["b"].test.inputs(slice(None)).tolist() == [[12, 13]]
    assert federation.task.classes == 3
    assert federation.task.shape == (2,)
    assert federation.name == "two sites"
    assert federation.planted is None


def test_groups_and_classes_and_scale() -> None:
    federation = make(
        group=[{"a": "hill", "b": "dale"}[id] for id in OWNERS], classes=5, scale=Scale((1.0,), (2.0,), 1.0)
    )
    assert federation.planted == {"a": "hill", "b": "dale"}
    assert federation.task.classes == 5
    stored = federation["b"].train.x[federation["b"].train.rows]
    assert torch.equal(federation["b"].train.inputs(slice(None)), (stored - 1) / 2)


def test_arrays_of_other_types_libraries_and_layouts() -> None:
    types: dict[Any, torch.dtype] = {
        np.uint8: torch.uint8, np.float32: torch.float32, np.float64: torch.float64, ">f4": torch.float32,
        ">f8": torch.float64, np.float16: torch.float32, np.int16: torch.float32, bool: torch.float32,
    }  # fmt: skip
    for dtype, kept in types.items():
        x = (np.arange(16).reshape(8, 2) % 2).astype(dtype)
        found = stored(make(x=x)["a"].train)
        assert (found.dtype, found.tolist()) == (kept, x.tolist())
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    frozen = x.copy()
    frozen.flags.writeable = False
    tensor = torch.from_numpy(x.copy()).requires_grad_()
    for other in (tensor, frozen, x[::-1].copy()[::-1], np.asfortranarray(x), x.tolist()):
        assert stored(make(x=other)["a"].train).tolist() == x.tolist()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0, 0.99), st.integers(0, 9))
def test_held_out(sizes: list[int], fraction: float, seed: int) -> None:
    owner = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = np.arange(len(owner), dtype=np.float64)[:, None]
    federation = Federation.from_arrays(x, x[:, 0] % 2 > 0, owner, test_fraction=fraction, seed=seed, classes=2)
    seen = [client.train.inputs(slice(None), torch.float64) for client in federation.values()]
    seen += [client.test.inputs(slice(None), torch.float64) for client in federation.values()]
    assert sorted(torch.cat(seen)[:, 0].tolist()) == list(range(len(owner))), "every sample exactly once"
    for id, client in federation.items():
        count = sizes[int(id)]
        assert len(client.train) + len(client.test) == count
        assert len(client.train) >= 1
        assert abs(len(client.test) - fraction * count) <= 1
        assert len(client.test) >= 1 or fraction == 0 or count == 1
        own = client.test.inputs(slice(None), torch.float64)[:, 0].long().numpy()
        assert (owner[own] == int(id)).all()


def test_held_out_by_seed_and_id_alone() -> None:
    x, y = np.arange(60, dtype=np.float32)[:, None], np.arange(60) % 2
    owner = np.repeat(["a", "b", "c"], 20)
    whole = Federation.from_arrays(x, y, owner, seed=5)
    again = Federation.from_arrays(x, y, owner, seed=5)
    other = Federation.from_arrays(x, y, owner, seed=6)
    alone = Federation.from_arrays(x[20:40], y[20:40], owner[20:40], seed=5)
    tested = [fed["b"].test.inputs(slice(None)).tolist() for fed in (whole, again, alone, other)]
    assert tested[0] == tested[1] == tested[2] != tested[3]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": np.array(["a"] * 8)[:, None]}, "x: expected numbers, got dtype <U1"),
        ({"x": np.ones((8, 2), complex)}, "x: expected numbers, got dtype complex128"),
        ({"x": np.ones(8)}, r"x: expected shape \[N, ...\] with at least one sample, got \[8\]"),
        ({"x": np.ones((0, 2))}, r"x: expected shape .* got \[0, 2\]"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x: expected one array, got list"),
        ({"x": np.array([[0, 0]] * 4 + [[0, np.nan]] * 4)}, "x: row 4, of client 'a', holds NaN or an inf"),
        ({"x": np.array([[np.inf, 0]] + [[0, 0]] * 7)}, "x: row 0, of client 'b', holds NaN"),
        ({"x": np.array([[1e300, 0]] + [[0, 0]] * 7)}, r"x: row 0, of client 'b', .* \(with 32 bits\)"),
        ({"y": [1e300] + [0.0] * 7, "kind": "regression"}, r"y: row 0, of client 'b', .* \(with 32 bits\)"),
        ({"y": [0, 1]}, r"y: expected shape \[8\], one value per sample, got \[2\]"),
        ({"y": np.zeros((8, 1), int)}, r"y: expected shape \[8\], one value per sample, got \[8, 1\]"),
        ({"y": np.zeros(8)}, "y: expected whole numbers 0..C-1, got dtype float64"),
        ({"y": ["yes"] * 8}, "y: expected whole numbers"),
        ({"y": [0, 1, -1, 0, 1, 1, 0, 1]}, "y: row 2, of client 'a', has label -1; expected whole numbers"),
        ({"classes": 2}, r"y: row 2, of client 'a', has label 2; expected whole numbers 0..1"),
        ({"y": [0, 10032, 1, 0, 1, 1, 0, 1]}, "only 3 values.*if there really are 10033 classes, pass classes=10033"),
        ({"y": [0] * 8}, "at least 2 classes"),
        ({"client": ["a"] * 7}, r"client: expected shape \[8\], one value per sample, got \[7\]"),
        ({"client": [0.5] * 8}, "client: expected texts or whole numbers, got dtype float64"),
        ({"client": np.array(["a"] * 7 + [None], dtype=object)}, "client: expected texts or .*, got None"),
        ({"client": np.array(["a"] * 7 + [True], dtype=object)}, "client: .* got True"),
        ({"client": np.array([b"\xff"] * 8)}, "client: .* not UTF-8"),
        ({"client": ["a"] * 7 + [" b"]}, "client: expected printable ids without spaces .*, got ' b'"),
        ({"client": ["a"] * 7 + ["a\0"]}, "client: 'a.x00' ends in NUL"),
        ({"client": np.array(["a"] * 7 + ["a\0"], dtype=object)}, "client: 'a.x00' ends in NUL"),
        ({"client": ["a"] * 7 + [""]}, "client: expected printable ids .* got ''"),
        ({"group": list("aabbbbbb")}, "group: client 'b' is in 'a' and in 'b'; expected one group"),
        ({"group": ["a"]}, r"group: expected shape \[8\]"),
        ({"split": ["train"] * 7 + ["val"]}, "split: expected 'train' or 'test' for every .* got 'val'"),
        ({"split": ["test"] * 3 + ["train"] + ["test"] * 4}, "client 'a' has no training samples"),
        ({"scale": Scale((1.0, 2.0, 3.0), (1.0,))}, "scale: mean has 3 values; expected 1, or 2, one per"),
        ({"scale": Scale((1.0,), (0.0,))}, "scale: expected std and divide above 0"),
    ],
)  # fmt: skip
def test_bad_arrays(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)
