"""FedAvg with fine-tuning, Ditto, APFL, Per-FedAvg and SCAFFOLD against plain loops, and their exact special cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedkin.engines import LocalEngine
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.flow import ServerMethod
from fedkin.keys import rng
from fedkin.methods.apfl import APFL
from fedkin.methods.ditto import Ditto
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedavg_ft import FedAvgFT
from fedkin.methods.local import Local
from fedkin.methods.perfedavg import PerFedAvg
from fedkin.methods.scaffold import Scaffold
from methods.plain_loops import Plain, assert_params, combined, entropy, initial, logits, plain_training, sample_shares
from support import small_federation, small_setup


def cross_entropy(params: Plain, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return entropy(logits(params, x), y)


def gradient(params: Plain, x: torch.Tensor, y: torch.Tensor) -> Plain:
    leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in params.items()}
    return dict(zip(leaves, torch.autograd.grad(cross_entropy(leaves, x, y), list(leaves.values())), strict=True))


def ran(method: ServerMethod, rounds: int = 2, **settings: Any) -> LocalEngine:
    engine = LocalEngine(small_setup(method, **settings))
    for number in range(1, rounds + 1):
        engine.round(number)
    return engine


def models(engine: LocalEngine) -> dict[str, Any]:
    return {id: engine.model(id) for id in sorted(engine.setup.federation)}


def same(one: LocalEngine, other: LocalEngine, tolerance: float = 1e-6) -> None:
    for id, params in models(one).items():
        assert_params(params, dict(other.model(id)), tolerance)


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        (FedAvgFT(passes=0), FedAvg()),
        (Ditto(lam=0), Local()),
        (APFL(alpha=0, adaptive=False), FedAvg()),
        (APFL(alpha=1, adaptive=False), Local()),
        (PerFedAvg(alpha=0), FedAvg()),
    ],
    ids=["fedavg-ft", "ditto", "apfl-0", "apfl-1", "per-fedavg"],
)
def test_the_limit_of_a_setting_is_a_simpler_method(method: ServerMethod, limit: ServerMethod) -> None:
    # One batch a step: the draws of the two methods need not be the same.
    settings: dict[str, Any] = {"batch_size": "all", "local_steps": 3}
    same(ran(method, **settings), ran(limit, **settings))


def test_a_strong_pull_holds_dittos_personal_models_at_the_common_one() -> None:
    settings: dict[str, Any] = {"batch_size": "all", "local_steps": 30, "lr": 0.01}
    weak, strong = ran(Ditto(lam=0.1), 1, **settings), ran(Ditto(lam=99.0), 1, **settings)
    common = strong.setup.net.initial  # what the clients received in the only round
    apart = [
        sum(float((params[name] - common[name]).square().sum()) for name in common)
        for engine in (weak, strong)
        for params in models(engine).values()
    ]
    half = len(apart) // 2
    assert max(apart[half:]) < min(apart[:half]) / 10


def test_two_rounds_of_fine_tuning_are_fedavg_and_then_passes() -> None:
    engine, plain = ran(FedAvgFT(passes=1), batch_size="all"), ran(FedAvg(), batch_size="all")
    rate = engine.setup.training.lr
    for id, params in models(engine).items():
        data = engine.setup.federation[id].train
        common = dict(plain.model(id))
        slope = gradient(common, data.inputs(slice(None), torch.float32), data.y)
        assert_params(params, {name: common[name] - rate * slope[name] for name in common})


def test_two_rounds_of_ditto_are_those_of_a_plain_loop() -> None:
    method = Ditto(lam=0.7)
    engine = LocalEngine(small_setup(method))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    shares, common = sample_shares(setup.federation), initial(setup)
    own = {id: initial(setup) for id in ids}
    for number in (1, 2):
        engine.round(number)
        received = common

        def pulled(params: Plain, x: torch.Tensor, y: torch.Tensor, centre: Plain = received) -> torch.Tensor:
            apart = sum(((params[name] - centre[name]) ** 2).sum() for name in params)
            return cross_entropy(params, x, y) + 0.35 * apart

        common = combined({id: plain_training(setup, id, number, received, cross_entropy) for id in ids}, shares)
        own = {id: plain_training(setup, id, number, own[id], pulled, fit=1) for id in ids}
    for id in ids:
        assert_params(engine.model(id), own[id])


def test_two_rounds_of_apfl_are_those_of_a_plain_loop() -> None:
    engine = LocalEngine(small_setup(APFL(alpha=0.3)))
    setup, ids, rate = engine.setup, sorted(engine.setup.federation), engine.setup.training.lr
    shares, common = sample_shares(setup.federation), initial(setup)
    own, alphas = {id: initial(setup) for id in ids}, dict.fromkeys(ids, 0.3)
    for number in (1, 2):
        engine.round(number)
        trained = {}
        for id in ids:
            w, v, alpha = dict(common), own[id], alphas[id]
            client = setup.federation[id]
            for step, rows in enumerate(setup.training.batches(client.size, rng(setup.seed, id, number, "batches"))):
                x, y = client.train.x[rows], client.train.y[rows]
                mixed = {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}
                slope, plain = gradient(mixed, x, y), gradient(w, x, y)
                inner = sum(float(((v[name] - w[name]) * slope[name]).sum()) for name in w)
                v = {name: v[name] - rate * alpha * slope[name] for name in v}
                w = {name: w[name] - rate * plain[name] for name in w}
                alpha = min(max(alpha - rate * inner, 0.0), 1.0) if step == 0 else alpha
            trained[id], own[id], alphas[id] = w, v, alpha
        common = combined(trained, shares)
    assert len({round(alpha, 6) for alpha in alphas.values()}) > 1
    for id in ids:
        mixed = {name: alphas[id] * own[id][name] + (1 - alphas[id]) * common[name] for name in common}
        assert_params(engine.model(id), mixed)


@pytest.mark.parametrize("order", ["first", "second"])
def test_two_rounds_of_per_fedavg_are_those_of_a_plain_loop(order: str) -> None:
    engine = ran(PerFedAvg(alpha=0.2, order=order))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    shares, common = sample_shares(setup.federation), initial(setup)

    def adapted(params: Plain, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inner = torch.autograd.grad(
            cross_entropy(params, x[0::2], y[0::2]), list(params.values()), create_graph=order == "second"
        )
        moved = {name: p - 0.2 * g for (name, p), g in zip(params.items(), inner, strict=True)}
        return cross_entropy(moved, x[1::2], y[1::2])

    for number in (1, 2):
        common = combined({id: plain_training(setup, id, number, common, adapted) for id in ids}, shares)
    for id in ids:
        data = setup.federation[id].train
        slope = gradient(common, data.inputs(slice(None), torch.float32), data.y)
        assert_params(engine.model(id), {name: common[name] - 0.2 * slope[name] for name in common})


def test_two_rounds_of_scaffold_are_those_of_a_plain_loop() -> None:
    engine = ran(Scaffold(rate=0.8))
    setup, ids, rate = engine.setup, sorted(engine.setup.federation), engine.setup.training.lr
    common = initial(setup)
    zero = {name: torch.zeros_like(tensor) for name, tensor in common.items()}
    control, own = dict(zero), dict.fromkeys(ids, zero)
    steps = setup.training.local_steps
    assert steps is not None
    for number in (1, 2):
        trained, changes = {}, []
        for id in ids:
            shift = {name: control[name] - own[id][name] for name in control}

            def corrected(params: Plain, x: torch.Tensor, y: torch.Tensor, shift: Plain = shift) -> torch.Tensor:
                linear = torch.stack([(shift[name] * params[name]).sum() for name in params]).sum()
                return cross_entropy(params, x, y) + linear

            trained[id] = plain_training(setup, id, number, common, corrected)
            change = {n: (common[n] - trained[id][n]) / (steps * rate) - control[n] for n in common}
            own[id] = {name: own[id][name] + change[name] for name in common}
            changes.append(change)
        mean = combined(trained, dict.fromkeys(ids, 1 / len(ids)))
        common = {name: common[name] + 0.8 * (mean[name] - common[name]) for name in common}
        control = {name: c + sum(change[name] for change in changes) / len(ids) for name, c in control.items()}
    for id in ids:
        assert_params(engine.model(id), common)
    assert_params(engine.server.state["control"], control)


def test_scaffold_with_equal_data_and_whole_batches_is_fedavg() -> None:
    federation = small_federation()
    first = federation[sorted(federation)[0]]
    clients = [replace(federation[id], train=first.train, test=first.test) for id in federation]
    equal = Federation(clients, federation.task)
    settings: dict[str, Any] = {"federation": equal, "batch_size": "all"}
    same(ran(Scaffold(), 3, **settings), ran(FedAvg(), 3, **settings), 1e-5)


def test_scaffold_refuses_momentum_by_name() -> None:
    with pytest.raises(FedkinError, match=r"training\.momentum"):
        ran(Scaffold(), 1, momentum=0.9)
