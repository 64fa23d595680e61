"""Epsilon against the definition of differential privacy, integrated, and against a bound by Renyi divergences."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.stats import norm

from fedkin.engines import Privacy
from fedkin.engines.epsilon import epsilon, total_epsilon, training_noise
from fedkin.errors import ConfigError
from fedkin.methods.fedavg import FedAvg
from support import NEEDS_ACCOUNTANT, small_setup


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
    e = epsilon(math.sqrt(releases) / noise, delta)
    if e <= 300:  # else e^epsilon has no number
        assert divergence(noise, releases, e) <= delta * (1 + 1e-4)
        assert e == 0 or divergence(noise, releases, e * 0.999) > delta


@pytest.mark.parametrize("noise", [0.01, 0.5, 1.0, 5.0, 30.0, 1000.0])
@pytest.mark.parametrize("releases", [1, 10, 100])
def test_it_is_below_the_bound_by_renyi_divergences_and_not_far(noise: float, releases: int) -> None:
    bound = renyi(noise, releases, 1e-5)
    assert 0.7 * bound - 0.01 <= epsilon(math.sqrt(releases) / noise, 1e-5) <= bound


def test_more_releases_and_less_noise_cost_more() -> None:
    costs = [epsilon(mu, 1e-5) for mu in (0.0, *np.geomspace(1e-6, 1000, 12), math.inf)]
    assert costs == sorted(costs)
    assert (*costs[:2], costs[-1]) == (0.0, 0.0, math.inf)


# -- training on random batches ---------------------------------------------------------------------------------------


@NEEDS_ACCOUNTANT
@pytest.mark.parametrize(
    ("rate", "noise", "steps", "tight"),
    [
        (0.01, 1.0, 1000, 1.8384), (0.01, 4.0, 10000, 0.9569), (0.1, 1.0, 100, 7.0571), (0.3, 2.0, 60, 5.9817),
        (0.5, 3.0, 90, 7.8953), (256 / 60000, 1.1, 14062, 2.3917),
    ],
)  # fmt: skip
def test_known_figures_of_training(rate: float, noise: float, steps: int, tight: float) -> None:
    """`PRVAccountant` of Opacus 1.6.0, `get_epsilon(1e-5)`, [(noise, rate, steps)]: above the value by .01 at most."""
    assert tight - 0.011 < total_epsilon(0.0, {(rate, noise): steps}, 1e-5) < tight


@NEEDS_ACCOUNTANT
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.7), (0.3, 0.3), (0.3, 2.0), (0.9, 5.0), (0.2, 30.0)])
def test_one_step_is_what_the_definition_says(rate: float, noise: float) -> None:
    """delta of adding and of removing a sample, integrated: the larger one counts."""
    e = total_epsilon(0.0, {(rate, noise): 1}, 1e-5)
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    without, sample = norm.pdf(x, 0, noise), norm.pdf(x, 1, noise)
    mixed = (1 - rate) * without + rate * sample

    def delta(e: float) -> float:
        pairs = ((mixed, without), (without, mixed))
        return max(float(integrate.trapezoid(np.maximum(p - math.exp(e) * q, 0), x)) for p, q in pairs)

    assert delta(e) <= 1e-5 * (1 + 1e-6)
    assert delta(0.99 * e) > 1e-5


@NEEDS_ACCOUNTANT
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.999999, 5.0, 100), (0.999999, 0.5, 10), (0.999999, 900.0, 50)])
def test_training_on_nearly_all_samples_is_nearly_a_gaussian_release(rate: float, noise: float, steps: int) -> None:
    exact = epsilon(math.sqrt(steps) / noise, 1e-5)
    assert total_epsilon(0.0, {(rate, noise): steps}, 1e-5) == pytest.approx(exact, rel=1e-3)
    assert total_epsilon(0.0, {(1.0, noise): steps}, 1e-5) == pytest.approx(exact, rel=1e-8)


@NEEDS_ACCOUNTANT
def test_a_release_beside_training_costs_more_and_steps_add_up() -> None:
    steps = {(0.1, 2.0): 50}
    alone = total_epsilon(0.0, steps, 1e-5)
    assert total_epsilon(0.1, steps, 1e-5) > max(alone, epsilon(math.sqrt(0.1), 1e-5))
    both = total_epsilon(0.0, {(0.1, 2.0): 30, (0.1, 2.0 + 1e-12): 20}, 1e-5)
    assert both == pytest.approx(alone, rel=1e-6)
    assert total_epsilon(0.0, {(0.1, 2.0): 0}, 1e-5) == 0
    assert total_epsilon(0.0, {(1e-9, 1e-6): 1, (0.3, 1e8): 1}, 1e-5) == math.inf
    # Fine steps beside coarse ones, whose grid is theirs.
    beside = total_epsilon(1.0, {(0.1, 500.0): 300}, 1e-5)
    assert epsilon(1.0, 1e-5) < beside < 1.01 * epsilon(1.0, 1e-5)


@pytest.mark.slow
@NEEDS_ACCOUNTANT
@pytest.mark.parametrize("target", [0.01, 4.0, 1000.0])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.5, 60), (1.0, 30)])
def test_noise_of_training_is_the_least(target: float, rate: float, steps: int) -> None:
    noise = training_noise(target, 1e-5, rate, steps)
    cost = [total_epsilon(0.0, {(rate, noise * factor): steps}, 1e-5) for factor in (1.0, 0.99)]
    assert cost[0] <= target
    assert cost[1] > target or noise == 0.3


def test_without_the_accountant_only_batches_of_all_samples_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    private = Privacy(sample_epsilon=3.0)
    assert replace(small_setup(FedAvg(), batch_size="all"), privacy=private).privacy == private
    for refused in (
        lambda: replace(small_setup(FedAvg()), privacy=private),
        lambda: training_noise(3.0, 1e-5, 0.123, 45),  # what a participant is told before it consents
    ):
        with pytest.raises(ConfigError, match=r"privacy.sample_epsilon, .* pip install 'fedkin\[privacy\]'"):
            refused()
