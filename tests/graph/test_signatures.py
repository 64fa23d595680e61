"""Moments and messages: unbiased, mergeable, small, the same after a journey."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.errors import DataError, GraphError
from fedkin.graph import Plan, Signature, Spread, sign
from fedkin.graph.moments import Moments
from fedkin.graph.signatures import Cells
from support import present


def close(one: Moments, two: Moments, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    for key in ("n", "mean", "half", "traces", "free", "effect", "noise"):
        np.testing.assert_allclose(getattr(one, key), getattr(two, key), rtol=rtol, atol=atol, err_msg=key)


@pytest.mark.parametrize("n", [6, 20, 100])
@pytest.mark.parametrize("width", [3, 50])
def test_traces_and_halves_are_unbiased(n: int, width: int) -> None:
    rng = np.random.default_rng(n)
    spectrum = 1 / np.arange(1, width + 1)
    found = [Moments.of(rng.normal(size=(n, width)) * np.sqrt(spectrum), seed=s) for s in range(600)]
    traces = np.array([m.traces for m in found])
    truth = [np.sum(spectrum**j) for j in (1, 2, 3)]
    assert (np.abs(traces.mean(axis=0) - truth) < 4 * traces.std(axis=0) / np.sqrt(600)).all()
    # Half the difference of halves varies as the mean does.
    for key in ("mean", "half"):
        size = np.array([n * np.square(getattr(m, key)).sum() for m in found])
        assert abs(size.mean() - truth[0]) < 4 * size.std() / np.sqrt(600)


@given(st.lists(st.integers(1, 12), min_size=3, max_size=3), st.floats(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_merging_is_associative_and_commutative(sizes: Any, effect: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = (
        Moments.of(rng.normal(size=(n, 4)), effect=e, seed=1) for n, e in zip(sizes, (1, effect, 1), strict=True)
    )
    b = replace(b, noise=0.09)
    total = Moments.total
    close(total([a, b]), total([b, a]))
    close(total([total([a, b]), c]), total([a, b, c]))
    close(total([a, Moments.empty(4)]), a)
    assert total([a, b]).weight == pytest.approx(a.weight + b.weight)


def test_numbers_of_samples_that_are_claimed_never_overflow() -> None:
    one = replace(Moments.of(np.random.default_rng(0).normal(size=(8, 4)), seed=1), n=2**62)
    total = Moments.total([one, one])
    assert total.n == 2**63
    assert total.effect == one.effect
    claimed = replace(Spread.of(np.eye(4)), n=2**62)
    np.testing.assert_allclose(Plan.of([claimed, claimed]).var, claimed.squares / 2**62)


def signature(classes: int = 10, n: int = 200, **settings: Any) -> tuple[Plan, Signature]:
    rng = np.random.default_rng(classes)
    x, y = rng.normal(size=(n, 30)), rng.integers(classes, size=n)
    plan = Plan.of([Spread.of(x, y)], classes=classes, **settings)
    return plan, sign(plan, x, y)


@pytest.mark.parametrize("classes", [2, 10, 64, 65, 1000])
def test_a_signature_is_small_and_travels(classes: int) -> None:
    _, one = signature(classes, n=4000)
    data = one.to_bytes()
    assert len(data) <= 4096
    back = Signature.from_bytes(data)
    assert back.to_bytes() == data
    for name in one.blocks:
        close(back.blocks[name], one.blocks[name], rtol=1e-3, atol=1e-6)
    assert (back.n, back.plan, back.flags) == (4000, one.plan, one.flags)
    assert len(present(one.cells).classes) == min(classes, 16)


def test_bytes_that_are_no_signature() -> None:
    data = signature()[1].to_bytes()
    for bad in (b"", data[:100], data + b"x", b"zip" + data):
        with pytest.raises(DataError, match="send it again"):
            Signature.from_bytes(bad)
    arrays = signature()[1].to_arrays()
    arrays["x.half"] = arrays["x.half"][:5]
    with pytest.raises(GraphError, match="send them again"):
        Signature.from_arrays(arrays)
    with pytest.raises(GraphError, match="head"):
        Signature.from_arrays({})
    arrays = signature()[1].to_arrays()
    arrays["cells.numbers"][1] = 0.25
    with pytest.raises(GraphError, match="noise of variance"):
        Signature.from_arrays(arrays)


def test_plans_and_spreads_travel_and_merge() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)), rng.normal(size=90)
    parts = [Spread.of(x[a : a + 30], y[a : a + 30], per_feature=True) for a in (0, 30, 60)]
    plan = Plan.of(parts, seed=3)
    again = Plan.of([Spread.from_arrays(one.to_arrays()) for one in parts[::-1]], seed=3)
    np.testing.assert_allclose(plan.var, again.var)
    assert plan.target == pytest.approx((y.mean(), y.std()))
    single = {k: v.astype("f4") if v.dtype.kind == "f" else v for k, v in plan.to_arrays().items()}
    assert Plan.from_arrays(plan.to_arrays()).key == Plan.from_arrays(single).key == plan.key
    assert Plan.of(parts, seed=4).key != plan.key
    within = np.concatenate([p - p.mean(axis=0) for p in np.split(x, 3)])
    np.testing.assert_allclose(plan.var, np.square(within).sum(axis=0) / 87, rtol=1e-6)


def test_few_samples_are_left_out_where_they_say_nothing() -> None:
    plan, _ = signature()
    x = np.random.default_rng(0).normal(size=(7, 30))
    one = sign(plan, x, np.array([0, 0, 0, 1, 1, 2, 2]))
    assert present(one.cells).classes.tolist() == [0]
    two = sign(plan, x[:1], np.array([4]))
    assert two.blocks["xy"].n == 0
    assert np.isnan(two.blocks["x"].traces).all()
    assert len(present(two.cells).classes) == 0
    assert Signature.total([two, one]).n == 8


def test_what_cannot_be_signed() -> None:
    plan, one = signature()
    x, y = np.zeros((5, 30)), np.zeros(5, dtype=int)
    for bad, match in [
        ((x[:, :9], y), "plan was made for 30"), ((x, None), "one per sample"), ((x, y + 10), "class 10"),
        ((x, y * 0.5), "whole numbers"), ((x, y[:3]), "expected 5"), ((x[:0], y[:0]), "at least one sample"),
        ((x * np.nan, y), "sample 0"),
    ]:  # fmt: skip
        with pytest.raises(GraphError, match=match):
            sign(plan, *bad)
    with pytest.raises(GraphError, match="two plans"):
        Signature.total([one, signature(seed=1)[1]])
    with pytest.raises(GraphError, match="classes"):
        Plan.of([Spread.of(x, y), Spread.of(x, y * 0.5)])


def test_cells_merge_to_the_cells_of_all() -> None:
    rng = np.random.default_rng(0)
    plan, _ = signature(4)
    x, y = rng.normal(size=(200, 30)), np.tile(np.arange(4), 50)
    parts = [present(sign(plan, x[a:b], y[a:b]).cells) for a, b in ((0, 40), (40, 120), (120, 200))]
    merged = Cells.total(parts)
    whole = present(sign(plan, x, y).cells)
    # A product of d numbers in single precision is right to d roundings of the sum of its terms' sizes; BLAS libraries
    # differ by that, also between matrices of other heights.
    to_cells = plan.maps[2]
    sizes = np.abs(x) @ np.abs(to_cells) / np.sqrt(plan.projections)
    bound = len(to_cells) * float(np.finfo(to_cells.dtype).eps) * sizes.max()
    np.testing.assert_allclose(merged.means, whole.means, atol=bound)
    np.testing.assert_array_equal(merged.counts, whole.counts)
    empty = Cells(
        np.zeros(0, dtype=int), np.zeros(0), np.zeros((0, 32)), np.zeros(0), np.zeros(0), np.full(3, np.nan), 0.0
    )
    np.testing.assert_array_equal(Cells.total([empty, whole]).means, whole.means)
    assert Cells.total([empty, empty]).effect == 1
