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
from fedkin.running.loop import Result, Watcher, execute, finished, lasting
from fedkin.running.plugins import named_in, placed
from fedkin.settings import Span, tunables
from fedkin.untrusted import shown

__all__ = [
    "RATE", "Choice", "Equal", "Guide", "HoldOut", "Swept", "Tried", "at_the_border", "best", "check_methods", "grid",
    "held_out", "rows", "sweep", "sweep_cells", "tune", "words",
]  # fmt: skip

RATE = "training.lr"
_KEEP = 3  # halving: one of so many candidates goes on, so many times as long
_RATE_FACTOR = 10.0  # rates reach from the experiment's divided by this to its product with it
_LONGEST = 100  # characters of a folder's name
_FAILED = "failed.json"

# The settings of a candidate, and the experiment with them.
Candidate = tuple[Mapping[str, Any], Experiment]
# (method, settings, seed, runs done, runs in all) -> the watcher of a run, if any
WatcherOf = Callable[[str, Mapping[str, Any], int, int, int], Watcher | None]


# -- what is tried -----------------------------------------------------------------------------------------------------


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
        parts = _split(values)
        if not equals or not path or not all(parts) or (colon and not method):
            raise ConfigError(
                f"{option} {text!r}: expected section.field=value,value or METHOD:section.field=value,value"
            )
        where = f"{option} {shown(text, 80)}"
        (method,), _ = named_in([method], "method", Path(), where)
        if method and method not in METHODS:
            raise ConfigError(f"{option} {text!r}: no method {method!r}; {nearest(method, METHODS)}")
        return cls(path, tuple(placed(setting_value(part, where)) for part in parts), method or None)


def _split(values: str) -> list[str]:
    """Cut at the commas that are not inside brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in values:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        else:
            depth += (char in "[{") - (char in "]}")
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
        if not 0 < low < high < math.inf:
            raise ConfigError(f"--rates {rates!r}: expected two ascending numbers above 0, such as 0.003,1")
        return cls(int(text), (low, high), halving=halving, optuna=optuna)

    @property
    def spread(self) -> int:
        """Number of candidates that spread evenly."""
        return min(self.candidates, max(3, self.candidates // 3)) if self.optuna else self.candidates

    @property
    def chosen(self) -> int:
        """Number of candidates that Optuna chooses.

        >>> Equal(12).chosen, Equal(12, optuna=True).chosen, Equal(4, optuna=True).chosen
        (0, 8, 1)
        """
        return self.candidates - self.spread

    def rungs(self, rounds: int) -> list[tuple[int, int]]:
        """Return (candidates that run, their rounds), from the first to those at full length.

        >>> Equal(9, halving=True).rungs(30), Equal(9).rungs(30)
        ([(9, 3), (3, 10), (1, 30)], [(9, 30)])
        """
        counts = [self.candidates]
        while self.halving and counts[-1] >= _KEEP:
            counts.append(counts[-1] // _KEEP)
        last = len(counts) - 1
        return [(count, max(1, rounds // _KEEP ** (last - step))) for step, count in enumerate(counts)]

    def ranges(self, experiment: Experiment) -> dict[str, Span | tuple[Any, ...]]:
        """Return what is tuned of the experiment's method, by path."""
        lr = experiment.training.lr
        if self.rates is None and lr <= 0:
            raise ConfigError("--equal: training.lr is 0; give --rates LOW,HIGH")
        rates = self.rates or (lr / _RATE_FACTOR, lr * _RATE_FACTOR)
        every = {RATE: Span(*rates), **tunables(METHODS[experiment.method.name], "method")}
        fixed = tuple(f"{path}." for path in self.fixed)
        return {path: span for path, span in every.items() if not f"{path}.".startswith(fixed or ("\0",))}

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
            one = {path: _value_at(span, share) for (path, span), share in zip(ranges.items(), point, strict=True)}
            if one not in drawn:
                drawn.append(one)
        return drawn

    def border(
        self, experiment: Experiment, chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Do `at_the_border`; a candidate has the experiment's value of what it does not change."""
        before = self.values(experiment)
        return at_the_border({**before, **chosen}, [{**before, **one} for one in tried])


def _value_at(span: Span | tuple[Any, ...], share: float) -> Any:
    return span.at(share) if isinstance(span, Span) else span[min(int(share * len(span)), len(span) - 1)]


def at_the_border(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which settings have the smallest or largest of the numbers tried, in words.

    >>> at_the_border({"training.lr": 1.0}, [{"training.lr": 0.1}, {"training.lr": 1.0}, {}])
    ['lr: the largest tried']
    """
    said = []
    for path, value in chosen.items():
        numbers = [one[path] for one in tried if path in one and isinstance(one[path], (int, float))]
        if isinstance(value, bool) or len(set(numbers)) < 2 or value not in numbers:
            continue
        for word, end in (("smallest", min(numbers)), ("largest", max(numbers))):
            if value == end:
                said.append(f"{path.rpartition('.')[2]}: the {word} tried")
    return said


class Guide:
    """Optuna's TPE (Bergstra et al., 2011) over the ranges of what is tuned, in memory.

    The same seed and the same figures in the same order give the same candidates, so that nothing has to be kept.
    Raises ConfigError if Optuna is not installed.
    """

    def __init__(self, ranges: Mapping[str, Span | tuple[Any, ...]], seed: int, higher: bool) -> None:
        self._optuna = _import_optuna()
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
        states = self._optuna.trial.TrialState
        with _quiet(self._optuna):
            if self._asked is not None and math.isnan(figure):
                self._study.tell(self._asked, None, state=states.FAIL)
            elif self._asked is not None:
                self._study.tell(self._asked, figure)
            elif not math.isnan(figure) and all(_within(span, values[path]) for path, span in self._ranges.items()):
                self._study.add_trial(
                    self._optuna.trial.create_trial(params=dict(values), distributions=self._spaces, value=figure)
                )
        self._asked = None


def _import_optuna() -> Any:
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


# -- what candidates are judged on -------------------------------------------------------------------------------------


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

    def split(id: str, train: Samples, phase: int) -> tuple[Samples, Samples]:
        if hold.what == "clients":
            return (train.take([]), train) if id in away else (train, train.take([]))
        order = rng(seed, "hold-out", id, phase).permutation(len(train))
        count = min(max(1, round(hold.share * len(train))), len(train) - 1)
        return train.take(np.sort(order[count:])), train.take(np.sort(order[:count]))

    def judged(client: Client) -> Client:
        train, test = split(client.id, client.train, 0)
        changes = []
        for place, change in enumerate(client.changes):
            later, tested = split(client.id, change.train, place + 1)
            changes.append(replace(change, train=later, test=tested))
        return replace(client, train=train, test=test, seen=client.id not in away, changes=tuple(changes))

    return Federation([judged(federation[id]) for id in seen], federation.task, federation.name)


# -- tuning ------------------------------------------------------------------------------------------------------------


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


def best(tried: Sequence[Tried], higher: bool) -> Tried | None:
    """Return the candidate at full length with the best mean, the first of equal ones; None if all failed."""
    known = [one for one in tried if one.rounds is None and not math.isnan(one.mean)]
    return max(known, key=lambda one: one.mean if higher else -one.mean) if known else None


def tune(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut,
    seeds: Sequence[int], data_root: Path, folder: Path, *, resume: bool = False, restart: bool = False,
    watcher: WatcherOf | None = None,
) -> dict[str, list[Tried]]:  # fmt: skip
    """Run every candidate of every method on `held_out` federations, and write the best of each to `tuned.toml`.

    Test samples are never used. choices: a grid, or as many candidates for every method (`Equal`). restart: whether
    damaged runs begin anew, else they are refused. Raises ConfigError for a setting that a method does not have.
    """
    equal = choices if isinstance(choices, Equal) else None
    given = [] if isinstance(choices, Equal) else [(choice.method, choice.path) for choice in choices]
    _check_once(("--methods", methods), ("--seeds", seeds), ("--try", given if equal is None else ["equal"]))
    if not isinstance(choices, Equal):
        check_methods(choices, methods, "--try")
    plan = _plan(methods, choices, hold, seeds)
    experiments = {name: experiment.for_method(name) for name in methods}
    candidates: dict[str, list[Candidate]] = {}
    for name, base in experiments.items():
        every = choices.settings(base) if isinstance(choices, Equal) else grid(choices, base.method.name)
        candidates[name] = [(values, base.with_changes(**values)) for values in every]
    if (folder / "experiment.toml").exists() and (kept := read_json(folder / "plan.json")) != plan:
        raise ConfigError(f"{folder / 'plan.json'} {_plan_differs(kept, plan)}")
    trials = _Trials(experiment.data.load(data_root), hold, seeds, data_root, folder, restart, watcher)
    for some in candidates.values():
        for _, candidate in some:
            trials.check(candidate)
    rungs = {
        name: [(len(some), 0)] if equal is None else equal.rungs(some[0][1].training.rounds)
        for name, some in candidates.items()
    }
    trials.total = len(seeds) * sum(count for steps in rungs.values() for count, _ in steps)
    with experiment.claimed(folder, resume, data_root, plan):
        results: dict[str, list[Tried]] = {}
        for name, some in candidates.items():
            if equal is not None and equal.optuna:
                results[name] = trials.guided(name, some, experiments[name], equal)
            else:
                results[name] = trials.halved(name, some, rungs[name])
        means = {name: one.mean for name, tried in results.items() if (one := best(tried, trials.higher))}
        add_sealed(folder, {
            "tuned.toml": tomli_w.dumps(_tuned(experiment, results, trials.higher)).encode(),
            reading.VALIDATION: json_bytes({"hold_out": str(hold), "means": means}),
        })  # fmt: skip
    return results


def _check_once(*options: tuple[str, Sequence[Any]]) -> None:
    for option, names in options:
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{option}: at least one is needed, and none twice")


def _plan(
    methods: Sequence[str], choices: Sequence[Choice] | Equal, hold: HoldOut, seeds: Sequence[int]
) -> dict[str, Any]:
    """What plan.json holds: a tuning goes on only with the same."""
    plan: dict[str, Any] = {"methods": list(methods), "seeds": list(seeds), "hold_out": str(hold), "try": []}
    if not isinstance(choices, Equal):
        return plan | {"try": [[choice.method, choice.path, list(choice.values)] for choice in choices]}
    plan["equal"] = [choices.candidates, choices.rates and list(choices.rates), choices.seed]
    if choices.halving:
        plan["halving"] = True
    if choices.optuna:
        plan["optuna"] = str(_import_optuna().__version__)  # another version may choose other candidates
    return plan


def _plan_differs(kept: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    theirs, ours = kept.get("optuna"), plan.get("optuna")
    if theirs and ours and {**kept, "optuna": ours} == plan:
        return (
            f"has candidates chosen by Optuna {theirs}; {ours}, which is installed, may choose others: install that "
            "version, or begin in another folder"
        )
    return "differs from what to tune: it must be the same in every option"


def _tuned(experiment: Experiment, results: Mapping[str, Sequence[Tried]], higher: bool) -> dict[str, Any]:
    """Return the experiment's complete table with the best settings of each method in `[methods.NAME]`.

    A method whose candidates all failed keeps its settings.
    """
    table = experiment.resolved()
    sections = {name: flat(section) for name, section in table.get("methods", {}).items()}
    own = list(table.get("own", []))
    for name, tried in results.items():
        if (chosen := best(tried, higher)) is not None:
            settings, files = taken_changes(chosen.settings)  # the table is read in another folder
            sections[name] = sections.get(name, {}) | settings
            own += files
    return table | {"methods": sections} | ({"own": list(dict.fromkeys(own))} if own else {})


@dataclass
class _Trials:
    """What the candidates of a tuning share; total and done: of all their runs."""

    dataset: Dataset
    hold: HoldOut
    seeds: Sequence[int]
    data_root: Path
    folder: Path
    restart: bool
    watcher: WatcherOf | None
    total: int = 0
    done: int = 0

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.dataset.task.metric.higher

    def check(self, candidate: Experiment) -> None:
        """Raise ConfigError for a candidate that cannot run."""
        candidate.setup(self._federation(candidate, self.seeds[0]), self.data_root)

    def halved(self, name: str, candidates: Sequence[Candidate], rungs: Sequence[tuple[int, int]]) -> list[Tried]:
        """Run them by successive halving; rungs: (candidates, rounds) from the first to those at full length."""
        left, tried = list(range(len(candidates))), dict[int, Tried]()
        for step, (count, rounds) in enumerate(rungs):
            if step:
                left = sorted(left, key=lambda place: self._badness(tried[place]))[:count]
            short = None if step == len(rungs) - 1 else rounds
            tried |= {place: self._try(name, place, candidates[place], short) for place in left}
        return [tried[place] for place in sorted(tried)]

    def guided(self, name: str, candidates: Sequence[Candidate], base: Experiment, equal: Equal) -> list[Tried]:
        """Run the first of them, and for the others candidates that Optuna chooses by the figures so far."""
        guide = Guide(equal.ranges(base), equal.seed, self.higher)
        tried: list[Tried] = []
        for place, candidate in enumerate(candidates):
            if place >= equal.spread:
                values = guide.ask()
                candidate = (values, base.with_changes(**values))
                self.check(candidate[1])
            tried.append(self._try(name, place, candidate))
            guide.tell(equal.values(candidate[1]), tried[-1].mean)
        return tried

    def _badness(self, tried: Tried) -> float:
        if math.isnan(tried.mean):
            return math.inf
        return -tried.mean if self.higher else tried.mean

    def _try(self, name: str, place: int, candidate: Candidate, rounds: int | None = None) -> Tried:
        """Run a candidate with each seed, for these rounds or (None) at full length."""
        settings, experiment = candidate
        values: list[float] = []
        failed = None
        for seed in self.seeds:
            length = "" if rounds is None else f"-{rounds}-rounds"
            folder = self.folder / f"{name}-{place}{length}-seed{seed}"
            watcher = None if self.watcher is None else self.watcher(name, settings, seed, self.done, self.total)
            changes = {"run.seed": seed} | ({} if rounds is None else {"training.rounds": rounds})
            value = self._judge(experiment.with_changes(**changes), folder, watcher)
            self.done += 1
            if isinstance(value, str):
                failed = failed or value
            else:
                values.append(value)
        return Tried(settings, tuple(values), failed, rounds)

    def _federation(self, experiment: Experiment, seed: int) -> Federation:
        scenario = experiment.scenario
        whole = scenario.model_copy(update={"pooled": False}).federation(self.dataset, seed)
        apart = held_out(whole, self.hold, seed)
        return pooled(apart) if scenario.pooled else apart

    def _judge(self, experiment: Experiment, folder: Path, watcher: Watcher | None) -> float | str:
        """Return the mean of the metric on held-out data, or why the run failed."""
        if (folder / _FAILED).exists():
            experiment.check_claim(folder, True)
            if (why := self._failure(folder)) is not None:
                return why
        result = finished(experiment, folder, True, self.restart)
        if result is None:
            setup = experiment.setup(self._federation(experiment, experiment.run.seed), self.data_root)
            with experiment.claimed(folder, True, self.data_root):
                try:
                    result = execute(
                        setup, experiment.run, name=experiment.name, scenario=experiment.scenario.name, folder=folder,
                        watcher=watcher, restart=self.restart, model=experiment.model,
                    )  # fmt: skip
                except MethodError as error:
                    add_sealed(folder, {_FAILED: json_bytes(str(error))})
                    return str(error)
        entry = result.summary["unseen" if self.hold.what == "clients" else self.dataset.task.metric.name] or {}
        value = entry.get("mean")
        return "nothing that was held out could be judged" if value is None else float(value)

    def _failure(self, folder: Path) -> str | None:
        """Return why the run in this folder failed; None if this is damaged, and the run begins anew."""
        path = folder / _FAILED
        try:
            if wrong := faults(folder, seal_of(folder).files, [_FAILED]):
                raise RunError(wrong[0])
            return str(read_json(path))
        except RunError as error:
            if not self.restart:
                raise RunError(f"{error}; {ANEW}") from None
        with held(folder):
            path.unlink()
        return None


# -- sweeps ------------------------------------------------------------------------------------------------------------


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
    folder: Path | None, *, resume: bool = False, restart: bool = False, watcher: WatcherOf | None = None,
) -> list[Swept]:  # fmt: skip
    """Run every method with every combination of the values that are for it, and with every seed.

    `folder` gets `experiment.toml`, `plan.json`, a folder of runs for each combination, and at the end `sweep.json` and
    `sweep.csv`, a line for each method and combination. A sweep that was stopped goes on with `resume`; finished runs
    are read. restart: whether runs that are damaged begin anew. Everything is checked before the first run; raises
    ConfigError.
    """
    base = OfExperiment(experiment, data_root)
    return sweep_cells(base, methods, choices, seeds, folder, resume=resume, restart=restart, watcher=watcher)


def sweep_cells(
    base: Cells, methods: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int], folder: Path | None, *,
    resume: bool = False, restart: bool = False, watcher: WatcherOf | None = None,
) -> list[Swept]:  # fmt: skip
    """Sweep as `sweep`, over whatever can be run."""
    given = [(choice.method, choice.path) for choice in choices]
    _check_once(("--methods", methods), ("--seeds", seeds), ("--grid", given))
    check_methods(choices, methods, "--grid")
    cells = [
        (name, settings, base.for_method(name).with_changes(**settings))
        for name in methods
        for settings in grid(choices, name)
    ]
    plan = {
        "methods": list(methods),
        "seeds": list(seeds),
        "grid": [[c.method, c.path, list(c.values)] for c in choices],
    }
    if folder is not None:
        same_plan(folder, plan, "sweep")
    base.check([cell for _, _, cell in cells], seeds[0])
    swept: list[Swept] = []
    with nullcontext() if folder is None else base.claimed(folder, resume, plan):
        for name, settings, cell in cells:
            results: dict[int, Result] = {}
            for seed in seeds:
                done = len(swept) * len(seeds) + len(results)
                result = cell.run(
                    seed, None if folder is None else folder / _folder_name(settings) / f"{name}-seed{seed}",
                    resume=resume, restart=restart,
                    watcher=watcher(name, settings, seed, done, len(cells) * len(seeds)) if watcher else None,
                )  # fmt: skip
                results[seed] = lasting(result)
            swept.append(Swept(name, settings, results))
        if folder is not None:
            lines = [line(row) for row in rows(swept)]
            add_sealed(folder, {"sweep.json": json.dumps(lines).encode(), "sweep.csv": csv_text(lines).encode()})
    return swept


def rows(swept: Sequence[Swept]) -> list[dict[str, Any]]:
    """Return a row as of `compare.table` for each method and combination, and its settings.

    gain and hurt are against Local with the same settings and seed, where Local was swept with them.
    """
    made = []
    for one in swept:
        results: dict[str, Mapping[int, Result]] = {one.method: one.results}
        local = next((o for o in swept if o.method == "local" and dict(o.settings) == dict(one.settings)), None)
        if local is not None:
            results["local"] = local.results
        made.append({"settings": words(one.settings), **dict(one.settings), **table(results)[0]})
    return made


def _folder_name(settings: Mapping[str, Any]) -> str:
    """Return the name of a combination's folder; a long one is cut, and ends in a hash of the whole."""
    whole = words(settings)
    name = re.sub(r"[^\w.=+-]+", "_", whole)
    if len(name.encode()) <= _LONGEST and name == whole.replace(", ", "_"):
        return name
    # Other characters were lost, so that two combinations could share this name.
    return f"{name[:40]}-{blake2b(json.dumps(dict(settings), default=str).encode(), digest_size=6).hexdigest()}"
