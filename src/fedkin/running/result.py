"""What a run returns: its figures, per client and per round, and its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import LEVEL, Interval
from fedkin.analysis.paired import Difference, Outcomes, Verdict, figure_interval, verdicts
from fedkin.engines import Outcome, Score
from fedkin.engines.base import SERVER
from fedkin.flow import Params
from fedkin.records import metrics
from fedkin.records.outcomes import outcomes_of
from fedkin.tasks import Metric

__all__ = ["Result", "by_client"]


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: summary, a row per round, a row per client and round, last graph, and models.

    clients: (round, client, n, loss, accuracy or the task's other figures) tuples. messages: (round, from, to, phase,
    bytes, floats, why it is missing) tuples. scores: those of the last evaluation, by client id. models: the final
    parameters of each client, without frozen ones, which are in the net; of a run that was read from its folder they
    are read on use (empty if none were kept). unseen: ids of clients that never took part.
    """

    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    clients: list[tuple[Any, ...]]
    messages: list[tuple[int, str, str, str, int, int, str]]
    scores: dict[str, Score]
    outcome: Outcome | None = None
    models: Mapping[str, Params] = field(default_factory=dict)
    folder: Path | None = None
    unseen: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Mean over clients of the test accuracy in the last round; nan without test samples, or for other metrics."""
        return float(self.summary.get("accuracy", {}).get("mean", float("nan")))

    @property
    def metric(self) -> Metric:
        """The metric of this run."""
        return metrics.metric_of(self.summary)

    @property
    def value(self) -> float:
        """Mean over clients of the metric in the last round; nan if it is not known for any client."""
        return float(self.summary[self.metric.name].get("mean", float("nan")))

    def bytes_by_client(self) -> dict[str, dict[str, int]]:
        """Return {client id: {"up": bytes sent, "down": bytes received}} over the whole run."""
        return by_client(self.messages, self.scores)

    @cached_property
    def outcomes(self) -> dict[str, Outcomes]:
        """What each client's model did on each of its test samples in the last evaluation, by client id.

        Empty for runs of earlier versions, and over a network, where this stays with the participants.
        """
        return outcomes_of(self.metric, self.scores)

    def intervals(self, level: float = LEVEL) -> dict[str, Interval]:
        """Return the interval of the metric of each client that is known well enough to have one."""
        each = {id: figure_interval(self.metric.name, one, level) for id, one in self.outcomes.items()}
        return {id: found for id, found in each.items() if found is not None}

    def difference(
        self, other: Result, level: float = LEVEL, correction: str = "none"
    ) -> dict[str, tuple[Difference, Verdict]]:
        """Return how much better each client is here than in `other`, on the same test samples, with its verdict.

        Clients whose outcomes only one of the runs has are left out. See `fedkin.analysis.paired.verdicts`. Raises
        ValueError if the runs' test samples differ.
        """
        pairs = {id: (one, other.outcomes[id]) for id, one in self.outcomes.items() if id in other.outcomes}
        return verdicts(self.metric.name, pairs, level, correction)


def by_client(messages: Iterable[tuple[Any, ...]], ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return {client id: {"up": bytes sent, "down": bytes received}} of these messages."""
    total = {id: {"up": 0, "down": 0} for id in sorted(ids)}
    for _, sender, receiver, _, size, *_ in messages:
        for id, way in ((sender, "up"), (receiver, "down")):
            if id != SERVER:
                total[id][way] += size
    return total
