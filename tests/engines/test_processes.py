"""A process per client, and nothing but a socket pair between it and the server: the same bits as in one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedkin.analysis import measure
from fedkin.engines import LocalEngine, ProcessesEngine, Setup
from fedkin.engines.processes import RemoteSite
from fedkin.engines.simulation import Simulation
from fedkin.errors import MethodError, RunError
from fedkin.federation import Federation
from fedkin.methods.fedavg import FedAvg
from support import NET_METHODS, cases, small_federation, small_setup

ALL = {**{name: method() for name, method in NET_METHODS.items()}, **cases()}


def told(engine: Simulation, rounds: int) -> dict[str, Any]:
    """All that an engine says of some rounds."""
    try:
        outcomes = [engine.round(number) for number in range(1, rounds + 1)]
        found = measure(engine, engine.federation)
        return {
            "rounds": [(o.sampled, o.traffic, dict(o.samples), o.inferred, o.flops) for o in outcomes],
            "graphs": [None if o.graph is None else o.graph.digest() for o in outcomes],
            "scores": engine.evaluate(),
            "models": engine.models(),
            "features": None if found is None else found.to_bytes(),
            "state": engine.state(),
        }
    finally:
        engine.close()


def agree(setup: Setup, rounds: int = 2) -> None:
    here, there = told(LocalEngine(setup), rounds), told(ProcessesEngine(setup), rounds)
    for what in ("rounds", "graphs", "scores", "features"):
        assert there[what] == here[what], what
    for what in ("models", "state"):
        assert _equal(there[what], here[what]), what


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if hasattr(one, "items"):
        return set(one) == set(other) and all(_equal(part, other[name]) for name, part in one.items())
    return bool(one == other) or (isinstance(one, (list, tuple)) and list(one) == list(other))


def few() -> Federation:
    """Three clients, the last one unseen."""
    still = small_federation(clients=3)
    *_, last = sorted(still)
    return Federation([replace(c, seen=id != last) for id, c in still.items()], still.task, "few")


@pytest.mark.parametrize("name", ["cfl", "mapl"])
def test_it_is_the_local_engine_bit_for_bit(name: str) -> None:
    agree(small_setup(ALL[name], few()).having({"dropout": 0.2}))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ALL) - {"cfl", "mapl"}))
def test_every_method_is_the_same(name: str) -> None:
    agree(small_setup(ALL[name], few() if "planted" in name else small_federation(clients=4)).having({"dropout": 0.2}))


def test_a_client_that_fails_is_named() -> None:
    engine = ProcessesEngine(small_setup(FedAvg(), few(), lr=1e30))
    try:
        with pytest.raises(MethodError, match=r"round \d, client 'site-.', phase 'train': the training loss became"):
            rounds(engine)
    finally:
        engine.close()


def rounds(engine: Simulation) -> None:
    for number in (1, 2, 3):
        engine.round(number)


def test_a_process_that_is_gone_is_named() -> None:
    engine = ProcessesEngine(small_setup(FedAvg(), few()))
    try:
        site = engine.site
        assert isinstance(site, RemoteSite)
        site.processes[0].kill()
        site.processes[0].join()
        first = next(iter(engine.federation))
        with pytest.raises(RunError, match=f"the process of client '{first}' has ended"):
            engine.round(1)
    finally:
        engine.close()
