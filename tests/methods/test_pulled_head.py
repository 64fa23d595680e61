"""Heads that are pulled to a shared one, against L-BFGS and a linear system."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedkin.methods.blocks.pulled_head import SHARED, Strength, can_pull, pulled_heads, strengths, with_head
from fedkin.tasks import Task

INF = math.inf


def problem(n: int = 40, d: int = 6, outputs: int = 3, seed: int = 0) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    params = {
        "body.weight": torch.zeros(2),
        "head.weight": torch.from_numpy(rng.normal(size=(outputs, d)).astype(np.float32)),
        "head.bias": torch.from_numpy(rng.normal(size=outputs).astype(np.float32)),
    }
    features = torch.from_numpy(np.abs(rng.normal(size=(n, d))).astype(np.float32))
    return params, features, torch.from_numpy(rng.integers(0, outputs, n))


def shared_of(params: dict[str, Tensor]) -> np.ndarray[Any, Any]:
    return np.concatenate([params["head.weight"].double().numpy().T, params["head.bias"].double().numpy()[None]])


@pytest.mark.parametrize("strength", [Strength(1.0, 1.0), Strength(30.0, 30.0), Strength(INF, 0.3), Strength(3.0, 0.5)])
def test_a_classifiers_head_minimises_loss_and_pull(strength: Strength) -> None:
    params, features, labels = problem()
    shared = shared_of(params)
    x = np.c_[features.double().numpy(), np.ones(len(features))]
    free = np.array([strength.weights < INF] * features.shape[1] + [strength.bias < INF])
    pull = np.array([strength.weights] * features.shape[1] + [strength.bias])[free, None]

    def objective(step: np.ndarray[Any, Any]) -> float:
        head = shared.copy()
        head[free] += step.reshape(-1, shared.shape[1])
        logits = x @ head
        logs = logits - logits.max(1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(1, keepdims=True))
        return float(-logs[np.arange(len(x)), labels].sum() + (pull * (head - shared)[free] ** 2).sum() / 2)

    best = minimize(objective, np.zeros(free.sum() * shared.shape[1]), method="BFGS")
    (head,) = pulled_heads(params, features, labels, [strength], Task(3, (6,)))
    mine = objective((head.numpy() - shared)[free].ravel())
    assert mine <= best.fun + 1e-4
    assert np.array_equal(head.numpy()[~free], shared[~free])


@pytest.mark.parametrize("strength", [Strength(1.0, 1.0), Strength(5.0, 0.1), Strength(INF, 2.0), Strength(2.0, INF)])
def test_a_regressions_head_solves_the_linear_system(strength: Strength) -> None:
    params, features, _ = problem(outputs=2)
    y = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32))
    shared = shared_of(params)
    x = np.c_[features.double().numpy(), np.ones(len(features))]
    pull = np.array([min(strength.weights, 1e12)] * 6 + [min(strength.bias, 1e12)])
    expected = shared + np.linalg.solve(x.T @ x + np.diag(pull), x.T @ (y.double().numpy() - x @ shared))
    (head,) = pulled_heads(params, features, y, [strength], Task.regression(2, (6,)))
    np.testing.assert_allclose(head.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_without_strength_the_head_is_the_shared_one_and_with_more_it_moves_less() -> None:
    params, features, labels = problem()
    task = Task(3, (6,))
    heads = pulled_heads(params, features, labels, strengths(task), task)
    assert strengths(task)[0] == SHARED
    assert np.array_equal(heads[0].numpy(), shared_of(params))
    moved = {one: float((head - heads[0]).norm()) for one, head in zip(strengths(task), heads, strict=True)}
    both = [moved[one] for one in strengths(task) if one.weights == one.bias]
    assert both == sorted(both)
    new = with_head(params, heads[0])
    assert all(torch.equal(new[name], params[name]) for name in params)


def test_one_strength_among_many_gives_what_it_gives_alone() -> None:
    params, features, labels = problem()
    task = Task(3, (6,))
    for one, head in zip(strengths(task), pulled_heads(params, features, labels, strengths(task), task), strict=True):
        (alone,) = pulled_heads(params, features, labels, [one], task)
        torch.testing.assert_close(head, alone, rtol=1e-3, atol=1e-3)


def test_a_head_without_a_bias_keeps_none() -> None:
    params, features, labels = problem()
    del params["head.bias"]
    heads = pulled_heads(params, features, labels, [Strength(1.0, 1.0), Strength(INF, 1.0)], Task(3, (6,)))
    assert float(heads[0][-1].abs().max()) == 0
    assert list(with_head(params, heads[0])) == list(params)
    assert torch.equal(heads[1][:-1], params["head.weight"].double().T)


def test_only_linear_heads_over_labels_and_numbers_are_pulled() -> None:
    params, _, _ = problem()
    assert can_pull(params, Task(3, (6,)))
    assert can_pull(params, Task.regression(3, (6,)))
    assert not can_pull(params, Task(3, (1, 4, 4), "segmentation"))
    assert not can_pull({"head.weight": torch.zeros(3, 4, 1, 1)}, Task(3, (6,)))
    assert not can_pull({}, Task(3, (6,)))


@pytest.mark.parametrize("where", ["features", "head"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("task", [Task(3, (5,)), Task.regression(3, (5,))])
def test_a_model_that_has_diverged_keeps_its_head(task: Task, value: float, where: str) -> None:
    params = {"head.weight": torch.full((3, 4), value if where == "head" else 0.5), "head.bias": torch.zeros(3)}
    features = torch.full((6, 4), 1.0 if where == "head" else value)
    targets = torch.arange(6) % 3 if task.labels else torch.zeros(6, 3)
    for head in pulled_heads(params, features, targets, strengths(task), task):
        assert torch.equal(head[:-1].T.nan_to_num(7.0), params["head.weight"].double().nan_to_num(7.0))
