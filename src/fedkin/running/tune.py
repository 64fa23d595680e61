"""Tuning: candidates of each method's settings, judged on held-out training data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from scipy.stats import qmc

from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.folders import held
from fedkin.methods import METHODS
from fedkin.records import reading
from fedkin.records.files import add_sealed, faults, json_bytes, read_json, seal_of
from fedkin.records.reading import Plan
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment, taken_changes
from fedkin.running.grid import Cell, Choice, Hears, HoldOut, Runs, check_choices, combinations, run_cells, values_of
from fedkin.running.loop import Watcher
from fedkin.settings import Span, flat, tunables
from fedkin.tasks import Metric

__all__ = ["RATE", "Candidate", "Equal", "at_the_border", "best", "plan_choices", "tune"]

RATE = "training.lr"
_RATE_FACTOR = 10.0  # rates reach from the experiment's divided by this to its product with it
FAILED = "failed.json"  # in the folder of a run whose method failed
Range = Span | tuple[Any, ...]


# -- candidates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equal:
    """The same number of candidates for every method; rates: the range of `training.lr`, None: a tenth to ten times.

    The first candidate is the method as the experiment has it. The others spread evenly (Halton's sequence, scrambled
    by `seed`) over the rate and the method's own settings; a method without settings of its own has more rates instead.
    fixed: settings, or sections of them, that stay as they are, by path.
    """

    candidates: int
    rates: tuple[float, float] | None = None
    seed: int = 0
    fixed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, rates: str | None = None) -> Equal:
        """Read "12", and "0.003,1" for the rates; raises ConfigError."""
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
        """Return what is tuned of the experiment's method, by path."""
        lr = experiment.training.lr
        if self.rates is None and lr <= 0:
            raise ConfigError("--equal: training.lr is 0; give --rates LOW,HIGH")
        rates = self.rates or (lr / _RATE_FACTOR, lr * _RATE_FACTOR)
        every = {RATE: Span(*rates), **tunables(METHODS[experiment.method.name], "method")}
        fixed = tuple(f"{path}." for path in self.fixed)
        return {path: span for path, span in every.items() if not f"{path}.".startswith(fixed)}

    def values(self, experiment: Experiment) -> dict[str, Any]:
        """Return the values that an experiment has of what is tuned of its method, by path."""
        settings = flat(experiment.resolved())
        return {path: settings.get(path) for path in self.ranges(experiment)}

    def settings(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Return the candidates: values by path, none twice; the first one changes nothing."""
        ranges = self.ranges(experiment)
        drawn: list[dict[str, Any]] = [{}]
        # A setting with few values may be drawn twice; the sequence has enough other points.
        for point in qmc.Halton(len(ranges), seed=self.seed).random(20 * self.candidates):
            if len(drawn) == self.candidates:
                break
            values = {path: _value_at(span, share) for (path, span), share in zip(ranges.items(), point, strict=True)}
            if values not in drawn:
                drawn.append(values)
        return drawn

    def border(
        self, experiment: Experiment, chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Do `at_the_border`; a candidate has the experiment's value of what it does not change."""
        before = self.values(experiment)
        return at_the_border({**before, **chosen}, [{**before, **settings} for settings in tried])


def _value_at(span: Range, share: float) -> Any:
    return span.at(share) if isinstance(span, Span) else span[min(int(share * len(span)), len(span) - 1)]


def at_the_border(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which settings have the smallest or largest of the numbers tried, in words.

    >>> at_the_border({"training.lr": 1.0}, [{"training.lr": 0.1}, {"training.lr": 1.0}, {}])
    ['lr: the largest tried']
    """
    texts = []
    for path, value in chosen.items():
        numbers = [settings[path] for settings in tried if isinstance(settings.get(path), (int, float))]
        if isinstance(value, bool) or len(set(numbers)) < 2 or value not in numbers:
            continue
        for word, end in (("smallest", min(numbers)), ("largest", max(numbers))):
            if value == end:
                texts.append(f"{path.rpartition('.')[2]}: the {word} tried")
    return texts


# -- tuning ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A candidate that ran: its settings, and for each seed its metric on held-out data or why it failed."""

    settings: Mapping[str, Any]
    values: tuple[float, ...]
    failed: str | None = None

    @property
    def mean(self) -> float:
        """The mean over seeds; nan for a candidate that failed."""
        return float(np.mean(self.values)) if self.values and self.failed is None else math.nan


def best(candidates: Sequence[Candidate], higher: bool) -> Candidate | None:
    """Return the candidate with the best mean, the first of equal ones; None if all failed."""
    judged = [one for one in candidates if not math.isnan(one.mean)]
    return min(judged, key=lambda one: -one.mean if higher else one.mean) if judged else None


def tune(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut,
    seeds: Sequence[int], data_root: Path | None, folder: Path, *,
    hears: Hears | None = None,
) -> dict[str, list[Candidate]]:  # fmt: skip
    """Run every candidate of every method on `held_out` federations, and write the best of each to `tuned.toml`.

    Test samples are never used. choices: a grid, or as many candidates for every method (`Equal`).
    Raises ConfigError for a setting that a method does not have.
    """
    if not isinstance(choices, Equal):
        check_choices(choices, methods, "--try")
    base = Runs(experiment, data_root, hold=hold)
    metric = base.federation(seeds[0]).task.metric
    cells: list[Cell] = []
    for name in methods:
        runs = base.for_method(name)
        if isinstance(choices, Equal):
            tried = choices.settings(runs.experiment)
        else:
            tried = combinations(choices, runs.experiment.method.name)
        cells += [
            Cell(name, settings, runs.with_changes(**settings), f"{name}-{number}")
            for number, settings in enumerate(tried)
        ]

    def judged(results: list[dict[int, float | str]]) -> dict[str, list[Candidate]]:
        candidates: dict[str, list[Candidate]] = {name: [] for name in methods}
        for cell, by_seed in zip(cells, results, strict=True):
            failed = next((value for value in by_seed.values() if isinstance(value, str)), None)
            values = tuple(value for value in by_seed.values() if not isinstance(value, str))
            candidates[cell.method].append(Candidate(cell.settings, values, failed))
        return candidates

    def outputs(results: list[dict[int, float | str]]) -> dict[str, bytes]:
        winners = {name: one for name, tried in judged(results).items() if (one := best(tried, metric.higher))}
        means = {name: winner.mean for name, winner in winners.items()}
        return {
            "tuned.toml": tomli_w.dumps(_tuned(experiment, winners)).encode(),
            reading.VALIDATION: json_bytes({"hold_out": str(hold), "means": means}),
        }

    def run(runs: Runs, seed: int, home: Path | None, watcher: Watcher | None) -> float | str:
        assert home is not None
        return _judge(runs, seed, home, watcher, metric)

    plan = _plan(methods, choices, hold, seeds)
    return judged(run_cells(base, cells, folder, plan, outputs, run, hears=hears))


def _plan(methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut, seeds: Sequence[int]) -> Plan:
    plan = Plan(command="tune", methods=list(methods), seeds=list(seeds), hold_out=str(hold))
    if not isinstance(choices, Equal):
        return plan.model_copy(update={"values": values_of(choices)})
    equal = (choices.candidates, choices.rates, choices.seed)
    return plan.model_copy(update={"equal": equal})


def plan_choices(plan: Plan) -> list[Choice] | Equal:
    """Return the values or candidates that a plan has."""
    if plan.equal is None:
        return [Choice(path, tuple(values), method) for method, path, values in plan.values]
    return Equal(*plan.equal)


def _tuned(experiment: Experiment, winners: Mapping[str, Candidate]) -> dict[str, Any]:
    """Return the experiment's complete table with the best settings of each method in `[methods.NAME]`.

    A method whose candidates all failed keeps its settings.
    """
    table = experiment.resolved()
    sections = {name: flat(section) for name, section in table.get("methods", {}).items()}
    files = list(table.get("own", []))
    for name, winner in winners.items():
        settings, more = taken_changes(winner.settings)  # the table is read in another folder
        sections[name] = sections.get(name, {}) | settings
        files += more
    return table | {"methods": sections} | ({"own": list(dict.fromkeys(files))} if files else {})


def _judge(runs: Runs, seed: int, folder: Path, watcher: Watcher | None, metric: Metric) -> float | str:
    """Return the mean of the metric on held-out data, or why the run failed."""
    result = attempt(runs, seed, folder, watcher)
    if isinstance(result, str):
        return result
    by_clients = runs.hold is not None and runs.hold.what == "clients"
    value = (result.summary["unseen" if by_clients else metric.name] or {}).get("mean")
    return "nothing that was held out could be judged" if value is None else float(value)


def attempt(runs: Runs, seed: int, folder: Path, watcher: Watcher | None) -> Result | str:
    """Run it, or read the finished run in this folder; return why its method failed, which the folder keeps."""
    if (folder / FAILED).exists():
        runs.experiment.with_changes(**{"run.seed": seed}).check_claim(folder)
        if damage := faults(folder, seal_of(folder).files, [FAILED]):
            raise RunError(f"{damage[0]}; {reading.MEND}")
        return str(read_json(folder / FAILED))
    try:
        return runs.run(seed, folder, watcher)
    except MethodError as error:
        if not (folder / "experiment.toml").exists():
            raise
        with held(folder):
            add_sealed(folder, {FAILED: json_bytes(str(error))})
        return str(error)
