"""The test that a group still holds: its evidence is a fair bet while it does, and grows where it does not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from fedkin.graph import Doubt, Plan, Signature, Spread, look, sign
from fedkin.graph.holding import calibrated


def test_the_bet_on_a_uniform_p_is_fair() -> None:
    """Its mean is the integral over p; substituting p = exp(-s) spreads the pole at 0."""
    mean, _ = quad(lambda s: calibrated(np.exp(-s)) * np.exp(-s), 1e-9, 27)
    assert 0.95 < mean <= 1.0
    bets = [calibrated(p) for p in np.linspace(0, 1, 500)]
    assert bets == sorted(bets, reverse=True)


def test_the_evidence_is_the_mixture_over_the_look_at_which_a_drift_begins() -> None:
    p = np.random.default_rng(0).uniform(size=9)
    doubt = Doubt()
    for t in range(1, 10):
        doubt = doubt.after(p[t - 1])
        begun = sum(np.prod([calibrated(q) for q in p[s - 1 : t]]) / (s * (s + 1)) for s in range(1, t + 1))
        assert doubt.value == pytest.approx(begun + 1 / (t + 1))


def test_a_member_that_drifts_is_found_and_the_others_are_not() -> None:
    rng, alpha = np.random.default_rng(0), 0.001
    first = [rng.normal(size=(60, 4)) for _ in range(5)]
    plan = Plan.of([Spread.of(x) for x in first])
    pool, doubts = Signature.total([sign(plan, x) for x in first]), [Doubt() for _ in first]
    for t in range(1, 9):
        for member in range(5):
            new = sign(plan, rng.normal(size=(60, 4)) + (1.0 if member == 2 and t >= 5 else 0.0))
            doubts[member] = look(doubts[member], new, pool, "same", alpha)
            if doubts[member].value < 1 / alpha:
                pool = Signature.total([pool, new])
            else:
                assert (member, t >= 5) == (2, True)
    assert doubts[2].value >= 1 / alpha
    assert all(doubt.value < 1 for doubt in (doubts[k] for k in (0, 1, 3, 4)))
