"""FedALA and FedNova: against plain loops, and their exact special cases."""

from __future__ import annotations

import torch

from fedkin.engines import LocalEngine, Setup
from fedkin.keys import rng
from fedkin.methods.fedala import FedALA
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fednova import FedNova
from methods.plain_loops import (
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
from support import small_setup


def cross_entropy(params: Plain, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return entropy(logits(params, x), y)


def test_fednova_with_equal_steps_is_fedavg() -> None:
    one, other = LocalEngine(small_setup(FedNova())), LocalEngine(small_setup(FedAvg()))
    for number in (1, 2):
        one.round(number)
        other.round(number)
    (id, *_) = one.setup.federation
    assert_params(one.model(id), dict(other.model(id)), 1e-6)


def test_two_rounds_of_fednova_with_epochs_are_those_of_a_plain_loop() -> None:
    engine = LocalEngine(small_setup(FedNova(), local_steps=None, local_epochs=2))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    shares, common = sample_shares(setup.federation), initial(setup)
    steps = {id: setup.training.steps(setup.federation[id].size) for id in ids}
    assert len(set(steps.values())) > 1
    effective = sum(shares[id] * steps[id] for id in ids)
    for number in (1, 2):
        engine.round(number)
        trained = {id: plain_training(setup, id, number, common, cross_entropy) for id in ids}
        move = {name: sum(shares[id] * (common[name] - trained[id][name]) / steps[id] for id in ids) for name in common}
        common = {name: common[name] - effective * move[name] for name in common}
    assert_params(engine.model(ids[0]), common)


def test_fedala_without_a_rate_is_fedavg() -> None:
    one, other = LocalEngine(small_setup(FedALA(eta=0))), LocalEngine(small_setup(FedAvg()))
    for number in (1, 2, 3):
        one.round(number)
        other.round(number)
    assert_params(dict(one.server.state["params"]), dict(other.server.state["params"]), 1e-6)


def test_two_rounds_of_fedala_are_those_of_a_plain_loop() -> None:
    engine = LocalEngine(small_setup(FedALA(eta=20.0, first_passes=2)))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    shares, common = sample_shares(setup.federation), initial(setup)
    own: dict[str, Plain] = {}
    moved = 0.0
    for number in (1, 2):
        engine.round(number)
        trained = {}
        for id in ids:
            start = dict(common)
            if id in own:
                client, mix = setup.federation[id], {name: torch.ones_like(common[name]) for name in HEAD}
                whole = setup.training.model_copy(update={"local_steps": None, "local_epochs": 2})
                for rows in whole.batches(client.size, rng(setup.seed, id, number, "mix")):
                    start = {**common, **{n: own[id][n] + (common[n] - own[id][n]) * mix[n] for n in HEAD}}
                    leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in start.items()}
                    value = cross_entropy(leaves, client.train.x[rows], client.train.y[rows])
                    slopes = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
                    mix = {n: (mix[n] - 20 * slopes[n] * (common[n] - own[id][n])).clamp(0, 1) for n in HEAD}
                start = {**common, **{n: own[id][n] + (common[n] - own[id][n]) * mix[n] for n in HEAD}}
                moved = max(moved, float((1 - mix["head.weight"]).max()))
            trained[id] = plain_training(setup, id, number, start, cross_entropy, fit=fits(setup, id, own))
        own, common = trained, combined(trained, shares)
    assert moved > 0.01
    for id in ids:
        assert_params(engine.model(id), own[id], 1e-4)


def fits(setup: Setup, id: str, own: dict[str, Plain]) -> int:
    """How many fits the client's phase makes before it trains: one for each batch of two passes."""
    if id not in own:
        return 0
    training, size = setup.training, setup.federation[id].size
    assert isinstance(training.batch_size, int)
    return 2 * -(-size // training.batch_size)
