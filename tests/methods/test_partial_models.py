"""Methods that share a part of the model: what travels, what FedBN keeps, and clients with unlike bodies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods.fedbn import FedBN
from fedkin.methods.fedclassavg import FedClassAvg
from fedkin.methods.fedper import FedPer
from fedkin.methods.fedproto import FedProto
from fedkin.methods.fedrep import FedRep
from fedkin.methods.fedsim import FedSim
from methods.plain_loops import BODY, HEAD, floats
from support import play, small_federation, small_setup


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (FedPer(), BODY),
        (FedRep(), BODY),
        (FedBN(), (*BODY, *HEAD)),
        (FedSim(), HEAD),
        (FedClassAvg(), HEAD),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_only_what_is_shared_travels(method: Any, names: tuple[str, ...]) -> None:
    setup, witness = small_setup(method), RecordingObserver()
    outcome = LocalEngine(setup, observers=[witness]).round(1)
    assert witness.envelopes
    assert all(set(envelope.message.params) == set(names) for envelope in witness.envelopes)
    # As in the papers' formulas: 2 M phi a round.
    assert floats(outcome.traffic) == 2 * 6 * sum(setup.net.initial[name].numel() for name in names)


@pytest.mark.parametrize("method", [FedSim(), FedClassAvg(), FedProto()], ids=lambda method: method.name)
def test_clients_with_unlike_bodies_train_together(method: Any) -> None:
    setup = small_setup(method)
    deep = Net.build(lambda: Mlp(hidden=(9, 7)).build(setup.federation.task), 3)
    deep = Net(deep.module.body, setup.net.module.head)
    nets = {id: deep if place % 2 else setup.net for place, id in enumerate(sorted(setup.federation))}
    engine = LocalEngine(replace(setup, nets=nets))
    play(engine, 1, 2)
    for id, net in nets.items():
        assert engine.model(id).keys() == net.initial.keys()
        if type(method) is FedSim:
            assert torch.equal(engine.model(id)["head.weight"], engine.server.state["params"]["head.weight"])
    assert all(score.n for score in engine.evaluate().values())


def test_fedbn_keeps_normalisation_layers_by_class_whatever_their_name() -> None:
    kinds = (nn.BatchNorm1d(7), nn.LayerNorm(7), nn.GroupNorm(1, 7), nn.RMSNorm(7))
    body = nn.Sequential(nn.Flatten(), nn.Linear(5, 7), *kinds, nn.Linear(7, 7))
    shared = FedBN().shared_names(Net(body, nn.Linear(7, 4)))
    assert set(shared) == {f"{layer}.{name}" for layer in ("body.1", "body.6", "head") for name in ("weight", "bias")}


def test_fedbn_shares_the_rest_of_a_net_with_normalisation() -> None:
    net = Net.build(
        lambda: (nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU()), nn.Linear(7, 4)), 0
    )
    engine = LocalEngine(replace(small_setup(FedBN()), net=net))
    play(engine, 1, 2)
    one, other = (engine.model(id) for id in sorted(small_federation())[:2])
    for name in net.initial:
        assert torch.equal(one[name], other[name]) == (not name.startswith("body.2.") or "num_batches" in name), name
