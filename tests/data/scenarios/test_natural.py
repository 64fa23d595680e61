"""Clients as the data set states them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios.natural import Natural
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Task

TRAIN = ["ann"] * 5 + ["bob"] * 3 + ["cid"] * 1 + ["dee"] * 4
TEST = ["ann"] * 2 + ["dee"] * 1 + ["eve"] * 2


def part(owner: list[str], groups: dict[str, str] | None) -> Part:
    planted = None if groups is None else np.array([groups[id] for id in owner])
    return Part(torch.arange(len(owner)).float()[:, None], torch.arange(len(owner)) % 2, np.array(owner), planted)


def writers(groups: dict[str, str] | None = None) -> Dataset:
    return Dataset("writers", part(TRAIN, groups), part(TEST, groups), Task(2, (1,)))


def test_clients_and_groups() -> None:
    groups = {"ann": "left", "bob": "right", "cid": "left", "dee": "right", "eve": "left"}
    federation = Natural().build(writers(groups), 0)
    assert federation.sizes == {"ann": 5, "bob": 3, "cid": 1, "dee": 4}
    assert {id: len(client.test) for id, client in federation.items()} == {"ann": 2, "bob": 0, "cid": 0, "dee": 1}
    assert federation.planted == {"ann": "left", "bob": "right", "cid": "left", "dee": "right"}
    assert federation["bob"].train.inputs(slice(None))[:, 0].tolist() == [5, 6, 7]
    assert federation["dee"].test.inputs(slice(None))[:, 0].tolist() == [2]


def test_some_of_them() -> None:
    assert set(Natural(min_size=4).build(writers(), 0)) == {"ann", "dee"}
    drawn = [tuple(Natural(clients=2).build(writers(), seed)) for seed in range(20)]
    assert {len(ids) for ids in drawn} == {2}
    assert len(set(drawn)) > 3


def test_those_with_test_samples() -> None:
    assert set(Natural(min_test=1).build(writers(), 0)) == {"ann", "dee"}
    assert set(Natural(min_test=2, min_size=4).build(writers(), 0)) == {"ann"}


@pytest.mark.parametrize(("scenario", "said"), [
    (Natural(min_test=3, min_size=3), "scenario.min_test: no client of writers with at least 3 .* the most is 2"),
    (Natural(min_size=6), "scenario.min_size: no client of writers has 6 .*; the largest has 5"),
    (Natural(clients=4, min_size=3), "scenario.clients: 4, but writers has 3 clients with at least 3 train"),
])  # fmt: skip
def test_impossible(scenario: Natural, said: str, digits: Dataset) -> None:
    with pytest.raises(ConfigError, match=said):
        scenario.build(writers(), 0)
    with pytest.raises(DataError, match="natural: digits does not say whose its samples are"):
        scenario.build(digits, 0)


def test_two_groups_for_one_client() -> None:
    groups = {"ann": "left", "bob": "right", "cid": "left", "dee": "right", "eve": "left"}
    data = writers(groups)
    changed = Dataset("writers", part(TRAIN, groups), part(TEST, {**groups, "dee": "left"}), data.task)
    with pytest.raises(DataError, match="writers: client 'dee' is in 'left' and in 'right'"):
        Natural().build(changed, 0)
