"""Unseen clients: whom a setting names, what they are tested on, and leaving out group after group."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import set_apart
from fedkin.data.scenarios.natural import Domains, Regions
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Change, Federation
from fedkin.running.experiment import Experiment
from fedkin.running.grid import leave_out, without_group
from support import small_federation
from tiny import TABLE

Toy = Callable[..., Dataset]


def test_a_share_is_drawn_by_the_seed_whatever_the_order() -> None:
    federation = small_federation(10)
    drawn = set_apart(federation, 0.3, "test", 4)
    assert len(drawn.unseen) == 3
    other = set_apart(federation.reorder(sorted(federation, reverse=True)), 0.3, "test", 4)
    assert other.unseen == drawn.unseen
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


def grouped(toy: Toy) -> Dataset:
    """200 and 100 samples of 3 groups of unlike sizes and 12 clients."""
    dataset = toy()

    def part(given: object) -> object:
        owner = np.sqrt(np.arange(len(given)) / len(given) * 144).astype(int)  # type: ignore[arg-type]
        return replace(given, client=np.char.mod("w%d", owner), group=np.char.mod("g%d", owner % 3))  # type: ignore[type-var]

    return replace(dataset, train=part(dataset.train), test=part(dataset.test))  # type: ignore[arg-type]


def test_domains_are_cut_into_equal_clients(toy: Toy) -> None:
    dataset = grouped(toy)
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
def test_small_clients_are_joined_within_their_group(toy: Toy, least: int) -> None:
    dataset = grouped(toy)
    federation = Regions(min_size=least).build(dataset, 0)
    owners = dataset.train.client
    assert owners is not None
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
    table = {**TABLE, "training": {"rounds": 1, "local_steps": 1}}
    experiment = Experiment.of(table)
    seen: list[str] = []
    results = leave_out(experiment, ["fedavg"], [0], Path(), tmp_path / "lo")
    assert sorted(results) == ["rot0", "rot180", "rot270", "rot90"]
    for group, by_method in results.items():
        alone = fedkin.run(
            "fedavg",
            fedkin.federate("digits", "rotated-masked", clients=6, seed=0, unseen=f"group:{group}"),
            rounds=1, seed=0, model=fedkin.learning.models.Mlp(hidden=(8,)), training={"local_steps": 1},
            settings={"mode": "one-by-one"},
        )  # fmt: skip
        assert by_method["fedavg"][0].summary["unseen"] == alone.summary["unseen"]
        assert (tmp_path / "lo" / group / "fedavg-seed0" / "summary.json").exists()
        seen.append(group)
    plan = json.loads((tmp_path / "lo" / "plan.json").read_text())
    assert plan["leave_out"] == seen
    again = leave_out(experiment, ["fedavg"], [0], Path(), tmp_path / "lo")
    assert again["rot0"]["fedavg"][0].summary == results["rot0"]["fedavg"][0].summary


def test_leave_out_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLE)
    with pytest.raises(ConfigError, match=r"^no group 'rot91' to leave out; did you mean"):
        leave_out(experiment, ["local"], [0], Path(), tmp_path / "a", ["rot91"])
    with pytest.raises(ConfigError, match=r"take scenario\.unseen and data\.unseen out"):
        leave_out(without_group(experiment, "rot0"), ["local"], [0], Path(), tmp_path / "b")
    alike = experiment.with_changes(**{"scenario.name": "iid"})
    with pytest.raises(ConfigError, match="has one group of clients"):
        leave_out(alike, ["local"], [0], Path(), tmp_path / "c")
    assert not list(tmp_path.iterdir())
