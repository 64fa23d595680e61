"""Clustered methods: clients that come late find their group, and clients that never take part get its model."""

from __future__ import annotations

from typing import Any

import pytest

from fedkin.engines import LocalEngine
from fedkin.federation import Federation
from methods.flt_world import grouped, raw
from support import named, newcomers, play, same, small_federation, small_setup

# Groups by models need labels that conflict, those by signatures inputs that differ.
METHODS: list[tuple[Any, str, int]] = [
    (named("ifca"), "cluster", 5),
    (named("fedsem"), "cluster", 6),
    (named("cfl"), "node", 15),
    (named("pca-km-hc", clusters=3, centres=2), "group", 2),
    (raw(k=2), "group", 2),
    (named("flt-same"), "group", 2),
    (named("kin", degrees="groups"), "group", 2),
    (named("pacfl", vectors=1, threshold=15.0), "cluster", 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kept", "rounds"), METHODS, ids=[method.name for method, _, _ in METHODS])
def test_newcomers_find_their_group_and_the_unseen_get_its_model(method: Any, kept: str, rounds: int) -> None:
    federation: Federation = small_federation(14, seed=3) if kept == "node" or rounds > 2 else grouped(18)
    ids = sorted(federation)
    hidden, late = ids[:3], ids[3]
    engine = LocalEngine(
        small_setup(method, newcomers(federation, hidden, {late: rounds + 1}), local_steps=10, rounds=rounds + 1)
    )
    play(engine, *range(1, rounds + 1))
    before = dict(engine.server.state[kept])
    assert set(before) == set(ids[4:])
    models = engine.models()
    for id in hidden:
        mate = next(other for other in ids[4:] if federation[other].group == federation[id].group)
        assert same(models[id], models[mate])
    assert engine.server.state[kept] == before  # to be evaluated changes nothing
    engine.round(rounds + 1)
    after = engine.server.state[kept]
    assert before.items() <= after.items()
    assert {other for other in before if after[other] == after[late]} == {
        other for other in before if federation[other].group == federation[late].group
    }
