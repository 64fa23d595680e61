"""Distances from signatures, against moments taken by hand."""

from __future__ import annotations

import numpy as np

from fedkin import graph as g


def signed(data: list[np.ndarray[tuple[int, int], np.dtype[np.float64]]]) -> list[g.Signature]:
    plan = g.Plan.of(g.Spread.of(x) for x in data)
    return [g.sign(plan, x) for x in data]


def test_distances_are_debiased_and_symmetric() -> None:
    rng = np.random.default_rng(0)
    signatures = signed([rng.normal(size=(n, 5)) for n in (40, 80, 160)] + [rng.normal(size=(60, 5)) + 2])
    found = g.apart(signatures)
    assert np.array_equal(found, found.T)
    assert not np.diag(found).any()
    # In the block x, by hand: |m_i - m_j|^2 / tr S - 1 / n_i - 1 / n_j.
    m = [one.blocks["x"] for one in signatures]
    traces, free = np.array([one.traces[0] for one in m]), np.array([one.free[0] for one in m])
    t1 = traces @ free / free.sum()
    by_hand = np.sum((m[0].mean - m[3].mean) ** 2) / t1 - 1 / 40 - 1 / 60
    np.testing.assert_allclose(found[0, 3] ** 2, by_hand, rtol=1e-3)


def test_equal_distributions_are_at_distance_zero_in_the_mean() -> None:
    """Squares below zero are cut off, so the mean of the squares is small, and falls with the samples."""
    means = []
    for n in (30, 300):
        rng = np.random.default_rng(n)
        found = g.apart(signed([rng.normal(size=(n, 5)) for _ in range(30)]))
        means.append(np.square(found).sum() / (30 * 29))
    assert means[0] < 1 / 30
    assert means[1] < means[0] / 5


def test_newcomers_are_measured_as_the_others_are() -> None:
    rng = np.random.default_rng(1)
    signatures = signed([rng.normal(size=(50, 4)) + k % 2 for k in range(6)])
    found = g.apart(signatures[4:], signatures[:4])
    assert found.shape == (2, 4)
    assert found[0, 0] < found[0, 1]
    assert found[1, 1] < found[1, 0]
