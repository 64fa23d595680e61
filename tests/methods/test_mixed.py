"""Mixed-effects models from sums: equal to the fit on pooled rows by a dense oracle, and what its use promises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedkin
from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Task
from fedkin.learning.models import Linear
from fedkin.learning.net import Net
from fedkin.methods.mixed import Mixed, Site, blups, reml
from support import play, samples_of, small_federation, small_setup

Array = Any


def world(sizes: tuple[int, ...] = (5, 30, 12, 60, 9, 22, 2, 40), seed: int = 0) -> list[tuple[Array, Array]]:
    """Unbalanced clients of one mixed model with random intercept and slopes: float32 (X with ones [n, 4], y [n])."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in sizes:
        x = np.c_[rng.normal(size=(n, 3)), np.ones(n)]
        own = rng.normal(size=4) * np.array([0.6, 0.6, 0.6, 1.5])
        y = x @ (np.array([1.0, -2.0, 0.5, 3.0]) + own) + rng.normal(size=n)
        rows.append((x.astype(np.float32).astype(float), y.astype(np.float32).astype(float)))
    return rows


def sites(rows: list[tuple[Array, Array]]) -> list[Site]:
    return [Site(x.T @ x, x.T @ y, float(y @ y), len(y)) for x, y in rows]


def dense(rows: list[tuple[Array, Array]], ratios: Array) -> tuple[float, Array, float]:
    """-2 log of the restricted likelihood (up to a constant), beta and sigma^2, by matrices over all pooled rows."""
    x, y = np.concatenate([x for x, _ in rows]), np.concatenate([y for _, y in rows])
    v = np.zeros((len(y), len(y)))
    start = 0
    for part, _ in rows:
        end = start + len(part)
        v[start:end, start:end] = np.eye(len(part)) + part @ np.diag(ratios) @ part.T
        start = end
    inverse = np.linalg.inv(v)
    a = x.T @ inverse @ x
    beta = np.linalg.solve(a, x.T @ inverse @ y)
    r = y - x @ beta
    degrees = len(y) - x.shape[1]
    sigma2 = float(r @ inverse @ r) / degrees
    return np.linalg.slogdet(v)[1] + np.linalg.slogdet(a)[1] + degrees * math.log(sigma2), beta, sigma2


def spread(logs: Array, slopes: str) -> Array:
    if slopes == "each":
        return np.exp(logs)
    return np.r_[np.full(3, np.exp(logs[0]) if slopes == "common" else 0.0), np.exp(logs[-1])]


# MixedLM of statsmodels 0.15 on the pooled rows of `world`: REML, exog_re the ones or all columns with `free` diagonal.
STATSMODELS = {
    "none": ([1.0938866, -2.3124332, 0.4234861, 3.5242373], 1.7849349, [0, 0, 0, 0.4540177]),
    "each": ([1.0532786, -1.9534315, 0.5639254, 3.4613488], 1.0980615, [0.1234410, 0.3828817, 0.2059869, 0.8483530]),
}


@pytest.mark.parametrize("slopes", STATSMODELS)
def test_a_fit_from_sums_is_that_of_statsmodels(slopes: Literal["none", "each"]) -> None:
    fit = reml(sites(world()), slopes)
    beta, sigma2, ratios = STATSMODELS[slopes]
    np.testing.assert_allclose(fit.beta, beta, rtol=1e-4)
    np.testing.assert_allclose(fit.sigma2, sigma2, rtol=1e-4)
    np.testing.assert_allclose(fit.ratios, ratios, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("slopes", ["none", "common", "each"])
def test_a_fit_from_sums_is_the_fit_on_pooled_rows(slopes: Literal["none", "common", "each"]) -> None:
    rows = world()
    fit = reml(sites(rows), slopes)
    count = {"none": 1, "common": 2, "each": 4}[slopes]

    def objective(logs: Array) -> float:
        return float(dense(rows, spread(logs, slopes))[0])

    options: Any = {"xatol": 1e-7, "fatol": 1e-11, "maxiter": 5000}
    oracle = minimize(objective, np.zeros(count), method="Nelder-Mead", options=options)
    value, beta, sigma2 = dense(rows, spread(oracle.x, slopes))
    np.testing.assert_allclose(fit.beta, beta, rtol=1e-4)
    np.testing.assert_allclose(fit.sigma2, sigma2, rtol=1e-4)
    assert dense(rows, fit.ratios)[0] <= value + 1e-6


def test_blups_are_those_of_the_pooled_model() -> None:
    rows, ratios = world(), np.array([0.2, 0.0, 0.7, 2.0])
    _, beta, _ = dense(rows, ratios)
    for x, y in rows:
        # u = D X' V^-1 (y - X beta)
        expected = np.diag(ratios) @ x.T @ np.linalg.solve(np.eye(len(y)) + x @ np.diag(ratios) @ x.T, y - x @ beta)
        np.testing.assert_allclose(blups(x.T @ x, x.T @ (y - x @ beta), ratios), expected, atol=1e-10)


def test_clients_without_differences_get_least_squares() -> None:
    rng = np.random.default_rng(1)
    rows = []
    for n in (20, 35, 50, 28):
        x = np.c_[rng.normal(size=(n, 3)), np.ones(n)]
        noise = rng.normal(size=n) * 0.1
        # Residuals are the same in each client on average: no variance between them is left.
        rows.append((x, x @ np.ones(4) + noise - noise.mean()))
    x, y = np.concatenate([x for x, _ in rows]), np.concatenate([y for _, y in rows])
    fit = reml(sites(rows), "none")
    assert fit.ratios[-1] < 1e-6
    np.testing.assert_allclose(fit.beta, np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 0.0], ids=["twice", "zero"])
def test_a_column_that_adds_nothing_changes_no_prediction(factor: float) -> None:
    rows = world()
    twice = [(np.c_[factor * x[:, :1], x], y) for x, y in rows]
    one, two = reml(sites(rows), "none"), reml(sites(twice), "none")
    for (x, _), (xx, _) in zip(rows, twice, strict=True):
        np.testing.assert_allclose(x @ one.beta, xx @ two.beta, atol=1e-6)


def regression(rows: list[tuple[Array, Array]]) -> Federation:
    clients = []
    for k, (x, y) in enumerate(rows):
        samples = samples_of(x[:, :3], y[:, None].astype(np.float32))
        clients.append(Client(f"site-{k}", samples, samples))
    return Federation(clients, Task.regression(1, (3,)))


def engine(federation: Federation, observers: Any = (), **kinds: Any) -> LocalEngine:
    net = Net.build(lambda: Linear().build(federation.task), 0, torch.float64)
    return LocalEngine(replace(small_setup(Mixed(**kinds), federation), net=net), observers=observers)


def test_models_of_clients_are_fixed_effects_and_blups() -> None:
    rows = world()
    run = engine(regression(rows))
    run.round(1)
    fit = reml(sites(rows))
    for k, (x, y) in enumerate(rows):
        expected = fit.beta + blups(x.T @ x, x.T @ (y - x @ fit.beta), fit.ratios)
        model = run.model(f"site-{k}")
        np.testing.assert_allclose(model["head.weight"][0].numpy(), expected[:3], rtol=1e-5)
        np.testing.assert_allclose(model["head.bias"][0].numpy(), expected[3], rtol=1e-5)


def test_each_client_sends_one_message_of_sums_and_no_rows() -> None:
    witness = RecordingObserver()
    play(engine(regression(world()), [witness]), 1, 2, 3)
    replies = [each.message for each in witness.envelopes if each.receiver == "server"]
    assert len(replies) == len(world())
    assert {name: tuple(value.shape) for name, value in replies[0].items() if name != "n"} == {
        "xx": (4, 4), "xy": (4, 1), "yy": (1,),
    }  # fmt: skip


def two_classes(seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    clients = []
    for k, n in enumerate((40, 25, 60, 18, 90, 33)):
        x = rng.normal(size=(n, 3))
        eta = x @ np.array([1.0, -0.5, 0.0]) + rng.normal() * 1.2
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        samples = samples_of(x, y)
        clients.append(Client(f"site-{k}", samples, samples))
    return Federation(clients, Task(2, (3,)))


@pytest.mark.slow
def test_two_classes_reach_the_fixed_point_of_penalised_quasi_likelihood() -> None:
    """A penalised logistic likelihood with the variance that was found has the same modes, by a general solver."""
    federation = two_classes()
    run = engine(federation, slopes="none")
    play(run, *range(1, 31))
    ratio = float(run.server.state["ratios"][0, -1])
    assert ratio > 0.1
    parts = [
        (
            np.c_[client.train.inputs(slice(None), torch.float64).numpy(), np.ones(client.size)],
            client.train.y.double().numpy(),
        )
        for _, client in sorted(federation.items())
    ]

    def penalised(theta: Array) -> float:
        beta, own = theta[:4], theta[4:]
        value = 0.5 * float(own @ own) / ratio
        for (x, y), u in zip(parts, own, strict=True):
            eta = x @ beta + u
            value += float(np.logaddexp(0, eta).sum() - y @ eta)
        return value

    modes = minimize(penalised, np.zeros(4 + len(parts)), method="BFGS", options={"gtol": 1e-8}).x
    for k, id in enumerate(sorted(federation)):
        model = run.model(id)
        found = [*(model["head.weight"][1] - model["head.weight"][0]).tolist(), float(model["head.bias"].diff())]
        np.testing.assert_allclose(found, [*modes[:3], modes[3] + modes[4 + k]], atol=2e-3)


def test_an_unseen_client_is_predicted_by_the_others_fit_and_its_own_rows() -> None:
    rows = world()
    federation = regression(rows)
    last = sorted(federation)[-1]
    unseen = Federation([replace(federation[id], seen=id != last) for id in federation], federation.task)
    run = engine(unseen)
    run.round(1)
    x, y = rows[-1]
    fit = reml(sites(rows[:-1]))
    expected = x @ (fit.beta + blups(x.T @ x, x.T @ (y - x @ fit.beta), fit.ratios))
    assert run.evaluate()[last].loss == pytest.approx(float(((expected - y) ** 2).mean()), rel=1e-5)


def test_other_nets_and_tasks_are_refused_with_the_setting() -> None:
    with pytest.raises(ConfigError, match=r'model\.name = "linear"'):
        small_setup(Mixed(), regression(world())).equipped()
    with pytest.raises(ConfigError, match="two classes"):
        fedkin.run("mixed", small_federation(), rounds=1, model="linear")
