"""Epsilon against closed forms: of Renyi divergences, and of the exact trade-off of Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize
from scipy.stats import norm

from fedkin.engines.privacy import epsilon

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedkin[privacy]'")


def renyi(noise: float, releases: int, delta: float) -> float:
    """The smallest bound over orders a: T a / (2 noise^2) + log((a - 1) / a) - (log delta + log a) / (a - 1)."""

    def bound(log: float) -> float:
        a = 1 + math.exp(log)
        converted = math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
        return releases * a / (2 * noise**2) + converted

    found = optimize.minimize_scalar(bound, bounds=(-9, 14), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(found.fun))


def exact(noise: float, releases: int, delta: float) -> float:
    """Of T Gaussians, which are one with noise / sqrt(T), by its delta(epsilon) (Balle and Wang, ICML 2018)."""
    m = math.sqrt(releases) / noise

    def surplus(e: float) -> float:
        return float(norm.cdf(m / 2 - e / m) - math.exp(e + norm.logcdf(-m / 2 - e / m)) - delta)

    return float(optimize.brentq(surplus, 0, 500)) if surplus(0) > 0 else 0.0


@pytest.mark.parametrize("noise", [0.5, 1.0, 5.0, 30.0, 1000.0])
@pytest.mark.parametrize("releases", [1, 10, 100])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_it_is_the_best_bound_over_orders(noise: float, releases: int, delta: float) -> None:
    assert epsilon(noise, releases, delta) == pytest.approx(renyi(noise, releases, delta), rel=2e-3, abs=2e-3)


@pytest.mark.parametrize(
    ("noise", "releases", "bound", "true"),
    [(5, 100, 10.7, 10.0), (5, 1, 0.79, 0.73), (5, 60, 7.9, 7.3), (5, 120, 12.0, 11.2)],
)
def test_known_figures(noise: float, releases: int, bound: float, true: float) -> None:
    assert epsilon(noise, releases, 1e-5) == pytest.approx(bound, abs=0.05)
    assert exact(noise, releases, 1e-5) == pytest.approx(true, abs=0.06)


@pytest.mark.parametrize("noise", [0.8, 2.0, 20.0])
@pytest.mark.parametrize("releases", [1, 50])
def test_it_never_promises_more_than_is_true(noise: float, releases: int) -> None:
    assert exact(noise, releases, 1e-5) <= epsilon(noise, releases, 1e-5) <= 1.3 * exact(noise, releases, 1e-5)


def test_more_releases_and_less_noise_cost_more() -> None:
    by_count = [epsilon(2.0, count, 1e-5) for count in range(6)]
    assert by_count == sorted(by_count)
    assert by_count[0] == 0.0
    by_noise = [epsilon(noise, 5, 1e-5) for noise in np.geomspace(0.1, 100, 9)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert epsilon(0.0, 5, 1e-5) == math.inf
