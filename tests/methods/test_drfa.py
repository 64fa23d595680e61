"""DRFA against a plain loop: snapshots, ascent, sampling by lambda."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedkin.keys import rng
from fedkin.methods.blocks.minimax import filled
from fedkin.methods.drfa import Drfa
from fedkin.methods.fedavg import FedAvg
from methods.plain_loops import combined, nearest_on_simplex
from support import Watched, small_federation, small_setup


def lambdas(engine: Watched) -> np.ndarray[Any, np.dtype[np.float64]]:
    kept = engine.server.state["lam"]
    return np.array([float(kept[id]) for id in sorted(kept)])


def plain_steps(w: dict[str, Tensor], client: Any, setup: Any, number: int) -> list[dict[str, Tensor]]:
    """The parameters after 0, 1, ... local steps of SGD."""
    draw = rng(setup.seed, client.id, number, "train.fit0")
    draw.integers(2**63)
    path = [w]
    for rows in setup.training.batches(client.size, draw):
        leaf = {name: tensor.clone().requires_grad_() for name, tensor in path[-1].items()}
        slopes = torch.autograd.grad(loss_of(leaf, client, rows), list(leaf.values()))
        path.append({n: t.detach() - setup.training.lr * g for (n, t), g in zip(leaf.items(), slopes, strict=True)})
    return path


def loss_of(w: dict[str, Tensor], client: Any, rows: Any = slice(None)) -> Tensor:
    z = F.relu(F.linear(client.train.x[rows].double(), w["body.1.weight"], w["body.1.bias"]))
    return F.cross_entropy(F.linear(z, w["head.weight"], w["head.bias"]), client.train.y[rows])


@pytest.mark.parametrize("training", [{"local_steps": 5}, {"local_steps": None, "local_epochs": 2}])
def test_rounds_with_all_clients_against_a_plain_loop(training: dict[str, Any]) -> None:
    gamma, floor, federation = 0.02, 0.01, small_federation()
    setup = small_setup(Drfa(gamma=gamma, floor=floor), federation, dtype=torch.float64, **training)
    engine = Watched(setup)
    ids = sorted(federation)
    w: dict[str, Tensor] = dict(setup.net.initial)
    lam = np.full(len(ids), 1 / len(ids))
    for number in (1, 2, 3):
        engine.round(number)
        share = 1 - rng(setup.seed, "", number, "snapshot").random()
        paths = {id: plain_steps(w, federation[id], setup, number) for id in ids}
        steps = [len(path) - 1 for path in paths.values()]
        counted = dict(zip(ids, lam.tolist(), strict=True))
        w = combined({id: path[-1] for id, path in paths.items()}, counted)
        at = combined({id: path[math.ceil(share * (len(path) - 1))] for id, path in paths.items()}, counted)
        v = np.array([float(loss_of(at, federation[id])) for id in ids])
        lam = nearest_on_simplex(lam + gamma * float(np.mean(steps)) * v, floor)
        np.testing.assert_allclose(lambdas(engine), lam, atol=1e-6)
        lam = lambdas(engine)
        for name, tensor in w.items():
            torch.testing.assert_close(engine.server.state["params"][name], tensor, rtol=1e-6, atol=1e-8)


def test_weights_by_samples_come_from_the_clients_and_rates_decay() -> None:
    federation = small_federation()
    sizes = np.array([federation[id].size for id in sorted(federation)])
    engine = Watched(small_setup(Drfa(gamma=0.0, lambda_start="samples", snapshot=False), federation))
    engine.round(1)
    np.testing.assert_allclose(lambdas(engine), sizes / sizes.sum(), rtol=1e-12)
    average = Watched(small_setup(FedAvg(), federation))
    average.round(1)
    for name, tensor in average.server.state["params"].items():
        torch.testing.assert_close(engine.server.state["params"][name], tensor, rtol=1e-5, atol=1e-6)
    engine.round(2)
    assert [phase for phase, _, _ in engine.asks] == ["size", "train", "losses", "train", "losses"]

    gains = []
    for decay in (1.0, 0.5):
        engine = Watched(small_setup(Drfa(gamma=0.001, gamma_decay=decay, snapshot=False), federation))
        for number in (1, 2):
            before = lambdas(engine)
            engine.round(number)
        gains.append(lambdas(engine) - before)
    assert np.abs(gains[1]).max() == pytest.approx(np.abs(gains[0]).max() / 2, rel=0.05)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(0, 4))
def test_newcomers_start_at_one_kth_and_the_others_keep_their_proportions(values: list[float], new: int) -> None:
    p = np.array(values) / np.sum(values)
    known = {f"old-{k}": torch.tensor(v, dtype=torch.float64) for k, v in enumerate(p)}
    ids = [*known, *(f"new-{k}" for k in range(new))]
    grown = filled(known, ids)
    assert grown.sum() == pytest.approx(1)
    assert np.allclose(grown[len(p) :], 1 / len(ids))
    np.testing.assert_allclose(grown[: len(p)] / grown[: len(p)].sum(), p, rtol=1e-9)
    assert new or np.array_equal(grown, p)
