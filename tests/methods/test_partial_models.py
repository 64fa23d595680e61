"""FedPer, FedRep, LG-FedAvg and FedBN: what is shared, plain loops, and their exact special cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedkin.engines import LocalEngine, Witness
from fedkin.flow import ServerMethod
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedbn import FedBN
from fedkin.methods.fedper import FedPer
from fedkin.methods.fedrep import FedRep
from fedkin.methods.fedsim import FedSim
from fedkin.methods.lg_fedavg import LGFedAvg
from fedkin.methods.local import Local
from methods.plain_loops import (
    BODY,
    HEAD,
    Plain,
    assert_params,
    combined,
    entropy,
    initial,
    logits,
    plain_training,
    sample_shares,
)
from support import small_federation, small_setup


def cross_entropy(params: Plain, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return entropy(logits(params, x), y)


def fixed(names: tuple[str, ...]) -> Any:
    """The loss as a function of the other parameters."""

    def loss(params: Plain, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rest = 0 * sum((params[name] ** 2).sum() for name in names)
        return cross_entropy({n: p.detach() if n in names else p for n, p in params.items()}, x, y) + rest

    return loss


def test_two_rounds_of_fedper_are_those_of_a_plain_loop() -> None:
    engine = LocalEngine(small_setup(FedPer()))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    shares = sample_shares(setup.federation)
    own, body = {id: initial(setup) for id in ids}, {name: initial(setup)[name] for name in BODY}
    for number in (1, 2):
        engine.round(number)
        own = {id: plain_training(setup, id, number, {**own[id], **body}, cross_entropy) for id in ids}
        body = combined(own, shares, BODY)
    for id in ids:
        assert_params(engine.model(id), {**own[id], **body})


def test_two_rounds_of_fedrep_are_those_of_a_plain_loop() -> None:
    setup = small_setup(FedRep(), local_steps=5)
    engine = LocalEngine(setup)
    ids, shares = sorted(setup.federation), sample_shares(setup.federation)
    first, then = (setup.training.model_copy(update={"local_steps": steps}) for steps in (4, 1))
    own, body = {id: initial(setup) for id in ids}, {name: initial(setup)[name] for name in BODY}
    for number in (1, 2):
        engine.round(number)
        for id in ids:
            params = {**own[id], **body}
            params = plain_training(setup, id, number, params, fixed(BODY), fit=0, training=first)
            own[id] = plain_training(setup, id, number, params, fixed(HEAD), fit=1, training=then)
        body = combined(own, shares, BODY)
    for id in ids:
        assert_params(engine.model(id), {**own[id], **body})


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbn"])
def test_what_is_not_shared_never_travels(name: str) -> None:
    witness = Witness()
    setup = small_setup(METHODS[name]())
    LocalEngine(setup, observers=[witness]).round(1)
    expected = set(BODY) if name != "fedbn" else {*BODY, *HEAD}
    assert witness.envelopes
    assert all(set(envelope.message.params) == expected for envelope in witness.envelopes)


@pytest.mark.parametrize("method", [FedPer(), FedSim(predict="own")], ids=["fedper", "fedsim"])
def test_one_client_alone_trains_locally(method: ServerMethod) -> None:
    federation = small_federation().reorder([sorted(small_federation())[0]])
    shared, alone = LocalEngine(small_setup(method, federation)), LocalEngine(small_setup(Local(), federation))
    (id,) = federation
    for number in (1, 2, 3):
        shared.round(number)
        alone.round(number)
    assert_params(shared.model(id), dict(alone.model(id)))


@pytest.mark.parametrize(
    ("method", "limit"),
    [(LGFedAvg(warmup=0), FedSim()), (LGFedAvg(warmup=99), FedAvg()), (FedBN(), FedAvg())],
    ids=["lg-0", "lg-all", "fedbn"],
)
def test_the_limit_of_a_setting_is_a_simpler_method(method: ServerMethod, limit: ServerMethod) -> None:
    settings: dict[str, Any] = {"batch_size": "all", "local_steps": 3}
    one, other = LocalEngine(small_setup(method, **settings)), LocalEngine(small_setup(limit, **settings))
    for number in (1, 2, 3):
        one.round(number)
        other.round(number)
    for id in sorted(small_federation()):
        assert_params(one.model(id), dict(other.model(id)))


def test_bodies_of_lg_fedavg_part_after_the_common_rounds() -> None:
    engine = LocalEngine(small_setup(LGFedAvg(warmup=2)))
    ids = sorted(small_federation())
    for number in (1, 2, 3):
        engine.round(number)
        bodies = [engine.model(id)["body.1.weight"] for id in ids]
        assert torch.equal(bodies[0], bodies[1]) == (number < 3)
        assert torch.equal(*[engine.model(id)["head.weight"] for id in ids[:2]])


def test_fedbn_keeps_normalisation_layers_by_class_whatever_their_name() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 7), nn.LayerNorm(7))
    net = Net(body, nn.Linear(7, 4))
    shared = FedBN().shared_names(net)
    assert list(shared) == [
        "body.1.weight", "body.1.bias", "body.4.weight", "body.4.bias", "head.weight", "head.bias",
    ]  # fmt: skip


def test_fedbn_shares_the_rest_of_a_net_with_normalisation() -> None:
    setup = small_setup(FedBN())
    net = Net.build(
        lambda: (nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU()), nn.Linear(7, 4)), 0
    )
    engine = LocalEngine(setup.__class__(**{**vars(setup), "net": net}))
    for number in (1, 2):
        engine.round(number)
    one, other = (engine.model(id) for id in sorted(small_federation())[:2])
    for name in net.initial:
        assert torch.equal(one[name], other[name]) == (not name.startswith("body.2.") or "num_batches" in name), name
