"""Whether the predicted risks are true: what a page shows of calibration and of the use of acting on them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from fedkin.analysis.calibration import Calibration, brier, calibration, curve, decision_curve, probabilities
from fedkin.analysis.intervals import Interval, normal
from fedkin.records.run import Result
from fedkin.report.html import small
from fedkin.report.units import half_interval

# A point of a calibration curve with fewer events says little; with many, ten points are enough to see a bend.
_EVENTS_OF_A_POINT, _POINTS = 5, 10

HEADS = (
    ("method", ""),
    ("samples", "test samples of all clients that take part, together"),
    ("events", "how many of them are events"),
    ("Brier score", "mean squared difference of risk and event: 0 is best"),
    ("one risk for all", "Brier score of giving everyone the share of events"),
    ("slope", "calibration slope: 1 is ideal; below 1, high risks are too high and low ones too low"),
    ("intercept", "calibration in the large: 0 is ideal; below 0, risks are too high on average"),
)


def risks_of(run: Result) -> dict[str, Any] | None:
    """Calibration and decision curve over the last test outcomes of all participating clients; None if no risk task.

    bins: [mean risk, share of events, its interval, samples] of 2 to 10 groups of about equal size, by risk. slope and
    large: with Wald's intervals, None where there is none. net: the net benefit at the thresholds 0.01 to 0.99.
    """
    labelled = [one for id, one in run.outcomes.items() if one.labels is not None and id not in run.unseen]
    if not labelled:
        return None
    risks = probabilities(np.concatenate([one.values for one in labelled]))
    labels = np.concatenate([one.labels for one in labelled if one.labels is not None])
    fit, share, events = calibration(risks, labels), float(labels.mean()), int(labels.sum())
    points = min(_POINTS, max(2, min(events, len(labels) - events) // _EVENTS_OF_A_POINT))
    return {
        "n": len(labels), "events": events, "brier": brier(risks, labels), "none": share * (1 - share),
        "bins": [[round(value, 6) for value in one[:4]] + [one.n] for one in curve(risks, labels, points)],
        "net": [round(value, 6) for value in decision_curve(risks, labels).model.tolist()],
        **_fitted(fit),
    }  # fmt: skip


def _fitted(fit: Calibration | None) -> dict[str, list[float] | None]:
    if fit is None:
        return {"slope": None, "large": None}
    return {"slope": [fit.slope, *fit.slope_interval], "large": [fit.large, *fit.large_interval]}


def risk_rows(runs: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> list[list[str]]:
    """The table's rows, a method each: means over its seeds, with intervals (`over_seeds`)."""
    rows = []
    for label, title in titles.items():
        mine = [run["risks"] for run in runs if run["label"] == label and run["risks"]]
        if mine:
            score = [one["brier"] for one in mine]
            mean = f"{statistics.fmean(score):.4f}"
            cells = [_count([one[name] for one in mine]) for name in ("n", "events")]
            cells += [
                small(mean, f"± {half_interval(score):.4f}") if len(mine) > 1 else mean,
                f"{statistics.fmean(one['none'] for one in mine):.4f}",
            ]
            rows.append([title, *cells, *(_with_interval([one[name] for one in mine]) for name in ("slope", "large"))])
    return rows


def over_seeds(fits: Sequence[Sequence[float]]) -> tuple[float, Interval]:
    """The mean of estimates [value, low, high] of the seeds, and its interval by Rubin's rules (1987).

    The seeds share the test samples or draw them from one data set, so that more seeds do not make the samples' part
    of the variance smaller: it is the mean of the seeds' variances. To it, (1 + 1/m) of the variance between the m
    seeds is added.

    >>> mean, (low, high) = over_seeds([[1.0, 0.5, 1.5], [1.0, 0.5, 1.5]])
    >>> mean, round(low, 6), round(high, 6)
    (1.0, 0.5, 1.5)
    """
    z, values = normal(0.95), [fit[0] for fit in fits]
    mean = statistics.fmean(values)
    within = statistics.fmean(((high - low) / (2 * z)) ** 2 for _, low, high in fits)
    between = statistics.variance(values) if len(values) > 1 else 0.0
    half = z * math.sqrt(within + (1 + 1 / len(values)) * between)
    return mean, Interval(mean - half, mean + half)


def _count(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _with_interval(fits: Sequence[Sequence[float] | None]) -> str:
    estimates = [fit for fit in fits if fit is not None]
    if len(estimates) < len(fits):
        return Markup('<span class="quiet" title="risks are equal, or a threshold separates the events">–</span>')
    value, (low, high) = over_seeds(estimates)
    return small(f"{value:.2f}".replace("-", "−"), f"{low:.2f} to {high:.2f}".replace("-", "−"))
