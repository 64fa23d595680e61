"""What all scenarios promise: no sample twice, test from test, same seed same bits, ids that tell nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from data_sets import owned, toy
from fedkin.data import SCENARIOS
from fedkin.data.scenarios import Scenario
from fedkin.data.scenarios.base import shuffled_ids
from fedkin.data.scenarios.drift import Drift
from fedkin.data.scenarios.label_skew import (
    ClassesPerClient,
    Dirichlet,
    GroupedClasses,
    Iid,
    Mapl,
    QuantitySkew,
    Shards,
    Structured,
)
from fedkin.data.scenarios.natural import Domains, Natural, Regions
from fedkin.data.scenarios.shifts import LabelSwap, RotatedMasked
from fedkin.federation import Federation
from support import present

CASES = [
    Iid(clients=7),
    Iid(clients=9, train_per_client=5, test_per_client=2),
    RotatedMasked(clients=11, mask_rate=0),
    RotatedMasked(clients=6, mask_rate=0, train_per_client=4, test_per_client=3),
    ClassesPerClient(clients=12),
    ClassesPerClient(clients=10, classes=3, spare_slots=0, train_fraction=1),
    Natural(),
    Natural(clients=6, min_size=2),
    Natural(min_test=5),
    Domains(per_domain=4),
    Regions(min_size=20),
    GroupedClasses(clients=13),
    GroupedClasses(clients=10, classes="ring", test_per_class=3),
    Structured(clients=20),
    Structured(clients=9, clusters=((0, 9, 4), (2, 1)), per_class=15, test_per_client=5),
    Dirichlet(clients=30, alpha=0.1),
    Dirichlet(clients=12, alpha=0.3, sizes="equal", test_per_client=4),
    Shards(clients=15),
    Shards(clients=10, shards=3, test_per_client=5),
    QuantitySkew(clients=15),
    QuantitySkew(clients=8, law="power", alpha=2, min_size=6, test_per_client=3),
    LabelSwap(clients=9),
    LabelSwap(clients=8, groups=3, how="shift", train_per_client=7),
    LabelSwap(clients=8, groups=4, how="random", test_per_client=5),
    Mapl(clients=4, per_class=8, test_per_class=2),
    Mapl(clients=5, clusters=3, shared=2, per_class=(2, 6), test_per_class=1),
    Drift(of=GroupedClasses(clients=20), drifting=3, newcomers=2),
    Drift(of=Mapl(clients=8, per_class=4, test_per_class=2), drifting=2, rounds=(3, 9)),
]

# All clients of a group have the same test samples, or each draws its own from all there are.
SHARED_TESTS = ("grouped-classes", "structured")


def case_name(scenario: Scenario) -> str:
    return f"{scenario.name}-{CASES.index(scenario)}"


def marks(federation: Federation, split: str) -> dict[tuple[str, int], list[int]]:
    """The samples of every client and phase as the numbers that the toy data set wrote into them."""
    found = {}
    for id, client in federation.items():
        for number, phase in enumerate(client.phases):
            x = getattr(phase, split).inputs(slice(None), torch.float64)
            marks = x.flatten(1)
            assert bool((marks == marks[:, :1]).all())
            found[id, number] = (marks[:, 0] * 1000).round().long().tolist()
    return found


def shares_tests(scenario: Scenario) -> bool:
    """Whether two clients may be tested on the same sample."""
    if isinstance(scenario, Drift):
        return shares_tests(scenario.of)
    drawn = isinstance(scenario, Dirichlet | Shards) and scenario.test_per_client is not None
    return drawn or scenario.name in SHARED_TESTS


def test_every_scenario_is_here() -> None:
    assert {scenario.name for scenario in CASES} == set(SCENARIOS)


@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_no_sample_twice_and_split_from_split(scenario: Scenario) -> None:
    dataset = owned()
    before = dataset.train.x.clone(), dataset.train.y.clone(), dataset.test.x.clone()
    federation = scenario.build(dataset, 3)
    for kept, held in zip(before, (dataset.train.x, dataset.train.y, dataset.test.x), strict=True):
        assert torch.equal(kept, held), "the data set is left alone"
    for split, sign, count in (("train", 1, 200), ("test", -1, 100)):
        found = marks(federation, split)
        everyone = [mark for own in found.values() for mark in own]
        if split == "train" or not shares_tests(scenario):
            assert len(set(everyone)) == len(everyone)
        assert {sign * mark - 1000 for mark in everyone} <= set(range(count))
        for (id, number), own in found.items():
            assert len(set(own)) == len(own)
            client = federation[id]
            names = client.about.get("labels", range(10))
            labels = getattr(client.phases[number], split).labels().tolist()
            assert labels == [names[(abs(mark) - 1000) % 10] for mark in own], "samples keep their labels"
    assert (federation.planted is None) == (scenario.planted == "none")
    assert federation.name.startswith("toy-")
    assert federation.name.endswith(f"-{scenario.name}")


@pytest.mark.parametrize("unseen", [None, 0.3])
@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_samples_keep_their_persons(scenario: Scenario, unseen: float | None) -> None:
    """Five neighbours are one person; clients that are apart are tested on the samples of both splits."""
    dataset = owned()
    person = np.arange(len(dataset.train)) // 5
    known = replace(
        dataset, train=replace(dataset.train, person=person), test=replace(dataset.test, person=person[:100] + 100)
    )
    federation = scenario.model_copy(update={"unseen": unseen, "unseen_test": "all"}).federation(known, 0)
    for split in ("train", "test"):
        for (id, number), own in marks(federation, split).items():
            samples = getattr(federation[id].phases[number], split)
            expected = [(mark - 1000) // 5 if mark > 0 else 100 + (-mark - 1000) // 5 for mark in own]
            assert samples.units().tolist() == np.unique(expected, return_inverse=True)[1].tolist()


@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_seeds(scenario: Scenario) -> None:
    first, again, other = (scenario.build(owned(), seed) for seed in (0, 0, 1))
    assert list(first) == list(again) != list(other)
    assert first.planted == again.planted
    for split in ("train", "test"):
        assert marks(first, split) == marks(again, split)
        if scenario.name not in ("natural", "regions") and (split == "train" or not shares_tests(scenario)):
            parts = [list(marks(federation, split).values()) for federation in (first, other)]
            assert parts[0] != parts[1], "other samples for the clients made first, second, ..."


@pytest.mark.parametrize("scenario", CASES, ids=case_name)
def test_other_names_for_clients_change_nothing_else(scenario: Scenario) -> None:
    federation = scenario.build(owned(), 0)
    other = {id: f"x{number}" for number, id in enumerate(sorted(federation))}
    renamed = federation.relabel(other).reorder([other[id] for id in reversed(list(federation))])
    for split in ("train", "test"):
        assert marks(renamed, split) == {(other[id], k): own for (id, k), own in marks(federation, split).items()}
    back = renamed.relabel({new: old for old, new in other.items()})
    assert back.fingerprint() == federation.fingerprint()


@pytest.mark.parametrize("count", [2, 3, 40, 101])
def test_ids_are_no_positions(count: int) -> None:
    """So that code which takes the number in an id for a position is wrong for every client."""
    ids = shuffled_ids(count, 1)
    assert sorted(int(id[1:]) for id in ids) == list(range(count))
    assert all(int(id[1:]) != place for place, id in enumerate(ids))


def test_ids_do_not_follow_groups() -> None:
    """Sorted by id, clients of a group must not stand together, as they do in the order of making."""
    runs = []
    for seed in range(5):
        planted = present(RotatedMasked(clients=40).build(toy(), seed).planted)
        made, by_id = list(planted.values()), [planted[id] for id in sorted(planted)]
        assert sum(a != b for a, b in pairwise(made)) == 3
        runs.append(sum(a != b for a, b in pairwise(by_id)))
    assert min(runs) > 20
