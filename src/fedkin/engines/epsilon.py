"""The accountant: the epsilon of releases with normal noise, and of training on random batches (DP-SGD)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

# Orders of Renyi divergences: those near 1 matter for an epsilon of thousands, the last ones for one of hundredths.
_ORDERS = 1 + np.geomspace(0.02, 20_000, 100)
_BETWEEN = 1 + np.geomspace(0.02, 20_000, 5000)


@lru_cache(maxsize=4096)
def epsilon(noise: float, releases: int, delta: float) -> float:
    """Return the exact epsilon of releases with this noise multiplier (standard deviation over sensitivity), composed.

    Together they are one Gaussian mechanism with m = sqrt(releases) / noise, for which
    delta = Phi(m / 2 - epsilon / m) - e^epsilon Phi(-m / 2 - epsilon / m) (Balle and Wang, ICML 2018). There is no
    amplification by sampling: the server knows who was asked. 0 without releases, infinite without noise.

    >>> epsilon(5.0, 0, 1e-5), round(epsilon(5.0, 100, 1e-5), 2), epsilon(0.0, 3, 1e-5)
    (0.0, 10.0, inf)
    """
    if not releases:
        return 0.0
    if not noise:
        return math.inf
    m = math.sqrt(releases) / noise

    def surplus(e: float) -> float:
        return float(ndtr(m / 2 - e / m) - math.exp(min(e + log_ndtr(-m / 2 - e / m), 0.0)) - delta)

    if surplus(0.0) <= 0:
        return 0.0
    # The bound of zero-concentrated privacy is never below.
    most = m * m / 2 + m * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(surplus, 0.0, most, xtol=1e-12, rtol=1e-12)) * (1 + 1e-9)


@lru_cache(maxsize=64)
def noise_for(target: float, delta: float) -> float:
    """Return the noise multiplier with which one release has this epsilon; 1 / multiplier is mu of Gaussian privacy.

    >>> round(epsilon(noise_for(1.0, 1e-5), 1, 1e-5), 6)
    1.0
    """
    low, high = -10.0, 20.0  # of the logarithm, for epsilon from 0 to 1e8
    power = brentq(lambda power: epsilon(math.exp(power), 1, delta) - target, low, high, xtol=1e-12)
    return math.exp(power) * (1 + 1e-9)


def renyi(rate: float, noise: float, order: float) -> float:
    """Return the Renyi divergence of this order of a step in which a sample takes part with the probability `rate`.

    The worst case is N(0, noise^2) against (1 - rate) N(0, noise^2) + rate N(1, noise^2) (Mironov, Talwar and Zhang
    2019, theorem 5). The divergence of order a is log E (1 - rate + rate e^((2 x - 1) / (2 noise^2)))^a / (a - 1) over
    x from N(0, noise^2). The trapezoid rule is exact here to the last digits: the integrand is analytic and vanishes.

    >>> round(renyi(0.5, 2.0, 2.0), 6), round(math.log(1 + 0.5**2 * math.expm1(1 / 4)), 6)  # the closed form of order 2
    (0.068599, 0.068599)
    """
    if order > 2000 * noise:
        return math.inf  # no bound: another order decides, and this one takes long to integrate
    step = min(0.1, noise / 4)
    z = np.arange(-12.0, order / noise + 12, step)  # x / noise
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + z / noise - 0.5 / noise**2)
    powers = order * ratio - z * z / 2
    log = powers.max() + math.log(np.exp(powers - powers.max()).sum() * step / math.sqrt(2 * math.pi))
    return max(float(log), 0.0) / (order - 1)


@lru_cache(maxsize=1024)
def _curve(rate: float, noise: float) -> npt.NDArray[np.float64]:
    return np.array([renyi(rate, noise, order) for order in _ORDERS])


def total_epsilon(mu_squared: float, steps: Mapping[tuple[float, float], int], delta: float) -> float:
    """Return the epsilon of Gaussian releases, whose 1 / multiplier^2 have this sum, and of steps of training.

    steps: their number, by (rate, noise) as in `renyi`; those of rate 1 are Gaussian releases. Without others the
    value is exact, else a bound: Renyi divergences add up, and the bound of Canonne, Kamath and Steinke (2020,
    proposition 12) is minimised over the orders.

    >>> total_epsilon(0.0, {(1.0, 5.0): 100}, 1e-5) == epsilon(0.5, 1, 1e-5)
    True
    >>> round(total_epsilon(0.0, {(0.01, 1.0): 1000}, 1e-5), 2)
    2.11
    """
    exact = math.fsum([mu_squared, *(count / noise**2 for (rate, noise), count in steps.items() if rate == 1)])
    sampled = {at: count for at, count in steps.items() if at[0] < 1 and count}
    if not sampled:
        return epsilon(1 / math.sqrt(exact), 1, delta) if exact else 0.0
    total = exact * _ORDERS / 2 + sum(count * _curve(*at) for at, count in sampled.items())
    known = np.isfinite(total)
    if not known.any():
        return math.inf
    orders = _BETWEEN[: np.searchsorted(_BETWEEN, _ORDERS[known].max())]
    # (a - 1) times the divergence of order a is convex in a, so that a line between two orders is never below it.
    moments = np.interp(orders, _ORDERS[known], (total * (_ORDERS - 1))[known])
    bounds = (moments - math.log(delta) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    return max(0.0, float(bounds.min()))


@lru_cache(maxsize=1024)
def training_noise(target: float, delta: float, rate: float, steps: int) -> float:
    """Return the noise with which so many steps of this rate have this epsilon, but at least .3.

    >>> round(total_epsilon(0.0, {(0.1, training_noise(4.0, 1e-5, 0.1, 300)): 300}, 1e-5), 4)
    4.0
    """
    if rate == 1:
        return noise_for(target, delta) * math.sqrt(steps)

    def surplus(power: float) -> float:
        return total_epsilon(0.0, {(rate, math.exp(power)): steps}, delta) - target

    low = high = math.log(0.3)
    while surplus(high) > 0:
        low, high = high, high + 1
    root = low if low == high else brentq(surplus, low, high, xtol=1e-6)
    return math.exp(root) * (1 + 2e-6)
