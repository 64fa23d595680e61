"""The look that cuts on one half of the samples and tests on the other, against simulation."""

from __future__ import annotations

import numpy as np

from fedkin.graph import Moments, split_p


def p_of(rng: np.random.Generator, clients: int, n: int, apart: float) -> float:
    """p-value for clients in two groups whose means are `apart` deviations from each other."""
    scale = np.linspace(1.5, 0.5, 12)
    parts = [Moments.of(rng.normal(size=(n, 12)) * scale + apart * (row % 2), seed=1) for row in range(clients)]
    means, halves = np.stack([m.mean for m in parts]), np.stack([m.half for m in parts])
    traces = [np.sum(scale**2), np.sum(scale**4), np.sum(scale**6)]
    return split_p(means, halves, np.full(clients, float(n)), traces)


def test_it_rejects_one_mean_no_more_often_than_it_says() -> None:
    rng = np.random.default_rng(0)
    found = np.array([p_of(rng, 12, 20, 0.0) for _ in range(400)])
    # Three deviations of a binomial share above the level.
    for level in (0.05, 0.2):
        assert np.mean(found < level) < level + 3 * np.sqrt(level * (1 - level) / 400)


def test_it_finds_two_groups() -> None:
    rng = np.random.default_rng(1)
    assert np.median([p_of(rng, 12, 20, 0.35) for _ in range(15)]) < 0.001


def test_clients_without_halves_and_orders_do_not_matter() -> None:
    rng = np.random.default_rng(2)
    means, halves = rng.normal(size=(2, 9, 5))
    n = np.arange(1.0, 10)
    whole = split_p(means[:8], halves[:8], n[:8], [5, 5, 5])
    halves[8] = 0
    assert split_p(means, halves, n, [5, 5, 5]) == whole
    order = rng.permutation(8)
    np.testing.assert_allclose(split_p(means[order], halves[order], n[order], [5, 5, 5]), whole, rtol=1e-9)
    assert split_p(means[:3], halves[:3], n[:3], [5, 5, 5]) == 1.0
