"""FedAMP and pFedGraph: their mixing rows, and rounds against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedkin.methods.fedamp import attention
from fedkin.methods.pfedgraph import PFedGraph, collaboration
from support import Watched, present, small_setup


def test_attention_of_many_equal_models_stays_a_mean() -> None:
    found = attention(np.zeros((9, 9)), 1.0, 0.5)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1)


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


def test_rows_of_pfedgraph_are_the_shares_of_samples_where_models_are_equal() -> None:
    np.testing.assert_allclose(collaboration(np.ones((3, 3)), [3, 1, 4], 0.8), [[3 / 8, 1 / 8, 1 / 2]] * 3, atol=1e-12)


def test_pfedgraph_records_the_rows_by_which_it_mixes() -> None:
    watched = Watched(small_setup(PFedGraph(alpha=0.3))).rounds(1)
    replies, graph = watched.replies("train"), present(watched.server.graph)
    moved = [
        np.concatenate(
            [(replies[id].params[name] - watched.initial[name]).flatten().numpy() for name in watched.initial]
        )
        for id in sorted(replies)
    ]
    unit = np.stack(moved) / np.linalg.norm(moved, axis=1, keepdims=True)
    rows = collaboration(unit @ unit.T, [replies[id]["n"] for id in sorted(replies)], 0.3)
    np.testing.assert_allclose(np.asarray(graph.mixing), rows, atol=1e-5)
    np.testing.assert_allclose(np.asarray(graph.weights), rows * (1 - np.eye(6)), atol=1e-5)
