"""Mixing matrices, the simplex, and MAPL's collaboration weights: exact optima, the paper's and the released steps."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize

from fedkin import graph as g
from fedkin.graph import mixing
from fedkin.graph.mixing import laplacian, norm_regularised
from graph.strategies import affinities_with_labels, both_kinds, dense


@given(affinities_with_labels())
def test_laplacian_is_networkx_inside_groups_and_rows_sum_to_zero(case: Any) -> None:
    a, labels = case
    inside = a * (labels[:, None] == labels)
    expected = nx.laplacian_matrix(nx.from_numpy_array(inside)).toarray()
    for kind in both_kinds(a):
        found = laplacian(kind, labels)
        np.testing.assert_allclose(dense(found), expected)
        np.testing.assert_allclose(dense(found).sum(axis=1), 0.0, atol=1e-12)
        assert np.linalg.eigvalsh(dense(found)).min() > -1e-9
    np.testing.assert_array_equal(dense(laplacian(a + np.eye(len(a)), labels)), dense(laplacian(a, labels)))


@given(affinities_with_labels(), st.floats(0, 2))
def test_laplacian_step_is_the_papers_update(case: Any, rate: float) -> None:
    a, labels = case
    x = np.random.default_rng(0).normal(size=(len(a), 3))
    w, sparse = (g.laplacian_step(kind, labels, rate) for kind in both_kinds(a))
    assert isinstance(w, np.ndarray)
    assert isinstance(sparse, sp.csr_array)
    np.testing.assert_allclose(sparse.toarray(), w, atol=1e-15)
    for k in range(len(a)):
        pull = sum((a[k, j] * (x[k] - x[j]) for j in range(len(a)) if labels[j] == labels[k]), np.zeros(3))
        np.testing.assert_allclose(w[k] @ x, x[k] - rate * pull, atol=1e-9)
    np.testing.assert_allclose(w.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_array_equal(dense(g.laplacian_step(a, labels, 0.0)), np.eye(len(a)))
    np.testing.assert_array_equal(g.laplacian_step(a, None, rate), g.laplacian_step(a, 0 * labels, rate))
    if rate * laplacian(a, labels).diagonal().max() <= 1:
        assert (w >= 0).all()


# -- simplex -----------------------------------------------------------------------------------------------------------


entries = st.floats(-100, 100).map(lambda x: round(x, 6))
points = hnp.arrays(np.float64, st.integers(1, 9), elements=entries)


@given(points, st.sampled_from([0.0, 0.25, 1.0]))
def test_projection_satisfies_kkt(v: Any, share: float) -> None:
    """w = v - nu above the floor, and v - nu <= floor at the floor: necessary and sufficient."""
    floor = share / len(v)
    w = g.project(v, floor=floor)
    assert w.sum() == pytest.approx(1, abs=1e-9)
    assert (w >= floor).all()
    free = w > floor + 1e-9
    if free.any():
        nu = (v - w)[free]
        assert np.ptp(nu) < 1e-9
        assert (v[~free] - nu[0] <= floor + 1e-8).all()


def test_projection_of_rows_and_of_extreme_values() -> None:
    v = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(g.project(v, floor=0.1), [g.project(row, floor=0.1) for row in v])
    np.testing.assert_allclose(g.project([1e300, -1e300, 1e300]), [0.5, 0, 0.5])
    np.testing.assert_allclose(g.project(np.arange(10_000.0) * 1e-9).sum(), 1)
    np.testing.assert_allclose(g.project([5.0, 1.0], floor=0.5), [0.5, 0.5])
    assert g.project([3.0]).tolist() == [1.0]


def test_norm_regularised_at_its_limits() -> None:
    c = [1.0, 3.0, 3.0, -2.0]
    np.testing.assert_array_equal(norm_regularised(c, 0.0), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(norm_regularised(c, 1e-12), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(norm_regularised(c, 5e-324), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(norm_regularised(c, 1e9), 0.25, atol=1e-6)
    assert norm_regularised([7.0], 0.5).tolist() == [1.0]


@given(points, st.sampled_from([0.01, 0.5, 3.0]), st.data())
def test_trust_weighs_the_norm(c: Any, b: float, data: Any) -> None:
    """KKT of -<c, w> + b |w / sqrt(t)|: -c + b (w / t) / |w / sqrt(t)| + nu >= 0, with equality where w > 0."""
    t = data.draw(hnp.arrays(np.float64, len(c), elements=st.floats(0.1, 10)))
    w = norm_regularised(c, b, trust=t)
    assert w.sum() == pytest.approx(1)
    gradient = -c + b * (w / t) / np.linalg.norm(w / np.sqrt(t))
    used = w > 1e-9
    nu = -gradient[used].mean()
    assert np.abs(gradient[used] + nu).max() < 1e-6 * max(b, 1)
    assert (gradient + nu > -1e-6 * max(b, 1)).all()
    np.testing.assert_allclose(norm_regularised(c, b, trust=np.full(len(c), 4.0)), norm_regularised(c, b / 2),
                               atol=1e-9)  # fmt: skip
    np.testing.assert_array_equal(norm_regularised(c, b), norm_regularised(c, b, trust=np.ones(len(c))))


# -- collaboration -----------------------------------------------------------------------------------------------------


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


def test_limits() -> None:
    assert g.collaboration_weights([0.3], 0).tolist() == [1.0]
    # Without a norm the weight goes to the best neighbour, and the log decides how much stays: 1 - w_own = mu2 / gain.
    w = g.collaboration_weights([1.0, 0.5, 0.2], 0, mu1=1.0, mu2=0.1, beta=0.0, eps=1e-12)
    np.testing.assert_allclose(w, [0.8, 0.2, 0.0], atol=1e-9)
    # Without the log it is the norm's own closed form.
    s = np.array([0.2, 0.9, 0.8])
    w = g.collaboration_weights(s, 0, mu1=1.0, mu2=1e-9, beta=0.5e9)
    np.testing.assert_allclose(w, norm_regularised(s, 0.5), atol=1e-6)
    # A norm that outweighs all: weights as the trust.
    w = g.collaboration_weights(s, 0, trust=[1.0, 2.0, 1.0], mu2=1e-6, beta=1e12)
    np.testing.assert_allclose(w, [0.25, 0.5, 0.25], atol=1e-5)


def test_relative_similarity() -> None:
    np.testing.assert_allclose(mixing.relative_similarity([0.3, 1.0, 0.6, -0.9], 1), [0.5, 1.0, 1.0, -1.0])
    np.testing.assert_allclose(mixing.relative_similarity([1.0, -0.2, 0.5], 0), [1.0, -0.4, 1.0])
    np.testing.assert_allclose(mixing.relative_similarity([1.0, -0.2, 0.4], 0), [1.0, -0.2, 0.4])
    np.testing.assert_allclose(mixing.relative_similarity([1.0, -0.2, 0.4], 0, alike=0.2), [1.0, -0.5, 1.0])
    assert mixing.relative_similarity([0.3], 0).tolist() == [1.0]


# -- the named steps ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_papers_step_descends_the_whole_objective() -> None:
    p = {name: value for name, value in problem(1, 6).items() if name != "trust"}
    w = np.random.default_rng(0).dirichlet(np.ones(6))
    rate, before = 1e-3, w
    after = mixing.gradient_step(w, rate=rate, **p)
    # Inside the simplex, projecting takes off the mean: the step is the centred gradient.
    slope = (before - after) / rate

    def loss(x: Any) -> float:
        return loss_of(x, **p)

    numeric = np.array([(loss(w + 1e-6 * e) - loss(w - 1e-6 * e)) / 2e-6 for e in np.eye(6)])
    np.testing.assert_allclose(slope, numeric - numeric.mean(), atol=1e-5)
    many = mixing.gradient_step(w, rate=0.02, steps=5000, **p)
    assert loss(many) == pytest.approx(loss(g.collaboration_weights(**p)), abs=1e-4)


def test_the_released_step_is_adams_first() -> None:
    import torch

    rng = np.random.default_rng(2)
    n = 7
    w, s, gamma = rng.dirichlet(np.ones(n)), rng.uniform(-1, 1, n), rng.dirichlet(np.ones(n))
    leaf = torch.tensor(w, requires_grad=True)
    adam = torch.optim.Adam([leaf], lr=0.1, betas=(0.5, 0.999))
    (0.5 * (torch.tensor(-s * gamma) * leaf).sum() + 0.1 * 0.5 * leaf.norm()).backward()
    adam.step()
    np.testing.assert_allclose(
        mixing.sign_step(w, s, 3, gamma=gamma, **PAPER), g.project(leaf.detach().numpy()), atol=1e-6
    )
