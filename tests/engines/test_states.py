"""States that a flow may change while those before the round stay."""

from __future__ import annotations

from typing import Any

import torch

from fedkin.engines.client_side import apart


def test_what_a_flow_puts_into_any_dict_of_its_copy_is_not_in_the_state() -> None:
    weight = torch.ones(2)
    state: dict[str, Any] = {
        "group": {"a": 1, "b": 2}, "models": {"0": {"w": weight}}, "empty": {}, "mixed": {"inner": {"a": 1}, "n": 3},
        "n": 4,
    }  # fmt: skip
    copy = apart(state)
    assert copy == state
    copy["group"]["a"] = 9
    copy["models"]["1"] = {"w": weight}
    copy["empty"]["a"] = 1
    copy["mixed"]["inner"]["a"] = 9
    copy["n"] = 9
    assert state["group"] == {"a": 1, "b": 2}
    assert list(state["models"]) == ["0"]
    assert state["empty"] == {}
    assert state["mixed"] == {"inner": {"a": 1}, "n": 3}
    assert state["n"] == 4
    # Parameters are one object before and after: no flow changes them in place.
    assert copy["models"]["0"] is state["models"]["0"]


def test_what_a_flow_puts_into_any_list_of_its_copy_is_not_in_the_state() -> None:
    weight = torch.ones(2)
    state: dict[str, Any] = {
        "rounds": [1, 2], "deep": {"w": weight, "listed": [[1], {"a": [2]}]}, "beside": {"w": weight, "n": 3},
        "none": [],
    }  # fmt: skip
    copy = apart(state)
    assert copy == state
    copy["rounds"].append(3)
    copy["deep"]["listed"][0].append(2)
    copy["deep"]["listed"][1]["a"].append(3)
    copy["beside"]["n"] = 9
    copy["none"].append(1)
    assert copy["deep"]["w"] is weight
    assert state["rounds"] == [1, 2]
    assert state["deep"]["listed"] == [[1], {"a": [2]}]
    assert state["beside"]["n"] == 3
    assert state["none"] == []
