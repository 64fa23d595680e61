"""Signatures with noise for single samples: how far one sample can move what leaves, and what is read from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedkin.errors import GraphError
from fedkin.graph import Plan, Signature, ari, find, place
from fedkin.graph.grouping_tests import Search
from fedkin.graph.private_signatures import plan_of_votes, signature_of_sums, sums, sums_length, votes, votes_length

# (classes, whether the target is a number): the four kinds of a signature.
KINDS = {"inputs": (0, False), "classes": (3, False), "many classes": (70, False), "a number": (0, True)}
# Of clients: few samples each, and unequal ones.
SIZES = {"few": (4, 8), "unequal": (10, 600)}


def plan_for(kind: str, dim: int = 4, scale: float = 2.0, seed: int = 0) -> Plan:
    classes, number = KINDS[kind]
    return Plan(dim, np.array([scale]), classes, (0.0, 0.5) if number else None, 32, seed=seed)


def targets(rng: Any, kind: str, n: int) -> Any:
    classes, number = KINDS[kind]
    if number:
        return rng.normal(size=n) * 10.0 ** rng.integers(-2, 3)
    return rng.integers(classes, size=n) if classes else None


def of_any_scale(rng: Any, n: int) -> Any:
    """Samples of any scale, of which some are equal."""
    x = rng.normal(size=(n, 4)) * 10.0 ** rng.integers(-3, 4)
    x[rng.random(n) < rng.random()] = x[0]
    return x


def neighbours(seed: int, kind: str) -> tuple[Any, Any, Any, Any]:
    """Two data sets that differ in one sample."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    x, y = of_any_scale(rng, n), targets(rng, kind, n)
    row = int(rng.integers(n))
    other, there = x.copy(), None if y is None else y.copy()
    other[row] = of_any_scale(rng, 1)[0] * 10.0 ** rng.integers(-2, 3)
    if there is not None:
        there[row] = targets(rng, kind, 1)[0]
    return x, y, other, there


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_sample_never_moves_what_leaves_by_more_than_1(kind: str) -> None:
    furthest = {"votes": 0.0, "sums": 0.0}
    for seed in range(600):
        x, y, other, there = neighbours(seed, kind)
        plan = plan_for(kind, scale=10.0 ** (seed % 5 - 2), seed=seed)
        number = KINDS[kind][1]
        moved = {
            "votes": votes(x, y if number else None) - votes(other, there if number else None),
            "sums": sums(plan, x, y) - sums(plan, other, there),
        }
        furthest = {name: max(most, float(np.linalg.norm(moved[name]))) for name, most in furthest.items()}
    assert max(furthest.values()) <= 1 + 1e-9
    # The bound is not far away: votes reach it, and sums come near.
    assert furthest["votes"] == pytest.approx(1)
    assert furthest["sums"] > 0.75


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_a_signature_has_the_moments_of_the_features(kind: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(3000, 4)), targets(rng, kind, 3000)
    plan = plan_for(kind)
    one = signature_of_sums(plan, 3000, sums(plan, x, y), 0.0)
    assert list(one.blocks) == (["x"] if kind == "inputs" else ["x", "xy", "y"])
    # The features of one sample are the means of a signature of that sample.
    rows = [signature_of_sums(plan, 1, sums(plan, x[[i]], None if y is None else y[[i]]), 0.0) for i in range(3000)]
    for name, moments in one.blocks.items():
        p = np.stack([row.blocks[name].mean for row in rows])
        covariance = np.cov(p.T)
        np.testing.assert_allclose(np.linalg.norm(p, axis=1), 1, rtol=1e-9)
        np.testing.assert_allclose(moments.mean, p.mean(axis=0), atol=1e-9)
        assert moments.traces[0] == pytest.approx(np.trace(covariance), rel=1e-9)
        assert moments.traces[1] == pytest.approx(np.trace(covariance @ covariance), rel=1e-2)
        assert moments.traces[2] >= 0.99 * np.trace(covariance @ covariance @ covariance)


@pytest.mark.slow
@given(st.integers(0, 2**20), st.floats(0.1, 30))
@settings(max_examples=30, deadline=None)
def test_noise_is_stated_as_it_is(seed: int, noise: float) -> None:
    rng, plan = np.random.default_rng(seed), plan_for("inputs")
    x = rng.normal(size=(50, 4))
    exact, bare = sums(plan, x), signature_of_sums(plan, 50, sums(plan, x), 0.0).blocks["x"]
    noisy = [signature_of_sums(plan, 50, exact + noise * rng.standard_normal(len(exact)), noise) for _ in range(400)]
    means = np.stack([one.blocks["x"].mean for one in noisy]) - bare.mean
    assert np.square(means).mean() == pytest.approx(noisy[0].blocks["x"].noise, rel=0.08)
    # The first trace is unbiased: pooled over clients, its noise averages out. The others are not too small.
    traces = np.stack([one.blocks["x"].traces for one in noisy])
    assert abs(traces[:, 0].mean() - bare.traces[0]) < 5 * traces[:, 0].std() / 20
    assert (traces[:, 1:].mean(axis=0) > bare.traces[1:] - 5 * traces[:, 1:].std(axis=0) / 20).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "noise"), [("few", 4.0), ("few", 0.5), ("unequal", 4.0), ("unequal", 50.0)])
def test_levels_hold_whatever_the_noise(kind: str, noise: float, sizes: str) -> None:
    """Clients of one distribution: p-values below .05, .01 and .001 are as rare as they say."""
    least, most = SIZES[sizes]
    smallest = []
    for seed in range(100):
        rng, plan = np.random.default_rng([seed, 3]), plan_for(kind, seed=seed)
        clients = []
        for n in np.exp(rng.uniform(np.log(least), np.log(most), 8)).astype(int):
            x = rng.normal(size=(n, 4))
            y = rng.normal(size=n) if kind == "a number" else targets(np.random.default_rng(n), kind, n)
            exact = sums(plan, x, y)
            clients.append(signature_of_sums(plan, n, exact + noise * rng.standard_normal(len(exact)), noise))
        root = Search(clients, 1e-300, 0)
        smallest += [stack.p(0.0, 0) for stack in root.stacks.values()]
    for level in (0.05, 0.01, 0.001):
        hits = sum(p < level for p in smallest)
        # One of a thousand honest runs has more.
        assert hits <= stats.binom.ppf(0.999, len(smallest), level)


def test_groups_are_found_below_the_noise_and_newcomers_placed() -> None:
    rng, noise, n = np.random.default_rng(5), 3.0, 600
    shifts = np.arange(10) % 2 * 1.2
    data = [(rng.normal(size=(n, 4)) + shift, rng.integers(3, size=n)) for shift in shifts]
    plan = plan_of_votes([votes(x) + 8 * rng.standard_normal(32) for x, _ in data], dim=4, classes=3)
    assert 1 <= plan.var[0] <= 16  # 4 numbers of variance 1
    signed = [
        signature_of_sums(plan, n, (v := sums(plan, x, y)) + noise * rng.standard_normal(len(v)), noise)
        for x, y in data
    ]
    travelled = [Signature.from_bytes(one.to_bytes()) for one in signed]
    found = find(travelled)
    assert ari(np.arange(10) % 2, found.labels) == 1
    x, y = rng.normal(size=(n, 4)), rng.integers(3, size=n)
    new = signature_of_sums(plan, n, (v := sums(plan, x, y)) + noise * rng.standard_normal(len(v)), noise)
    assert place(new, found).group == found.labels[0]


def test_more_noise_than_signal_finds_one_group() -> None:
    rng, plan = np.random.default_rng(6), plan_for("classes")
    signed = []
    for i in range(12):
        exact = sums(plan, rng.normal(size=(20, 4)) + i % 2, rng.integers(3, size=20))
        signed.append(signature_of_sums(plan, 20, exact + 500 * rng.standard_normal(len(exact)), 500.0))
    assert find(signed).verdicts == ("same",)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_known_before_anything_is_sent(kind: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 4)), targets(rng, kind, 9)
    classes, number = KINDS[kind]
    assert len(votes(x, y if number else None)) == votes_length(number)
    assert len(sums(plan_for(kind), x, y)) == sums_length(classes, number)


def test_what_does_not_fit_is_refused() -> None:
    plan = plan_for("inputs")
    with pytest.raises(GraphError, match="a sample has 3 numbers; the plan was made for 4"):
        sums(plan, np.zeros((5, 3)))
    with pytest.raises(GraphError, match="expected 33 numbers"):
        signature_of_sums(plan, 5, np.zeros(7), 1.0)
    with pytest.raises(GraphError, match="votes: expected 32 numbers"):
        plan_of_votes([], dim=4)
