"""A tracker that listens, tracked runs, and what their trackers should hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from fedkin.running.trackers import figures_of, totals_of
from tiny import TABLE, cut

PLAN = {"lr": 0.1, "local_steps": 2, "batch_size": 8}


class Heard:
    """A tracker that keeps what it hears."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, dict[str, Any]]] = []
        self.rounds: list[tuple[int, dict[str, float]]] = []
        self.ended: list[Any] = []

    def start(self, settings: Mapping[str, Any], name: str, done: int) -> None:
        self.begun.append((name, done, dict(settings)))

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self.rounds.append((round, dict(figures)))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self.ended.append(summary)


def tracked(*names: str, **changes: Any) -> Experiment:
    return Experiment.of(TABLE).with_changes(**{"run.trackers": list(names)} | changes)


def cut_and_resumed(experiment: Experiment, folder: Path, round: int = 5) -> Result:
    """A run that broke off in `round`, past the checkpoint before it, and was resumed."""
    cut(experiment, folder, round)
    return run_experiment(experiment, Path(), folder)


def expected(result: Result) -> dict[str, list[tuple[int, float]]]:
    """{figure: [(round, value)]} straight from the rows."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in result.rounds:
        for name, value in figures_of(row).items():
            found.setdefault(name, []).append((row["round"], value))
    for name, value in totals_of(result.summary).items():
        found[name] = [(result.summary["rounds"], value)]
    return found
