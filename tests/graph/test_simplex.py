from __future__ import annotations

from typing import Any

import numpy as np
import ot
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize

from fedkin import graph as g
from fedkin.errors import GraphError

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


@given(points, st.data())
def test_nothing_on_the_simplex_is_nearer(v: Any, data: Any) -> None:
    w = g.project(v)
    raw = data.draw(hnp.arrays(np.float64, len(v), elements=st.floats(0.001, 1)))
    other = raw / raw.sum()
    assert np.square(v - w).sum() <= np.square(v - other).sum() + 1e-8
    np.testing.assert_allclose(g.project(w), w, atol=1e-12)
    np.testing.assert_allclose(g.project(other), other, atol=1e-12)


@given(points)
def test_projection_is_pots(v: Any) -> None:
    np.testing.assert_allclose(g.project(v), ot.utils.proj_simplex(v), atol=1e-9)


@given(points, st.randoms(use_true_random=False))
def test_projection_is_equivariant_and_ignores_a_shift(v: Any, random: Any) -> None:
    order = list(range(len(v)))
    random.shuffle(order)
    np.testing.assert_allclose(g.project(v[order]), g.project(v)[order], atol=1e-12)
    np.testing.assert_allclose(g.project(v + 7.0), g.project(v), atol=1e-9)


def test_projection_of_rows_and_of_extreme_values() -> None:
    v = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(g.project(v, floor=0.1), [g.project(row, floor=0.1) for row in v])
    np.testing.assert_allclose(g.project([1e300, -1e300, 1e300]), [0.5, 0, 0.5])
    np.testing.assert_allclose(g.project(np.arange(10_000.0) * 1e-9).sum(), 1)
    np.testing.assert_allclose(g.project([5.0, 1.0], floor=0.5), [0.5, 0.5])
    assert g.project([3.0]).tolist() == [1.0]


@given(points, st.sampled_from([0.01, 0.5, 1.0, 3.0, 100.0]))
def test_norm_regularised_satisfies_kkt(c: Any, b: float) -> None:
    """-c + b w / |w| + nu = mu with mu >= 0, mu w = 0: the problem is convex, so that is the optimum."""
    w = g.norm_regularised(c, b)
    assert w.sum() == pytest.approx(1)
    assert (w >= 0).all()
    gradient = -c + b * w / np.linalg.norm(w)
    used = w > 1e-12
    nu = -gradient[used].mean()
    scale = 1e-7 * max(b, 1)
    assert np.abs(gradient[used] + nu).max() < scale
    assert (gradient + nu > -scale).all()


@given(points, st.sampled_from([0.5, 2.0, 20.0]), st.data())
def test_nothing_on_the_simplex_is_better(c: Any, b: float, data: Any) -> None:
    def cost(w: Any) -> float:
        return float(-c @ w + b * np.linalg.norm(w))

    raw = data.draw(hnp.arrays(np.float64, len(c), elements=st.floats(0.001, 1)))
    assert cost(g.norm_regularised(c, b)) <= cost(raw / raw.sum()) + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_norm_regularised_is_slsqps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    c, b = rng.normal(size=8), 0.8
    start = np.full(8, 1 / 8)
    total: Any = {"type": "eq", "fun": lambda w: w.sum() - 1}
    options: Any = {"ftol": 1e-12, "maxiter": 500}

    def cost(w: Any) -> float:
        return float(-c @ w + b * np.linalg.norm(w))

    found = minimize(cost, start, method="SLSQP", bounds=[(0.0, 1.0)] * 8, constraints=[total], options=options)
    np.testing.assert_allclose(g.norm_regularised(c, b), found.x, atol=1e-4)


def test_norm_regularised_at_its_limits() -> None:
    c = [1.0, 3.0, 3.0, -2.0]
    np.testing.assert_array_equal(g.norm_regularised(c, 0.0), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(g.norm_regularised(c, 1e-12), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(g.norm_regularised(c, 5e-324), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(g.norm_regularised(c, 1e9), 0.25, atol=1e-6)
    assert g.norm_regularised([7.0], 0.5).tolist() == [1.0]
    rows = np.random.default_rng(0).normal(size=(4, 6))
    np.testing.assert_array_equal(g.norm_regularised(rows, 0.3), [g.norm_regularised(r, 0.3) for r in rows])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.project([1.0, 2.0], floor=0.6), "floor: expected 0 to 1/2"),
        (lambda: g.project([1.0, 2.0], floor=-0.1), "floor: expected"),
        (lambda: g.project([]), "at least one"),
        (lambda: g.project(3.0), "expected a vector"),
        (lambda: g.project([np.nan]), "row 0 is not all finite"),
        (lambda: g.norm_regularised([1.0], -1.0), "b: expected a number of at least 0"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()


@given(points, st.sampled_from([0.01, 0.5, 3.0]), st.data())
def test_trust_weighs_the_norm(c: Any, b: float, data: Any) -> None:
    """KKT of -<c, w> + b |w / sqrt(t)|: -c + b (w / t) / |w / sqrt(t)| + nu >= 0, with equality where w > 0."""
    t = data.draw(hnp.arrays(np.float64, len(c), elements=st.floats(0.1, 10)))
    w = g.norm_regularised(c, b, trust=t)
    assert w.sum() == pytest.approx(1)
    gradient = -c + b * (w / t) / np.linalg.norm(w / np.sqrt(t))
    used = w > 1e-9
    nu = -gradient[used].mean()
    assert np.abs(gradient[used] + nu).max() < 1e-6 * max(b, 1)
    assert (gradient + nu > -1e-6 * max(b, 1)).all()
    np.testing.assert_allclose(g.norm_regularised(c, b, trust=np.full(len(c), 4.0)), g.norm_regularised(c, b / 2),
                               atol=1e-9)  # fmt: skip
    np.testing.assert_array_equal(g.norm_regularised(c, b), g.norm_regularised(c, b, trust=np.ones(len(c))))


def test_equal_gains_are_shared_by_trust() -> None:
    np.testing.assert_allclose(g.norm_regularised([2.0, 2.0, -9.0], 0.5, trust=[3.0, 1.0, 1.0]), [0.75, 0.25, 0])
    np.testing.assert_allclose(g.norm_regularised([2.0, 2.0, 0.0], 0.0, trust=[3.0, 1.0, 1.0]), [0.75, 0.25, 0])
    with pytest.raises(GraphError, match="trust: expected numbers above 0, got 0 at 1"):
        g.norm_regularised([1.0, 2.0], 0.5, trust=[1.0, 0.0])
