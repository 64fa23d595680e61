"""Clients as the data set states them: natural clients, domains, regions, unseen ones, and all in one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from data_sets import owned, toy
from fedkin.data import federate
from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios.base import POOLED, pooled, set_apart
from fedkin.data.scenarios.label_skew import Iid
from fedkin.data.scenarios.natural import Domains, Natural, Regions
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Change, Federation, Task
from fedkin.running.experiment import Experiment
from fedkin.running.grid import leave_out, without_group
from support import present, small_federation
from tiny import TABLE

GROUPS = {"ann": "left", "bob": "right", "cid": "left", "dee": "right", "eve": "left"}
TRAIN = ["ann"] * 5 + ["bob"] * 3 + ["cid"] * 1 + ["dee"] * 4
TEST = ["ann"] * 2 + ["dee"] * 1 + ["eve"] * 2


def part(owner: list[str], groups: dict[str, str] | None) -> Part:
    planted = None if groups is None else np.array([groups[id] for id in owner])
    return Part(torch.arange(len(owner)).float()[:, None], torch.arange(len(owner)) % 2, np.array(owner), planted)


def writers(groups: dict[str, str] | None = None) -> Dataset:
    return Dataset("writers", part(TRAIN, groups), part(TEST, groups), Task(2, (1,)))


def test_clients_and_groups() -> None:
    federation = Natural().build(writers(GROUPS), 0)
    assert federation.sizes == {"ann": 5, "bob": 3, "cid": 1, "dee": 4}
    assert {id: len(client.test) for id, client in federation.items()} == {"ann": 2, "bob": 0, "cid": 0, "dee": 1}
    assert federation.planted == {id: GROUPS[id] for id in federation}
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
    data = replace(writers(GROUPS), test=part(TEST, {**GROUPS, "dee": "left"}))
    with pytest.raises(DataError, match="writers: client 'dee' is in 'left' and in 'right'"):
        Natural().build(data, 0)


# -- unseen clients ------------------------------------------------------------------------------------------------


def test_a_share_is_drawn_by_the_seed_whatever_the_order() -> None:
    federation = small_federation(10)
    drawn = set_apart(federation, 0.3, "test", 4)
    assert len(drawn.unseen) == 3
    assert set_apart(federation.reorder(sorted(federation, reverse=True)), 0.3, "test", 4).unseen == drawn.unseen
    assert any(set_apart(federation, 0.3, "test", seed).unseen != drawn.unseen for seed in range(5))
    assert len(set_apart(federation, 0.01, "test", 0).unseen) == 1
    assert list(drawn) == list(federation)


def test_ids_and_groups() -> None:
    federation = small_federation(6)
    one = sorted(federation)[2]
    assert set_apart(federation, one, "test", 0).unseen == (one,)
    second = {id for id, client in federation.items() if client.group == "g1"}
    assert set(set_apart(federation, "group:g1", "test", 0).unseen) == second
    assert set(set_apart(federation, ("group:g1", one), "test", 0).unseen) == second | {one}
    for unseen, says in (
        ("group:g2", r"no client is in group 'g2'; known: g0, g1"),
        ("g1", r'no client \'g1\'.*a group is "group:NAME"'),
        (("group:g0", "group:g1"), "makes all 6 clients unseen; leave at least one client to train"),
        (0.99, "leave at least one client to train"),
    ):
        with pytest.raises(ConfigError, match=f"scenario.unseen: .*{says}"):
            set_apart(federation, unseen, "test", 0)


def test_all_their_samples_become_tests() -> None:
    federation = small_federation(4)
    id = sorted(federation)[0]
    apart = set_apart(federation, id, "all", 0)[id]
    before = federation[id]
    assert (len(apart.train), len(apart.test)) == (0, len(before.train) + len(before.test))
    both = torch.cat([before.train.inputs(slice(None)), before.test.inputs(slice(None))])
    assert torch.equal(apart.test.inputs(slice(None)), both)
    assert torch.equal(apart.test.labels(), torch.cat([before.train.labels(), before.test.labels()]))
    rest = sorted(set(federation) - {id})
    others = set_apart(federation, id, "all", 0).reorder(rest)
    assert others.fingerprint() == federation.reorder(rest).fingerprint()
    kept = set_apart(federation, id, "test", 0)[id]
    assert (kept.train, kept.test, kept.seen) == (before.train, before.test, False)


def test_samples_that_change_change_for_the_unseen_too() -> None:
    federation = small_federation(3)
    id, other = sorted(federation)[:2]
    change = Change(2, federation[other].train, federation[other].test)
    changing = [replace(c, changes=(change,)) if c.id == id else c for c in federation.values()]
    apart = set_apart(Federation(changing, federation.task), id, "all", 0)
    assert len(apart.at(2)[id].test) == len(change.train) + len(change.test)
    assert len(apart.at(2)[id].train) == 0


def test_domains_are_cut_into_equal_clients() -> None:
    dataset = owned(12, 3)
    federation = Domains(per_domain=4).build(dataset, 0)
    assert sorted(federation) == [f"g{g}-{k}" for g in range(3) for k in range(4)]
    for group in ("g0", "g1", "g2"):
        sizes = [c.size for c in federation.values() if c.group == group]
        assert sum(sizes) == np.count_nonzero(dataset.train.group == group)
        assert max(sizes) - min(sizes) <= 1
    assert Domains(per_domain=2, unseen="group:g1").federation(dataset, 0).unseen == ("g1-0", "g1-1")
    with pytest.raises(ConfigError, match=r"scenario\.per_domain: 90 clients cannot share the .* of 'g0'"):
        Domains(per_domain=90).build(dataset, 0)
    with pytest.raises(DataError, match="does not say which group"):
        Domains().build(toy(), 0)


@pytest.mark.parametrize("least", [1, 15, 30, 500])
def test_small_clients_are_joined_within_their_group(least: int) -> None:
    dataset = owned(12, 3)
    federation = Regions(min_size=least).build(dataset, 0)
    owners = present(dataset.train.client)
    assert sum(client.size for client in federation.values()) == len(owners)
    members = [name for client in federation.values() for name in client.about["members"]]
    assert sorted(members) == sorted(set(owners.tolist()))
    for client in federation.values():
        assert client.size == sum((owners == name).sum() for name in client.about["members"])
        assert {int(name[1:]) % 3 for name in client.about["members"]} == {int(client.group[1:])}  # type: ignore[index]
        joined = [c for c in federation.values() if c.group == client.group and c.id not in owners]
        assert client.size >= least or joined == [client]
        if len(client.about["members"]) == 1 and (owners == client.about["members"][0]).sum() >= least:
            assert client.id == client.about["members"][0]
    with pytest.raises(DataError, match="does not say whose its samples are"):
        Regions().build(toy(), 0)


@pytest.mark.slow
def test_leaving_out_each_group_in_turn(tmp_path: Path) -> None:
    experiment = Experiment.of({**TABLE, "training": {"rounds": 1, "local_steps": 1}})
    results = leave_out(experiment, ["fedavg"], [0], Path(), tmp_path / "lo")
    assert sorted(results) == ["rot0", "rot180", "rot270", "rot90"]
    for group, by_method in results.items():
        federation = fedkin.federate("digits", "rotated-masked", clients=6, unseen=f"group:{group}")
        alone = fedkin.run(
            "fedavg", federation, rounds=1, model=fedkin.learning.models.Mlp(hidden=(8,)), training={"local_steps": 1},
            settings={"mode": "one-by-one"},
        )  # fmt: skip
        assert by_method["fedavg"][0].summary["unseen"] == alone.summary["unseen"]
        assert (tmp_path / "lo" / group / "fedavg-seed0" / "summary.json").exists()
    assert json.loads((tmp_path / "lo" / "plan.json").read_text())["leave_out"] == list(results)
    again = leave_out(experiment, ["fedavg"], [0], Path(), tmp_path / "lo")
    assert again["rot0"]["fedavg"][0].summary == results["rot0"]["fedavg"][0].summary


def test_leave_out_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLE)
    alike = experiment.with_changes(**{"scenario.name": "iid"})
    for plan, groups, says in (
        (experiment, ["rot91"], r"^no group 'rot91' to leave out; did you mean"),
        (without_group(experiment, "rot0"), [], r"take scenario\.unseen and data\.unseen out"),
        (alike, [], "has one group of clients"),
    ):
        with pytest.raises(ConfigError, match=says):
            leave_out(plan, ["local"], [0], Path(), tmp_path / "a", groups)
    assert not list(tmp_path.iterdir())


# -- all data in one place: the same samples, and one client -------------------------------------------------------


def test_every_sample_is_there_once_and_unseen_clients_stay() -> None:
    apart = federate("digits", Iid(clients=6, unseen=0.3), seed=1)
    joined = pooled(apart)
    assert joined.seen == federate("digits", Iid(clients=6, unseen=0.3, pooled=True), seed=1).seen
    assert joined.unseen == apart.unseen
    assert joined.seen == (POOLED,)
    for part in ("train", "test"):
        rows = torch.cat([getattr(apart[id], part).rows for id in apart.seen])
        assert torch.equal(getattr(joined[POOLED], part).rows, rows)
        assert getattr(joined[POOLED], part).x is (getattr(apart[apart.seen[0]], part).x)


def test_samples_of_different_arrays_are_joined_in_the_order_of_ids(federation: Federation) -> None:
    joined = pooled(federation)[POOLED]
    ids = sorted(federation)
    x = torch.cat([federation[i].train.inputs(slice(None)) for i in ids])
    assert torch.equal(joined.train.inputs(slice(None)), x)
    assert torch.equal(joined.test.labels(), torch.cat([federation[i].test.labels() for i in ids]))
    turned = pooled(federation.reorder(list(reversed(list(federation)))))[POOLED]
    assert torch.equal(turned.train.inputs(slice(None)), joined.train.inputs(slice(None)))


def test_what_does_not_stand_still_is_refused() -> None:
    federation = small_federation(3)
    first = federation[sorted(federation)[0]]
    for moving in (replace(first, joins=2), replace(first, changes=(Change(2, first.train, first.test),))):
        clients = [moving if client.id == first.id else client for client in federation.values()]
        with pytest.raises(ConfigError, match=f"scenario.pooled: client '{first.id}' joins later or leaves, or its da"):
            pooled(Federation(clients, federation.task))
