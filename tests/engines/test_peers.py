"""Peers move in step, see only their neighbours, and need no server."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from fedkin.engines import LocalEngine, LoopbackEngine
from fedkin.errors import MethodError
from fedkin.federation import Federation
from fedkin.flow import Fit, Message, Params, PeerFlow, PeerMethod, ServerMethod, Share
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedu import FedU
from fedkin.methods.ifca import Ifca
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.methods.tfl import Tfl
from fedkin.views import PeerView
from methods.cases import CASES as VARIANTS
from support import (
    NET_METHODS,
    by_pattern,
    same,
    small_federation,
    small_setup,
    trained_models,
    with_settings,
)


class Gossip(PeerMethod):
    """Train, then take the plain mean with all neighbours."""

    name: ClassVar[str] = "gossip"

    to_stranger: bool = False

    def join(self, peer: PeerView) -> None:
        peer.state["params"] = peer.initial

    def round(self, peer: PeerView) -> PeerFlow[None]:
        fitted = yield from Fit(peer.state["params"])
        to = ["nobody"] if self.to_stranger else None
        inbox = yield from Share(Message(params=fitted.params), to)
        models = {peer.id: fitted.params, **{id: message["params"] for id, message in inbox.items()}}
        peer.state["params"] = weighted_mean(models, dict.fromkeys(models, 1.0))

    def use(self, peer: PeerView) -> Params:
        params: Params = peer.state["params"]
        return params


def test_full_mesh_gossip_brings_all_peers_to_the_mean_of_their_trained_models() -> None:
    setup = small_setup(Gossip())
    engine = LocalEngine(setup)
    outcome = engine.round(1)
    models = [engine.model(id) for id in setup.federation]
    for name in models[0]:
        for other in models[1:]:
            assert torch.equal(models[0][name], other[name])
    count = len(setup.federation)
    assert len(outcome.traffic) == count * (count - 1)
    assert {message.phase for message in outcome.traffic} == {"share"}


def test_a_peer_cannot_reach_a_stranger() -> None:
    engine = LocalEngine(small_setup(Gossip(to_stranger=True)))
    with pytest.raises(MethodError, match=r"shares with \['nobody'\], which are not its neighbours"):
        engine.round(1)


def test_peers_that_sit_out_a_round_keep_their_state() -> None:
    setup = small_setup(Gossip(), small_federation(), clients_per_round=2)
    engine = LocalEngine(setup)
    outcome = engine.round(1)
    idle = set(setup.federation) - set(outcome.sampled)
    assert len(idle) == len(setup.federation) - 2
    for id in idle:
        assert engine.model(id) is setup.net.initial


# -- `run.alone`: a method without exchange. Each client must be as in a federation of its own -----------------------


CASES: dict[str, ServerMethod | PeerMethod] = {name: method() for name, method in NET_METHODS.items()} | VARIANTS


@pytest.mark.parametrize("name", by_pattern(CASES))
def test_a_client_is_as_in_a_federation_of_its_own(name: str) -> None:
    federation = small_federation()
    setup = small_setup(CASES[name], federation)
    found = trained_models(LocalEngine(with_settings(setup, alone=True)))
    for id in list(federation)[:2]:
        single = Federation([federation[id]], federation.task, "one")
        own = trained_models(LocalEngine(small_setup(CASES[name], single)))
        assert same(found[id], own[id]), id


@pytest.mark.parametrize("method", [FedAvg(), Tfl(), Ifca(clusters=1)])
def test_methods_with_the_plain_loss_are_local(method: Any) -> None:
    alone = trained_models(LocalEngine(with_settings(small_setup(method, clients_per_round=3), alone=True)))
    local = trained_models(LocalEngine(small_setup(Local(), clients_per_round=3)))
    assert all(same(alone[id], local[id]) for id in local)


@pytest.mark.parametrize("method", [SfmtlGraph, FedU])
def test_the_graph_without_edges_is_the_same_control(method: Any) -> None:
    edges = trained_models(LocalEngine(small_setup(method(lam=0.4, graph={"control": "self"}), clients_per_round=4)))
    alone = trained_models(LocalEngine(with_settings(small_setup(method(lam=0.4), clients_per_round=4), alone=True)))
    learned = trained_models(LocalEngine(small_setup(method(lam=0.4), clients_per_round=4)))
    assert all(same(edges[id], alone[id]) for id in edges)
    assert not all(same(learned[id], alone[id]) for id in edges)


def test_another_federation_around_it_changes_no_bit() -> None:
    one, other = small_federation(), small_federation()
    fewer = Federation([other[id] for id in list(other)[:3]], other.task, "fewer")
    whole = trained_models(LocalEngine(with_settings(small_setup(METHODS["fedprox"](), one), alone=True)))
    part = trained_models(LocalEngine(with_settings(small_setup(METHODS["fedprox"](), fewer), alone=True)))
    assert all(same(whole[id], part[id]) for id in part)


@pytest.mark.parametrize("name", ["fedprox", "tfl", "mapl", "cfl"])
def test_every_engine_agrees_and_loss_of_messages_is_no_error(name: str) -> None:
    setup = with_settings(small_setup(METHODS[name](), clients_per_round=4, dropout=0.3), alone=True)
    one, other = trained_models(LocalEngine(setup)), trained_models(LoopbackEngine(setup))
    assert all(same(one[id], other[id]) for id in one)
