"""Federations that change: drifting clients and newcomers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedkin.data import federate
from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.drift import Drift
from fedkin.data.scenarios.label_skew import Dirichlet, GroupedClasses, Iid, Mapl
from fedkin.data.scenarios.shifts import LabelSwap
from fedkin.errors import ConfigError
from fedkin.federation import Samples
from fedkin.settings import parse
from support import present

Make = Callable[..., Dataset]


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
def test_any(labelled: Make, clients: int, drifting: int, newcomers: int, rounds: Any, seed: int) -> None:
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


def test_before_and_after(labelled: Make) -> None:
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


def test_unseen_clients_are_let_alone(labelled: Make) -> None:
    of = LabelSwap(clients=12, groups=2, unseen="group:swap1")
    with pytest.raises(ConfigError, match="only clients of group 'swap0' are left to draw"):
        Drift(of=of, drifting=1).build(labelled(60, 20), 0)
    federation = Drift(of=of, drifting=0, newcomers=5).build(labelled(60, 20), 0)
    assert len(federation.unseen) == 6
    assert all(federation[id].joins == 1 for id in federation.unseen)


def test_as_a_section_of_an_experiment(labelled: Make) -> None:
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
def test_what_is_refused(labelled: Make, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(Drift, settings, "scenario").build(labelled(60, 20), 0)
