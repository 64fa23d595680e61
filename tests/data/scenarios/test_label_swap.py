"""Concept shift between groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.shifts import LabelSwap
from fedkin.errors import ConfigError

Make = Callable[..., Dataset]


@given(
    how=st.sampled_from(["pairs", "shift", "random"]),
    groups=st.integers(1, 6),
    more=st.integers(0, 9),
    seed=st.integers(0, 1000),
)
def test_any(labelled: Make, how: Literal["pairs", "shift", "random"], groups: int, more: int, seed: int) -> None:
    dataset = labelled(20, 10)
    federation = LabelSwap(clients=groups + more, groups=groups, how=how).build(dataset, seed)
    members = Counter((federation.planted or {}).values())
    assert sorted(members) == [f"swap{g}" for g in range(groups)]
    assert max(members.values()) - min(members.values()) <= 1
    names = {client.group: client.about["labels"] for client in federation.values()}
    assert len({tuple(own) for own in names.values()}) == groups, "no two groups call things alike"
    assert names["swap0"] == list(range(10))
    for client in federation.values():
        own = names[client.group]
        assert client.about["labels"] == own
        assert sorted(own) == list(range(10))
        for samples, part in ((client.train, dataset.train), (client.test, dataset.test)):
            assert samples.x is part.x
            assert samples.rows is not None
            assert samples.labels().tolist() == [own[label] for label in part.y[samples.rows].tolist()]
    rows = torch.cat([c.train.rows for c in federation.values() if c.train.rows is not None])
    assert sorted(rows.tolist()) == list(range(200))


def test_pairs_and_shift(labelled: Make) -> None:
    def names(how: Literal["pairs", "shift"]) -> list[list[int]]:
        made = LabelSwap(clients=6, groups=6, how=how).build(labelled(20, 10), 0)
        return [client.about["labels"] for client in sorted(made.values(), key=lambda c: str(c.group))]

    assert names("pairs")[1] == [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert names("pairs")[5] == [0, 1, 2, 3, 4, 5, 6, 7, 9, 8]
    assert names("shift")[2] == [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients": 3}, "scenario.clients: 3 clients for 4 groups; at least 4"),
        ({"groups": 7}, 'scenario.groups: 7, but with how = "pairs" the 10 classes of labels give at most 6'),
        ({"groups": 11, "how": "shift"}, "at most 10"),
        ({"clients": 201}, "201 clients cannot share the 200 train"),
    ],
)
def test_impossible(labelled: Make, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LabelSwap(**settings).build(labelled(20, 10), 0)
