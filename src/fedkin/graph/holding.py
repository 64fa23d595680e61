"""Test whether a member still belongs to its group, by its new samples; valid at any time (an e-process).

At look t = 1, 2, .. a member has new samples, and p_t is the p-value of "they have the distribution of all samples that
the group had before" (`member_p`). These samples join the group's before the next look. If no member has drifted and
samples are independent, the difference of means at one look is uncorrelated with all earlier ones (they are Helmert
contrasts), so that no p-value depends on earlier p-values. With

    e(p)  = (1 - p + p ln p) / (p (ln p)^2)         the mean of kappa p^(kappa - 1) over kappa in 0..1; E e(p) <= 1
    w_t   = 1 / (t (t + 1))                         the share of alpha for a drift that begins at look t
    S_t   = e(p_t) (S_(t-1) + w_t),  S_0 = 0
    M_t   = S_t + 1 / (t + 1)

M is a nonnegative supermartingale with M_0 = 1: the mixture, over the look s at which a drift begins, of the products
e(p_s) .. e(p_t). By Ville's inequality the chance that M_t >= 1 / alpha at any look is at most alpha.

Ville (1939); Vovk and Wang (Annals of Statistics 2021), "E-values: calibration, combination and applications", for
e(p). For normal means "uncorrelated" implies "independent", and means of many samples are nearly normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedkin.graph.grouping_tests import member_p
from fedkin.graph.signatures import Signature

__all__ = ["Doubt", "calibrated", "look"]

# Tails of the tests' distributions are not trusted beyond this.
_LEAST_P = 1e-12


@dataclass(frozen=True)
class Doubt:
    """The evidence that a member has drifted. looks: their number so far, t. sum: S_t (see `fedkin.graph.holding`).

    >>> Doubt().value, round(Doubt().after(1e-6).value)
    (1.0, 2620)
    """

    looks: int = 0
    sum: float = 0.0

    @property
    def value(self) -> float:
        """The evidence M_t, 1 before the first look; at 1 / alpha or above, the member counts as drifted."""
        return self.sum + 1 / (self.looks + 1)

    def after(self, p: float) -> Doubt:
        """Return the doubt after one more look with this p-value, from 0 to 1."""
        t = self.looks + 1
        return Doubt(t, calibrated(p) * (self.sum + 1 / (t * (t + 1))))


def calibrated(p: float) -> float:
    """Return e(p), which for a uniform p has the mean 1.

    >>> [round(calibrated(p), 2) for p in (1e-4, 0.01, 0.5, 1.0)]
    [117.76, 4.45, 0.64, 0.5]
    """
    p = max(p, _LEAST_P)
    log = math.log(p)
    # Near 1 numerator and denominator cancel; the limit is 1/2, and e falls in p.
    return 0.5 if log > -1e-4 else (1 - p + p * log) / (p * log * log)


def look(before: Doubt, new: Signature, group: Signature, verdict: str, alpha: float) -> Doubt:
    """Return the doubt after a look at a member's new samples.

    group: the signature of all earlier samples of its members. verdict: of the group ("same", "shares", "offsets" or
    "alone"). alpha: the level of `find`.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, sign
    >>> rng = np.random.default_rng(0)
    >>> old, new = rng.normal(size=(200, 4)), rng.normal(size=(80, 4))
    >>> plan = Plan.of([Spread.of(old)])
    >>> look(Doubt(), sign(plan, new + 1), sign(plan, old), "same", 0.001).value > 1000
    True
    """
    return before.after(member_p(new, group, verdict, alpha))
