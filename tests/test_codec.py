"""Trees to bytes and back; the counted size is the real one."""

from __future__ import annotations

import copy
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, load_file, save

from fedkin import codec
from fedkin.errors import MethodError, NoField
from fedkin.flow import Message

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
keys = st.text(min_size=1, max_size=6)
tensors = st.builds(
    lambda shape, dtype: torch.arange(int(np.prod(shape))).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
)
small = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
)  # fmt: skip
trees = st.dictionaries(
    keys, st.recursive(st.one_of(tensors, small), lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=6),
    max_size=5,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other) and type(one) is type(other)


def written(path: Path, tree: Any) -> Path:
    with path.open("wb") as file:
        codec.write(tree, file)
    return path


@given(trees)
def test_round_trip_and_size(tree: dict[str, Any]) -> None:
    data = codec.encode(tree)
    assert same(codec.decode(data), tree)
    assert codec.size(tree)[0] == len(data)
    assert codec.encode(codec.decode(data)) == data


@given(trees)
def test_the_bytes_are_those_of_safetensors_but_for_the_order_of_the_header(tree: dict[str, Any]) -> None:
    data = codec.encode(tree)
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    tensors = {name: tensor.clone() for name, tensor in codec.tensors_of(tree).items()}
    theirs = save(tensors, header["__metadata__"])
    assert (len(theirs), theirs[:8], theirs[start:]) == (len(data), data[:8], data[start:])
    assert json.loads(theirs[8:start]) == header
    assert list(header) == ["__metadata__", *tensors]
    assert same(load(data), tensors)


def small_leaves(tree: dict[str, Any]) -> list[str]:
    return [name for name, leaf in codec.leaves(tree) if not isinstance(leaf, torch.Tensor)]


@given(trees)
def test_tensors_and_small_values_come_back_in_their_order(tree: dict[str, Any]) -> None:
    back = codec.decode(codec.encode(tree))
    assert list(codec.tensors_of(back)) == list(codec.tensors_of(tree))
    assert small_leaves(back) == small_leaves(tree)


def test_what_holds_both_keeps_its_place_and_loose_tensors_come_first(tmp_path: Path) -> None:
    t = torch.ones(1)
    client = {"params": {"z": t, "a": t}, "weights": {"q": 1, "b": 2}, "gone": []}
    clients = {"b": client, "only": {"x": t}, "a": client, "none": {"n": 1}, "c": client}
    tree = {"round": 3, "clients": clients, "end": {"n": 1, "x": t}}
    for back in (codec.decode(codec.encode(tree)), codec.read(written(tmp_path / "tree", tree))):
        assert list(back) == ["round", "clients", "end"]
        assert list(back["end"]) == ["x", "n"]
        assert list(back["clients"]) == ["b", "only", "a", "none", "c"]
        for id in "abc":
            named = {name: [*part] for name, part in back["clients"][id].items()}
            assert list(named.items()) == [("params", ["z", "a"]), ("weights", ["q", "b"]), ("gone", [])]


def test_other_readers_of_safetensors_take_the_file(tmp_path: Path) -> None:
    tree = {"z": torch.randn(3, 2), "b": torch.arange(3), "a": torch.randn(2), "n": 3}
    path = written(tmp_path / "tree.safetensors", tree)
    assert same(load_file(path), codec.tensors_of(tree))
    with safe_open(path, "np") as file:
        for name, tensor in codec.tensors_of(tree).items():
            np.testing.assert_array_equal(file.get_tensor(name), tensor.numpy())


def test_a_file_is_read_as_its_bytes_are_and_may_be_removed_while_in_use(tmp_path: Path) -> None:
    tree = {
        "round": 4, "states": {"a/b": {"w": torch.randn(5, 3).T, "n": 2}, "b": {}}, "none": torch.zeros(0, 3),
        "mask": torch.tensor([True, False]), "half": torch.ones((), dtype=torch.bfloat16),
    }  # fmt: skip
    path = written(tmp_path / "tree.safetensors", tree)
    assert path.read_bytes() == codec.encode(tree)
    back = codec.read(path)
    path.unlink()
    assert same(back, tree)
    back["states"]["a/b"]["w"] += 1  # a private copy, as the state of a resumed run has to be


def test_a_file_is_written_one_tensor_after_another() -> None:
    class Sink(BytesIO):
        largest = 0

        def write(self, data: Any) -> int:
            self.largest = max(self.largest, len(data))
            return super().write(data)

    sink = Sink()
    codec.write({f"x{k}": torch.ones(1000) for k in range(50)}, sink)
    assert sink.getbuffer().nbytes > 200_000
    assert sink.largest < 10_000


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = codec.encode({"x": torch.ones(3), "n": 2})
    too_long = (2**50).to_bytes(8, "little") + data[8:]
    for damaged in (*(data[:length] for length in range(len(data))), too_long):
        (tmp_path / "cut").write_bytes(damaged)
        with pytest.raises(MethodError, match="does not parse"):
            codec.read(tmp_path / "cut")
        with pytest.raises(MethodError, match="not parse"):
            codec.decode(damaged)


def test_floats_counts_floating_point_numbers_only() -> None:
    head = {"w": torch.zeros(3, 2), "n": torch.zeros(9, dtype=torch.int64)}
    assert codec.size({"head": head, "h": torch.zeros(4, dtype=torch.half)})[1] == 10


def test_one_memory_under_two_names_and_views_travel() -> None:
    whole = torch.arange(6.0)
    back = codec.decode(codec.encode({"a": whole, "b": whole, "view": whole[2:4], "turned": whole.reshape(2, 3).T}))
    assert torch.equal(back["a"], back["b"])
    assert torch.equal(back["view"], whole[2:4])
    assert torch.equal(back["turned"], whole.reshape(2, 3).T)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"inner": {"x": np.zeros(2)}}, "inner/x: .*travel as torch tensors"),
        ({"inner": {"x": {1, 2}}}, "inner/x: .*a set cannot travel"),
        ({"x": object()}, "x: a object cannot travel"),
        ({"x": torch.zeros(1, dtype=torch.complex64)}, "x: .*complex64 cannot travel"),
        *(({"x": [inner]}, "x: a list holds small values only") for inner in (torch.zeros(1), {"a": 1}, {1: 2})),
        ({3: 1}, "keys must be text, got 3"),
        ({"__metadata__": torch.zeros(1)}, "safetensors' own"),
    ],
)
def test_what_cannot_travel_is_named(tree: dict[Any, Any], said: str) -> None:
    with pytest.raises(MethodError, match=said):
        codec.encode(tree)


@pytest.mark.parametrize("data", [b"x", b"\x00" * 40, b"not a message at all", b"\x10" + b"\x00" * 7 + b"{" * 16])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MethodError, match="not a fedkin message"):
        Message.from_bytes(data)


def test_an_empty_message_is_no_bytes() -> None:
    assert Message().to_bytes() == b""
    assert Message().nbytes == 0
    assert len(Message.from_bytes(b"")) == 0


def test_a_message_shows_what_it_holds() -> None:
    message = Message(n=3)
    assert repr(message) == f"Message(n; {len(message.to_bytes())} bytes)"


def test_a_field_may_be_called_self() -> None:
    assert Message.from_bytes(Message(self=3).to_bytes())["self"] == 3


def test_an_empty_array_of_numpys_travels() -> None:
    tree = codec.decode(codec.encode({"none": torch.from_numpy(np.zeros(0)), "one": torch.ones(1)}))
    assert tree["none"].shape == (0,)
    assert tree["one"] == 1


def test_fields_of_a_message_are_read_alike() -> None:
    message = Message(head={"w": torch.ones(1)}, n=3)
    assert message.head is message["head"]
    assert message.n == message["n"] == 3
    assert not hasattr(message, "shape")
    with pytest.raises(NoField, match=r"no field 'parms'; known: head, n"):
        _ = message.parms
    assert copy.deepcopy(message).n == 3
