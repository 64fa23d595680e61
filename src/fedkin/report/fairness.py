"""How evenly a metric is spread over clients, and which clients gain from collaboration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.analysis.paired import VERDICTS, Difference, Outcomes, Verdict, verdicts
from fedkin.tasks import METRICS, Metric

__all__ = ["Gains", "entropy", "gains", "jain"]

# Accuracies are fractions of the same number of samples: values closer than this are equal.
_EQUAL = 1e-9
_ACCURACY = METRICS["accuracy"]


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


def gains(
    values: Mapping[str, float], alone: Mapping[str, float], metric: Metric = _ACCURACY,
    outcomes: Mapping[str, Outcomes] | None = None, outcomes_alone: Mapping[str, Outcomes] | None = None,
) -> Gains | None:  # fmt: skip
    """Gains of the clients in both; None if there are none. outcomes: those of the clients that take part.

    >>> found = gains({"a": 0.9, "b": 0.5}, {"a": 0.7, "b": 0.6})
    >>> found.gaining, found.hurt
    (1, 1)
    """
    both = {id: metric.better(values[id], alone[id]) for id in sorted(values) if id in alone}
    others = outcomes_alone or {}
    pairs = {id: (mine, others[id]) for id, mine in (outcomes or {}).items() if id in others}
    return Gains(both, verdicts(metric.name, pairs)) if both else None
