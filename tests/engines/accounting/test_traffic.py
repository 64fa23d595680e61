"""The sizes of messages are those of their bytes, for whatever a message holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.engines.accounting.traffic import Scales
from fedkin.engines.transport import Envelope
from fedkin.errors import MethodError
from fedkin.flow import Message

_names = st.text("ab/~é", min_size=1, max_size=3)
_tensors = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]),
)
_small = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.sampled_from([0.0, -0.0, 1.0, 1e-9, 0.1]),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip
_trees = st.recursive(_tensors | _small, lambda inner: st.dictionaries(_names, inner, max_size=3), max_leaves=6)
_messages = st.dictionaries(st.sampled_from(["params", "n", "loss"]), _trees, max_size=3)


def sent(messages: list[dict[str, Any]]) -> list[Envelope]:
    return [Envelope(1, "train", 0, f"c{k}", "server", Message(**fields)) for k, fields in enumerate(messages)]


_alike = st.fixed_dictionaries({"params": st.dictionaries(st.sampled_from("ab"), _tensors) | _trees, "n": _small})


@settings(max_examples=300, deadline=None)
@given(st.lists(_messages, min_size=1, max_size=4) | st.lists(_alike, min_size=2, max_size=6), st.data())
def test_sizes_are_those_of_the_bytes(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    scales = Scales()
    again = messages + data.draw(st.lists(st.sampled_from(messages), max_size=3))
    for envelope, row in zip(envelopes := sent(again), scales.weigh(envelopes), strict=True):
        message = envelope.message
        if len(message):
            assert row is not None
            assert (row.bytes, row.floats) == (len(message.to_bytes()), message.floats)
        else:
            assert row is None


def test_zeros_of_both_signs_have_sizes_of_their_own() -> None:
    zeros = [{"aaaaaaaaaaaa"[:n]: sign} for n in range(1, 12) for sign in (0.0, -0.0)]
    for envelope, row in zip(envelopes := sent(zeros), Scales().weigh(envelopes), strict=True):
        assert row is not None
        assert row.bytes == len(envelope.message.to_bytes())


def test_values_that_are_equal_and_not_of_equal_length_have_sizes_of_their_own() -> None:
    values: list[Any] = [(1,) * 9, (1.0,) * 9, (True,) * 9, np.float64(0.0), np.float64(-0.0), 1, True, 1.0]
    for each in ([{"v": value} for value in values], [{"v": value} for value in reversed(values)]):
        for envelope, row in zip(envelopes := sent(each), Scales().weigh(envelopes), strict=True):
            assert row is not None
            assert row.bytes == len(envelope.message.to_bytes())


def test_equal_layouts_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkin import codec

    measured = []
    size = codec.size
    monkeypatch.setattr(codec, "size", lambda tree: measured.append(tree) or size(tree))  # type: ignore[func-returns-value]
    models = [{"params": {"w": torch.full((2, 3), float(k)), "b": torch.zeros(3)}, "n": 10 + k} for k in range(9)]
    assert len({row and row.bytes for row in Scales().weigh(sent(models))}) == 1
    assert len(measured) == 1


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(MethodError, match="cannot travel"):
        Scales().weigh(sent([{"n": object()}]))


def test_one_among_many_that_cannot_travel_is_refused() -> None:
    models: list[dict[str, Any]] = [{"params": {"w": torch.zeros(2)}, "n": k} for k in range(5)]
    models[3]["n"] = object()
    with pytest.raises(MethodError, match="cannot travel"):
        Scales().weigh(sent(models))
