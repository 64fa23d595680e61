"""What a table keeps of a run: its figures and its clients' values, from the run itself or from the CSV of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from fedkin.analysis.intervals import Added, added
from fedkin.records.controls import without_exchange
from fedkin.records.metrics import value_of
from fedkin.records.run import Result
from fedkin.tasks import METRICS, Metric

__all__ = ["FIGURES", "GIVEN", "Run", "added_by_exchange", "differences", "mean_over"]

# In the CSV of a page.
FIGURES = ("mean", "worst10", "worst20", "std", "unseen", "ari", "bytes")
GIVEN = "; "


@dataclass(frozen=True)
class Run:
    """One run of a row.

    clients: their number. figures: by name, without those that are not known. given: what was told to the method.
    values: the metric of each client that takes part, by id, None if it has none; empty if only figures are known.
    """

    metric: Metric
    clients: int
    figures: Mapping[str, float]
    given: tuple[str, ...] = ()
    values: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result) -> Self:
        """Return what is kept of a result."""
        summary, name = result.summary, result.metric.name
        known: dict[str, Any] = {
            **{each: summary[name].get(each) for each in ("mean", "worst10", "worst20", "std", "variance")},
            "unseen": (summary.get("unseen") or {}).get("mean"), "ari": summary["groups"].get("ari"),
            "bytes": result.sent,
        }  # fmt: skip
        values = {id: value_of(score) for id, score in sorted(result.scores.items()) if id not in result.unseen}
        figures = {each: float(value) for each, value in known.items() if value is not None}
        return cls(result.metric, summary["clients"], figures, tuple(summary.get("given") or ()), values)

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Self:
        """Return the run of a line of a page's CSV; raises KeyError or ValueError for a line that has no run."""
        metric = METRICS[row["metric"]]
        figures = {name: float(row[name]) for name in FIGURES if row.get(name)}
        if "std" in figures:
            figures["variance"] = ((100 if metric.share else 1) * figures["std"]) ** 2
        told = row.get("given") or ""
        return cls(metric, int(row["clients"]), figures, tuple(told.split(GIVEN)) if told else ())


def differences(mine: Mapping[int, Run], theirs: Mapping[int, Run]) -> Added | None:
    """Return how much better one row's clients are than another's with the same seeds (see `added`).

    Where only the figures of a run are known, the difference of the means stands for the mean of the differences.
    """
    return added({seed: _gains(run, theirs[seed]) for seed, run in mine.items() if seed in theirs})


def _gains(run: Run, other: Run) -> dict[str, float]:
    better = run.metric.better
    if not (run.values and other.values):
        return {"": better(run.figures["mean"], other.figures["mean"])}
    pairs = {id: (value, other.values.get(id)) for id, value in run.values.items()}
    return {id: better(a, b) for id, (a, b) in pairs.items() if a is not None and b is not None}


def added_by_exchange(name: str, results: Mapping[str, Mapping[int, Run]]) -> Added | None:
    """Return what communication adds to a row: the row minus its control without exchange, NAME@self.

    It is 0 for Local and for the control itself; None if the control was not run.
    """
    alone = without_exchange(name, results)
    return None if alone is None else differences(results[name], alone)


def mean_over(runs: Mapping[int, Run], name: str) -> Sequence[float]:
    """Return a figure of each seed's run, in the order of the seeds; empty if any is unknown."""
    values = [runs[seed].figures.get(name) for seed in sorted(runs)]
    return [] if None in values else [value for value in values if value is not None]
