"""Candidates of a tuning, run on held-out data: all at full length, by successive halving, or guided by the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import pooled
from fedkin.errors import MethodError, RunError
from fedkin.federation import Federation
from fedkin.folders import held
from fedkin.records.files import add_sealed, faults, json_bytes, read_json, seal_of
from fedkin.records.recorder import ANEW
from fedkin.running.candidates import Equal
from fedkin.running.compare import finished
from fedkin.running.experiment import Experiment
from fedkin.running.guided import Guide
from fedkin.running.holding import HoldOut, held_out
from fedkin.running.loop import Watcher, execute

__all__ = ["Cell", "Hears", "Trials", "Tried", "best"]

_FAILED = "failed.json"

# The settings of a candidate, and the experiment with them.
Cell = tuple[Mapping[str, Any], Experiment]
Hears = Callable[[str, Mapping[str, Any], int, int, int], Watcher]


@dataclass(frozen=True)
class Tried:
    """A candidate of a method: its settings, and for each seed its metric on held-out data or why it failed.

    rounds: after how many rounds successive halving left it (None: it ran at full length).
    """

    settings: Mapping[str, Any]
    values: tuple[float, ...]
    failed: str | None = None
    rounds: int | None = None

    @property
    def mean(self) -> float:
        """The mean over seeds; nan for a candidate that failed."""
        return float(np.mean(self.values)) if self.values and self.failed is None else math.nan


@dataclass
class Trials:
    """What the candidates of a tuning share; total and done: of all their runs."""

    dataset: Dataset
    hold: HoldOut
    seeds: Sequence[int]
    data_root: Path
    folder: Path
    restart: bool
    watcher: Hears | None
    total: int = 0
    done: int = 0

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.dataset.task.metric.higher

    def check(self, candidate: Experiment) -> None:
        """Raise ConfigError for a candidate that cannot run."""
        candidate.setup(_federation(candidate, self.dataset, self.hold, self.seeds[0]), self.data_root)

    def every(self, name: str, cells: Sequence[Cell]) -> list[Tried]:
        """Run all candidates of a method at full length."""
        return [self._tried(name, place, cell) for place, cell in enumerate(cells)]

    def halved(self, name: str, cells: Sequence[Cell], rungs: Sequence[tuple[int, int]]) -> list[Tried]:
        """Run them by successive halving; rungs: (candidates, rounds) from the first to those at full length."""
        left, tried = list(range(len(cells))), dict[int, Tried]()
        for step, (count, rounds) in enumerate(rungs):
            left = _leading(tried, left, self.higher)[:count] if step else left
            short = None if step == len(rungs) - 1 else rounds
            tried |= {place: self._tried(name, place, cells[place], short) for place in left}
        return [tried[place] for place in sorted(tried)]

    def guided(self, name: str, cells: Sequence[Cell], base: Experiment, equal: Equal) -> list[Tried]:
        """Run the first of them, and for the others candidates that Optuna chooses by what was found."""
        guide = Guide(equal.ranges(base), equal.seed, self.higher)
        found: list[Tried] = []
        for place, cell in enumerate(cells):
            if place >= equal.spread:
                values = guide.ask()
                cell = (values, base.with_changes(**values))
                self.check(cell[1])
            found.append(self._tried(name, place, cell))
            guide.tell(equal.values(cell[1]), found[-1].mean)
        return found

    def _tried(self, name: str, place: int, cell: Cell, rounds: int | None = None) -> Tried:
        """Run a candidate with each seed, for these rounds or (None) at full length."""
        values, candidate = cell
        scored: list[float] = []
        failed = None
        for seed in self.seeds:
            where = self.folder / f"{name}-{place}{'' if rounds is None else f'-{rounds}-rounds'}-seed{seed}"
            hears = None if self.watcher is None else self.watcher(name, values, seed, self.done, self.total)
            changes = {"run.seed": seed} | ({} if rounds is None else {"training.rounds": rounds})
            changed = candidate.with_changes(**changes)
            value = _judge(changed, self.dataset, self.hold, self.data_root, where, hears, self.restart)
            self.done += 1
            if isinstance(value, str):
                failed = failed or value
            else:
                scored.append(value)
        return Tried(values, tuple(scored), failed, rounds)


def _leading(tried: Mapping[int, Tried], places: Sequence[int], higher: bool) -> list[int]:
    """These candidates, the best first; those that failed last."""

    def worth(place: int) -> float:
        mean = tried[place].mean
        return math.inf if math.isnan(mean) else -mean if higher else mean

    return sorted(places, key=worth)


def best(tried: Sequence[Tried], higher: bool) -> Tried | None:
    """Return the candidate at full length with the best mean, the first of equal ones; None if all failed."""
    known = [one for one in tried if one.rounds is None and not math.isnan(one.mean)]
    return max(known, key=lambda one: one.mean if higher else -one.mean) if known else None


def _federation(experiment: Experiment, dataset: Dataset, hold: HoldOut, seed: int) -> Federation:
    scenario = experiment.scenario
    apart = held_out(scenario.model_copy(update={"pooled": False}).federation(dataset, seed), hold, seed)
    return pooled(apart) if scenario.pooled else apart


def _judge(
    experiment: Experiment, dataset: Dataset, hold: HoldOut, data_root: Path, folder: Path, watcher: Watcher | None,
    restart: bool,
) -> float | str:  # fmt: skip
    """Return the mean of the metric on held-out data, or why the run failed."""
    if (folder / _FAILED).exists():
        experiment.check_claim(folder, True)
        if (why := _failure(folder, restart)) is not None:
            return why
    done = finished(experiment, folder, True, restart)
    if done is None:
        setup = experiment.setup(_federation(experiment, dataset, hold, experiment.run.seed), data_root)
        with experiment.claimed(folder, True, data_root):
            try:
                done = execute(
                    setup, experiment.run, name=experiment.name, scenario=experiment.scenario.name, folder=folder,
                    watcher=watcher, restart=restart, model=experiment.model,
                )  # fmt: skip
            except MethodError as error:
                add_sealed(folder, {_FAILED: json_bytes(str(error))})
                return str(error)
    entry = done.summary["unseen" if hold.what == "clients" else dataset.task.metric.name] or {}
    value = entry.get("mean")
    return "nothing that was held out could be judged" if value is None else float(value)


def _failure(folder: Path, restart: bool) -> str | None:
    """Return why the run in this folder failed; None if the file that says so is damaged, and the run begins anew."""
    path = folder / _FAILED
    try:
        if wrong := faults(folder, seal_of(folder).files, [_FAILED]):
            raise RunError(wrong[0])
        return str(read_json(path))
    except RunError as error:
        if not restart:
            raise RunError(f"{error}; {ANEW}") from None
    with held(folder):
        path.unlink()
    return None
