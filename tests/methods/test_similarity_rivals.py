"""FedAMP and pFedGraph: their mixing rows, and rounds against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from fedkin.engines import LocalEngine
from fedkin.methods.fedamp import FedAMP, attention
from fedkin.methods.local import Local
from fedkin.methods.pfedgraph import PFedGraph, collaboration
from methods.plain_loops import Plain, assert_params, combined, entropy, initial, logits, plain_training
from support import small_setup


def cross_entropy(params: Plain, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return entropy(logits(params, x), y)


def flat(params: Plain) -> Any:
    return torch.cat([params[name].flatten() for name in sorted(params)]).double().numpy()


def test_attention_is_that_of_equation_6() -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(5, 3))
    squared = ((w[:, None] - w[None]) ** 2).sum(2)
    found = attention(squared, 0.4, 2.0)
    for i in range(5):
        for j in range(5):
            if i != j:
                assert np.isclose(found[i, j], 0.4 / 2 * np.exp(-squared[i, j] / 2))
    np.testing.assert_allclose(found.sum(1), 1)


def test_attention_of_many_equal_models_stays_a_mean() -> None:
    found = attention(np.zeros((9, 9)), 1.0, 0.5)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1)


def test_two_rounds_of_fedamp_are_those_of_a_plain_loop() -> None:
    method = FedAMP(lam=0.6, alpha=0.5, sigma=2.0)
    engine = LocalEngine(small_setup(method))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    own = {id: initial(setup) for id in ids}
    for number in (1, 2):
        engine.round(number)
        if number == 1:
            clouds = {id: initial(setup) for id in ids}
        else:
            w = np.stack([flat(own[id]) for id in ids])
            xi = attention(((w[:, None] - w[None]) ** 2).sum(2), 0.5, 2.0)
            clouds = {id: combined(own, dict(zip(ids, xi[k].tolist(), strict=True))) for k, id in enumerate(ids)}
        trained = {}
        for id in ids:

            def pulled(params: Plain, x: torch.Tensor, y: torch.Tensor, centre: Plain = clouds[id]) -> torch.Tensor:
                apart = torch.stack([((params[name] - centre[name]) ** 2).sum() for name in params]).sum()
                return cross_entropy(params, x, y) + 0.6 / 0.5 / 2 * apart

            trained[id] = plain_training(setup, id, number, own[id], pulled)
        own = trained
    for id in ids:
        assert_params(engine.model(id), own[id])


def test_fedamp_without_a_pull_is_local_training() -> None:
    one, other = LocalEngine(small_setup(FedAMP(lam=0))), LocalEngine(small_setup(Local()))
    for number in (1, 2):
        one.round(number)
        other.round(number)
    for id in sorted(one.setup.federation):
        assert_params(one.model(id), dict(other.model(id)), 1e-6)


def test_rows_of_pfedgraph_minimise_equation_5() -> None:
    rng = np.random.default_rng(1)
    similar, sizes, alpha = np.clip(rng.normal(size=(5, 5)), -1, 1), [3, 1, 4, 1, 5], 0.8
    rows = collaboration(similar, sizes, alpha)
    p = np.array(sizes) / sum(sizes)
    for i in range(5):

        def objective(w: Any, s: Any = similar[i]) -> float:
            return float(alpha * ((w - p) ** 2).sum() - w @ s)

        sums_to_one: Any = {"type": "eq", "fun": lambda w: w.sum() - 1}
        result = minimize(
            objective, p, method="SLSQP", bounds=[(0, 1)] * 5, constraints=sums_to_one, options={"ftol": 1e-14}
        )
        np.testing.assert_allclose(rows[i], result.x, atol=1e-6)


def test_equal_models_give_pfedgraph_the_shares_of_samples() -> None:
    np.testing.assert_allclose(collaboration(np.ones((3, 3)), [1, 2, 1], 0.1), [[0.25, 0.5, 0.25]] * 3)


def test_two_rounds_of_pfedgraph_are_those_of_a_plain_loop() -> None:
    engine = LocalEngine(small_setup(PFedGraph(alpha=0.3, lam=0.2)))
    setup, ids = engine.setup, sorted(engine.setup.federation)
    start = initial(setup)
    sizes = [setup.federation[id].size for id in ids]
    starts = dict.fromkeys(ids, start)
    for number in (1, 2):
        engine.round(number)
        own = {}
        for id in ids:

            def along(params: Plain, x: torch.Tensor, y: torch.Tensor, centre: Plain = starts[id]) -> torch.Tensor:
                one, other = (torch.cat([each[name].flatten() for name in params]) for each in (params, centre))
                return cross_entropy(params, x, y) - 0.2 * torch.cosine_similarity(one, other, dim=0)

            own[id] = plain_training(setup, id, number, starts[id], along)
        updates = np.stack([flat(own[id]) - flat(start) for id in ids])
        unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        rows = collaboration(unit @ unit.T, sizes, 0.3)
        starts = {id: combined(own, dict(zip(ids, rows[k].tolist(), strict=True))) for k, id in enumerate(ids)}
    for id in ids:
        assert_params(engine.model(id), own[id])
    graph = engine.server.graph
    assert graph is not None
    np.testing.assert_allclose(np.asarray(graph.mixing), np.asarray(rows), atol=1e-5)
