"""Tuning: candidates of each method's settings, judged on held-out training data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy
import tomli_w

from fedkin.errors import ConfigError
from fedkin.methods import METHODS
from fedkin.records import reading
from fedkin.records.files import json_bytes
from fedkin.records.reading import PlanFile
from fedkin.records.run import Result
from fedkin.running.experiment import SAMPLES, Experiment, resolve_changes
from fedkin.running.grid import Cell, Choice, HoldOut, Runs, Watchers, check_choices, combinations, run_plan, values_of
from fedkin.running.plugins import own_section
from fedkin.settings import Span, flat, tunables
from fedkin.tasks import Metric

__all__ = ["RATE", "Candidate", "Equal", "at_the_border", "best", "plan_choices", "tune"]

RATE = "training.lr"
_RATE_FACTOR = 10.0  # rates reach from lr / factor to lr * factor, for the experiment's lr
Range = Span | tuple[Any, ...]


# -- candidates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equal:
    """The same number of candidates for every method; rates: the range of `training.lr`, None: a tenth to ten times.

    The first candidate is the experiment's method unchanged. The others spread evenly (Halton's sequence, scrambled
    by `seed`) over the rate and the method's own settings; a method without own settings gets more rates instead.
    Then the best candidate is tried with twice its rate, with half of it if it has the smallest rate, and with each
    other number that is the smallest or largest tried moved half-way to the end of its range; this repeats with at most
    twice `candidates` further ones. A candidate counts as the worse of itself and of its twin with twice the rate,
    because next to a rate that diverges, training on all samples or with another seed may diverge too. A candidate
    without a twin is not chosen if another has one.
    fixed: paths of settings or sections that are not tuned.
    """

    candidates: int
    rates: tuple[float, float] | None = None
    seed: int = 0
    fixed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, rates: str | None = None) -> Equal:
        """Read the number of candidates ("12") and the rates ("0.003,1"); raises ConfigError."""
        if not (text.isascii() and text.isdigit()) or not 2 <= int(text) <= 10_000:
            raise ConfigError(f"--equal {text!r}: expected a number of candidates, from 2 to 10,000")
        if rates is None:
            return cls(int(text))
        try:
            low, high = (float(part) for part in rates.split(","))
        except ValueError:
            low, high = 0.0, 0.0
        if not 0 < low < high < math.inf:
            raise ConfigError(f"--rates {rates!r}: expected two ascending numbers above 0, such as 0.003,1")
        return cls(int(text), (low, high))

    def ranges(self, experiment: Experiment) -> dict[str, Range]:
        """Return the range or values of each tuned setting, by path."""
        lr = experiment.training.lr
        if self.rates is None and lr <= 0:
            raise ConfigError("--equal: training.lr is 0; give --rates LOW,HIGH")
        rates = self.rates or (lr / _RATE_FACTOR, lr * _RATE_FACTOR)
        every = {RATE: Span(*rates), **tunables(METHODS[experiment.method.name], "method")}
        fixed = tuple(f"{path}." for path in self.fixed)
        return {path: span for path, span in every.items() if not f"{path}.".startswith(fixed)}

    def settings(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Return distinct candidates, each as values by path; the first one changes nothing."""
        ranges = self.ranges(experiment)
        drawn: list[dict[str, Any]] = [{}]
        # Settings with few values may give a candidate twice; the sequence has enough other points.
        for point in scipy.stats.qmc.Halton(len(ranges), seed=self.seed).random(20 * self.candidates):
            if len(drawn) == self.candidates:
                break
            values = {path: _value_at(span, share) for (path, span), share in zip(ranges.items(), point, strict=True)}
            if values not in drawn:
                drawn.append(values)
        return drawn

    def twinned(self, experiment: Experiment, tried: Sequence[Candidate]) -> list[Candidate]:
        """Return these candidates, each with its twin that has twice the rate, if that was tried."""

        def twin(candidate: Candidate) -> Candidate | None:
            settings = _at(2.0, candidate, experiment)
            return next((other for other in tried if other.settings == settings), None)

        return [replace(candidate, faster=twin(candidate)) for candidate in tried]

    def further(self, experiment: Experiment, tried: Sequence[Candidate], higher: bool) -> dict[str, Any] | None:
        """Return the settings to try next, given these candidates with their twins; None if there are none."""
        ranges, judged = self.ranges(experiment), [one for one in tried if not math.isnan(one.mean)]
        if not judged or len(tried) >= 3 * self.candidates:
            return None
        winner = min(judged, key=lambda one: one.cost(higher))
        if RATE in ranges:
            if winner.faster is None:
                return _at(2.0, winner, experiment)
            if _rate(winner, experiment) == min(_rate(candidate, experiment) for candidate in tried):
                return _at(0.5, winner, experiment)
        return _beyond_the_ends(ranges, winner, tried, flat(experiment.resolved()))


def _rate(candidate: Candidate, experiment: Experiment) -> float:
    return float(candidate.settings.get(RATE, experiment.training.lr))


def _at(factor: float, candidate: Candidate, experiment: Experiment) -> dict[str, Any]:
    """Return the settings of a candidate with its rate times this factor."""
    return {**candidate.settings, RATE: factor * _rate(candidate, experiment)}


def _value_at(span: Range, share: float) -> Any:
    return span.at(share) if isinstance(span, Span) else span[min(int(share * len(span)), len(span) - 1)]


def _beyond_the_ends(
    ranges: Mapping[str, Range], winner: Candidate, tried: Sequence[Candidate], before: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the winner's settings with one that is at an end of those tried moved beyond it; None if none can move.

    before: the values of settings that a candidate does not change.
    """
    for path, end in _ends(before, winner.settings, [candidate.settings for candidate in tried]):
        value = winner.settings.get(path, before.get(path))
        beyond = _beyond(ranges[path], value, end) if path != RATE else None
        if beyond is not None:
            return {**winner.settings, path: beyond}
    return None


def _beyond(span: Range, value: float, end: str) -> Any:
    """Return the number half-way to this end of a range, or the next of its values; None if there is none."""
    if not isinstance(span, Span):
        beyond = [each for each in span if (each > value if end == "largest" else each < value)]
        return min(beyond, key=lambda each: abs(each - value), default=None)
    limit = span.low if end == "smallest" else span.high
    if value <= limit if end == "smallest" else value >= limit:
        return None
    middle = Span(value, limit, span.log).at(0.5)
    return None if middle == value else middle


def _ends(
    before: Mapping[str, Any], chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return the settings that have the smallest or largest number tried, as (path, "smallest" or "largest").

    before: the values of settings that a candidate does not change.
    """
    ends = []
    for path in dict.fromkeys(chain.from_iterable(tried)):
        value, *every = (settings.get(path, before.get(path)) for settings in (chosen, *tried))
        numbers = {each for each in every if isinstance(each, (int, float))}
        if len(numbers) > 1 and not isinstance(value, bool):
            by_end = {"smallest": min(numbers), "largest": max(numbers)}
            ends += [(path, end) for end, number in by_end.items() if value == number]
    return ends


def at_the_border(experiment: Experiment, chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in words which settings have the smallest or largest number that was tried.

    A setting that a candidate does not change has the experiment's value.
    """
    ends = _ends(flat(experiment.resolved()), chosen, tried)
    return [f"{path.rpartition('.')[2]}: the {end} tried" for path, end in ends]


# -- tuning ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A candidate that ran: its settings, and for each seed its metric on held-out data or why it failed.

    faster: the same with twice the rate, if an equal tuning tried it.
    """

    settings: Mapping[str, Any]
    values: tuple[float, ...]
    failed: str | None = None
    faster: Candidate | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any], results: Iterable[float | str]) -> Self:
        """Return a candidate from its metric, or why it failed, for each seed."""
        every = list(results)
        failed = next((value for value in every if isinstance(value, str)), None)
        return cls(settings, tuple(value for value in every if not isinstance(value, str)), failed)

    @property
    def mean(self) -> float:
        """The mean over seeds; nan for a candidate that failed."""
        return float(np.mean(self.values)) if self.values and self.failed is None else math.nan

    def cost(self, higher: bool) -> float:
        """Return the worse of its mean and the mean with twice the rate, so that lower is better."""
        costs = [
            math.inf if math.isnan(candidate.mean) else -candidate.mean if higher else candidate.mean
            for candidate in (self, self.faster or self)
        ]
        return max(costs)


def best(candidates: Sequence[Candidate], higher: bool) -> Candidate | None:
    """Return the candidate with the lowest cost (the first one in a tie); None if all failed.

    If some have a twin with twice the rate, it is one of these: what is next to the others is unknown.
    """
    judged = [candidate for candidate in candidates if not math.isnan(candidate.mean)]
    twinned = [candidate for candidate in judged if candidate.faster is not None]
    return min(twinned or judged, key=lambda candidate: candidate.cost(higher)) if judged else None


def tune(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut,
    seeds: Sequence[int], data_root: Path | None, folder: Path, *,
    watch: Watchers | None = None,
) -> dict[str, list[Candidate]]:  # fmt: skip
    """Run every candidate of every method on `held_out` federations; write each method's best one to `tuned.toml`.

    Test samples are never used. choices: a grid, or equally many candidates for every method (`Equal`).
    Raises ConfigError for a setting that a method does not have.
    """
    if isinstance(choices, Equal):
        tried: dict[str, Any] = {"equal": (choices.candidates, choices.rates, choices.seed)}
    else:
        check_choices(choices, methods, "--try")
        for choice in choices:
            if choice.path.partition(".")[0] in SAMPLES:
                why = "figures on other samples choose nothing; --grid shows the figures of each"
                raise ConfigError(f"--try {choice.path}: {why}")
        tried = {"values": values_of(choices)}
    base = Runs(experiment, data_root, hold=hold)
    metric = base.federation(seeds[0]).task.metric
    tuning = _Tuning(experiment, choices, hold, metric, {name: base.for_method(name) for name in methods})
    plan = PlanFile(command="tune", methods=list(methods), seeds=list(seeds), hold_out=str(hold), **tried)
    results = run_plan(
        base, tuning.first_cells(), folder, plan, tuning.judge, watch, outputs=tuning.outputs, failed=str,
        further=tuning.further,
    )  # fmt: skip
    return tuning.candidates(results)


# For each cell, by seed: the metric on held-out data, or why there is none.
_Outcomes = Sequence[Mapping[int, float | str]]


@dataclass
class _Tuning:
    """A tuning. runs: the runs of each method. cells: all cells so far, in the order of their results."""

    experiment: Experiment
    choices: Sequence[Choice] | Equal
    hold: HoldOut
    metric: Metric
    runs: Mapping[str, Runs]
    cells: list[Cell] = field(default_factory=list)

    def first_cells(self) -> list[Cell]:
        """The candidates to begin with."""
        for name, runs in self.runs.items():
            if isinstance(self.choices, Equal):
                tried = self.choices.settings(runs.experiment)
            else:
                tried = combinations(self.choices, runs.experiment.method.name)
            self.cells += [self._cell(name, settings, number) for number, settings in enumerate(tried)]
        return list(self.cells)

    def further(self, results: _Outcomes) -> list[Cell]:
        """The candidates to try after these results; none after a grid."""
        more = []
        for name, tried in self.candidates(results).items():
            if isinstance(self.choices, Equal) and (
                settings := self.choices.further(self.runs[name].experiment, tried, self.metric.higher)
            ):
                more.append(self._cell(name, settings, len(tried)))
        self.cells += more
        return more

    def _cell(self, name: str, settings: Mapping[str, Any], number: int) -> Cell:
        option = "--equal" if isinstance(self.choices, Equal) else "--try"
        return Cell(name, settings, self.runs[name].trying(settings, option), f"{name}-{number}")

    def judge(self, result: Result) -> float | str:
        """The mean on held-out data, or why there is none."""
        value = (result.summary["unseen" if self.hold.what == "clients" else self.metric.name] or {}).get("mean")
        return "nothing that was held out could be judged" if value is None else float(value)

    def candidates(self, results: _Outcomes) -> dict[str, list[Candidate]]:
        """The candidates of each method with their results."""
        candidates: dict[str, list[Candidate]] = {name: [] for name in self.runs}
        for cell, by_seed in zip(self.cells, results, strict=True):
            candidates[cell.method].append(Candidate.of(cell.settings, by_seed.values()))
        if isinstance(self.choices, Equal):
            return {name: self.choices.twinned(self.runs[name].experiment, tried) for name, tried in candidates.items()}
        return candidates

    def outputs(self, results: _Outcomes) -> dict[str, bytes]:
        """The files with the best candidates."""
        found = {name: best(tried, self.metric.higher) for name, tried in self.candidates(results).items()}
        winners = {name: winner for name, winner in found.items() if winner is not None}
        means = {name: winner.mean for name, winner in winners.items()}
        return {
            "tuned.toml": tomli_w.dumps(_tuned(self.experiment, winners)).encode(),
            reading.VALIDATION: json_bytes({"hold_out": str(self.hold), "means": means}),
        }


def plan_choices(plan: PlanFile) -> list[Choice] | Equal:
    """Return the grid or the equal candidates that a plan stores."""
    if plan.equal is None:
        return [Choice(path, tuple(values), method) for method, path, values in plan.values]
    return Equal(*plan.equal)


def _tuned(experiment: Experiment, winners: Mapping[str, Candidate]) -> dict[str, Any]:
    """Return the experiment's complete table with the best settings of each method in `[methods.NAME]`.

    A method whose candidates all failed keeps its settings.
    """
    table = experiment.resolved()
    sections = {name: flat(section) for name, section in table.get("methods", {}).items()}
    files = [*table.get("own", [])]
    for name, winner in winners.items():
        settings, more = resolve_changes(winner.settings)  # the table is read in another folder
        sections[name] = sections.get(name, {}) | settings
        files += more
    return table | {"methods": sections} | own_section(files)
