"""Intervals against scipy, scikit-learn and plain computations, and the coverage of the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedkin.analysis.intervals import Interval, added, auc_interval, components, mean_interval, over, wilson
from support import present

Values = npt.NDArray[np.float64]


def coverage(interval: Callable[[np.random.Generator], Interval | None], truth: float, times: int = 600) -> float:
    rng = np.random.default_rng(7)
    found = [each for _ in range(times) if (each := interval(rng)) is not None]
    return sum(each.low <= truth <= each.high for each in found) / len(found)


@pytest.mark.parametrize(("right", "n"), [(0, 9), (9, 9), (1, 30), (17, 40), (1503, 1600)])
def test_wilson_is_scipys(right: int, n: int) -> None:
    known = stats.binomtest(right, n).proportion_ci(0.9, method="wilson")
    assert wilson(right, n, 0.9) == pytest.approx((known.low, known.high), abs=1e-12)


def test_a_rate_of_nothing_has_no_interval_and_a_level_in_per_cent_is_refused() -> None:
    assert wilson(0, 0) is None
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson(1, 3, 95)


def test_components_are_counts_over_all_pairs() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 6, 60).astype(float), rng.integers(0, 2, 60)
    pairs = np.sign(scores[labels == 1][:, None] - scores[labels == 0][None, :]) / 2 + 0.5
    ones, zeros = components(scores, labels)
    assert ones == pytest.approx(pairs.mean(1))
    assert zeros == pytest.approx(pairs.mean(0))
    assert ones.mean() == pytest.approx(roc_auc_score(labels, scores))


def test_the_variance_of_an_auc_is_delongs() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=80), np.repeat([1, 0], [25, 55])
    pairs = (scores[:25, None] > scores[None, 25:]).astype(float)
    se = math.sqrt(pairs.mean(1).var(ddof=1) / 25 + pairs.mean(0).var(ddof=1) / 55)
    auc = pairs.mean()
    half = 1.959964 * se / (auc * (1 - auc))
    at = math.log(auc / (1 - auc))
    assert auc_interval(scores, labels) == pytest.approx([1 / (1 + math.exp(-(at + s * half))) for s in (-1, 1)], 1e-5)


@pytest.mark.parametrize(("scores", "labels"), [([1, 2, 3, 4], [0, 0, 1, 1]), ([1.0, 2, 0, 0.5], [0, 1, 0, 0])])
def test_an_auc_of_1_has_a_low_end_that_depends_on_the_events(scores: list[float], labels: list[int]) -> None:
    found = present(auc_interval(scores, labels))
    assert found.high == 1.0
    assert 0.2 < found.low < 0.7
    turned = auc_interval([-score for score in scores], labels)
    assert turned == pytest.approx((0.0, 1 - found.low), abs=1e-6)
    many = present(auc_interval(np.arange(200), np.repeat([0, 1], 100)))
    assert many.low > 0.95


@pytest.mark.slow
def test_the_bootstrap_covers_skewed_errors_better_than_students_interval() -> None:
    own = coverage(lambda rng: mean_interval(rng.chisquare(1, 15), draws=500), 1.0)
    student = coverage(lambda rng: over(rng.chisquare(1, 15)), 1.0)
    assert own > student
    assert 0.91 <= own <= 0.98


def test_the_bootstrap_repeats_itself_and_takes_any_values() -> None:
    values = np.random.default_rng(3).chisquare(2, 40)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values, seed=1) != mean_interval(values)
    wide, narrow = (present(mean_interval(values, level)) for level in (0.99, 0.8))
    assert wide.low < narrow.low < values.mean() < narrow.high < wide.high
    assert mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert mean_interval([1.0]) is None
    assert mean_interval([1.0, math.nan, 2.0]) is None
    for few in ([1.0, 1.0, 1.0, 1.0, 1.0, 9.0], list(range(4)), list(range(2000))):
        found = present(mean_interval(few))
        assert found.low < np.mean(few) < found.high


def test_over_is_students_interval() -> None:
    values = [0.71, 0.74, 0.69, 0.8]
    known = stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    assert over(values, 0.9) == pytest.approx((known.low, known.high))
    assert over([0.7]) is None


def test_seeds_with_equal_means_have_the_spread_that_follows_from_their_clients() -> None:
    """Two of 8 clients' accuracies on 20 samples differ by chance: equal means are no proof of a difference."""
    draw = np.random.default_rng(0)
    first = {f"c{k}": float(value) for k, value in enumerate(draw.integers(-2, 3, 8) / 20)}
    other = dict(zip(first, [*list(first.values())[1:], first["c0"]], strict=True))
    equal = present(added({0: first, 1: other}))
    spread = math.sqrt(np.mean([np.var([first[id], other[id]], ddof=1) for id in first]) / 8)
    half = stats.t.ppf(0.975, 1) * spread / math.sqrt(2)
    assert (equal.low, equal.high) == pytest.approx((equal.value - half, equal.value + half))
    assert equal.value != 0
    assert equal.against() == "cannot be told apart"
    sent = present(added({0: {"": 3.0}, 1: {"": 3.0}}))  # a figure that no seed changes, such as bytes
    assert (sent.low, sent.high, sent.against()) == (3.0, 3.0, "better")
