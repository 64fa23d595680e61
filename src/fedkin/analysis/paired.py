"""Compare two models on the same test samples of a client: the difference, its interval, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import scipy
from scipy import special

from fedkin.analysis.intervals import (
    LEVEL,
    Interval,
    Persons,
    auc_interval,
    components,
    mean_interval,
    mean_interval_of_persons,
    mean_variance,
    normal,
    over,
    rate_interval_of_persons,
    student,
    wilson,
)  # fmt: skip
from fedkin.analysis.ranking import holm
from fedkin.tasks import METRICS, Kind

Verdict: TypeAlias = Literal["gained", "hurt", "cannot be told apart", "too few"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

# With fewer than 10 samples of a class, the AUC depends on single patients, and DeLong's interval of a high AUC misses
# it clearly more often than its level says (3 events: 13 % instead of 5 %).
LEAST_EVENTS = 10
# McNemar's test finds a difference only if at least 4 samples are right for one model and wrong for the other: with
# fewer than 8 samples, these are more than half.
LEAST_SAMPLES = 8


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of one model on each test sample of one client.

    classification   values [n]: 1 for a right label, 0 for a wrong one
    risk             values [n]: scores, higher for an event; labels [n]: 1 for an event, else 0
    regression       values [n]: squared errors, summed over the targets of a sample
    segmentation     values [n]: Dice of each sample, or the sample's part in the Dice of all (their mean is that Dice)

    persons: [n], equal for samples of one person, which are not independent; None: all samples are independent.

    Raises ValueError if the arrays do not fit the kind.
    """

    kind: Kind
    values: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64] | None = None
    persons: Persons | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float64)
        labels = None if self.labels is None else np.asarray(self.labels, dtype=np.int64)
        if labels is not None and (labels.shape != values.shape or not np.isin(labels, (0, 1)).all()):
            raise ValueError(f"labels: 0 or 1 for each of {len(values)} samples is needed, got shape {labels.shape}")
        if self.kind == "classification" and not np.isin(values, (0, 1)).all():
            raise ValueError("values: 1 for a right label and 0 for a wrong one is needed")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def events(self) -> int | None:
        """Number of samples with label 1 in a risk task; None for other tasks."""
        return None if self.labels is None else int(self.labels.sum())

    @property
    def independent(self) -> tuple[int, int | None]:
        """Number of samples and of events; with persons, number of persons, and of those with an event."""
        if self.persons is None:
            return len(self), self.events
        events = None if self.labels is None else len(np.unique(self.persons[self.labels == 1]))
        return len(np.unique(self.persons)), events


class Difference(NamedTuple):
    """How much better one model is than another on the same samples, above 0 if it is better, with its interval.

    value, low, high: None if these samples do not determine them (one class only, fewer than 2 samples). n: number of
    samples; events: number of samples with label 1 in a risk task, else None. With persons, both are of persons.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    events: int | None = None


def enough(n: int, events: int | None = None) -> bool:
    """Whether there are enough samples for a verdict: LEAST_EVENTS events and as many non-events, else LEAST_SAMPLES.

    >>> enough(500, 9), enough(500, 10), enough(7), enough(8)
    (False, True, False, True)
    """
    return n >= LEAST_SAMPLES if events is None else min(events, n - events) >= LEAST_EVENTS


def verdict(difference: Difference) -> Verdict:
    """Return "gained" or "hurt" if the interval is all above or all below 0, "too few" without `enough` samples.

    >>> verdict(Difference(0.1, 0.02, 0.18, 50)), verdict(Difference(0.3, 0.1, 0.5, 400, 3))
    ('gained', 'too few')
    """
    if not enough(difference.n, difference.events) or difference.low is None or difference.high is None:
        return "too few"
    return "gained" if difference.low > 0 else "hurt" if difference.high < 0 else "cannot be told apart"


def difference(metric_name: str, mine: Outcomes, theirs: Outcomes, level: float = LEVEL) -> Difference:
    """How much better `mine` is than `theirs` in a metric of `fedkin.tasks`, with a paired interval.

    accuracy            Tango's score interval (1998), which excludes 0 exactly if McNemar's test does
    auc                 paired DeLong (1988) with Welch's degrees of freedom, for few events; if its variance is 0, both
                        intervals combined (Newcombe's square and add)
    squared_error, dice   Student's interval of the samples' differences

    If samples have persons, it is Student's interval with the variance over persons (`variance_of_units`); for an
    accuracy as if one more person were right for one model, because models that agree on these may differ on others.
    The interval holds for one client by itself: of 100 clients without any difference, 5 intervals are expected to
    exclude 0 (`verdicts` can correct for this). Raises ValueError if the samples differ.

    >>> right, wrong = Outcomes("classification", np.ones(20)), Outcomes("classification", np.repeat([1.0, 0.0], 10))
    >>> found = difference("accuracy", right, wrong)
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (0.5, 0.26, 0.7)
    """
    _check(mine, theirs)
    n, events = mine.independent
    value, other = figure(metric_name, mine), figure(metric_name, theirs)
    if value is None or other is None:
        return Difference(None, None, None, n, events)
    better = METRICS[metric_name].better(value, other)
    bounds: Interval | None
    if metric_name == "auc":
        bounds = _paired_auc(mine, theirs, level)
    elif mine.persons is not None:
        variance, freedom = _over_persons(metric_name, mine, theirs)
        half = student(level, freedom) * math.sqrt(variance) if freedom else math.nan
        bounds = _within(Interval(better - half, better + half), metric_name) if freedom else None
    elif metric_name == "accuracy":
        bounds = _tango(mine.values, theirs.values, normal(level))
    else:
        sign = 1.0 if METRICS[metric_name].higher else -1.0
        bounds = over(sign * (mine.values - theirs.values), level)
    return Difference(better, None, None, n, events) if bounds is None else Difference(better, *bounds, n, events)


def p_value(metric_name: str, mine: Outcomes, theirs: Outcomes) -> float | None:
    """P-value of "no difference", with the test of the interval: McNemar, DeLong, Student; None if not determined.

    The samples are the same, and `enough`.

    >>> right, wrong = Outcomes("classification", np.ones(20)), Outcomes("classification", np.repeat([1.0, 0.0], 10))
    >>> round(p_value("accuracy", right, wrong), 4)
    0.0016
    """
    if np.array_equal(mine.values, theirs.values):
        return 1.0
    if metric_name == "auc" or mine.persons is not None:
        value, variance, freedom = (
            _delong(mine, theirs) if metric_name == "auc"
            else (float((mine.values - theirs.values).mean()), *_over_persons(metric_name, mine, theirs))
        )  # fmt: skip
        return None if variance <= 0 else 2 * float(special.stdtr(freedom, -abs(value) / math.sqrt(variance)))
    if metric_name == "accuracy":
        here, there = _apart(mine.values, theirs.values)
        return 2 * float(special.ndtr(-abs(here - there) / math.sqrt(here + there)))
    return float(scipy.stats.ttest_rel(mine.values, theirs.values).pvalue)


def verdicts(
    metric_name: str, pairs: Mapping[str, tuple[Outcomes, Outcomes]], level: float = LEVEL, correction: str = "none"
) -> dict[str, tuple[Difference, Verdict]]:
    """The difference and verdict of each client by id; pairs: a client's outcomes of one model, and of the other.

    correction: "none" judges each client by itself at `level`; "holm" keeps the chance of any wrong "gained" or "hurt"
    among all clients below 1 - level (Holm, 1979): verdicts that do not pass become "cannot be told apart".
    """
    if correction not in ("none", "holm"):
        raise ValueError(f"correction: 'none' or 'holm' is needed, got {correction!r}")
    differences = {id: difference(metric_name, *pair, level) for id, pair in pairs.items()}
    words = {id: verdict(one) for id, one in differences.items()}
    if correction == "holm":
        judged = [id for id, word in words.items() if word != "too few"]
        p_values = [p_value(metric_name, *pairs[id]) for id in judged]
        corrected = zip(judged, holm([1.0 if p is None else p for p in p_values]), strict=True)
        words |= dict.fromkeys((id for id, p in corrected if p > 1 - level), "cannot be told apart")
    return {id: (differences[id], words[id]) for id in differences}


def figure(metric_name: str, outcomes: Outcomes) -> float | None:
    """The value of a metric on these samples; None if they do not determine it.

    >>> figure("accuracy", Outcomes("classification", np.array([1.0, 1.0, 0.0, 1.0])))
    0.75
    """
    if not len(outcomes):
        return None
    if metric_name == "auc":
        ones, zeros = components(outcomes.values, outcomes.labels)
        return float(ones.mean()) if len(ones) and len(zeros) else None
    return float(outcomes.values.mean())


def figure_interval(metric_name: str, outcomes: Outcomes, level: float = LEVEL) -> Interval | None:
    """The interval of `figure`: Wilson, DeLong or a bootstrap of t, depending on the metric (see `intervals`).

    None if it is unknown: without a figure, for one sample, and for a Dice that is the same in all samples.
    """
    values, persons = outcomes.values, outcomes.persons
    if figure(metric_name, outcomes) is None:
        return None
    if metric_name == "accuracy":
        if persons is not None:
            return rate_interval_of_persons(values, persons, level)
        return wilson(float(values.sum()), len(outcomes), level)
    if metric_name == "auc":
        return auc_interval(values, outcomes.labels, level, persons)
    bounds = mean_interval(values, level) if persons is None else mean_interval_of_persons(values, persons, level)
    most = 1.0 if METRICS[metric_name].share else math.inf
    # A Dice of 0 or 1 in a few images is not certain.
    if bounds is None or (bounds.low == bounds.high and METRICS[metric_name].share):
        return None
    return Interval(max(bounds.low, 0.0), min(bounds.high, most))


def counted_interval(metric_name: str, value: float, n: int, level: float = LEVEL) -> Interval | None:
    """The interval of a figure over n samples if single outcomes are unknown: Wilson's, for an accuracy.

    None for other metrics, whose spread needs single outcomes, and for n = 0.

    >>> low, high = counted_interval("accuracy", 0.9, 10)
    >>> round(low, 3), round(high, 3)
    (0.596, 0.982)
    """
    return wilson(round(value * n), n, level) if metric_name == "accuracy" else None


def _check(mine: Outcomes, theirs: Outcomes) -> None:
    same = np.array_equal(mine.labels, theirs.labels) if mine.labels is not None and theirs.labels is not None else True
    if mine.kind != theirs.kind or len(mine) != len(theirs) or not same:
        raise ValueError(
            f"the two outcomes are not of the same samples: {mine.kind} on {len(mine)} and {theirs.kind} on "
            f"{len(theirs)} samples" + ("" if same else ", with other labels")
        )


def _apart(mine: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> tuple[int, int]:
    """(number of samples that only `mine` has right, number that only `theirs` has right)."""
    return int(((mine == 1) & (theirs == 0)).sum()), int(((mine == 0) & (theirs == 1)).sum())


def _tango(mine: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], z: float) -> Interval:
    """All differences of two paired rates that the score test with quantile z does not reject."""
    n = len(mine)
    here, there = _apart(mine, theirs)

    def statistic(at: float) -> float:
        b, c = -here - there + (2 * n - here + there) * at, -there * at * (1 - at)
        rest = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
        variance = n * (2 * rest + at * (1 - at))
        gap = here - there - n * at
        return gap / math.sqrt(variance) if variance > 1e-15 else math.copysign(math.inf, gap) if gap else 0.0

    value, edge = (here - there) / n, 1 - 1e-12
    # At the edges a rate is 0 or 1, and the statistic is not defined there.
    low = -1.0 if statistic(-edge) < z else _root(lambda at: statistic(at) - z, -edge, value)
    high = 1.0 if statistic(edge) > -z else _root(lambda at: statistic(at) + z, value, edge)
    return Interval(low, high)


def _root(of: Any, low: float, high: float) -> float:
    """The zero of a falling function of the difference, between low and high."""
    if of(low) <= 0 or of(high) >= 0:
        return low if of(low) <= 0 else high
    return float(scipy.optimize.bisect(of, low, high, xtol=1e-10))


def _delong(mine: Outcomes, theirs: Outcomes) -> tuple[float, float, float]:
    """The difference of the AUCs, its variance and degrees of freedom; a variance of 0 is unknown."""
    (a_ones, a_zeros), (b_ones, b_zeros) = (components(one.values, one.labels) for one in (mine, theirs))
    ones, zeros = a_ones - b_ones, a_zeros - b_zeros
    if mine.persons is not None:
        event = mine.labels == 1
        found = mean_variance((ones, zeros), (mine.persons[event], mine.persons[~event]))
        return float(ones.mean()), *(found if found is not None and found[0] > 1e-18 else (0.0, 0.0))
    if min(len(ones), len(zeros)) < 2:
        return float(ones.mean()), 0.0, 0.0
    parts = [(float(one.var(ddof=1) / len(one)), len(one) - 1) for one in (ones, zeros)]
    variance = sum(part for part, _ in parts)
    if variance <= 1e-18:
        return float(ones.mean()), 0.0, 0.0
    return float(ones.mean()), variance, variance**2 / sum(part**2 / freedom for part, freedom in parts)


def _over_persons(metric_name: str, mine: Outcomes, theirs: Outcomes) -> tuple[float, int]:
    """The variance of a difference of means, and its degrees of freedom; those are 0 for one person."""
    assert mine.persons is not None
    variance, freedom = mean_variance((mine.values - theirs.values,), (mine.persons,)) or (0.0, 0)
    return variance + (metric_name == "accuracy") / (freedom + 1) ** 2, freedom


def _within(bounds: Interval, metric_name: str) -> Interval:
    """The interval without differences that the metric cannot have."""
    most = 1.0 if METRICS[metric_name].share else math.inf
    return Interval(max(-most, bounds.low), min(most, bounds.high))


def _paired_auc(mine: Outcomes, theirs: Outcomes, level: float) -> Interval:
    if np.array_equal(mine.values, theirs.values):
        return Interval(0.0, 0.0)
    value, variance, freedom = _delong(mine, theirs)
    normal(level)
    if variance > 0:
        half = student(level, freedom) * math.sqrt(variance)
        return _within(Interval(value - half, value + half), "auc")
    a, b = (auc_interval(one.values, one.labels, level, one.persons) for one in (mine, theirs))
    at, bt = (float(components(one.values, one.labels)[0].mean()) for one in (mine, theirs))
    return Interval(value - math.hypot(at - a.low, b.high - bt), value + math.hypot(a.high - at, bt - b.low))
