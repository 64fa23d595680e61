"""Epsilon against the definition of differential privacy, integrated, and against a bound by Renyi divergences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.stats import norm

from fedkin.engines.privacy import epsilon


def renyi(noise: float, releases: int, delta: float) -> float:
    """The smallest bound over orders a: T a / (2 noise^2) + log((a - 1) / a) - (log delta + log a) / (a - 1)."""

    def bound(log: float) -> float:
        a = 1 + math.exp(log)
        converted = math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
        return releases * a / (2 * noise**2) + converted

    found = optimize.minimize_scalar(bound, bounds=(-9, 14), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(found.fun))


def divergence(noise: float, releases: int, e: float) -> float:
    """The delta that belongs to e by definition: the integral of max(0, p - e^epsilon q) over one coordinate.

    p, q: densities of the sum of all releases from neighbouring data, which is all that an observer needs.
    """
    spread = noise * math.sqrt(releases)

    def excess(x: float) -> float:
        return max(0.0, norm.pdf(x, releases, spread) - math.exp(e) * norm.pdf(x, 0, spread))

    crossing = releases / 2 + e * spread**2 / releases
    value, _ = integrate.quad(excess, crossing, max(crossing, releases) + 12 * spread, epsabs=1e-14, limit=400)
    return float(value)


@pytest.mark.parametrize("noise", [0.8, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("releases", [1, 10, 100])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_it_is_what_the_definition_says(noise: float, releases: int, delta: float) -> None:
    e = epsilon(noise, releases, delta)
    if e > 300:
        return  # e^epsilon has no number
    assert divergence(noise, releases, e) <= delta * (1 + 1e-4)
    assert e == 0 or divergence(noise, releases, e * 0.999) > delta


@pytest.mark.parametrize("noise", [0.01, 0.5, 1.0, 5.0, 30.0, 1000.0])
@pytest.mark.parametrize("releases", [1, 10, 100])
def test_it_is_below_the_bound_by_renyi_divergences_and_not_far(noise: float, releases: int) -> None:
    bound = renyi(noise, releases, 1e-5)
    assert 0.7 * bound - 0.01 <= epsilon(noise, releases, 1e-5) <= bound


@pytest.mark.parametrize(("noise", "releases", "value"), [(5, 100, 10.0), (5, 1, 0.73), (5, 60, 7.3), (5, 120, 11.2)])
def test_known_figures(noise: float, releases: int, value: float) -> None:
    assert epsilon(noise, releases, 1e-5) == pytest.approx(value, abs=0.06)


def test_more_releases_and_less_noise_cost_more() -> None:
    by_count = [epsilon(2.0, count, 1e-5) for count in range(6)]
    assert by_count == sorted(by_count)
    assert by_count[0] == 0.0
    by_noise = [epsilon(noise, 5, 1e-5) for noise in np.geomspace(0.001, 100, 9)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert epsilon(0.0, 5, 1e-5) == math.inf
    assert epsilon(1e6, 1, 1e-5) == 0.0
