"""A grid of runs in one folder: methods, settings and seeds, with one plan file. `compare` and `sweep` are grids."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import GROUP, groups_of, pooled
from fedkin.errors import ConfigError, MethodError, RunError, nearest
from fedkin.federation import Client, Federation, Samples
from fedkin.flow import AnyMethod
from fedkin.folders import locked
from fedkin.keys import rng
from fedkin.methods import METHODS
from fedkin.records import reading
from fedkin.records.comparison import comparison_rows, csv_row
from fedkin.records.controls import named, split_control
from fedkin.records.files import add_sealed, csv_text, faults, json_bytes, read_json, seal_of
from fedkin.records.reading import PlanFile
from fedkin.records.recorder import check_samples
from fedkin.records.run import Result
from fedkin.running.experiment import SAMPLES, Experiment, setting_value
from fedkin.running.loop import Watcher, run_experiment
from fedkin.running.plugins import resolve_names, with_absolute_paths
from fedkin.untrusted import escaped, toml_of

__all__ = [
    "Choice", "GridRun", "HoldOut", "Runs", "check_choices", "combinations", "compare", "held_out", "leave_out",
    "parse_seeds", "rows", "split_names", "sweep", "words",
]  # fmt: skip

FAILED = "failed.json"  # a file in the folder of a run whose method failed
_LONGEST = 100  # bytes of a folder's name
_MOST_SEEDS = 10_000  # in one range: a typing error must not plan a year's work

_EXPECTED = "expected section.field=value,value or METHOD:section.field=value,value"

T = TypeVar("T")
# (what runs, runs done, runs in all) -> the watcher of a run
Watchers = Callable[[str, int, int], Watcher]


# -- options -----------------------------------------------------------------------------------------------------------


def split_names(text: str, option: str) -> list[str]:
    """The parts of a comma-separated text; raises ConfigError for an empty part."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{option} {text!r}: expected names separated by commas")
    return parts


def parse_seeds(text: str, option: str = "--seeds") -> list[int]:
    """Seeds from a text such as "0,1,2" or "0-4,7"; raises ConfigError.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in split_names(text, option):
        ends = part.split("-") if part.count("-") == 1 else [part]
        for end in ends:
            if not (end.isascii() and end.isdigit()):
                raise ConfigError(f"{option}: expected whole numbers from 0 up, got {end or part!r}; a range is 0-4")
            if len(end) > 18:
                raise ConfigError(f"{option}: expected whole numbers below 10^18, got {end}")
        first, last = int(ends[0]), int(ends[-1])
        if last < first or last - first >= _MOST_SEEDS:
            raise ConfigError(f"{option} {part}: expected the smaller number first, and at most {_MOST_SEEDS:,} seeds")
        seeds += range(first, last + 1)
    return seeds


@dataclass(frozen=True)
class Choice:
    """A setting and the values to try, with absolute paths of files; method: the one method to try it for, or None."""

    path: str
    values: tuple[Any, ...]
    method: str | None = None

    @classmethod
    def parse(cls, text: str, option: str = "--try") -> Choice:
        """Read "training.lr=0.01,0.1", or "tfl:method.q=0.1,1" for one method; raises ConfigError naming the option."""
        name, equals, values = text.partition("=")
        method, colon, path = name.strip().rpartition(":")
        where = f"{option} {escaped(text, 80)!r}"
        if not equals or not path or (colon and not method):
            raise ConfigError(f"{where}: {_EXPECTED}")
        (method,), _ = resolve_names([method], "method", where)
        if method and method not in METHODS:
            raise ConfigError(f"{where}: no method {method!r}; {nearest(method, METHODS)}")
        return cls(path, tuple(map(with_absolute_paths, _values(values, where))), method or None)


def _values(text: str, where: str) -> list[Any]:
    """Read comma-separated values: as a TOML list if possible, else as texts; raises ConfigError for an empty one."""
    try:
        values: list[Any] = toml_of(f"values = [{text}]")["values"]
    except ValueError:
        values = [setting_value(part.strip(), where) for part in text.split(",")]
    if "" in values or not values or text.rstrip().endswith(","):
        raise ConfigError(f"{where}: {_EXPECTED}")
    return values


def combinations(choices: Sequence[Choice], method: str) -> list[dict[str, Any]]:
    """Return all combinations of the values for a method; a control has the combinations of its method.

    >>> combinations([Choice("training.lr", (0.1, 1.0)), Choice("method.q", (2,), "tfl")], "tfl")
    [{'training.lr': 0.1, 'method.q': 2}, {'training.lr': 1.0, 'method.q': 2}]
    """
    matching = [choice for choice in choices if choice.method in (None, split_control(method)[0])]
    paths = [choice.path for choice in matching]
    products = itertools.product(*(choice.values for choice in matching))
    return [dict(zip(paths, values, strict=True)) for values in products]


def check_choices(choices: Sequence[Choice], methods: Iterable[str], option: str) -> None:
    """Raise ConfigError for no choice, a repeated one or one of the seed, or a method that does not run here."""
    _check_once(option, [f"{choice.method}:{choice.path}" if choice.method else choice.path for choice in choices])
    running = list(dict.fromkeys(split_control(name)[0] for name in methods))
    for choice in choices:
        _check_once(f"{option} {choice.path}", [words({choice.path: value}) for value in choice.values])
        if choice.path == "run.seed":
            raise ConfigError(f"{option} {choice.path}: every combination runs with the same seeds; name them as seeds")
        if choice.method is not None and choice.method not in running:
            raise ConfigError(
                f"{option} {choice.method}:{choice.path}: method {choice.method!r} does not run here; "
                f"{nearest(choice.method, running)}"
            )
        if choice.method is not None and choice.path.partition(".")[0] in SAMPLES:
            raise ConfigError(
                f"{option} {choice.method}:{choice.path}: methods are compared on the same samples, so that only "
                f"{choice.path}, for all of them, can be tried"
            )


def _check_once(option: str, names: Sequence[Any]) -> None:
    if not names:
        raise ConfigError(f"{option}: at least one is needed")
    if (again := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise ConfigError(f"{option}: {again} is named twice; expected each once")


def check_plan(folder: Path | None, plan: PlanFile) -> None:
    """Raise ConfigError for missing or repeated methods or seeds; RunError if the folder has another plan."""
    _check_once("methods", plan.methods)
    _check_once("seeds", plan.seeds)
    if folder is None or not (folder / "experiment.toml").exists() or not (folder / "plan.json").exists():
        return
    before, now = read_json(folder / "plan.json"), plan.to_json()
    if before != now:
        other = [f"{name} {before.get(name)}, not {value}" for name, value in now.items() if before.get(name) != value]
        raise RunError(
            f"{folder / 'plan.json'} differs from what to {plan.command}: it has {'; '.join(other)}; choose another "
            "folder, or the same options"
        )


# -- held-out training samples or clients, which judge the candidates of a tuning --------------------------------------


@dataclass(frozen=True)
class HoldOut:
    """The held-out data: a share of every client's training samples, or of the clients."""

    what: str
    share: float

    @classmethod
    def parse(cls, text: str) -> HoldOut:
        """Read "samples:0.2" or "clients:0.25"; raises ConfigError.

        >>> HoldOut.parse("clients:0.25")
        HoldOut(what='clients', share=0.25)
        """
        what, _, number = text.partition(":")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if what not in ("samples", "clients") or not 0 < share < 1:
            raise ConfigError(
                f'--hold-out {text!r}: expected "samples:SHARE" or "clients:SHARE" with a share between 0 and 1'
            )
        return cls(what, share)

    def __str__(self) -> str:
        return f"{self.what}:{self.share:g}"


def held_out(federation: Federation, hold: HoldOut, seed: int) -> Federation:
    """Return the seen clients, with some of their training samples as test samples.

    By samples: `share` of each client's training samples become test samples, at least one and never all; a client with
    one sample is not tested. Samples of one person stay together; `share` is then one of persons. If times are known,
    the latest samples are held out. By clients: `share`
    of the clients become unseen, and are tested on all their training samples. The draws are keyed by the seed and the
    client's id. The result has neither the original test samples nor the original unseen clients.
    """
    seen = federation.seen
    unseen: set[str] = set()
    if hold.what == "clients":
        if len(seen) < 2:
            raise ConfigError(f"hold {hold}: one client takes part, so that none can be held out")
        count = min(max(1, round(hold.share * len(seen))), len(seen) - 1)
        unseen = {seen[index] for index in rng(seed, "hold-out").permutation(len(seen))[:count]}

    def split(id: str, train: Samples, phase: int) -> tuple[Samples, Samples]:
        if hold.what == "clients":
            return (train.take([]), train) if id in unseen else (train, train.take([]))
        unit, times = train.units(), train.times()
        units, first = np.unique(unit, return_index=True)
        if times is None:
            order = rng(seed, "hold-out", id, phase).permutation(len(units))
        else:
            order = np.argsort(times[first], kind="stable")[::-1]
        held = np.isin(unit, order[: min(max(1, round(hold.share * len(units))), len(units) - 1)])
        return train.take(np.flatnonzero(~held)), train.take(np.flatnonzero(held))

    def judged(client: Client) -> Client:
        (train, test), *later = (split(client.id, now.train, phase) for phase, now in enumerate(client.phases))
        changes = (replace(change, train=a, test=b) for change, (a, b) in zip(client.changes, later, strict=True))
        return replace(client, train=train, test=test, seen=client.id not in unseen, changes=tuple(changes))

    return Federation([judged(federation[id]) for id in seen], federation.task, federation.name)


# -- what runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Runs:
    """An experiment that a cell runs with each seed.

    given: method objects from a program, by their label. names: the name of a method or control in the experiment, by
    its label. hold: the held-out data on which runs are judged, in place of test samples.
    """

    experiment: Experiment
    data_root: Path | None = Path()
    given: Mapping[str, AnyMethod] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    hold: HoldOut | None = None
    loaded: dict[str, Dataset] = field(default_factory=dict)

    def for_method(self, name: str) -> Self:
        """Return the same runs for one method or control."""
        base, control = split_control(name)
        method = self.given.get(base)
        experiment = self.experiment if method is None else self.experiment.with_method(method)
        real_name = self.names.get(base, base) if method is None else method.name
        if control is not None:
            real_name = named(real_name, control)
        runs = replace(self, experiment=experiment.for_method(real_name))
        return runs if real_name == name else runs.with_changes(**{"run.label": name})

    def with_changes(self, **changes: Any) -> Self:
        """Return the same runs with other values of some settings, named `section.field`."""
        return replace(self, experiment=self.experiment.with_changes(**changes))

    def trying(self, settings: Mapping[str, Any], option: str) -> Self:
        """Return `with_changes`; option: where a user named the settings, for errors."""
        try:
            return self.with_changes(**settings)
        except ConfigError as error:
            raise ConfigError(f"{option} for {self.experiment.method.name}: {error}") from None

    def check(self, cells: Sequence[Self], seed: int) -> None:
        """Check the federation and the setup of each cell; raises ConfigError."""
        federations: dict[str, Federation] = {}
        for cell in cells:
            key = repr((cell.experiment.data, cell.experiment.scenario))
            if key not in federations:
                federations[key] = cell.federation(seed)
            cell.experiment.setup(federations[key], self.data_root).equipped()

    def run(self, seed: int, folder: Path | None, watcher: Watcher | None) -> Result:
        """Run or resume the experiment with this seed, or read the finished run in this folder."""
        return run_experiment(
            self.experiment.with_changes(**{"run.seed": seed}), self.data_root, folder, watcher=watcher,
            federation=lambda: self.federation(seed),
        )  # fmt: skip

    def claimed(self, folder: Path, plan: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Lock the folder of all runs."""
        whole = self.experiment
        for name, method in self.given.items():
            whole = whole.with_method(method) if name == method.name else whole
        return whole.claimed(folder, self.data_root, plan)

    def federation(self, seed: int) -> Federation:
        """The clients for this seed."""
        scenario, dataset = self.experiment.scenario, self.dataset()
        if self.hold is None:
            return scenario.federation(dataset, seed)
        apart = scenario.model_copy(update={"pooled": False}) if scenario.pooled else scenario
        judged = held_out(apart.federation(dataset, seed), self.hold, seed)
        return pooled(judged) if scenario.pooled else judged

    def dataset(self) -> Dataset:
        """The data set of the experiment; the last one that was read is cached."""
        key = repr(self.experiment.data)
        if key not in self.loaded:
            dataset = self.experiment.data.loaded(self.data_root or Path())
            self.loaded.clear()
            self.loaded[key] = dataset
        return self.loaded[key]


@dataclass(frozen=True)
class GridRun:
    """A method with some settings, and its results by seed."""

    method: str
    settings: Mapping[str, Any]
    results: Mapping[int, Result]


class Cell(NamedTuple):
    """A method with settings, to be run with every seed. folder: name of its run folders, without the seed."""

    method: str
    settings: Mapping[str, Any]
    runs: Runs
    folder: str


def run_cells(
    cells: Sequence[Cell], seeds: Sequence[int], folder: Path | None, extract: Callable[[Result], T],
    watch: Watchers | None, failed: Callable[[str], T] | None,
) -> list[dict[int, T]]:  # fmt: skip
    """Run every cell with every seed, first all cells of the first seed; returns `extract(result)` by seed and cell.

    A finished run in `folder` is read, and an unfinished one is resumed; RunError is raised if they have other samples
    than the runs to come. failed: the value to return for a method that failed, from the reason, which is stored in the
    run's folder; None: the error is raised.
    """
    if folder is not None:
        _check_samples_of(cells, seeds, folder)
    results: list[dict[int, T]] = [{} for _ in cells]
    total = len(cells) * len(seeds)
    for done, (seed, number) in enumerate(itertools.product(seeds, range(len(cells)))):
        cell = cells[number]
        run_folder = None if folder is None else _folder_of(cell, seed, folder)
        title = " ".join([cell.method, *([words(cell.settings)] if cell.settings else []), f"seed {seed}"])
        watcher = None if watch is None else watch(title, done, total)
        if run_folder is None or failed is None:
            results[number][seed] = extract(cell.runs.run(seed, run_folder, watcher))
        else:
            result = _attempt(cell.runs, seed, run_folder, watcher)
            results[number][seed] = failed(result) if isinstance(result, str) else extract(result)
    return results


def _attempt(runs: Runs, seed: int, folder: Path, watcher: Watcher | None) -> Result | str:
    """Run an experiment; returns its result, or the reason if its method failed now or before."""
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
        with locked(folder):
            add_sealed(folder, {FAILED: json_bytes(str(error))})
        return str(error)


def _check_samples_of(cells: Sequence[Cell], seeds: Sequence[int], folder: Path) -> None:
    """Raise RunError if runs are to come, and a run that is here has other samples than it would have now."""
    places = [(cell.runs, seed, _folder_of(cell, seed, folder)) for cell in cells for seed in seeds]
    if all((run_folder / "summary.json").exists() or (run_folder / FAILED).exists() for *_, run_folder in places):
        return
    known: dict[str, str] = {}
    for runs, seed, run_folder in places:
        if (run_folder / "federation.json").exists():
            key = repr((runs.experiment.data, runs.experiment.scenario, runs.hold, seed))
            if key not in known:
                known[key] = runs.federation(seed).fingerprint()
            check_samples(run_folder, known[key])


def _folder_of(cell: Cell, seed: int, folder: Path) -> Path:
    return folder / f"{cell.folder}-seed{seed}"


def run_plan(
    base: Runs, cells: Sequence[Cell], folder: Path | None, plan: PlanFile, extract: Callable[[Result], T],
    watch: Watchers | None, *,
    outputs: Callable[[list[dict[int, T]]], Mapping[str, bytes]] = lambda results: {},
    failed: Callable[[str], T] | None = None, before: Mapping[str, bytes] | None = None,
    further: Callable[[list[dict[int, T]]], Sequence[Cell]] = lambda results: (),
) -> list[dict[int, T]]:  # fmt: skip
    """Run or resume `run_cells` in a folder with this plan; everything is checked before the first run.

    before, outputs: files to write to the folder at the start, and at the end. further: a function from the results so
    far to the cells to run next; called until it returns none. Raises ConfigError and RunError.
    """

    def run() -> list[dict[int, T]]:
        every = list(cells)
        results = run_cells(every, plan.seeds, folder, extract, watch, failed)
        while more := further(results):
            every += more
            if folder is not None:
                _check_samples_of(every, plan.seeds, folder)
            results += run_cells(more, plan.seeds, folder, extract, watch, failed)
        return results

    check_plan(folder, plan)
    base.check([cell.runs for cell in cells], plan.seeds[0])
    if folder is None:
        return run()
    with base.claimed(folder, plan.to_json()):
        if before:
            add_sealed(folder, before)
        results = run()
        add_sealed(folder, outputs(results))
    return results


# -- comparisons -------------------------------------------------------------------------------------------------------


def compare(
    base: Runs, methods: Sequence[str], seeds: Sequence[int], folder: Path | None = None, *,
    watch: Watchers | None = None, validation: Mapping[str, Any] | None = None,
) -> dict[str, dict[int, Result]]:  # fmt: skip
    """Run each method with each seed; returns the results by method and seed.

    validation: the results of a tuning of these methods on held-out data (`fedkin.records.reading.Validation`), stored
    in `folder` for the report's headline. watch(what, runs done, runs in all) returns the watcher of a run.
    `folder` gets `experiment.toml`, `plan.json` (methods and seeds) and a folder per run. At the end it gets
    `compare.json` (the summaries of the runs) and `compare.csv` (a line per method).
    """

    def outputs(results: list[dict[int, Result]]) -> dict[str, bytes]:
        summaries = [result.summary for by_seed in results for result in by_seed.values()]
        lines = [csv_row(row) for row in comparison_rows(dict(zip(methods, results, strict=True)))]
        return {"compare.json": json_bytes(summaries), "compare.csv": csv_text(lines).encode()}

    cells = [Cell(name, {}, base.for_method(name), name) for name in methods]
    plan = PlanFile(methods=list(methods), seeds=list(seeds))
    before = None if validation is None else {reading.VALIDATION: json_bytes(dict(validation))}
    results = run_plan(base, cells, folder, plan, lambda result: result, watch, outputs=outputs, before=before)
    return dict(zip(methods, results, strict=True))


def without_group(experiment: Experiment, group: str) -> Experiment:
    """Return the experiment with this group unseen; a source that fits an encoding ignores these clients' samples."""
    if "unseen" in type(experiment.data).model_fields:
        return experiment.with_changes(**{"data.unseen": [group]})
    return experiment.with_changes(**{"scenario.unseen": GROUP + group})


def stage_watchers(watch: Watchers | None, stage: str, before: int = 0, whole: int | None = None) -> Watchers | None:
    """Report a stage's runs to `watch`, after `before` runs of `whole` in all (None: the stage's own number)."""
    if watch is None:
        return None
    return lambda what, done, total: watch(f"{stage}: {what}", before + done, whole or total)


def leave_out(
    experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], data_root: Path, folder: Path,
    groups: Sequence[str] | None = None, *, watch: Watchers | None = None,
) -> dict[str, Mapping[str, Mapping[int, Result]]]:  # fmt: skip
    """Run `compare` with each group left out; returns the results by the group that was left out.

    groups: the groups to leave out (None: all groups of the federation). watch: as in `compare`. `folder` gets
    `experiment.toml`, `plan.json`, and for each group a folder of `compare` with its name. Raises ConfigError for an
    unknown group, or if the experiment itself names unseen clients.
    """
    chosen = _groups_to_leave_out(experiment, data_root, groups or ())
    places = {group: folder / _short_name(re.sub(r"[^\w.-]+", "-", group), group, 200) for group in chosen}
    if len(set(places.values())) < len(places):
        raise ConfigError(f"groups: {', '.join(chosen)} would share a folder; rename the groups")
    experiments = {group: without_group(experiment, group) for group in chosen}
    plan = PlanFile(methods=list(methods), seeds=list(seeds), leave_out=chosen)
    check_plan(folder, plan)
    results: dict[str, Mapping[str, Mapping[int, Result]]] = {}
    with experiment.claimed(folder, data_root, plan.to_json()):
        for group, changed in experiments.items():
            watchers = stage_watchers(watch, f"without {group}")
            results[group] = compare(Runs(changed, data_root), methods, seeds, places[group], watch=watchers)
    return results


def _groups_to_leave_out(experiment: Experiment, data_root: Path, groups: Sequence[str]) -> list[str]:
    """Return these groups, or without any all groups of the federation; raises ConfigError as `leave_out`."""
    if experiment.scenario.unseen is not None or getattr(experiment.data, "unseen", None):
        raise ConfigError(
            "leaving groups out chooses who is unseen: take scenario.unseen and data.unseen out of the experiment"
        )
    every = groups_of(experiment.with_changes(**{"scenario.pooled": False}).federation(data_root))
    for group in groups:
        if group not in every:
            raise ConfigError(f"no group {group!r} to leave out; {nearest(group, every)}")
    return list(groups or every)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweep(
    base: Runs, methods: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int], folder: Path | None, *,
    watch: Watchers | None = None,
) -> list[GridRun]:  # fmt: skip
    """Run every method with every combination of its values, and with every seed.

    `folder` gets `experiment.toml`, `plan.json`, a folder of runs for each combination, and at the end `sweep.json` and
    `sweep.csv`, a line for each method and combination. A stopped sweep is resumed, and finished runs are read.
    Everything is checked before the first run; raises ConfigError.
    """
    check_choices(choices, methods, "grid")
    cells = [
        Cell(name, settings, base.for_method(name).trying(settings, "grid"), f"{_folder_name(settings)}/{name}")
        for name in methods
        for settings in combinations(choices, name)
    ]

    def grid(results: list[dict[int, Result]]) -> list[GridRun]:
        return [GridRun(cell.method, cell.settings, by_seed) for cell, by_seed in zip(cells, results, strict=True)]

    def outputs(results: list[dict[int, Result]]) -> dict[str, bytes]:
        lines = [csv_row(row) for row in rows(grid(results))]
        return {"sweep.json": json.dumps(lines).encode(), "sweep.csv": csv_text(lines).encode()}

    plan = PlanFile(command="sweep", methods=list(methods), seeds=list(seeds), values=values_of(choices))
    return grid(run_plan(base, cells, folder, plan, lambda result: result, watch, outputs=outputs))


def values_of(choices: Sequence[Choice]) -> list[tuple[str | None, str, list[Any]]]:
    """Return these choices as a plan stores them."""
    return [(choice.method, choice.path, list(choice.values)) for choice in choices]


def rows(grid: Sequence[GridRun]) -> list[dict[str, Any]]:
    """Return a row of `comparison_rows` for each method and combination, with its settings.

    gain and hurt compare with Local for the same settings and seed, if the sweep has it.
    """
    lines = []
    for cell in grid:
        results = {cell.method: cell.results}
        local = [other for other in grid if other.method == "local" and dict(other.settings) == dict(cell.settings)]
        if local:
            results["local"] = local[0].results
        lines.append({"settings": words(cell.settings), **dict(cell.settings), **comparison_rows(results)[0]})
    return lines


def words(settings: Mapping[str, Any], between: str = "=") -> str:
    """Write settings in one line, by the last parts of their names; a text that would be read as another value, quoted.

    >>> words({"training.lr": 0.1, "method.q": "all", "method.k": "1"}), words({}, " ")
    ('lr=0.1, q=all, k="1"', 'as it is')
    """
    parts = (f"{path.rpartition('.')[2]}{between}{_in_words(value, path)}" for path, value in settings.items())
    return ", ".join(parts) or "as it is"


def _in_words(value: Any, path: str) -> str:
    return json.dumps(value) if isinstance(value, str) and setting_value(value, path) != value else str(value)


def _folder_name(settings: Mapping[str, Any]) -> str:
    """Return the name of a combination's folder."""
    whole = words(settings)
    name = re.sub(r"[^\w.=+-]+", "_", whole)
    # If characters were replaced, two combinations could share this name.
    longest = _LONGEST if name == whole.replace(", ", "_") else 0
    return _short_name(name, json.dumps(dict(settings), default=str), longest)


def _short_name(name: str, whole: str, longest: int) -> str:
    """Return a folder's name; a name longer than `longest` bytes is cut and ends in a hash of `whole`."""
    if len(name.encode()) <= longest:
        return name
    return f"{name[:40]}-{blake2b(whole.encode(), digest_size=6).hexdigest()}"
