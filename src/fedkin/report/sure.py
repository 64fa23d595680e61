"""How sure the figures of single clients are: intervals, verdicts and their counts, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedkin.analysis.intervals import Interval
from fedkin.analysis.paired import LEAST_EVENTS, LEAST_SAMPLES, VERDICTS, Verdict, counted_interval, figure_interval
from fedkin.report.fairness import Gains
from fedkin.report.reading import Run

__all__ = ["COUNTED", "RULE", "counted", "given_of", "sure_of", "warnings_of"]

# Names of the verdicts' counts in tables.
COUNTED: Mapping[str, Verdict] = dict(zip(("gained", "lost", "apart", "few"), VERDICTS, strict=True))
RULE = (
    "Gained or hurt: the 95 % interval of the paired difference to Local, on the same test samples, is all above or "
    "all below 0. Each client is judged by itself: of 100 clients without any difference, about 5 are misjudged. "
    f"Too few: less than {LEAST_EVENTS} events or {LEAST_EVENTS} others in a risk task, less than {LEAST_SAMPLES} test "
    "samples in other tasks."
)


def sure_of(run: Run, gain: Gains | None, ids: Sequence[str]) -> dict[str, Any] | None:
    """Of each client, in the order of `ids`: interval of its metric, events, and interval and verdict of its gain.

    "withheld": why no gain has a verdict; empty if they have one. Without outcomes of single samples, as over a
    network, an accuracy has the interval of its counts. None if nothing is known of any client.
    """
    found: dict[str, Any] = {"own": [], "events": [], "gain": [], "verdict": []}
    sure = {} if gain is None else gain.sure
    by_count = {} if run.outcomes else _intervals_of_counts(run)
    for id in ids:
        outcomes = run.outcomes.get(id)
        own = by_count.get(id) if outcomes is None else figure_interval(run.metric.name, outcomes)
        found["own"].append(None if own is None else _pair(*own))
        found["events"].append(None if outcomes is None else outcomes.events)
        difference, word = sure.get(id, (None, None))
        known = difference is not None and difference.low is not None and difference.high is not None
        found["gain"].append(_pair(difference.low, difference.high) if known else None)  # type: ignore[union-attr]
        found["verdict"].append(word)
    found["withheld"] = "" if gain is None else gain.withheld
    return found if run.outcomes or found["withheld"] or any(found["own"]) else None


def _intervals_of_counts(run: Run) -> dict[str, Interval | None]:
    name = run.metric.name
    return {id: counted_interval(name, value, run.tested[id]) for id, value in run.last_values.items()}


def given_of(runs: Iterable[Run]) -> list[str]:
    """What was told to a method in any of these runs, such as "4 groups, given"."""
    return list(dict.fromkeys(text for run in runs for text in run.summary.get("given") or ()))


def warnings_of(runs: Sequence[Run], labels: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    """The warnings of all runs, each with its method and the seeds that have it."""
    found: dict[tuple[str, str], list[int]] = {}
    for run, label in zip(runs, labels, strict=True):
        for text in run.summary.get("warnings") or ():
            found.setdefault((titles[label], text), []).append(run.seed)
    return [
        f"{title}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: {text}"
        for (title, text), seeds in found.items()
    ]


def counted(counts: Mapping[str, float], whole: bool = False) -> str:
    """Counts of the verdicts in a short cell: gained/hurt/cannot be told apart, and the too few if there are any.

    whole: means over seeds as whole numbers.

    >>> counts = {"gained": 31, "lost": 0.3, "apart": 8.7, "few": 0}
    >>> counted(counts), counted(counts, whole=True)
    ('31/0.3/8.7', '31/0/9')
    """
    shown = [name for name in COUNTED if name != "few" or counts[name]]
    return "/".join(f"{counts[name]:.{0 if whole else 1}f}".removesuffix(".0") for name in shown)


def _pair(low: float | None, high: float | None) -> list[float]:
    assert low is not None and high is not None  # noqa: PT018
    return [round(low, 6), round(high, 6)]
