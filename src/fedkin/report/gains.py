"""Gains of a run's clients over training alone, how sure they are, and how evenly a metric is spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkin.analysis.paired import LEAST_EVENTS, LEAST_SAMPLES, VERDICTS, Difference, Verdict
from fedkin.errors import RunError
from fedkin.records.controls import counterpart
from fedkin.records.run import Result

__all__ = ["COUNTED", "RULE", "Gains", "entropy", "gains_of", "jain", "sure_of"]

# Names of the verdicts' counts in tables.
COUNTED: Mapping[str, Verdict] = dict(zip(("gained", "lost", "apart", "few"), VERDICTS, strict=True))
RULE = (
    "Gained or hurt: the 95 % interval of the paired difference to Local, on the same test samples, is all above or "
    "all below 0. Each client is judged by itself: of 100 clients without any difference, about 5 are misjudged. "
    f"Too few: less than {LEAST_EVENTS} events or {LEAST_EVENTS} others in a risk task, less than {LEAST_SAMPLES} test "
    "samples in other tasks."
)
# Accuracies are fractions of the same number of samples: values closer than this are equal.
_EQUAL = 1e-9
_NETWORKED = ("network", "peer")  # engines


@dataclass(frozen=True)
class Gains:
    """How much better the metric is than with local training, by client id.

    sure: the paired difference of each client with its verdict, also where the metric is not determined ("too few");
    empty if the runs kept no outcomes of single samples. withheld: why there is no verdict then.
    """

    by_client: Mapping[str, float]
    sure: Mapping[str, tuple[Difference, Verdict]] = field(default_factory=dict)
    withheld: str = ""

    @property
    def gaining(self) -> int:
        """Number of clients that are better than with local training."""
        return sum(value > _EQUAL for value in self.by_client.values())

    @property
    def hurt(self) -> int:
        """Number of clients that are worse than with local training."""
        return sum(value < -_EQUAL for value in self.by_client.values())

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of clients of each verdict; empty without verdicts."""
        said = [word for _, word in self.sure.values()]
        return {word: said.count(word) for word in VERDICTS} if said else {}

    @property
    def mean(self) -> float:
        """Mean over clients."""
        return math.fsum(self.by_client.values()) / len(self.by_client)


def gains_of(run: Result, runs: Sequence[Result]) -> Gains | None:
    """Gains over the comparable run of Local; None of Local itself, without such a run, and without a common client."""
    alone = None if run.method == "local" else counterpart(run, runs, "local")
    if alone is None or not (by_client := run.gains(alone)):
        return None
    try:
        differences = run.difference(alone)
    except ValueError as error:
        raise RunError(f"{run.folder} and {alone.folder}: {error}; both must be as they were written") from None
    sure = {id: found for id, found in differences.items() if id not in run.unseen}
    return Gains(by_client, sure, _withheld(run) or _withheld(alone))


def _withheld(run: Result) -> str:
    """Why the outcomes of single test samples are not known; empty if they are."""
    if run.outcomes:
        return ""
    if run.summary.get("engine") in _NETWORKED:
        return "no per-sample outcomes leave a client over a network"
    return "no per-sample outcomes were kept"


def sure_of(run: Result, gains: Gains | None, ids: Sequence[str]) -> dict[str, Any] | None:
    """Of each client, in the order of `ids`: interval of its metric, events, and interval and verdict of its gain.

    "withheld": why no gain has a verdict; empty if they have one. None if nothing is known of any client.
    """
    seen = {id: one for id, one in run.outcomes.items() if id not in run.unseen}
    intervals = {id: bounds for id, bounds in run.intervals().items() if id not in run.unseen}
    differences = {} if gains is None else gains.sure
    found = {
        "own": [_rounded(intervals[id]) if id in intervals else None for id in ids],
        "events": [seen[id].events if id in seen else None for id in ids],
        "gain": [_rounded(differences[id][0][1:3]) if id in differences else None for id in ids],
        "verdict": [differences[id][1] if id in differences else None for id in ids],
        "withheld": "" if gains is None else gains.withheld,
    }
    return found if seen or found["withheld"] or intervals else None


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
