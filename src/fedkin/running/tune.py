"""Methods over candidates of settings, judged on held-out training data (`tune`) or on test samples (`sweep`)."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from scipy.stats import qmc

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import pooled
from fedkin.errors import ConfigError, MethodError, RunError, nearest
from fedkin.federation import Client, Federation, Samples
from fedkin.folders import held
from fedkin.keys import rng
from fedkin.methods import METHODS
from fedkin.records import reading
from fedkin.records.controls import parted
from fedkin.records.files import add_sealed, csv_text, faults, flat, json_bytes, read_json, seal_of
from fedkin.records.recorder import ANEW
from fedkin.running.compare import Cells, OfExperiment, line, same_plan, table
from fedkin.running.experiment import Experiment, setting_value, taken_changes
from fedkin.running.loop import Result, Watcher, execute, finished
from fedkin.running.plugins import named_in, placed
from fedkin.settings import Span, tunables
from fedkin.untrusted import shown

__all__ = [
    "RATE", "Cell", "Choice", "Equal", "Guide", "Hears", "HoldOut", "Swept", "Trials", "Tried", "at_the_border", "best",
    "check_methods", "grid", "held_out", "rows", "sweep", "sweep_cells", "tune", "tuned", "version", "words",
]  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A setting and the values to try, with absolute paths of files; method: the only method that it is for."""

    path: str
    values: tuple[Any, ...]
    method: str | None = None

    @classmethod
    def parse(cls, text: str, option: str = "--try") -> Choice:
        """Read "training.lr=0.01,0.1", or "tfl:method.q=0.1,1" for one method; raises ConfigError naming the option."""
        where, equals, values = text.partition("=")
        method, colon, path = where.strip().rpartition(":")
        parts = _parts(values)
        if not equals or not path or not all(parts) or (colon and not method):
            raise ConfigError(
                f"{option} {text!r}: expected section.field=value,value or METHOD:section.field=value,value"
            )
        where = f"{option} {shown(text, 80)}"
        (method,), _ = named_in([method], "method", Path(), where)
        if method and method not in METHODS:
            raise ConfigError(f"{option} {text!r}: no method {method!r}; {nearest(method, METHODS)}")
        return cls(path, tuple(placed(setting_value(part, where)) for part in parts), method or None)


def _parts(values: str) -> list[str]:
    """Cut at the commas that are not inside brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in values:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (char in "[{") - (char in "]}") if not quote else 0
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def check_methods(choices: Sequence[Choice], methods: Iterable[str], option: str) -> None:
    """Raise ConfigError for a choice that is for a method which does not run, nor any control of it."""
    known = list(dict.fromkeys(parted(name)[0] for name in methods))
    for choice in choices:
        if choice.method is not None and choice.method not in known:
            raise ConfigError(
                f"{option} {choice.method}:{choice.path}: method {choice.method!r} does not run here; "
                f"{nearest(choice.method, known)}"
            )


def grid(choices: Sequence[Choice], method: str) -> list[dict[str, Any]]:
    """Return all combinations of the values for a method, or for a control, which has those of its method.

    >>> grid([Choice("training.lr", (0.1, 1.0)), Choice("method.q", (2,), "tfl")], "tfl")
    [{'training.lr': 0.1, 'method.q': 2}, {'training.lr': 1.0, 'method.q': 2}]
    """
    mine = [choice for choice in choices if choice.method in (None, parted(method)[0])]
    combined = itertools.product(*(choice.values for choice in mine))
    return [dict(zip([choice.path for choice in mine], values, strict=True)) for values in combined]


@dataclass(frozen=True)
class HoldOut:
    """The held-out data for candidates: a share of every client's training samples, or of the clients."""

    what: str
    share: float

    @classmethod
    def parse(cls, text: str) -> HoldOut:
        """Read "samples:0.2" or "clients:0.25"; raises ConfigError.

        >>> HoldOut.parse("clients:0.25")
        HoldOut(what='clients', share=0.25)
        """
        what, colon, number = text.partition(":")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if what not in ("samples", "clients") or not colon or not 0 < share < 1:
            raise ConfigError(
                f'--hold-out {text!r}: expected "samples:SHARE" or "clients:SHARE" with a share between 0 and 1'
            )
        return cls(what, share)

    def __str__(self) -> str:
        return f"{self.what}:{self.share:g}"


def held_out(federation: Federation, hold: HoldOut, seed: int) -> Federation:
    """Return the clients that take part, with some of their training samples as test samples.

    By samples: `share` of each client's training samples become test samples, at least one and never all; a client with
    one sample is not tested. By clients: `share` of the clients become unseen, and are tested on all their training
    samples. The draws are keyed by the seed and the client's id. The original test samples and unseen clients are not
    in the result.
    """
    seen = federation.seen
    away: set[str] = set()
    if hold.what == "clients":
        if len(seen) < 2:
            raise ConfigError(f"--hold-out {hold}: one client takes part, so that none can be held out")
        count = min(max(1, round(hold.share * len(seen))), len(seen) - 1)
        away = {seen[place] for place in rng(seed, "hold-out").permutation(len(seen))[:count]}

    def parted(id: str, train: Samples, phase: int) -> tuple[Samples, Samples]:
        if hold.what == "clients":
            return (train.take([]), train) if id in away else (train, train.take([]))
        order = rng(seed, "hold-out", id, phase).permutation(len(train))
        count = min(max(1, round(hold.share * len(train))), len(train) - 1)
        return train.take(np.sort(order[count:])), train.take(np.sort(order[:count]))

    def remade(client: Client) -> Client:
        train, test = parted(client.id, client.train, 0)
        changes = []
        for place, change in enumerate(client.changes):
            later, tested = parted(client.id, change.train, place + 1)
            changes.append(replace(change, train=later, test=tested))
        return replace(client, train=train, test=test, seen=client.id not in away, changes=tuple(changes))

    return Federation([remade(federation[id]) for id in seen], federation.task, federation.name)


RATE = "training.lr"
_CUT = 3  # one of so many candidates goes on, so many times as long
_AROUND = 10.0  # the rates that are tried reach from the experiment's divided by this to its product with it


@dataclass(frozen=True)
class Equal:
    """The same number of candidates for every method; rates: the range of `training.lr`, None: a tenth to ten times.

    The first candidate is the method as the experiment has it. The others spread evenly (Halton's sequence, scrambled
    by `seed`) over the rate and the method's own settings; a method without settings of its own has more rates instead.
    fixed: settings, or sections of them, that stay as they are, by path. halving: successive halving (Jamieson and
    Talwalkar, 2016): all run for a part of the rounds, the best third of them three times as long, and so on; the last
    ones at full length. optuna: only the first third, at least three, spread evenly; Optuna's TPE (Bergstra et al.,
    2011) chooses each of the others by the figures of those before it. Raises ConfigError for both, and where Optuna
    would choose none.
    """

    candidates: int
    rates: tuple[float, float] | None = None
    seed: int = 0
    fixed: tuple[str, ...] = ()
    halving: bool = False
    optuna: bool = False

    def __post_init__(self) -> None:
        if self.halving and self.optuna:
            raise ConfigError("halving and optuna: give one of them, Optuna compares candidates of the same length")
        if self.optuna and not self.chosen:
            raise ConfigError(
                f"optuna: with {self.candidates} candidates it would choose none, because the first three spread "
                "evenly; take 4 or more, or leave it out"
            )

    @property
    def spread(self) -> int:
        """How many candidates spread evenly.

        >>> Equal(12).spread, Equal(12, optuna=True).spread, Equal(4, optuna=True).spread
        (12, 4, 3)
        """
        return min(self.candidates, max(3, self.candidates // 3)) if self.optuna else self.candidates

    @property
    def chosen(self) -> int:
        """How many candidates Optuna chooses.

        >>> Equal(12).chosen, Equal(12, optuna=True).chosen, Equal(4, optuna=True).chosen
        (0, 8, 1)
        """
        return self.candidates - self.spread

    def rungs(self, rounds: int) -> list[tuple[int, int]]:
        """Return (candidates that run, their rounds), from the first to those at full length.

        >>> Equal(9, halving=True).rungs(30), Equal(9).rungs(30)
        ([(9, 3), (3, 10), (1, 30)], [(9, 30)])
        """
        steps = [self.candidates]
        while self.halving and steps[-1] >= _CUT:
            steps.append(steps[-1] // _CUT)
        last = len(steps) - 1
        return [(count, max(1, rounds // _CUT ** (last - place))) for place, count in enumerate(steps)]

    @classmethod
    def parse(cls, text: str, rates: str | None = None, halving: bool = False, optuna: bool = False) -> Equal:
        """Read "12", and "0.003,1" for the rates; raises ConfigError."""
        if not (text.isascii() and text.isdigit()) or not 2 <= int(text) <= 10_000:
            raise ConfigError(f"--equal {text!r}: expected a number of candidates, from 2 to 10,000")
        if rates is None:
            return cls(int(text), halving=halving, optuna=optuna)
        try:
            low, high = (float(part) for part in rates.split(","))
        except ValueError:
            low, high = 0.0, 0.0
        if not 0 < low < high < float("inf"):
            raise ConfigError(f"--rates {rates!r}: expected two ascending numbers above 0, such as 0.003,1")
        return cls(int(text), (low, high), halving=halving, optuna=optuna)

    def ranges(self, experiment: Experiment) -> dict[str, Span | tuple[Any, ...]]:
        """Return what is tuned of the experiment's method, by path."""
        lr = experiment.training.lr
        if self.rates is None and lr <= 0:
            raise ConfigError("--equal: training.lr is 0; give --rates LOW,HIGH")
        rates = self.rates or (lr / _AROUND, lr * _AROUND)
        every = {RATE: Span(*rates), **tunables(METHODS[experiment.method.name], "method")}
        return {
            path: span for path, span in every.items()
            if not any(path == each or path.startswith(f"{each}.") for each in self.fixed)
        }  # fmt: skip

    def values(self, experiment: Experiment) -> dict[str, Any]:
        """Return the values that an experiment has of what is tuned of its method, by path."""
        table = flat(experiment.resolved())
        return {path: table.get(path) for path in self.ranges(experiment)}

    def border(
        self, experiment: Experiment, chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Do `at_the_border`; a candidate has the experiment's value of what it does not change."""
        before = self.values(experiment)
        return at_the_border({**before, **chosen}, [{**before, **one} for one in tried])

    def settings(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Return the candidates: values by path, none twice; the first one changes nothing."""
        ranges = self.ranges(experiment)
        drawn: list[dict[str, Any]] = [{}]
        # A setting with few values may be drawn twice; the sequence has enough other points.
        for point in qmc.Halton(len(ranges), seed=self.seed).random(20 * self.candidates):
            if len(drawn) == self.candidates:
                break
            one = {path: _value_at(span, share) for (path, span), share in zip(ranges.items(), point, strict=True)}
            if one not in drawn:
                drawn.append(one)
        return drawn


def at_the_border(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which settings have the smallest or largest of the numbers tried, in words.

    >>> at_the_border({"training.lr": 1.0}, [{"training.lr": 0.1}, {"training.lr": 1.0}, {}])
    ['lr: the largest tried']
    """
    found = []
    for path, value in chosen.items():
        numbers = [one[path] for one in tried if path in one and isinstance(one[path], (int, float))]
        if isinstance(value, bool) or len(set(numbers)) < 2 or value not in numbers:
            continue
        for word, end in (("smallest", min(numbers)), ("largest", max(numbers))):
            if value == end:
                found.append(f"{path.rpartition('.')[2]}: the {word} tried")
    return found


def _value_at(span: Span | tuple[Any, ...], share: float) -> Any:
    if isinstance(span, Span):
        return span.at(share)
    return span[min(int(share * len(span)), len(span) - 1)]


class Guide:
    """Optuna's TPE (Bergstra et al., 2011) over the ranges of what is tuned, in memory.

    The same seed and the same figures in the same order give the same candidates, so that nothing has to be kept.
    Raises ConfigError if Optuna is not installed.
    """

    def __init__(self, ranges: Mapping[str, Span | tuple[Any, ...]], seed: int, higher: bool) -> None:
        self._optuna = _optuna()
        self._ranges = ranges
        spaces = self._optuna.distributions
        self._spaces = {
            path: spaces.FloatDistribution(span.low, span.high, log=span.log) if isinstance(span, Span)
            else spaces.CategoricalDistribution(span)
            for path, span in ranges.items()
        }  # fmt: skip
        with _quiet(self._optuna):
            # The first candidates are told; only if all of them failed one is drawn at random.
            sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
            self._study = self._optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
        self._asked: Any = None

    def ask(self) -> dict[str, Any]:
        """Return the next candidate: a value for each path, numbers with three digits inside of their range."""
        with _quiet(self._optuna):
            self._asked = self._study.ask(self._spaces)
        return {path: _rounded(self._ranges[path], value) for path, value in self._asked.params.items()}

    def tell(self, values: Mapping[str, Any], figure: float) -> None:
        """Take the figure of a candidate; nan: it failed. One that was not asked for counts if it is in the ranges."""
        failed = math.isnan(figure)
        states = self._optuna.trial.TrialState
        with _quiet(self._optuna):
            if self._asked is not None:
                asked, self._asked = self._asked, None
                self._study.tell(asked, None if failed else figure, state=states.FAIL if failed else states.COMPLETE)
            elif not failed and all(_within(span, values[path]) for path, span in self._ranges.items()):
                self._study.add_trial(
                    self._optuna.trial.create_trial(params=dict(values), distributions=self._spaces, value=figure)
                )


def version() -> str:
    """Return Optuna's version; raises ConfigError if it is not installed."""
    return str(_optuna().__version__)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("--optuna: needs Optuna: pip install 'fedkin[optuna]'") from None
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without Optuna's line for each trial, whatever level the user has."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _within(span: Span | tuple[Any, ...], value: Any) -> bool:
    if isinstance(span, Span):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and span.low <= value <= span.high
    return value in span


def _rounded(span: Span | tuple[Any, ...], value: Any) -> Any:
    return min(max(float(f"{value:.3g}"), span.low), span.high) if isinstance(span, Span) else value


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


def tune(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut,
    seeds: Sequence[int], data_root: Path, folder: Path, *, resume: bool = False, restart: bool = False,
    watcher: Hears | None = None,
) -> dict[str, list[Tried]]:  # fmt: skip
    """Run every candidate of every method on `held_out` federations, and write the best of each to `tuned.toml`.

    choices: a grid, or as many candidates for every method (`Equal`). restart: whether damaged runs begin anew, else
    they are refused. watcher(method, settings, seed, runs done, runs in all) watches a run. Raises ConfigError for a
    setting that a method does not have, and if every candidate of a method failed.
    """
    given = [(c.method, c.path) for c in choices] if not isinstance(choices, Equal) else ["equal"]
    for names, option in ((methods, "--methods"), (seeds, "--seeds"), (given, "--try")):
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{option}: at least one is needed, and none twice")
    plan = _plan(methods, choices, hold, seeds)
    if not isinstance(choices, Equal):
        check_methods(choices, methods, "--try")
    plans = {name: _candidates(experiment.for_method(name), choices) for name in methods}
    if (folder / "experiment.toml").exists() and (kept := read_json(folder / "plan.json")) != plan:
        raise ConfigError(f"{folder / 'plan.json'} {_differs(kept, plan)}")
    trials = Trials(experiment.data.load(data_root), hold, seeds, data_root, folder, restart, watcher)
    for cells in plans.values():
        for _, candidate in cells:
            trials.check(candidate)
    with experiment.claimed(folder, resume, data_root, plan):
        found = _found(trials, experiment, plans, choices)
        table = tuned(experiment, found, trials.higher)
        means = {name: one.mean for name, tried in found.items() if (one := best(tried, trials.higher))}
        judged = json_bytes({"hold_out": str(hold), "means": means})
        add_sealed(folder, {"tuned.toml": tomli_w.dumps(table).encode(), reading.VALIDATION: judged})
    return found


def _plan(
    methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut, seeds: Sequence[int]
) -> dict[str, Any]:  # fmt: skip
    """What plan.json holds: a tuning goes on only with the same."""
    plan: dict[str, Any] = {"methods": list(methods), "seeds": list(seeds), "hold_out": str(hold), "try": []}
    if not isinstance(choices, Equal):
        return plan | {"try": [[c.method, c.path, list(c.values)] for c in choices]}
    plan["equal"] = [choices.candidates, choices.rates and list(choices.rates), choices.seed]
    if choices.halving:
        plan["halving"] = True
    if choices.optuna:
        plan["optuna"] = version()  # another version may choose other candidates
    return plan


def _differs(kept: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Why a tuning cannot go on with another plan."""
    theirs, ours = kept.get("optuna"), plan.get("optuna")
    if theirs and ours and {**kept, "optuna": ours} == plan:
        return (
            f"has candidates chosen by Optuna {theirs}; {ours}, which is installed, may choose others: install that "
            "version, or begin in another folder"
        )
    return "differs from what to tune: it must be the same in every option"


def _candidates(experiment: Experiment, choices: Sequence[Choice] | Equal) -> list[Cell]:
    """Return the settings of each candidate of the experiment's method, and the experiment with them."""
    every = choices.settings(experiment) if isinstance(choices, Equal) else grid(choices, experiment.method.name)
    return [(values, experiment.with_changes(**values)) for values in every]


def _found(
    trials: Trials, experiment: Experiment, plans: Mapping[str, Sequence[Cell]], choices: Sequence[Choice] | Equal
) -> dict[str, list[Tried]]:
    """Return the candidates of each method with their figures."""
    equal = choices if isinstance(choices, Equal) else None
    if equal is None or not equal.halving:
        trials.total = len(trials.seeds) * sum(map(len, plans.values()))
        if equal is not None and equal.optuna:
            return {
                name: trials.guided(name, cells, experiment.for_method(name), equal) for name, cells in plans.items()
            }
        return {name: trials.every(name, cells) for name, cells in plans.items()}
    rungs = {name: equal.rungs(cells[0][1].training.rounds) for name, cells in plans.items()}
    trials.total = len(trials.seeds) * sum(count for steps in rungs.values() for count, _ in steps)
    return {name: trials.halved(name, cells, rungs[name]) for name, cells in plans.items()}


def tuned(experiment: Experiment, found: Mapping[str, Sequence[Tried]], higher: bool) -> dict[str, Any]:
    """Return the experiment's complete table with the best settings of each method in `[methods.NAME]`.

    A tuning that was resumed knows only the complete table, so that every tuning gives that one. A method whose
    candidates all failed keeps its settings.
    """
    table = experiment.resolved()
    sections = {name: flat(section) for name, section in table.get("methods", {}).items()}
    own = list(table.get("own", []))
    for name, tried in found.items():
        chosen = best(tried, higher)
        if chosen is not None:
            settings, files = taken_changes(chosen.settings)  # the table is read in another folder
            sections[name] = sections.get(name, {}) | settings
            own += files
    return table | {"methods": sections} | ({"own": list(dict.fromkeys(own))} if own else {})


_LONGEST = 100  # characters of a folder's name


@dataclass(frozen=True)
class Swept:
    """A method with some settings, and its results by seed."""

    method: str
    settings: Mapping[str, Any]
    results: Mapping[int, Result]


def words(settings: Mapping[str, Any]) -> str:
    """Settings in one line, by their last names.

    >>> words({"training.lr": 0.1, "method.q": "all"})
    'lr=0.1, q=all'
    """
    return ", ".join(f"{path.rpartition('.')[2]}={value}" for path, value in settings.items()) or "as it is"


def sweep(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int], data_root: Path,
    folder: Path | None, *, resume: bool = False, restart: bool = False,
    watcher: Callable[[str, Mapping[str, Any], int, int, int], Watcher] | None = None,
) -> list[Swept]:  # fmt: skip
    """Run every method with every combination of the values that are for it, and with every seed.

    `folder` gets `experiment.toml`, `plan.json`, a folder of runs for each combination, and at the end `sweep.json` and
    `sweep.csv`, a line for each method and combination. A sweep that was stopped goes on with `resume`; finished runs
    are read. restart: whether runs that are damaged begin anew. watcher(method, settings, seed, runs done, runs in all)
    returns the watcher of a run. Everything is checked before the first run; raises ConfigError.
    """
    base = OfExperiment(experiment, data_root)
    return sweep_cells(base, methods, choices, seeds, folder, resume=resume, restart=restart, watcher=watcher)


def sweep_cells(
    base: Cells, methods: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int], folder: Path | None, *,
    resume: bool = False, restart: bool = False,
    watcher: Callable[[str, Mapping[str, Any], int, int, int], Watcher] | None = None,
) -> list[Swept]:  # fmt: skip
    """Sweep as `sweep`, over whatever can be run."""
    for names, option in (
        (methods, "--methods"),
        (seeds, "--seeds"),
        ([(c.method, c.path) for c in choices], "--grid"),
    ):
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{option}: at least one is needed, and none twice")
    check_methods(choices, methods, "--grid")
    cells = [
        (name, settings, base.for_method(name).with_changes(**settings))
        for name in methods
        for settings in grid(choices, name)
    ]
    plan = {
        "methods": list(methods), "seeds": list(seeds), "grid": [[c.method, c.path, list(c.values)] for c in choices],
    }  # fmt: skip
    if folder is not None:
        same_plan(folder, plan, "sweep")
    base.check([cell for _, _, cell in cells], seeds[0])
    found: list[Swept] = []
    with nullcontext() if folder is None else base.claimed(folder, resume, plan):
        for name, settings, cell in cells:
            results: dict[int, Result] = {}
            for seed in seeds:
                done = len(found) * len(seeds) + len(results)
                results[seed] = cell.run(
                    seed, None if folder is None else folder / _folder_name(settings) / f"{name}-seed{seed}",
                    resume=resume, restart=restart,
                    watcher=watcher(name, settings, seed, done, len(cells) * len(seeds)) if watcher else None,
                )  # fmt: skip
            found.append(Swept(name, settings, results))
        if folder is not None:
            lines = [line(row) for row in rows(found)]
            add_sealed(folder, {"sweep.json": json.dumps(lines).encode(), "sweep.csv": csv_text(lines).encode()})
    return found


def rows(found: Sequence[Swept]) -> list[dict[str, Any]]:
    """Return a row as of `compare.table` for each method and combination, and its settings.

    gain and hurt are against Local with the same settings and seed, where Local was swept with them.
    """
    made = []
    for one in found:
        mine: dict[str, Mapping[int, Result]] = {one.method: one.results}
        alone = next((o for o in found if o.method == "local" and dict(o.settings) == dict(one.settings)), None)
        if alone is not None:
            mine["local"] = alone.results
        made.append({"settings": words(one.settings), **dict(one.settings), **table(mine)[0]})
    return made


def _folder_name(settings: Mapping[str, Any]) -> str:
    """Return the name of a combination's folder; a long one is cut, and ends in a hash of the whole."""
    whole = words(settings)
    name = re.sub(r"[^\w.=+-]+", "_", whole)
    if len(name.encode()) <= _LONGEST and name == whole.replace(", ", "_"):
        return name
    # Other characters were lost, so that two combinations could share this name.
    return f"{name[:40]}-{blake2b(json.dumps(dict(settings), default=str).encode(), digest_size=6).hexdigest()}"
