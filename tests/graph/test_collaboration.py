"""MAPL's graph objective: exact optima, the paper's and the released steps, planted clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedkin import graph as g
from fedkin.errors import GraphError
from support import planted_similarities

PAPER: dict[str, Any] = {"mu1": 0.5, "mu2": 0.1, "beta": 0.5}


def problem(seed: int, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "s": rng.uniform(-1, 1, n), "own": int(rng.integers(n)), "gamma": rng.uniform(0.2, 2, n),
        "trust": rng.uniform(0.3, 3, n), "mu1": float(rng.uniform(0.1, 1)), "mu2": float(rng.uniform(0.01, 0.5)),
        "beta": float(rng.uniform(0.1, 3)),
    }  # fmt: skip


def loss_of(
    w: Any, s: Any, own: int, *, gamma: Any = 1.0, trust: Any = 1.0, mu1: float, mu2: float, beta: float,
    eps: float = 1e-6,
) -> float:  # fmt: skip
    """The objective, MAPL Eq. (7-9), written out."""
    w = np.asarray(w)
    norm, degree = np.sqrt((w * w / trust).sum()), w.sum() - w[own]
    return float(-mu1 * (gamma * np.asarray(s) * w).sum() + mu2 * (beta * norm - np.log(degree + eps)))


def by_projected_gradient(steps: int, **p: Any) -> Any:
    """The optimum by a plain loop: ever smaller steps down the written-out gradient, each projected."""
    s, own, t = p["s"], p["own"], p["trust"]
    w = np.full(len(s), 1 / len(s))
    for step in range(steps):
        slope = -p["mu1"] * p["gamma"] * s + p["mu2"] * p["beta"] * (w / t) / np.sqrt((w * w / t).sum())
        slope[np.arange(len(s)) != own] -= p["mu2"] / (1 - w[own] + 1e-6)
        w = g.project(w - 0.5 / (1 + step) ** 0.6 * slope)
    return w


@pytest.mark.parametrize("n", [2, 5, 20])
@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_slsqps(n: int, seed: int) -> None:
    p = problem(seed, n)
    w = g.collaboration_weights(**p)
    total: Any = {"type": "eq", "fun": lambda x: x.sum() - 1}
    options: Any = {"ftol": 1e-13, "maxiter": 800}

    def cost(x: Any) -> float:
        return loss_of(np.clip(x, 0, 1), **p)

    found = minimize(
        cost, np.full(n, 1 / n), method="SLSQP", constraints=[total], bounds=[(1e-12, 1 - 1e-9)] * n, options=options
    )
    assert loss_of(w, **p) <= found.fun + 1e-8
    np.testing.assert_allclose(w, found.x, atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_a_projected_gradient_loops(seed: int) -> None:
    p = problem(seed, 6)
    w, slow = g.collaboration_weights(**p), by_projected_gradient(20_000, **p)
    assert loss_of(w, **p) <= loss_of(slow, **p) + 1e-9
    np.testing.assert_allclose(w, slow, atol=5e-3)


@given(st.integers(0, 10**6), st.integers(2, 9), st.data())
@settings(deadline=None)
def test_nothing_on_the_simplex_is_better(seed: int, n: int, data: Any) -> None:
    p = problem(seed, n)
    w = g.collaboration_weights(**p)
    assert w.sum() == pytest.approx(1)
    assert (w >= 0).all()
    raw = np.array(data.draw(st.lists(st.floats(0.001, 1), min_size=n, max_size=n)))
    assert loss_of(w, **p) <= loss_of(raw / raw.sum(), **p) + 1e-9


@given(st.integers(0, 10**6), st.integers(2, 9), st.randoms(use_true_random=False))
def test_relabelling_relabels(seed: int, n: int, random: Any) -> None:
    p = problem(seed, n)
    order = list(range(n))
    random.shuffle(order)
    moved = p | {name: p[name][order] for name in ("s", "gamma", "trust")} | {"own": order.index(p["own"])}
    np.testing.assert_allclose(g.collaboration_weights(**moved), g.collaboration_weights(**p)[order], atol=1e-9)


def test_limits() -> None:
    assert g.collaboration_weights([0.3], 0).tolist() == [1.0]
    # Without a norm the weight goes to the best neighbour, and the log decides how much stays: 1 - w_own = mu2 / gain.
    w = g.collaboration_weights([1.0, 0.5, 0.2], 0, mu1=1.0, mu2=0.1, beta=0.0, eps=1e-12)
    np.testing.assert_allclose(w, [0.8, 0.2, 0.0], atol=1e-9)
    # Without the log it is the norm's own closed form.
    s = np.array([0.2, 0.9, 0.8])
    w = g.collaboration_weights(s, 0, mu1=1.0, mu2=1e-9, beta=0.5e9)
    np.testing.assert_allclose(w, g.norm_regularised(s, 0.5), atol=1e-6)
    # A norm that outweighs all: weights as the trust.
    w = g.collaboration_weights(s, 0, trust=[1.0, 2.0, 1.0], mu2=1e-6, beta=1e12)
    np.testing.assert_allclose(w, [0.25, 0.5, 0.25], atol=1e-5)


@pytest.mark.parametrize("term", ["mu1", "mu2", "beta", "gamma", "trust", "eps"])
def test_every_term_is_live(term: str) -> None:
    p = problem(3, 5) | {"eps": 1e-6, "own": 1}
    p["s"] = np.array([0.9, 0.95, 0.8, 0.7, 0.2])
    p |= {"mu2": 0.3, "beta": 2.0}
    if term in ("mu2", "eps"):  # the log matters to a peer whose neighbours are unlike it
        p |= {"s": np.array([0.1, 1.0, 0.1, 0.0, 0.2]), "mu2": 0.01, "beta": 1.0}
    other = p | {term: p[term] * np.array([1, 2, 1, 3, 1]) if term in ("gamma", "trust") else p[term] * 3 + 0.1}
    assert np.abs(g.collaboration_weights(**p) - g.collaboration_weights(**other)).max() > 1e-3


def test_the_papers_optimum_leaves_weight_across_and_none_on_itself() -> None:
    """Confidence over the sum of counts, mu2 = 0.1, beta = 0.5: nothing is exactly zero across, and w_ii is."""
    shares = {}
    for m in (10, 20, 100):
        s, labels, n = planted_similarities(m, 2, 0.5, 0.0, 0.0)
        rows = np.stack([g.collaboration_weights(s[i], i, gamma=n / n.sum(), **PAPER) for i in range(0, m, m // 5)])
        assert (rows[np.arange(5), np.arange(0, m, m // 5)] < 1e-9).all()
        across = labels != labels[np.arange(0, m, m // 5), None]
        shares[m] = rows[across].sum() / 5
        assert m == 10 or (rows[across] > 0).all()
    assert 0.01 < shares[10] < 0.1
    assert 0.15 < shares[20] < 0.25
    assert 0.35 < shares[100] < 0.45


def test_relative_similarity() -> None:
    np.testing.assert_allclose(g.relative_similarity([0.3, 1.0, 0.6, -0.9], 1), [0.5, 1.0, 1.0, -1.0])
    np.testing.assert_allclose(g.relative_similarity([1.0, -0.2, 0.5], 0), [1.0, -0.4, 1.0])
    np.testing.assert_allclose(g.relative_similarity([1.0, -0.2, 0.4], 0), [1.0, -0.2, 0.4])
    np.testing.assert_allclose(g.relative_similarity([1.0, -0.2, 0.4], 0, alike=0.2), [1.0, -0.5, 1.0])
    assert g.relative_similarity([0.3], 0).tolist() == [1.0]
    with pytest.raises(GraphError, match="alike: expected a similarity above 0"):
        g.relative_similarity([1.0, 0.5], 0, alike=0.0)


# -- the named steps ---------------------------------------------------------------------------------------------


def test_the_papers_step_descends_the_whole_objective() -> None:
    p = {name: value for name, value in problem(1, 6).items() if name != "trust"}
    w = np.random.default_rng(0).dirichlet(np.ones(6))
    rate, before = 1e-3, w
    after = g.gradient_step(w, rate=rate, **p)
    # Inside the simplex, projecting takes off the mean: the step is the centred gradient.
    slope = (before - after) / rate

    def loss(x: Any) -> float:
        return loss_of(x, **p)

    numeric = np.array([(loss(w + 1e-6 * e) - loss(w - 1e-6 * e)) / 2e-6 for e in np.eye(6)])
    np.testing.assert_allclose(slope, numeric - numeric.mean(), atol=1e-5)
    many = g.gradient_step(w, rate=0.02, steps=5000, **p)
    assert loss(many) == pytest.approx(loss(g.collaboration_weights(**p)), abs=1e-4)


def test_the_papers_step_from_equal_weights_does_not_separate() -> None:
    """Its settings, 300 rounds of one step: a fifth of the weight or more stays across and w_ii is driven to 0."""
    s, labels, _ = planted_similarities(20, 2, 0.5, 0.0, 0.0)
    w = np.full(20, 1 / 20)
    for _ in range(300):
        w = g.gradient_step(w, s[0], 0, gamma=np.full(20, 1 / 20), **PAPER)
    assert 0.15 < w[labels != labels[0]].sum() < 0.3
    assert w[0] < 1e-9


@pytest.mark.parametrize(("m", "grows"), [(20, True), (99, True), (101, False), (1000, False)])
def test_the_released_step_is_a_threshold_that_fails_above_a_hundred_peers(m: int, grows: bool) -> None:
    """From equal weights an entry grows iff s_ij > 0.1 sqrt(M): beyond M = 100 none does, self included."""
    s = np.where(np.arange(m) % 2 == 0, 1.0, 0.0)
    w = np.full(m, 1 / m)
    after = g.sign_step(w, s, 0, gamma=np.full(m, 1 / m), **PAPER)
    if grows:
        assert (after[::2] > w[::2]).all()
        assert (after[1::2] < w[1::2]).all()
    else:
        np.testing.assert_allclose(after, w, atol=1e-12)


def test_the_released_step_is_adams_first() -> None:
    import torch

    rng = np.random.default_rng(2)
    n = 7
    w, s, gamma = rng.dirichlet(np.ones(n)), rng.uniform(-1, 1, n), rng.dirichlet(np.ones(n))
    leaf = torch.tensor(w, requires_grad=True)
    adam = torch.optim.Adam([leaf], lr=0.1, betas=(0.5, 0.999))
    (0.5 * (torch.tensor(-s * gamma) * leaf).sum() + 0.1 * 0.5 * leaf.norm()).backward()
    adam.step()
    np.testing.assert_allclose(g.sign_step(w, s, 3, gamma=gamma, **PAPER), g.project(leaf.detach().numpy()), atol=1e-6)


def test_the_released_step_has_no_degree_term() -> None:
    s = np.array([1.0, 0.9, 0.1])
    w = np.array([0.9, 0.05, 0.05])
    one, other = (g.sign_step(w, s, own, **PAPER) for own in (0, 1))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.collaboration_weights([1.0, 0.5], 2), "own: expected a place from 0 to 1"),
        (lambda: g.collaboration_weights([1.0, np.nan], 0), "not all finite"),
        (lambda: g.collaboration_weights([1.0, 0.5], 0, gamma=[1.0]), "gamma: expected 2"),
        (lambda: g.collaboration_weights([1.0, 0.5], 0, trust=[1.0, 0.0]), "trust: expected numbers above 0"),
        (lambda: g.collaboration_weights([1.0, 0.5], 0, mu1=-1.0), "mu1: expected"),
        (lambda: g.collaboration_weights([1.0, 0.5], 0, eps=0.0), "eps: expected"),
        (lambda: g.relative_similarity([1.0], -1), "own: expected a place"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
