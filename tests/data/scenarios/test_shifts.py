"""Groups whose labels are permuted, and whose images are turned; and clients that drift or come later."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from data_sets import labelled
from fedkin.data import federate
from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios.drift import Drift
from fedkin.data.scenarios.label_skew import Dirichlet, GroupedClasses, Iid, Mapl
from fedkin.data.scenarios.shifts import LabelSwap, RotatedMasked
from fedkin.errors import ConfigError
from fedkin.federation import Samples, Scale, Task
from fedkin.settings import parse
from support import present

# -- Concept shift between groups ----------------------------------------------------------------------------------


@given(
    how=st.sampled_from(["pairs", "shift", "random"]),
    groups=st.integers(1, 6),
    more=st.integers(0, 9),
    seed=st.integers(0, 1000),
)
def test_any(how: Literal["pairs", "shift", "random"], groups: int, more: int, seed: int) -> None:
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


def test_pairs_and_shift() -> None:
    def names(how: Literal["pairs", "shift"]) -> list[list[int]]:
        made = LabelSwap(clients=6, groups=6, how=how).build(labelled(20, 10), 0)
        return [client.about["labels"] for client in sorted(made.values(), key=lambda c: str(c.group))]

    assert names("pairs")[1] == [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert names("pairs")[5] == [0, 1, 2, 3, 4, 5, 6, 7, 9, 8]
    assert names("shift")[2] == [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


# -- Rotations, masks, and who gets which --------------------------------------------------------------------------


def images(count: int = 40, shape: tuple[int, ...] = (2, 6, 6)) -> Dataset:
    """Random images of bytes 1..99, every one different, where white is 200."""
    x = torch.from_numpy(np.random.default_rng(0).integers(1, 100, (count, *shape)).astype(np.uint8))
    y = torch.arange(count) % 5
    return Dataset("images", Part(x, y), Part(x + 100, y), Task(5, shape), Scale(divide=200.0))


def stored(samples: Samples) -> torch.Tensor:
    assert isinstance(samples.x, torch.Tensor)
    return samples.x if samples.rows is None else samples.x[samples.rows]


@given(clients=st.integers(1, 30), count=st.integers(1, 4), seed=st.integers(0, 99))
def test_groups_are_even(clients: int, count: int, seed: int) -> None:
    rotations = (270, 0, 180, 90)[:count]
    federation = RotatedMasked(clients=clients, rotations=rotations).build(images(), seed)
    groups = Counter((federation.planted or {}).values())
    assert set(groups) == {f"rot{angle}" for angle in rotations[:clients]}
    assert max(groups.values()) - min(groups.values()) <= 1
    for client in federation.values():
        assert client.group == f"rot{client.about['rotation']}"
    assert max(federation.sizes.values()) - min(federation.sizes.values()) <= 1
    assert sum(federation.sizes.values()) == 40


def test_rotation_is_counter_clockwise() -> None:
    """Every client's images, turned back, are images of the data set."""
    dataset = images()
    federation = RotatedMasked(clients=8, mask_rate=0).build(dataset, 1)
    for part, split in ((dataset.train, "train"), (dataset.test, "test")):
        labels = {image.numpy().tobytes(): int(label) for image, label in zip(part.x, part.y, strict=True)}
        for client in federation.values():
            samples, turns = getattr(client, split), client.about["rotation"] // 90
            for image, label in zip(stored(samples).numpy(), samples.labels().tolist(), strict=True):
                assert labels[np.rot90(image, -turns, axes=(1, 2)).tobytes()] == label


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_mask_is_a_grid_of_cells(size: int) -> None:
    scenario = RotatedMasked(clients=10, rotations=(0,), mask_size=size, mask_rate=0.5)
    federation = scenario.build(images(), 0)
    masks = []
    for client in federation.values():
        train, test = stored(client.train) == 200, stored(client.test) == 200
        mask = train[0, 0]
        assert bool((train == mask).all()), "the same for all training images and channels"
        assert bool((test == mask).all()), "and for its test images"
        cells = mask[::size, ::size].repeat_interleave(size, 0).repeat_interleave(size, 1)[:6, :6]
        assert torch.equal(cells, mask)
        assert not bool(mask.all())
        masks.append(tuple(mask.flatten().tolist()))
    if size < 6:
        assert len(set(masks)) > 3, "clients have masks of their own"


def test_mask_rate() -> None:
    shape = (1, 40, 40)
    x = torch.zeros(50, *shape, dtype=torch.uint8)
    part = Part(x, torch.arange(50) % 2)
    dataset = Dataset("black", part, part, Task(2, shape), Scale())
    for rate in (0.0, 0.15, 0.7):
        federation = RotatedMasked(clients=50, mask_rate=rate).build(dataset, 0)
        white = [float((stored(client.train) == 255).float().mean()) for client in federation.values()]
        # 50 clients x 400 cells: the standard error is below 0.0036.
        assert abs(np.mean(white) - rate) < 0.011
        assert RotatedMasked().mask_rate == 0.15


@pytest.mark.parametrize(
    ("settings", "shape", "said"),
    [
        ({}, (1, 4, 7), "scenario.rotations: images of images are 4 x 7; only 0 and 180 keep that shape"),
        ({}, (9,), r"scenario.name: rotated-masked turns images .*; inputs of images are \[9\]"),
        ({"mask_size": 7}, (1, 6, 6), "scenario.mask_size: 7 pixels, .* are 6 x 6; at most 6"),
        ({"clients": 10**12}, (1, 6, 6), "scenario.clients: 1000000000000 clients cannot share the 40 train samples"),
        ({"rotations": [0, 45]}, (1, 6, 6), r"scenario\.rotations\.1: .*0, 90, 180 or 270; got 45"),
        ({"rotations": [0, 0]}, (1, 6, 6), r"rotations: each rotation may be named once; got \[0, 0\]"),
        ({"rotations": []}, (1, 6, 6), "scenario.rotations: "),
        ({"mask_rate": 1.0}, (1, 6, 6), r"scenario\.mask_rate: .* less than 1; got 1\.0"),
        ({"mask_size": 0}, (1, 6, 6), "scenario.mask_size: "), ({"clients": 0}, (1, 6, 6), "scenario.clients: "),
    ],
)  # fmt: skip
def test_impossible_of_rotated_masked(settings: dict[str, Any], shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(RotatedMasked, settings, "scenario").build(images(shape=shape), 0)


# -- federations that change: drifting clients and newcomers -------------------------------------------------------


def rows(samples: Samples) -> torch.Tensor:
    return present(samples.rows)


@pytest.mark.slow
@given(
    clients=st.integers(5, 40),
    drifting=st.integers(0, 12),
    newcomers=st.integers(0, 12),
    rounds=st.sampled_from([7, (4, 20), (9, 3, 5)]),
    seed=st.integers(0, 1000),
)
def test_any_drift(clients: int, drifting: int, newcomers: int, rounds: Any, seed: int) -> None:
    assume(2 * drifting + newcomers < clients)
    # With more than half of the clients drawn, groups of unlike size may run out of partners: see below.
    dataset, inner = labelled(40, 10), LabelSwap(clients=clients, groups=3)
    scenario = Drift(of=inner, drifting=drifting, rounds=rounds, newcomers=newcomers, joins=rounds)
    federation, whole = scenario.build(dataset, seed), inner.build(dataset, seed)
    roles = Counter(client.about["role"] for client in federation.values())
    assert len(federation) == clients - drifting == sum(roles.values())
    assert (roles["drifting"], roles["newcomer"]) == (drifting, newcomers)
    assert roles["stays"] == clients - 2 * drifting - newcomers
    listed = (rounds,) if isinstance(rounds, int) else rounds
    moves = Counter(change.round for client in federation.values() for change in client.changes)
    comes = Counter(client.joins for client in federation.values() if client.joins > 1)
    for found, count in ((moves, drifting), (comes, newcomers)):
        assert set(found) <= set(listed)
        assert sum(found.values()) == count
        assert count < len(listed) or max(found.values()) - min(found.values()) <= 1
    gone = {id: client for id, client in whole.items() if id not in federation}
    taken = []
    for id, client in federation.items():
        assert torch.equal(rows(client.train), rows(whole[id].train))
        assert client.group == whole[id].group
        assert (client.about["role"] == "drifting") == bool(client.changes)
        assert (client.about["role"] == "newcomer") == (client.joins > 1)
        for change in client.changes:
            assert change.group != client.group
            taken += [other for other, left in gone.items() if torch.equal(rows(left.train), rows(change.train))]
            assert torch.equal(rows(gone[taken[-1]].test), rows(change.test))
            assert gone[taken[-1]].group == change.group
    assert sorted(taken) == sorted(gone), "each client left out gives its samples to one that drifts"


def test_before_and_after() -> None:
    scenario = Drift(of=GroupedClasses(clients=30), drifting=5, rounds=8, newcomers=5, joins=4)
    federation = scenario.build(labelled(60, 20), 1)
    first, later, last = (federation.at(round) for round in (1, 4, 8))
    assert (len(first), len(later), len(last)) == (20, 25, 25)
    before, after = present(later.planted), present(last.planted)
    moved = {id for id in last if before[id] != after[id]}
    assert moved == {id for id, client in federation.items() if client.about["role"] == "drifting"}
    for id in last:
        own = {int(label) for label in after[id].split("+")}
        assert set(last[id].train.labels().tolist()) == set(last[id].test.labels().tolist()) == own


def test_unseen_clients_are_let_alone() -> None:
    of = LabelSwap(clients=12, groups=2, unseen="group:swap1")
    with pytest.raises(ConfigError, match="only clients of group 'swap0' are left to draw"):
        Drift(of=of, drifting=1).build(labelled(60, 20), 0)
    federation = Drift(of=of, drifting=0, newcomers=5).build(labelled(60, 20), 0)
    assert len(federation.unseen) == 6
    assert all(federation[id].joins == 1 for id in federation.unseen)


def test_as_a_section_of_an_experiment() -> None:
    of = {"name": "mapl", "clients": 6, "per_class": [4, 9]}
    scenario = parse(Drift, {"name": "drift", "of": of, "drifting": 1, "rounds": [5, 9]}, "scenario")
    assert scenario.of == Mapl(clients=6, per_class=(4, 9))
    dumped = scenario.model_dump(mode="json", exclude_none=True)
    assert dumped["of"]["per_class"] == [4, 9], "settings of the other scenario are kept in full"
    assert parse(Drift, dumped, "scenario") == scenario
    assert "[of]" in tomli_w.dumps(dumped)
    assert parse(Drift, {"of": "iid"}, "scenario").of == Iid()
    federation = federate(labelled(60, 40), "drift", of={"name": "label-swap"}, drifting=2)
    assert federation.name == "labels-label-swap-drift"
    assert len(federation) == 18


@pytest.mark.parametrize(("settings", "said"), [
    ({"of": {"name": "mapl", "client": 3}}, r"scenario\.of\.client: no such setting; did you mean 'clients'"),
    ({"of": {"name": "mapls"}}, r"scenario\.of\.name: no 'mapls'; did you mean 'mapl'"),
    ({"of": {"clients": 3}}, r"scenario\.of\.name: no None; known: "),
    ({"of": {"name": "drift"}}, r"scenario\.of\.name: no 'drift'"),
    ({"of": 3}, r"scenario\.of: "),
    ({"rounds": 1}, r"scenario\.rounds.*: expected a round from 2 on"),
    ({"rounds": []}, r"scenario\.rounds"),
    ({"joins": [3, 3]}, r"scenario\.joins.*: expected a round from 2 on, or several different ones"),
    ({"drifting": -1}, r"scenario\.drifting"),
    ({"of": Iid(clients=9), "drifting": 1}, "drifting: iid plants no two groups between which a client could move"),
    ({"of": Dirichlet(clients=9), "drifting": 1}, "drifting: dirichlet plants no two groups"),
    ({"of": LabelSwap(clients=10), "drifting": 4, "newcomers": 2},
     "label-swap makes 10 clients .*; 4 drifting ones need 2 each, 2 newcomers .*: at least 11"),
])  # fmt: skip
def test_what_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(Drift, settings, "scenario").build(labelled(60, 20), 0)
