"""`run.alone`: a method without exchange. Each client must be as in a federation of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.engines import LocalEngine, LoopbackEngine
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedu import FedU
from fedkin.methods.ifca import Ifca
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.methods.tfl import Tfl
from support import NET_METHODS, by_pattern, cases, small_federation, small_setup

CASES: dict[str, ServerMethod | PeerMethod] = {name: method() for name, method in NET_METHODS.items()} | cases()


def models(engine: LocalEngine, rounds: int = 3) -> dict[str, dict[str, torch.Tensor]]:
    for number in range(1, rounds + 1):
        engine.round(number)
    return {id: dict(engine.model(id)) for id in sorted(engine.setup.federation)}


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", by_pattern(CASES))
def test_a_client_is_as_in_a_federation_of_its_own(name: str) -> None:
    federation = small_federation()
    setup = small_setup(CASES[name], federation)
    found = models(LocalEngine(setup.having(alone=True)))
    for id in list(federation)[:2]:
        single = Federation([federation[id]], federation.task, "one")
        own = models(LocalEngine(small_setup(CASES[name], single)))
        assert same(found[id], own[id]), id


@pytest.mark.parametrize("method", [FedAvg(), Tfl(), Ifca(clusters=1)])
def test_methods_with_the_plain_loss_are_local(method: Any) -> None:
    alone = models(LocalEngine(small_setup(method, clients_per_round=3).having(alone=True)))
    local = models(LocalEngine(small_setup(Local(), clients_per_round=3)))
    assert all(same(alone[id], local[id]) for id in local)


@pytest.mark.parametrize("method", [SfmtlGraph, FedU])
def test_the_graph_without_edges_is_the_same_control(method: Any) -> None:
    edges = models(LocalEngine(small_setup(method(lam=0.4, graph={"control": "self"}), clients_per_round=4)))
    alone = models(LocalEngine(small_setup(method(lam=0.4), clients_per_round=4).having(alone=True)))
    learned = models(LocalEngine(small_setup(method(lam=0.4), clients_per_round=4)))
    assert all(same(edges[id], alone[id]) for id in edges)
    assert not all(same(learned[id], alone[id]) for id in edges)


def test_another_federation_around_it_changes_no_bit() -> None:
    one, other = small_federation(), small_federation()
    fewer = Federation([other[id] for id in list(other)[:3]], other.task, "fewer")
    whole = models(LocalEngine(small_setup(METHODS["fedprox"](), one).having(alone=True)))
    part = models(LocalEngine(small_setup(METHODS["fedprox"](), fewer).having(alone=True)))
    assert all(same(whole[id], part[id]) for id in part)


@pytest.mark.parametrize("name", ["fedprox", "tfl", "mapl", "cfl"])
def test_every_engine_agrees_and_loss_of_messages_is_no_error(name: str) -> None:
    setup = small_setup(METHODS[name](), clients_per_round=4, dropout=0.3).having(alone=True)
    one, other = models(LocalEngine(setup)), models(LoopbackEngine(setup))
    assert all(same(one[id], other[id]) for id in one)
