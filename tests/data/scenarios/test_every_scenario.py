"""What all scenarios promise: no sample twice, test from test, same seed same bits, ids that tell nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data import SCENARIOS
from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios import Scenario
from fedkin.data.scenarios.classes_per_client import ClassesPerClient
from fedkin.data.scenarios.iid import Iid
from fedkin.data.scenarios.natural import Natural
from fedkin.data.scenarios.rotated_masked import RotatedMasked
from fedkin.federation import Federation

Toy = Callable[..., Dataset]

CASES = [
    Iid(clients=7),
    Iid(clients=9, train_per_client=5, test_per_client=2),
    RotatedMasked(clients=11, mask_rate=0),
    RotatedMasked(clients=6, mask_rate=0, train_per_client=4, test_per_client=3),
    ClassesPerClient(clients=12),
    ClassesPerClient(clients=10, classes=3, spare_slots=0, train_fraction=1),
    Natural(),
    Natural(clients=6, min_size=2),
]


def case_name(scenario: Scenario) -> str:
    return f"{scenario.name}-{CASES.index(scenario)}"


def owned(dataset: Dataset) -> Dataset:
    """The data set with clients "w0" .. "w8" of unlike sizes."""

    def part(given: Part) -> Part:
        owner = np.sqrt(np.arange(len(given)) / len(given) * 81).astype(int)
        return Part(given.x, given.y, np.char.add("w", owner.astype(str)), np.char.mod("g%d", owner % 2))

    return Dataset(dataset.name, part(dataset.train), part(dataset.test), dataset.task, dataset.scale)


def marks(federation: Federation, split: str) -> dict[str, list[int]]:
    """The samples of every client as the numbers that the toy data set wrote into them."""
    found = {}
    for id, client in federation.items():
        x = getattr(client, split).inputs(slice(None), torch.float64)
        assert bool((x == x.reshape(len(x), -1)[:, 0].reshape(-1, 1, 1, 1)).all())
        found[id] = (x.reshape(len(x), -1)[:, 0] * 1000).round().long().tolist()
    return found


def test_every_scenario_is_here() -> None:
    assert {scenario.name for scenario in CASES} == set(SCENARIOS)


@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_no_sample_twice_and_split_from_split(scenario: Scenario, toy: Toy) -> None:
    dataset = owned(toy())
    federation = scenario.build(dataset, 3)
    for split, sign, count in (("train", 1, 200), ("test", -1, 100)):
        found = marks(federation, split)
        everyone = [mark for own in found.values() for mark in own]
        assert len(set(everyone)) == len(everyone)
        assert {sign * mark - 1000 for mark in everyone} <= set(range(count))
        for id, own in found.items():
            labels = getattr(federation[id], split).labels().tolist()
            assert labels == [(abs(mark) - 1000) % 10 for mark in own], "samples keep their labels"
    assert federation.planted is not None
    assert federation.name == f"toy-{scenario.name}"


@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_seeds(scenario: Scenario, toy: Toy) -> None:
    dataset = owned(toy())
    first, again, other = (scenario.build(dataset, seed) for seed in (0, 0, 1))
    assert list(first) == list(again) != list(other)
    assert first.planted == again.planted
    for split in ("train", "test"):
        assert marks(first, split) == marks(again, split)
        if scenario.name != "natural":
            parts = [list(marks(federation, split).values()) for federation in (first, other)]
            assert parts[0] != parts[1], "other samples for the clients made first, second, ..."


@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_data_set_is_left_alone(scenario: Scenario, toy: Toy) -> None:
    dataset = owned(toy())
    before = dataset.train.x.clone(), dataset.train.y.clone(), dataset.test.x.clone()
    scenario.build(dataset, 0)
    assert torch.equal(dataset.train.x, before[0])
    assert torch.equal(dataset.train.y, before[1])
    assert torch.equal(dataset.test.x, before[2])


@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_clients_share_one_array(scenario: Scenario, toy: Toy) -> None:
    federation = scenario.build(owned(toy()), 0)
    for split in ("train", "test"):
        assert len({getattr(client, split).x.data_ptr() for client in federation.values()}) == 1


@pytest.mark.parametrize("name", ["iid", "rotated-masked", "classes-per-client"])
@given(clients=st.integers(2, 40), seed=st.integers(0, 50))
def test_ids_are_no_positions(toy: Toy, name: str, clients: int, seed: int) -> None:
    dataset = toy(600, 300)
    federation = SCENARIOS[name](clients=clients).build(dataset, seed)
    assert sorted(federation) == [f"c{number:02d}" for number in range(clients)]
    assert all(int(id[1:]) != place for place, id in enumerate(federation))


def test_ids_do_not_follow_groups(toy: Toy) -> None:
    """Sorted by id, clients of a group must not stand together, as they do in the order of making."""
    runs = []
    for seed in range(5):
        planted = RotatedMasked(clients=40).build(toy(), seed).planted
        assert planted is not None
        made, by_id = list(planted.values()), [planted[id] for id in sorted(planted)]
        assert sum(a != b for a, b in pairwise(made)) == 3
        runs.append(sum(a != b for a, b in pairwise(by_id)))
    assert min(runs) > 20
