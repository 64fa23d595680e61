"""Members of groups that drift away: said by the methods that look at their groups again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from fedkin.engines import LocalEngine
from fedkin.federation import Change, Client, Federation, Samples, Task
from fedkin.flow import ServerMethod
from fedkin.methods.flt_same import FltSame
from fedkin.methods.kin import Kin
from support import play, samples_of, small_setup

METHODS: Mapping[str, ServerMethod] = {"kin": Kin(regroup_every=2), "flt-same": FltSame(regroup_every=2)}


def samples(rng: np.random.Generator, n: int, shift: float = 0.0) -> Samples:
    y = rng.integers(3, size=n)
    return samples_of(rng.normal(size=(n, 5)) + 2.0 * np.eye(3, 5)[y] + shift, y)


def federation(drifts: bool) -> Federation:
    """Five sites of one distribution that get 60 more samples before rounds 3 and 5; those of the first move in 5."""
    rng, clients = np.random.default_rng(0), []
    for name in "abcde":
        whole = samples(rng, 180)
        moved = samples(rng, 60, 1.5 if drifts and name == "a" else 0.0)
        last = Samples(torch.cat([whole.x[:120], moved.x]), torch.cat([whole.y[:120], moved.y]))  # type: ignore[list-item]
        test = samples(rng, 20)
        changes = (Change(3, whole.take(range(120)), test), Change(5, last, test))
        clients.append(Client(name, whole.take(range(60)), test, changes=changes))
    return Federation(clients, Task(3, (5,)))


@pytest.mark.slow
@pytest.mark.parametrize("drifts", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_who_drifts_is_named_and_nobody_else(name: str, drifts: bool) -> None:
    engine = LocalEngine(small_setup(METHODS[name], federation(drifts), rounds=6))
    events = [engine.round(number).events for number in range(1, 7)]
    assert events == [{}, {}, {}, {}, {"drifted": ("a",)} if drifts else {}, {}]
    watched = engine.server.state["watched"]
    assert {id: one["looks"] for id, one in watched.items()} == {id: 2 for id in "abcde" if not (drifts and id == "a")}


def test_a_client_signs_only_samples_that_are_new() -> None:
    """Who has no new samples is not looked at, however often it signs."""
    still = federation(False)
    clients = [Client(one.id, one.train, one.test) for one in still.values()]
    engine = LocalEngine(small_setup(METHODS["kin"], Federation(clients, still.task), rounds=6))
    play(engine, *range(1, 7))
    assert engine.server.state["looks"] == 3
    assert not engine.server.state.get("watched")
