"""The accountant: the epsilon of releases with normal noise, and of training on random batches (DP-SGD)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import scipy
from scipy.special import log_ndtr, ndtr

from fedkin.errors import imported

_LEAST = 0.3  # least noise of a step of private training


@lru_cache(maxsize=4096)
def epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of a Gaussian mechanism whose noise is 1 / mu times its sensitivity.

    For several releases mu^2 is the sum of 1 / noise^2. delta = Phi(mu / 2 - epsilon / mu) -
    e^epsilon Phi(-mu / 2 - epsilon / mu) (Balle and Wang, ICML 2018). There is no amplification by sampling: the server
    knows who was asked. 0 without releases, infinite without noise.

    >>> epsilon(0.0, 1e-5), round(epsilon(2.0, 1e-5), 2), epsilon(math.inf, 1e-5)
    (0.0, 10.0, inf)
    """
    if not mu or math.isinf(mu):
        return mu

    def surplus(e: float) -> float:
        return float(ndtr(mu / 2 - e / mu) - math.exp(min(e + log_ndtr(-mu / 2 - e / mu), 0.0)) - delta)

    if surplus(0.0) <= 0:
        return 0.0
    # The bound from zero-concentrated differential privacy is never below epsilon.
    most = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(scipy.optimize.brentq(surplus, 0.0, most, xtol=1e-12, rtol=1e-12)) * (1 + 1e-9)


@lru_cache(maxsize=64)
def noise_for(target: float, delta: float) -> float:
    """Return the noise multiplier with which one release has this epsilon; 1 / multiplier is mu of Gaussian privacy.

    >>> round(epsilon(1 / noise_for(1.0, 1e-5), 1e-5), 6)
    1.0
    """
    low, high = -10.0, 20.0  # of the logarithm, for epsilon from 0 to 1e8
    power = scipy.optimize.brentq(lambda power: epsilon(math.exp(-power), delta) - target, low, high, xtol=1e-12)
    return math.exp(power) * (1 + 1e-9)


def need_accountant() -> None:
    """Raise ConfigError unless the package is installed that computes epsilon of training on random batches."""
    imported("dp_accounting", 'privacy.sample_epsilon, unless training.batch_size = "all",', "privacy")


def total_epsilon(mu_squared: float, steps: Mapping[tuple[float, float], int], delta: float) -> float:
    """Return the epsilon of Gaussian releases (mu_squared: the sum of 1 / multiplier^2) and of steps of training.

    steps: number of steps by (rate, noise). In a step a sample takes part with the probability `rate`, and the noise is
    a multiple of the clipping norm. Steps of rate 1 are Gaussian releases; if all are, the value is exact. Otherwise it
    is a tight upper bound: dp-accounting composes the distributions of the privacy loss (Doroshenko et al., PoPETs
    2022), of data with one sample and without it. Infinite if dp-accounting finds no finite value.

    >>> total_epsilon(0.0, {(1.0, 5.0): 100}, 1e-5) == epsilon(2.0, 1e-5)
    True
    """
    exact = math.fsum([mu_squared, *(count / noise**2 for (rate, noise), count in steps.items() if rate == 1)])
    sampled = tuple(sorted((*at, count) for at, count in steps.items() if at[0] < 1 and count))
    if not sampled or math.isinf(exact):
        return epsilon(math.sqrt(exact), delta)
    return _sampled_epsilon(exact, sampled, delta)


@lru_cache(maxsize=4096)
def _sampled_epsilon(mu_squared: float, steps: tuple[tuple[float, float, int], ...], delta: float) -> float:
    need_accountant()
    if min(noise for _, noise, _ in steps) < _LEAST / 10:
        return math.inf  # the loss of one step is in the thousands
    kinds = [(rate, noise) for rate, noise, _ in steps] + ([(1.0, mu_squared**-0.5)] if mu_squared else [])
    # The loss of a step is about rate / noise; its largest value is that with the sample, 8 standard deviations away.
    fine = min(0.001, *(rate / noise / 20 for rate, noise in kinds))
    wide = max(float(np.logaddexp(math.log(rate) + (8 + 0.5 / noise) / noise, 0.0)) for rate, noise in kinds)
    interval = max(fine, wide / 30_000)
    parts = [_loss(rate, noise, interval).self_compose(count) for rate, noise, count in steps]
    if mu_squared:
        parts.append(_loss(*kinds[-1], interval))
    return float(reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _loss(rate: float, noise: float, interval: float) -> Any:
    """Return the distribution of a step's privacy loss on a grid with this interval, rounded up."""
    from dp_accounting.pld import privacy_loss_distribution as distribution

    return distribution.from_gaussian_mechanism(noise, value_discretization_interval=interval, sampling_prob=rate)


@lru_cache(maxsize=1024)
def training_noise(target: float, delta: float, rate: float, steps: int) -> float:
    """Return the noise with which `steps` steps of this rate have the epsilon `target`, but at least .3."""
    most = noise_for(target, delta) * math.sqrt(steps)  # the noise for training on all samples
    if rate == 1:
        return most

    def surplus(power: float) -> float:
        found = total_epsilon(0.0, {(rate, math.exp(power)): steps}, delta)
        return math.log(max(found, target / 1000) / target)

    # Search downwards, since epsilon of little noise takes long to compute.
    least = math.log(_LEAST)
    low = high = max(math.log(2 * most), least)
    while surplus(low) <= 0:
        if low == least:
            return _LEAST
        low, high = max(low - 0.7, least), low
    noise = _LEAST if low == high else math.exp(scipy.optimize.brentq(surplus, low, high, xtol=1e-6))
    while total_epsilon(0.0, {(rate, noise): steps}, delta) > target:
        noise *= 1 + 1e-5
    return noise
