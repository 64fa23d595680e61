"""Calibration against scikit-learn, and decision curves by counting."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression

from fedkin.analysis.calibration import calibration, curve, decision_curve, probabilities
from support import present

RNG = np.random.default_rng(0)
TRUE = RNG.normal(-1, 1.5, 4000)
LABELS = (RNG.random(4000) < special.expit(TRUE)).astype(int)


def test_slope_and_intercept_are_scikit_learns_without_penalty() -> None:
    found = present(calibration(probabilities(2 * TRUE + 1), LABELS))
    known = LogisticRegression(C=np.inf, tol=1e-10).fit((2 * TRUE + 1)[:, None], LABELS)
    assert found.slope == pytest.approx(known.coef_[0, 0], rel=1e-4)
    assert found.intercept == pytest.approx(known.intercept_[0], rel=1e-4)


def test_true_risks_have_slope_1_and_intercept_0_and_overfitted_ones_do_not() -> None:
    fair, steep, high = (present(calibration(probabilities(scores), LABELS)) for scores in (TRUE, 2 * TRUE, TRUE + 1))
    assert fair.slope_interval.low < 1 < fair.slope_interval.high
    assert fair.large_interval.low < 0 < fair.large_interval.high
    assert steep.slope == pytest.approx(0.5, abs=0.05)
    assert high.large == pytest.approx(-1, abs=0.1)
    assert high.slope == pytest.approx(fair.slope)


@pytest.mark.slow
def test_the_slopes_interval_covers() -> None:
    rng, hits = np.random.default_rng(1), 0
    for _ in range(300):
        at = rng.normal(-0.5, 1.2, 300)
        found = present(calibration(probabilities(at), (rng.random(300) < special.expit(at)).astype(int)))
        hits += found.slope_interval.low <= 1 <= found.slope_interval.high
    assert 0.92 <= hits / 300 <= 0.985


def test_without_a_maximum_there_is_no_slope() -> None:
    assert calibration([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]) is None
    assert calibration([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0]) is None
    assert calibration([0.1, 0.2], [0, 0]) is None
    assert calibration([0.3, 0.3, 0.3], [0, 1, 0]) is None
    # Risks of exactly 0 and 1 are possible outputs of a net.
    assert calibration([0.0, 0.4, 0.6, 1.0, 1.0, 0.0], [0, 1, 0, 1, 0, 1]) is not None


def test_a_curve_has_all_samples_in_bins_of_equal_size() -> None:
    bins = curve(probabilities(TRUE), LABELS)
    assert sum(one.n for one in bins) == 4000
    assert {one.n for one in bins} == {400}
    assert [one.predicted for one in bins] == sorted(one.predicted for one in bins)
    assert all(one.low <= one.observed <= one.high for one in bins)
    assert sum(one.low <= one.predicted <= one.high for one in bins) >= 8
    assert [one.n for one in curve([0.2, 0.2, 0.2], [0, 1, 0])] == [3]


def test_a_decision_curve_counts() -> None:
    found = decision_curve([0.05, 0.2, 0.3, 0.6, 0.9], [0, 1, 0, 1, 1])
    assert found[24] == pytest.approx(2 / 5 - 1 / 5 * 0.25 / 0.75)
    # Acting on true risks is never clearly worse than treating all or none.
    share, at = LABELS.mean(), np.arange(1, 100) / 100
    treated = share - (1 - share) * at / (1 - at)
    assert (decision_curve(probabilities(TRUE), LABELS) >= np.maximum(treated, 0) - 0.01).all()
