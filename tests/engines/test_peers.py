"""Peers move in step, see only their neighbours, and need no server."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from fedkin.engines import LocalEngine, LoopbackEngine
from fedkin.errors import MethodError
from fedkin.federation import Federation
from fedkin.flow import Fit, Message, Params, PeerFlow, PeerMethod, ServerMethod, Share
from fedkin.learning.aggregate import weighted_mean
from fedkin.methods import METHODS
from fedkin.methods.ifca import Ifca
from fedkin.methods.local import Local
from fedkin.testing import small_federation, small_setup
from fedkin.views import PeerView
from methods.cases import CASES as VARIANTS
from support import NET_METHODS, after, by_pattern, same, trained_models, with_settings


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
    engine, outcome = after(Gossip(), 1)
    first, *others = engine.models().values()
    assert all(same(first, other) for other in others)
    assert len(outcome.traffic) == len(others) * (len(others) + 1)
    assert {message.phase for message in outcome.traffic} == {"share"}


def test_a_peer_cannot_reach_a_stranger() -> None:
    with pytest.raises(MethodError, match=r"shares with \['nobody'\], which are not its neighbours"):
        after(Gossip(to_stranger=True), 1)


def test_peers_that_sit_out_a_round_keep_their_state() -> None:
    engine, outcome = after(Gossip(), 1, clients_per_round=2)
    idle = set(engine.setup.federation) - set(outcome.sampled)
    assert len(idle) == 4
    assert all(engine.model(id) is engine.setup.net.initial for id in idle)


# -- `run.alone`: a method without exchange. Each client must be as in a federation of its own -----------------------


def models(method: Any, federation: Federation | None = None, alone: bool = False, few: object = "all") -> Any:
    """Each client's model after three rounds."""
    setup = with_settings(small_setup(method, federation, clients_per_round=few), alone=alone)
    return trained_models(LocalEngine(setup))


CASES: dict[str, ServerMethod | PeerMethod] = {name: method() for name, method in NET_METHODS.items()} | VARIANTS


@pytest.mark.parametrize("name", by_pattern(CASES))
def test_a_client_is_as_in_a_federation_of_its_own(name: str) -> None:
    federation, found = small_federation(), models(CASES[name], alone=True)
    for id in list(federation)[:2]:
        assert same(found[id], models(CASES[name], federation.reorder([id]))[id]), id


@pytest.mark.parametrize("method", [CASES["fedavg"], CASES["tfl"], Ifca(clusters=1)])
def test_methods_with_the_plain_loss_are_local(method: Any) -> None:
    assert same(models(method, alone=True, few=3), models(Local(), few=3))


@pytest.mark.parametrize("method", [METHODS["sfmtl-graph"], METHODS["fedu"]])
def test_the_graph_without_edges_is_the_same_control(method: Any) -> None:
    alone = models(method(lam=0.4), alone=True, few=4)
    assert same(models(method(lam=0.4, graph={"control": "self"}), few=4), alone)
    assert not same(models(method(lam=0.4), few=4), alone)


def test_another_federation_around_it_changes_no_bit(federation: Federation) -> None:
    whole = models(METHODS["fedprox"](), alone=True)
    part = models(METHODS["fedprox"](), federation.reorder(list(federation)[:3]), alone=True)
    assert same({id: whole[id] for id in part}, part)


@pytest.mark.parametrize("name", ["fedprox", "tfl", "mapl", "cfl"])
def test_every_engine_agrees_and_loss_of_messages_is_no_error(name: str) -> None:
    setup = with_settings(small_setup(METHODS[name](), clients_per_round=4, dropout=0.3), alone=True)
    assert same(trained_models(LocalEngine(setup)), trained_models(LoopbackEngine(setup)))
