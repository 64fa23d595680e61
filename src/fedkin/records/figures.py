"""What a row of a comparison says of a run: its figures, and how its clients fare beside training alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.analysis.paired import VERDICTS, Difference, Verdict
from fedkin.records.metrics import largest_epsilon
from fedkin.records.run import Result

__all__ = ["COUNTED", "Gains", "figures_of", "gains_over", "spread"]

# Names of the verdicts' counts in tables.
COUNTED: Mapping[str, Verdict] = dict(zip(("gained", "lost", "apart", "few"), VERDICTS, strict=True))
# Accuracies are fractions of the same number of samples: values closer than this are equal.
_EQUAL = 1e-9


def figures_of(run: Result) -> dict[str, float | None]:
    """The figures of a run by name, None where one is not known.

    weighted: the mean with the clients' numbers of test samples as weights. pooled: over all test samples together.
    unseen: mean over unseen clients. gap: how much worse that mean is. bytes: of all messages, each taken once.
    """
    names = ("mean", "pooled", "worst10", "worst20", "std", "variance")
    groups = run.summary.get("groups") or {}
    return {
        **{name: run.figures.get(name) for name in names},
        # The mean of accuracies, weighted by test samples, is that of all samples together.
        "weighted": run.figures.get("weighted", run.figures.get("pooled")),
        "unseen": (run.summary.get("unseen") or {}).get("mean"),
        "gap": run.summary.get("gap"),
        "found": groups.get("found"),
        "ari": groups.get("ari"),
        "epsilon": largest_epsilon(run.summary.get("privacy")),
        "bytes": run.sent,
        "seconds": (run.summary.get("seconds") or {}).get("total"),
    }


def spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Mean and sample standard deviation (0 for one value); None if any value is unknown.

    >>> spread([1.0, 3.0]), spread([1.0, None]), spread([])
    ((2.0, 1.4142135623730951), None, None)
    """
    known = [float(value) for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0


@dataclass(frozen=True)
class Gains:
    """How much better the metric is than with local training, by client id.

    sure: the paired difference of each client with its verdict, also where the metric is not determined ("too few");
    empty if the runs kept no outcomes of single samples.
    """

    by_client: Mapping[str, float]
    sure: Mapping[str, tuple[Difference, Verdict]] = field(default_factory=dict)

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
        words = [word for _, word in self.sure.values()]
        return {word: words.count(word) for word in VERDICTS} if words else {}

    @property
    def mean(self) -> float:
        """Mean over clients."""
        return math.fsum(self.by_client.values()) / len(self.by_client)


def gains_over(run: Result, alone: Result) -> Gains | None:
    """Gains of the clients that take part over a run of Local; None without a client that both know.

    Raises ValueError if the runs' test samples differ.
    """
    by_client = run.gains(alone)
    sure = {id: found for id, found in run.difference(alone).items() if id not in run.unseen}
    return Gains(by_client, sure) if by_client else None
