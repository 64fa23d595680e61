"""Calibration of predicted risks: Brier score, calibration curve, slope and intercept, and decision curves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
from scipy import special

from fedkin.analysis.intervals import LEVEL, Interval, Persons, normal, rate_interval_of_persons, wilson

Values = npt.NDArray[np.float64]
# A risk of exactly 0 or 1 has no logit.
_EDGE = 1e-12


class Bin(NamedTuple):
    """A point of a calibration curve: mean predicted risk and share of events of n samples, with Wilson's interval."""

    predicted: float
    observed: float
    low: float
    high: float
    n: int


class Calibration(NamedTuple):
    """Logistic regression of the label on the logit of the predicted risk (Cox, 1958).

    slope: 1 is ideal; below 1, high risks are too high and low ones too low, as for an overfitted model. intercept: of
    the same regression. large: the intercept with the slope fixed at 1; below 0, risks are too high on average (Van
    Calster et al., 2019). The intervals are Wald's.
    """

    slope: float
    intercept: float
    slope_interval: Interval
    large: float
    large_interval: Interval


def probabilities(scores: Any) -> Values:
    """Turn scores, the differences of a risk task's two outputs, into risks in 0..1.

    >>> probabilities([0.0, 2.0]).round(3).tolist()
    [0.5, 0.881]
    """
    return np.asarray(special.expit(np.asarray(scores, dtype=np.float64)))


def brier(risks: Any, labels: Any) -> float:
    """Mean squared difference of risk and label (Brier, 1950): 0 is best, a constant 0.5 has 0.25.

    >>> round(brier([0.9, 0.2], [1, 0]), 3)
    0.025
    """
    p, y = _arrays(risks, labels)
    return float(np.mean((p - y) ** 2))


def curve(risks: Any, labels: Any, bins: int = 10, persons: Persons | None = None) -> list[Bin]:
    """Calibration curve over at most `bins` groups with about equally many samples, from low to high risk.

    Equal risks stay in one group, so there may be fewer groups. persons: [n], equal for samples of one person, which
    are not independent.

    >>> [(round(one.predicted, 2), one.observed, one.n) for one in curve([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], 2)]
    [(0.15, 0.0, 2), (0.85, 1.0, 2)]
    """
    p, y = _arrays(risks, labels)
    cuts = np.unique(np.quantile(p, np.linspace(0, 1, bins + 1)[1:-1]))
    bin_numbers = np.searchsorted(cuts, p, side="right")
    points = []
    for each in np.unique(bin_numbers):
        inside = bin_numbers == each
        right, n = float(y[inside].sum()), int(inside.sum())
        known = wilson(right, n) if persons is None else rate_interval_of_persons(y[inside], persons[inside])
        low, high = known or (0.0, 1.0)
        points.append(Bin(float(p[inside].mean()), right / n, low, high, n))
    return points


def calibration(risks: Any, labels: Any, persons: Persons | None = None) -> Calibration | None:
    """Calibration slope and intercepts by maximum likelihood; None if they do not exist.

    They do not exist with only one class, with equal risks, and if a threshold separates the classes. persons: [n],
    equal for samples of one person, which are not independent: the standard errors are cluster-robust (Liang and
    Zeger, 1986).

    >>> found = calibration([0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 0.4, 0.5], [0, 0, 1, 1, 0, 1, 0, 1])
    >>> round(found.slope, 2), round(found.large, 2)
    (0.94, 0.2)
    """
    p, y = _arrays(risks, labels)
    if y.all() or not y.any():
        return None
    at = special.logit(np.clip(p, _EDGE, 1 - _EDGE))
    if np.ptp(at) < 1e-9 or _separated(at, y):
        return None
    both = _logistic(np.column_stack([np.ones_like(at), at]), y, np.zeros_like(at), persons)
    fixed = _logistic(np.ones((len(at), 1)), y, at, persons)
    if both is None or fixed is None:
        return None
    (intercept, slope), errors = both
    (large,), (error,) = fixed
    z = normal(LEVEL)
    return Calibration(
        float(slope), float(intercept), Interval(float(slope - z * errors[1]), float(slope + z * errors[1])),
        float(large), Interval(float(large - z * error), float(large + z * error)),
    )  # fmt: skip


def decision_curve(risks: Any, labels: Any) -> Values:
    """Net benefit TP/n - FP/n * t/(1 - t), in events found per sample, of acting on risks of at least t.

    t is 0.01 to 0.99 in steps of 0.01 (Vickers and Elkin, 2006). Acting on nobody has a net benefit of 0.

    >>> decision_curve([0.1, 0.6, 0.9], [0, 0, 1])[[4, 49, 69]].round(3).tolist()
    [0.298, 0.0, 0.333]
    """
    p, y = _arrays(risks, labels)
    t = np.arange(1, 100) / 100
    acted = p[None, :] >= t[:, None]
    true, false = (acted & (y == 1)).sum(1) / len(p), (acted & (y == 0)).sum(1) / len(p)
    return np.asarray(true - false * (t / (1 - t)))


def _arrays(risks: Any, labels: Any) -> tuple[Values, Values]:
    return np.asarray(risks, dtype=np.float64), np.asarray(labels, dtype=np.float64)


def _separated(at: Values, y: Values) -> bool:
    """Whether a threshold separates the classes, so that the likelihood has no maximum."""
    ones, zeros = at[y == 1], at[y == 0]
    return bool(ones.min() >= zeros.max() or ones.max() <= zeros.min())


def _logistic(x: Values, y: Values, offset: Values, persons: Persons | None) -> tuple[Values, Values] | None:
    """Maximum-likelihood coefficients and their standard errors; None if the likelihood has no maximum."""

    def loss(w: Values) -> tuple[float, Values]:
        eta = x @ w + offset
        return float((np.logaddexp(0, eta) - y * eta).sum()), x.T @ (special.expit(eta) - y)

    def hessian(w: Values) -> Values:
        p = special.expit(x @ w + offset)
        return np.asarray((x * (p * (1 - p))[:, None]).T @ x)

    fit = scipy.optimize.minimize(loss, np.zeros(x.shape[1]), jac=True, hess=hessian, method="trust-exact", tol=1e-8)
    try:
        covariance = np.linalg.inv(hessian(fit.x))
        if persons is not None:
            score = x * (y - special.expit(x @ fit.x + offset))[:, None]
            person, count = np.unique(persons, return_inverse=True)[1], len(np.unique(persons))
            sums = np.column_stack([np.bincount(person, column) for column in score.T])
            covariance = covariance @ (sums.T @ sums) @ covariance * count / max(count - 1, 1)
        errors = np.sqrt(np.diag(covariance))
    except np.linalg.LinAlgError:
        return None
    return (np.asarray(fit.x), errors) if np.isfinite(errors).all() else None
