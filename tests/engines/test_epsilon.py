"""Epsilon against the definition of differential privacy, integrated, and against a bound by Renyi divergences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.special import binom, logsumexp
from scipy.stats import norm

from fedkin.engines import epsilon as accountant
from fedkin.engines.epsilon import epsilon


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


# -- training on random batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.7), (0.01, 4.0), (0.2, 1.0), (0.9, 0.5), (0.5, 20.0)])
def test_renyi_divergences_are_those_of_the_binomial_sum(rate: float, noise: float) -> None:
    """Of Mironov, Talwar and Zhang (2019), section 3.3, for whole orders."""
    for order in (2, 3, 8, 20, 200):
        k = np.arange(order + 1)
        terms = np.log(binom(order, k)) + (order - k) * math.log1p(-rate) + k * math.log(rate)
        exact = float(logsumexp(terms + k * (k - 1) / (2 * noise**2))) / (order - 1)
        assert accountant.renyi(rate, noise, order) == pytest.approx(exact, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.7), (0.3, 2.0)])
def test_renyi_divergences_are_those_of_their_integral(rate: float, noise: float) -> None:
    for order in (1.05, 1.7, 12.5):

        def moment(x: float, order: float = order) -> float:
            ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
            return float(norm.pdf(x, 0, noise) * ratio**order)

        value, _ = integrate.quad(moment, -12 * noise, order + 12 * noise, epsabs=1e-14, epsrel=1e-12, limit=800)
        assert accountant.renyi(rate, noise, order) * (order - 1) == pytest.approx(math.log(value), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "tight", "bound"),
    [
        (0.01, 1.0, 1000, 1.8384, 2.1014),
        (0.01, 4.0, 10000, 0.9569, 1.0355),
        (0.1, 1.0, 100, 7.0571, 7.8993),
        (0.3, 2.0, 60, 5.9817, 6.5299),
        (0.5, 3.0, 90, 7.8953, 8.5234),
        (256 / 60000, 1.1, 14062, 2.3917, 2.5966),
    ],
)
def test_known_figures_of_training(rate: float, noise: float, steps: int, tight: float, bound: float) -> None:
    """`PRVAccountant` and `RDPAccountant` of Opacus 1.6.0, `get_epsilon(1e-5)` with history [(noise, rate, steps)]."""
    found = accountant.total_epsilon(0.0, {(rate, noise): steps}, 1e-5)
    assert found == pytest.approx(bound, rel=0.005)
    assert found > tight


def test_training_on_all_samples_is_a_gaussian_release() -> None:
    assert accountant.total_epsilon(0.0, {(1.0, 5.0): 100}, 1e-5) == epsilon(5 / math.sqrt(100), 1, 1e-5)
    # And nearly all: the bound is above the exact value, and not far.
    exact = epsilon(5.0, 100, 1e-5)
    assert exact < accountant.total_epsilon(0.0, {(0.999999, 5.0): 100}, 1e-5) < 1.1 * exact


def test_a_release_beside_training_costs_more_and_steps_add_up() -> None:
    steps = {(0.1, 2.0): 50}
    alone = accountant.total_epsilon(0.0, steps, 1e-5)
    assert accountant.total_epsilon(0.1, steps, 1e-5) > max(alone, epsilon(1 / math.sqrt(0.1), 1, 1e-5))
    both = accountant.total_epsilon(0.0, {(0.1, 2.0): 30, (0.1, 2.0 + 1e-12): 20}, 1e-5)
    assert both == pytest.approx(alone, rel=1e-9)
    assert accountant.total_epsilon(0.0, {(0.1, 2.0): 0}, 1e-5) == 0
    assert accountant.total_epsilon(0.0, {(1e-9, 1e-6): 1, (0.3, 1e8): 1}, 1e-5) == math.inf


@pytest.mark.parametrize("target", [0.01, 1.0, 8.0, 1000.0])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.5, 60), (0.95, 30), (1.0, 30)])
def test_noise_of_training_is_the_least(target: float, rate: float, steps: int) -> None:
    noise = accountant.training_noise(target, 1e-5, rate, steps)
    cost = [accountant.total_epsilon(0.0, {(rate, noise * factor): steps}, 1e-5) for factor in (1.0, 0.99)]
    assert cost[0] <= target * (1 + 1e-6)
    assert cost[1] > target or noise < 0.3001
