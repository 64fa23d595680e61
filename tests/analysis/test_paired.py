"""Paired differences against plain computations and scipy, and the rule of the verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedkin.analysis.intervals import wilson
from fedkin.analysis.paired import (
    LEAST_EVENTS,
    LEAST_SAMPLES,
    Difference,
    Outcomes,
    difference,
    enough,
    figure_interval,
    p_value,
    verdict,
    verdicts,
)  # fmt: skip
from fedkin.tasks import Kind
from support import present


def rates(both: int, mine: int, theirs: int, neither: int) -> tuple[Outcomes, Outcomes]:
    counts = (both, mine, theirs, neither)
    return (
        Outcomes("classification", np.repeat([1.0, 1, 0, 0], counts)),
        Outcomes("classification", np.repeat([1.0, 0, 1, 0], counts)),
    )


def ends_of(found: Difference) -> tuple[float, float]:
    return present(found.low), present(found.high)


def risks(rng: np.random.Generator, labels: np.ndarray, one: float, two: float) -> tuple[Outcomes, Outcomes]:
    shared = rng.normal(size=len(labels))
    return tuple(  # type: ignore[return-value]
        Outcomes("risk", labels * apart + shared + 0.7 * rng.normal(size=len(labels)), labels) for apart in (one, two)
    )


# Tango (1998), table III: the crossover trial of Jones and Kenward, and the cited corner case.
@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [((53, 16, 9, 8), -0.0366, 0.1996), ((43, 0, 1, 0), -0.1188, 0.0584), ((43, 0, 0, 0), -0.0820, 0.0820)],
)
def test_the_interval_of_paired_rates_holds_what_the_score_test_does_not_reject(
    counts: tuple[int, int, int, int], low: float, high: float
) -> None:
    ends = ends_of(difference("accuracy", *rates(*counts)))
    assert ends == pytest.approx((low, high), abs=0.03)
    n, b, c = sum(counts), counts[1], counts[2]
    for at in ends:
        # The rate of "only theirs" of largest likelihood under this difference, found on a grid.
        q = np.linspace(max(0, -at), (1 - at) / 2, 200_001)[1:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            likelihood = b * np.log(q + at) * (b > 0) + c * np.log(q) * (c > 0) + (n - b - c) * np.log(1 - 2 * q - at)
        likelihood = np.where(np.isfinite(likelihood), likelihood, -np.inf)
        best = q[np.argmax(likelihood)]
        z = (b - c - n * at) / math.sqrt(n * (2 * best + at * (1 - at)))
        assert abs(z) == pytest.approx(1.96, abs=0.02)


@pytest.mark.parametrize("b", range(9))
def test_the_interval_of_paired_rates_agrees_with_mcnemars_test(b: int) -> None:
    pair = rates(5, b, 2, 3)
    low, high = ends_of(difference("accuracy", *pair))
    assert (low > 0 or high < 0) == (present(p_value("accuracy", *pair)) < 0.05)


def test_the_difference_of_aucs_is_paired_delong() -> None:
    labels = np.repeat([1, 0], [20, 60])
    mine, theirs = risks(np.random.default_rng(4), labels, 2.0, 1.0)
    won = [(one.values[:20, None] > one.values[None, 20:]).astype(float) for one in (mine, theirs)]
    gap = won[0] - won[1]
    se = math.sqrt(gap.mean(1).var(ddof=1) / 20 + gap.mean(0).var(ddof=1) / 60)
    found = difference("auc", mine, theirs)
    student = stats.t(stats.ttest_ind(gap.mean(1), gap.mean(0), equal_var=False).df)  # Welch's degrees of freedom
    half = student.ppf(0.975) * se
    assert found[:3] == pytest.approx((gap.mean(), gap.mean() - half, gap.mean() + half))
    assert found[3:] == (80, 20)
    assert p_value("auc", mine, theirs) == pytest.approx(2 * student.sf(gap.mean() / se))


@pytest.mark.slow
def test_holm_holds_with_few_events() -> None:
    """40 clients without a difference, 10 events each: with normal tails a fifth of federations get a wrong verdict."""
    rng, labels, wrong = np.random.default_rng(5), np.repeat([1, 0], [10, 500]), 0
    for _ in range(80):
        pairs = {}
        for client in range(40):
            shared = rng.normal(size=510)
            pairs[str(client)] = (
                Outcomes("risk", (shared + rng.normal(size=510)) / math.sqrt(2) + labels, labels),
                Outcomes("risk", (shared + rng.normal(size=510)) / math.sqrt(2) + labels, labels),
            )  # fmt: skip
        found = {word for _, word in verdicts("auc", pairs, correction="holm").values()}
        wrong += bool(found & {"gained", "hurt"})
    assert wrong <= stats.binom.ppf(0.999, 80, 0.05)


def test_two_perfect_rankings_are_not_certainly_equal() -> None:
    labels = np.repeat([0, 1], 10)
    mine, theirs = Outcomes("risk", np.arange(20.0), labels), Outcomes("risk", np.arange(20.0) ** 2, labels)
    found = difference("auc", mine, theirs)
    assert found.value == 0
    assert present(found.low) < -0.05
    assert difference("auc", mine, mine)[:3] == (0, 0, 0)


def test_of_one_class_nothing_is_known() -> None:
    one = Outcomes("risk", np.arange(30.0), np.zeros(30, dtype=np.int64))
    found = difference("auc", one, one)
    assert found == Difference(None, None, None, 30, 0)
    assert verdict(found) == "too few"
    assert figure_interval("auc", one) is None


@pytest.mark.parametrize("dice", [0.0, 1.0])
def test_an_equal_dice_in_two_images_is_not_certain(dice: float) -> None:
    for persons in (None, np.arange(2)):
        assert figure_interval("dice", Outcomes("segmentation", np.full(2, dice), None, persons)) is None


def test_errors_are_better_if_they_are_lower() -> None:
    rng = np.random.default_rng(6)
    theirs = rng.chisquare(2, 50)
    mine = theirs * 0.5 + 0.1 * rng.normal(size=50)
    pair = Outcomes("regression", mine), Outcomes("regression", theirs)
    found = difference("squared_error", *pair)
    known = stats.ttest_rel(theirs, mine)
    assert found[:3] == pytest.approx((np.mean(theirs - mine), *known.confidence_interval(0.95)))
    assert p_value("squared_error", *pair) == pytest.approx(known.pvalue)
    assert verdict(found) == "gained"
    assert verdict(difference("squared_error", *pair[::-1])) == "hurt"


def test_below_the_least_numbers_no_verdict_is_given() -> None:
    assert not enough(100, 100 - LEAST_EVENTS + 1)
    assert verdict(Difference(0.5, 0.2, 0.7, LEAST_SAMPLES - 1)) == "too few"
    assert verdict(Difference(-0.5, -0.7, -0.2, 50)) == "hurt"
    assert verdict(Difference(-0.5, -0.7, 0.0, 50)) == "cannot be told apart"


def test_holm_takes_back_verdicts_that_chance_alone_would_give() -> None:
    rng = np.random.default_rng(9)
    pairs = {f"c{k}": rates(60, b := int(rng.binomial(20, 0.5)), 20 - b, 20) for k in range(100)}
    plain, held = (verdicts("accuracy", pairs, correction=kind) for kind in ("none", "holm"))
    wrong = [sum(word in ("gained", "hurt") for _, word in found.values()) for found in (plain, held)]
    assert wrong[0] > 0
    assert wrong[1] == 0
    sure = verdicts("accuracy", {**pairs, "sure": rates(40, 40, 2, 18)}, correction="holm")
    assert sure["sure"][1] == "gained"
    with pytest.raises(ValueError, match="'none' or 'holm'"):
        verdicts("accuracy", pairs, correction="bonferroni")


def test_outcomes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="1 for a right label"):
        Outcomes("classification", np.array([0.5]))
    with pytest.raises(ValueError, match="0 or 1 for each of 2"):
        Outcomes("risk", np.ones(2), np.array([1, 2]))
    one, other = (Outcomes("risk", np.ones(2), np.array(labels)) for labels in ([0, 1], [1, 0]))
    with pytest.raises(ValueError, match=r"not of the same samples.*other labels"):
        difference("auc", one, other)


def of_persons(rng: np.random.Generator, kind: Kind, persons: int, rows: int) -> tuple[Outcomes, Outcomes]:
    """Two equally good models: the samples of a person are nearly equal for one model."""
    person = np.repeat(np.arange(persons), rows)
    labels = (rng.random(persons) < 0.4)[person].astype(np.int64) if kind == "risk" else None
    shared = rng.normal(size=persons)[person]
    scores = [shared + rng.normal(size=persons)[person] + 0.3 * rng.normal(size=len(person)) for _ in range(2)]
    values = {
        "classification": [(score > -1).astype(np.float64) for score in scores],
        "risk": [score + (0 if labels is None else labels) for score in scores],
        "regression": [score**2 for score in scores],
    }[kind]
    one, other = (Outcomes(kind, value, labels, person) for value in values)
    return one, other


@pytest.mark.parametrize(
    ("metric", "kind"), [("accuracy", "classification"), ("auc", "risk"), ("squared_error", "regression")]
)
def test_samples_of_one_person_are_not_independent(metric: str, kind: Kind) -> None:
    rng, wrong, apart = np.random.default_rng(11), 0, 0
    for _ in range(200):
        pair = of_persons(rng, kind, 40, 10)
        found = difference(metric, *pair)
        wrong += verdict(found) in ("gained", "hurt")
        low, high = ends_of(found)
        apart += (low > 0 or high < 0) != (present(p_value(metric, *pair)) < 0.05)
    # As if independent: 90 or more of 200.
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)
    assert apart == 0


@pytest.mark.parametrize(
    ("metric", "kind"), [("accuracy", "classification"), ("auc", "risk"), ("squared_error", "regression")]
)
def test_an_interval_counts_persons(metric: str, kind: Kind) -> None:
    one, _ = of_persons(np.random.default_rng(12), kind, 40, 1)
    often = Outcomes(
        kind, np.repeat(one.values, 10), None if one.labels is None else np.repeat(one.labels, 10),
        np.repeat(np.arange(40), 10),
    )  # fmt: skip
    alone = Outcomes(kind, one.values, one.labels)
    (low, high), (close, far) = (present(figure_interval(metric, each)) for each in (alone, often))
    assert far - close == pytest.approx(high - low, rel=0.25)
    assert often.independent == alone.independent
    perfect = Outcomes("classification", np.ones(40), None, np.repeat(np.arange(4), 10))
    assert present(figure_interval("accuracy", perfect)).low < present(wilson(4, 4)).low
    nobody_else = Outcomes(kind, often.values, often.labels, np.zeros(400, dtype=np.int64))
    if kind != "risk":
        assert figure_interval(metric, nobody_else) is None
        assert verdict(difference(metric, nobody_else, nobody_else)) == "too few"
