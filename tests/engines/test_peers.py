"""Peers move in step, see only their neighbours, and need no server."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
import torch

from fedkin.engines import LocalEngine, LoopbackEngine
from fedkin.errors import MethodError
from fedkin.flow import Fit, Message, Params, PeerFlow, PeerMethod, Share
from fedkin.learning.aggregate import weighted_mean
from fedkin.views import PeerView
from support import small_federation, small_setup


class Gossip(PeerMethod):
    """Train, then take the plain mean with all neighbours."""

    name: ClassVar[str] = "gossip"
    title: ClassVar[str] = "Gossip"
    paper: ClassVar[str] = "(test)"
    kind: ClassVar[Literal["peer"]] = "peer"
    travels: ClassVar[str] = "models"

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


def test_loopback_moves_peers_alike() -> None:
    setup = small_setup(Gossip(), clients_per_round=4)
    local, loopback = LocalEngine(setup), LoopbackEngine(setup)
    for number in (1, 2, 3):
        assert local.round(number).sampled == loopback.round(number).sampled
    for id in setup.federation:
        for name, tensor in local.model(id).items():
            torch.testing.assert_close(tensor, loopback.model(id)[name])


def test_peers_bear_lost_messages() -> None:
    engine = LocalEngine(small_setup(Gossip(), dropout=0.6))
    for number in range(1, 5):
        engine.round(number)
    assert all(bool(torch.isfinite(t).all()) for id in engine.setup.federation for t in engine.model(id).values())


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
