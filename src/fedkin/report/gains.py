"""Gains of a run's clients over training alone, how sure they are, and how evenly a metric is spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedkin.analysis.paired import LEAST_EVENTS, LEAST_SAMPLES
from fedkin.errors import RunError
from fedkin.records.controls import counterpart
from fedkin.records.figures import Gains, gains_over
from fedkin.records.run import Result

__all__ = ["RULE", "entropy", "gains_of", "jain", "sure_of"]

RULE = (
    "Gained or hurt: the 95 % interval of the paired difference to Local, on the same test samples, is all above or "
    "all below 0. Each client is judged by itself: of 100 clients without any difference, about 5 are misjudged. "
    f"Too few: less than {LEAST_EVENTS} events or {LEAST_EVENTS} others in a risk task, less than {LEAST_SAMPLES} test "
    "samples in other tasks."
)
_NETWORKED = ("network", "peer")  # engines


def gains_of(run: Result, runs: Sequence[Result]) -> Gains | None:
    """Gains over the comparable run of Local; None of Local itself, without such a run, and without a common client."""
    alone = _local(run, runs)
    try:
        return None if alone is None else gains_over(run, alone)
    except ValueError as error:
        folders = f"{run.folder} and {alone and alone.folder}"
        raise RunError(f"{folders}: {error}; both must be as they were written") from None


def _local(run: Result, runs: Sequence[Result]) -> Result | None:
    return None if run.method == "local" else counterpart(run, runs, "local")


def _withheld(run: Result) -> str:
    """Why the outcomes of single test samples are not known; empty if they are."""
    if run.outcomes:
        return ""
    if run.summary.get("engine") in _NETWORKED:
        return "no per-sample outcomes leave a client over a network"
    return "no per-sample outcomes were kept"


def sure_of(run: Result, runs: Sequence[Result], gains: Gains | None, ids: Sequence[str]) -> dict[str, Any] | None:
    """Of each client, in the order of `ids`: interval of its metric, events, and interval and verdict of its gain.

    "withheld": why no gain has a verdict; empty if they have one. None if nothing is known of any client.
    """
    seen = {id: one for id, one in run.outcomes.items() if id not in run.unseen}
    intervals = {id: bounds for id, bounds in run.intervals().items() if id not in run.unseen}
    differences = {} if gains is None else gains.sure
    alone = None if gains is None else _local(run, runs)
    withheld = "" if alone is None else _withheld(run) or _withheld(alone)
    columns = {
        "own": [_rounded(intervals[id]) if id in intervals else None for id in ids],
        "events": [seen[id].events if id in seen else None for id in ids],
        "gain": [_rounded(differences[id][0][1:3]) if id in differences else None for id in ids],
        "verdict": [differences[id][1] if id in differences else None for id in ids],
        "withheld": withheld,
    }
    return columns if seen or withheld or intervals else None


def _rounded(bounds: Sequence[float | int | None]) -> list[float] | None:
    known = [round(float(end), 6) for end in bounds if end is not None]
    return known if len(known) == len(bounds) else None


def jain(values: Sequence[float]) -> float | None:
    """Jain's index (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything; None if all are 0.

    >>> jain([0.5, 0.5]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def entropy(values: Sequence[float]) -> float | None:
    """Entropy of the values' shares of their sum, over log n: 1 if all are equal (as in q-FFL, 2020).

    None for fewer than two values, or if all are 0.

    >>> entropy([0.5, 0.5]), entropy([1.0, 0.0])
    (1.0, 0.0)
    """
    total = math.fsum(values)
    if len(values) < 2 or total <= 0:
        return None
    shares = [value / total for value in values if value > 0]
    return abs(math.fsum(-share * math.log(share) for share in shares)) / math.log(len(values))
