"""`fedkin.compare` and `fedkin.sweep`: comparisons and grids of runs from Python, with a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from html import escape
from inspect import isabstract
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from typing_extensions import TypeIs

from fedkin.analysis.intervals import Added
from fedkin.errors import ConfigError, first_few, nearest
from fedkin.federation import Federation
from fedkin.flow import AnyMethod, PeerMethod, ServerMethod
from fedkin.learning.metrics import MEASURES, Measure
from fedkin.methods import METHODS
from fedkin.records.comparison import comparison_rows, csv_row, differences
from fedkin.records.controls import split_control, with_controls
from fedkin.records.run import Result, framed_rows
from fedkin.report.tables import figure_text
from fedkin.report.units import plural, student
from fedkin.running.api import RunOptions, metrics_in, program_experiment
from fedkin.running.experiment import Experiment, load, names_a_folder
from fedkin.running.grid import Choice, GridRun, Runs, parse_seeds, rows, words
from fedkin.running.grid import compare as compare_runs
from fedkin.running.grid import sweep as sweep_runs
from fedkin.running.loop import check_measures
from fedkin.running.plugins import KINDS, add_installed, files_of, resolve_names, with_absolute_paths
from fedkin.running.progress import ProgressOfSeveral, StopFlag
from fedkin.settings import choose, expect, parse, place
from fedkin.tasks import METRICS
from fedkin.untrusted import escaped


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Mapping[int, Result]]):
    """The results of a comparison by method and seed; for a sweep, by method with its settings, and seed.

    folder, report: paths of the records and the report; None without `out`. grid: the methods and settings of a sweep.
    """

    results: Mapping[str, Mapping[int, Result]]
    folder: Path | None = None
    report: Path | None = None
    grid: Sequence[GridRun] = ()

    def __getitem__(self, method: str) -> Mapping[int, Result]:
        if method not in self.results:
            raise KeyError(f"{method!r}; {nearest(method, self.results)}")
        return self.results[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per method: those of `comparison_rows`; for a sweep, those of `fedkin.running.grid.rows`."""
        return rows(self.grid) if self.grid else comparison_rows(self.results)

    @property
    def table(self) -> Any:
        """One line per method: mean and standard deviation (sd) of each figure over seeds, as in the CSV file.

        A pandas DataFrame, or an Arrow table where pandas is not installed.
        """
        return framed_rows([csv_row(row) for row in self.rows])

    def difference(self, method: str, other: str) -> Added:
        """Return how much better a method's clients are than another's with the same seeds: mean and interval.

        low and high are None for one seed. Raises ConfigError if the two methods have no seed or client in common.
        """
        difference = differences(self[method], self[other])
        if difference is None:
            raise ConfigError(f"{method} and {other}: no client that was scored in both with the same seed")
        return difference

    def intervals(self, against: str | None = None) -> dict[str, Added]:
        """Return `difference` of each other method from `against`; by default from "local", or else from the first."""
        other = against if against is not None else "local" if "local" in self.results else next(iter(self.results))
        return {method: self.difference(method, other) for method in self.results if method != other}

    def __repr__(self) -> str:
        seeds = next(iter(self.results.values()))
        means = [f"{name} {_figure(row, 'mean')}" for name, row in zip(self.results, self.rows, strict=True)]
        return f"Comparison({self._metric}, {plural(len(seeds), 'seed')}: {first_few(means)})"

    def _repr_html_(self) -> str:
        named = [{**row, "method": name} for name, row in zip(self.results, self.rows, strict=True)]
        return _html(self._metric, named, self.folder, self.report)

    @property
    def _metric(self) -> str:
        return next(iter(next(iter(self.results.values())).values())).metric.title


def _figure(row: Mapping[str, Any], name: str) -> str:
    """A mean over seeds, ± half its 95 % interval."""
    return figure_text(row[name], student(len(row["seeds"])), share=METRICS[row["metric"]].share)


def _html(metric: str, rows: Sequence[Mapping[str, Any]], folder: Path | None, report: Path | None) -> str:
    heads = {"mean": metric, "worst10": "worst 10 %", "gain": "gain over local"}
    shown_heads = [name for name in heads if any(row.get(name) for row in rows)]
    head = "".join(f"<th>{escape(heads[name])}</th>" for name in shown_heads)
    body = "".join(
        f"<tr><th>{escape(row['method'])}</th>{''.join(f'<td>{_figure(row, name)}</td>' for name in shown_heads)}</tr>"
        for row in rows
    )
    notes = {"records": folder, "page": report, "±": "half the 95 % interval over seeds" if "±" in body else None}
    below = "".join(f"<p>{name}: {escape(str(text))}</p>" for name, text in notes.items() if text)
    return f"<table><tr><th>method</th>{head}</tr>{body}</table>{below}"


OneMethod = str | AnyMethod | type[AnyMethod]
# Every element of a list or mapping is a OneMethod; a type checker sees a mixed list as list[object].
Methods = OneMethod | Iterable[Any] | Mapping[str, Any]
On = Federation | Callable[[int], Federation] | Experiment | Path | str


def compare(
    on: On, methods: Methods, *, seeds: int | str | Iterable[int] = 0, controls: bool = False,
    changes: Mapping[str, Any] | None = None, data_root: Path | str | None = None, out: Path | str | None = None,
    progress: bool = False, **options: Unpack[RunOptions],
) -> Comparison:  # fmt: skip
    """Run several methods on the same clients with the same seeds: what `fedkin compare` does.

    on: a Federation; a function that makes one for a seed; an Experiment; or the path of an experiment file.
    methods: names (also FILE.py:CLASS and controls such as "flt@self"), classes and method objects, mixed; or
    {label: one of these, but no control}, for one method with several settings. seeds: 0, [0, 1, 2] or "0-4"; a
    Federation is the same for all seeds. controls: whether each method's controls run too.
    rounds, model, head, training, settings, faults, privacy, metrics: as in `fedkin.run`. changes: values by
    "section.field", for an experiment. data_root: the folder of data sets ("data"). out: a folder for records and
    report; the same call with the same folder resumes a stopped comparison. progress: as in `fedkin.run`.

    >>> import fedkin
    >>> found = fedkin.compare(
    ...     lambda seed: fedkin.federate("digits", "rotated-masked", clients=4, seed=seed),
    ...     ["local", "fedavg"], seeds=[0, 1], rounds=2,
    ... )
    >>> list(found), found.difference("fedavg", "local").seeds
    (['local', 'fedavg'], 2)
    """
    seed_list = _seeds(seeds)
    base, by_label = _base(on, methods, seed_list[0], changes, options, data_root)
    names = list(by_label)
    if controls:
        planted = base.federation(seed_list[0]).planted is not None
        kinds = {label: _kind(method) for label, method in by_label.items() if "@" not in label}
        names = with_controls(names, planted, kinds)
    folder = None if out is None else place(out, "out")
    with closing(StopFlag()) as stop:
        watch = ProgressOfSeveral(stop, quiet=not progress).next
        results = compare_runs(base, names, seed_list, folder, watch=watch)
    if folder is None:
        return Comparison(results)
    from fedkin.report import write_report

    runs = [Path(result.folder) for by_seed in results.values() for result in by_seed.values() if result.folder]
    return Comparison(results, folder, write_report(runs, folder / "report.html"))


def sweep(
    on: On, methods: Methods, grid: Mapping[str, Sequence[Any]], *, seeds: int | str | Iterable[int] = 0,
    changes: Mapping[str, Any] | None = None, data_root: Path | str | None = None, out: Path | str | None = None,
    progress: bool = False, **options: Unpack[RunOptions],
) -> Comparison:  # fmt: skip
    """Run methods over a grid of settings, as `fedkin tune --grid` does. The figures are on test samples.

    grid: the values by "section.field", or by "METHOD:section.field" for one method. The other arguments are those of
    `compare`. With `out`, the folder also has a page with a plot.

    >>> import fedkin
    >>> fed = fedkin.federate("digits", "iid", clients=3, seed=0)
    >>> found = fedkin.sweep(fed, "fedprox", {"training.lr": [0.1, 0.3], "method.mu": [0.01]}, rounds=1)
    >>> list(found)
    ['fedprox lr=0.1, mu=0.01', 'fedprox lr=0.3, mu=0.01']
    """
    seed_list = _seeds(seeds)
    base, by_label = _base(on, methods, seed_list[0], changes, options, data_root)
    names = list(by_label)
    expect(grid, Mapping, "grid", "{'section.field': [values]}")
    choices = [_choice(where, values, names) for where, values in grid.items()]
    folder = None if out is None else place(out, "out")
    with closing(StopFlag()) as stop:
        watch = ProgressOfSeveral(stop, quiet=not progress).next
        runs = sweep_runs(base, names, choices, seed_list, folder, watch=watch)
    results = {f"{cell.method} {words(cell.settings)}": cell.results for cell in runs}
    if folder is None:
        return Comparison(results, grid=runs)
    from fedkin.report.sweeping import draw

    draw(rows(runs), list(dict.fromkeys(choice.path for choice in choices)), folder / "sweep.html", title="a sweep")
    return Comparison(results, folder, folder / "sweep.html", runs)


def _choice(where: Any, values: Any, names: Sequence[str]) -> Choice:
    """Return the values of a setting to try; where: its path in the grid. Raises ConfigError."""
    expect(where, str, "grid", "names of settings such as 'training.lr'")
    method, _, path = where.rpartition(":")
    if method not in names:
        (method,), _ = resolve_names([method], "method", f"grid: {where}")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"grid: {where}: expected a list of values, got {values!r}")
    if method and method not in names:
        raise ConfigError(f"grid: {where}: no method {method!r} here; {nearest(method, names)}")
    return Choice(path, tuple(map(with_absolute_paths, values)), method or None)


def _base(
    on: On, methods: Methods, seed: int, changes: Mapping[str, Any] | None, options: RunOptions,
    data_root: Path | str | None,
) -> tuple[Runs, dict[str, OneMethod]]:  # fmt: skip
    """Return (the experiment to run, the methods by label)."""
    add_installed()
    changes = changes or {}
    expect(changes, Mapping, "changes", "{'section.field': value}")
    given = _checked_options(options)
    by_label, files = _methods_by_label(methods)
    names = {label: method for label, method in by_label.items() if isinstance(method, str)}
    objects = {
        label: parse(method, {}, method.__name__) if isinstance(method, type) else method
        for label, method in by_label.items() if not isinstance(method, str)
    }  # fmt: skip
    root = None if data_root is None else place(data_root, "data_root")
    if _makes_clients(on):
        if changes:
            raise ConfigError("changes: they are for an experiment; of a federation, give training, settings and model")
        experiment = program_experiment(on, METHODS["local"](), seed=seed, **given)
    else:
        experiment, root = _changed_experiment(on, changes, **given), root or Path("data")
    # A registered method stays registered in this process, so all other checks come first.
    kinds = list(map(type, objects.values()))
    _register(kinds)
    return Runs(experiment.with_own([*files, *files_of(kinds)]), root, objects, names), by_label


def _makes_clients(on: On) -> TypeIs[Federation | Callable[[int], Federation]]:
    return isinstance(on, Federation) or (callable(on) and not isinstance(on, (str, Path, Experiment)))


def _checked_options(options: RunOptions) -> dict[str, Any]:
    """Return the options that are not None; raises ConfigError for an unknown one."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in RunOptions.__annotations__:
            raise ConfigError(f"{name}: no such argument; {nearest(name, RunOptions.__annotations__)}")
    return given


def _changed_experiment(
    on: Experiment | Path | str, changes: Mapping[str, Any], *, rounds: int | None = None,
    metrics: Sequence[str | Measure] = (), **others: Any,
) -> Experiment:  # fmt: skip
    """Return an experiment with these changes, rounds and metrics; raises ConfigError for other arguments."""
    if rounds is not None:
        changes = {**changes, "training.rounds": rounds}
    if others:
        raise ConfigError(f"{', '.join(others)}: of an experiment, set changes={{'section.field': value}}")
    measures = _own_measures(metrics)
    if metrics and "run.metrics" in changes:
        raise ConfigError("metrics: given in changes too: name all of them in one place")
    expect(on, (Experiment, PathLike, str), "on", "a Federation, a function of the seed, an Experiment or its path")
    experiment = on if isinstance(on, Experiment) else load(Path(on))
    if changes:
        experiment = experiment.with_changes(**changes)
    MEASURES.update({measure.name: measure for measure in measures})
    if metrics:
        names = [metric.name if isinstance(metric, Measure) else metric for metric in metrics]
        experiment = experiment.with_changes(**{"run.metrics": names})
    return experiment.with_own(files_of(measures))


def _own_measures(metrics: Sequence[str | Measure]) -> list[Measure]:
    """Return the metric objects among these metrics; raises ConfigError if one has the name of another metric."""
    _, measures = metrics_in(metrics)
    for measure in measures:
        if not _replaces(measure.part, MEASURES[measure.name].part if measure.name in MEASURES else None):
            raise ConfigError(f"metrics: there is a metric {measure.name!r} already; give yours another name='...'")
    check_measures(measures)
    return measures


def _register(methods: Iterable[type[AnyMethod]]) -> None:
    """Register method classes; if a notebook cell runs again, the new class replaces the old one.

    Raises ConfigError if another method has the name of one.
    """
    for method in methods:
        name, part = KINDS["method"].name_and_part(method)
        if not _replaces(part, METHODS.get(name)):
            raise ConfigError(
                f"{part.__name__} is {name!r}, and there is a method {name!r} already: give it its own name"
            )
        METHODS[name] = part


def _replaces(part: Any, before: Any) -> bool:
    """Whether `part` may replace `before`: `before` is None, or the same definition ran again in a notebook."""
    return before is None or (before.__module__, before.__qualname__) == (part.__module__, part.__qualname__)


def _methods_by_label(methods: Methods) -> tuple[dict[str, OneMethod], list[str]]:
    """Return (methods, or names of methods and controls, by label; the files that were read for them)."""
    by_label: dict[str, OneMethod] = {}
    files: list[str] = []
    labelled, pairs = isinstance(methods, Mapping), _pairs(methods)
    # "mine@self" next to the class means a control of this class.
    kinds = [] if labelled else [_kind(method) for _, method in pairs if not isinstance(method, str)]
    classes = {kind.name: kind for kind in kinds}
    for label, method in pairs:
        if isinstance(method, str):  # FILE.py:CLASS becomes the name of the class
            (method,), read = resolve_names([method], "method", "methods")
            files += read
        kind = _kind(method, classes)
        if labelled:
            name = label
            _check_label(label, method, kind)
        else:
            name = method if isinstance(method, str) else kind.name
            _check_names_a_folder(name, control=isinstance(method, str))
        if name in by_label:
            raise ConfigError(f"methods: {name!r} twice; give each a label: {{'mu=0.1': FedProx(mu=0.1), ...}}")
        by_label[name] = method
    if not by_label:
        raise ConfigError("methods: at least one is needed")
    return by_label, files


def _pairs(methods: Methods) -> list[tuple[Any, Any]]:
    """Return the (label, method) of each method; without labels, each is None."""
    if isinstance(methods, Mapping):
        return list(methods.items())
    if isinstance(methods, (str, ServerMethod, PeerMethod, type)) or not isinstance(methods, Iterable):
        return [(None, methods)]
    return [(None, each) for each in methods]


def _check_label(label: object, method: OneMethod, kind: type[AnyMethod]) -> None:
    if isinstance(method, str) and "@" in method:
        raise ConfigError(f"methods: {method!r} is named after its method: label that, and give controls=True")
    _check_names_a_folder(label)
    # Tables and the report would show it as that method, and gains are measured against "local".
    if label in METHODS and kind.name != label:
        other = method if isinstance(method, str) else kind.name
        raise ConfigError(f"methods: {label!r} is the name of another method: give {other!r} another label")


def _check_names_a_folder(name: object, control: bool = False) -> None:
    """Raise ConfigError unless a name can be that of a folder; control: whether it may be that of a control."""
    if not isinstance(name, str) or ("@" in name and not control) or not names_a_folder(name):
        raise ConfigError(f"methods: {name!r} cannot name a folder: use letters, digits, spaces and . - = +")


def _kind(method: OneMethod, classes: Mapping[str, type[AnyMethod]] | None = None) -> type[AnyMethod]:
    """Return the class of a method, or of a control's method; raises ConfigError for anything else."""
    if isinstance(method, str):
        return choose({**METHODS, **(classes or {})}, split_control(method)[0], "methods")
    kind = method if isinstance(method, type) else type(method)
    if not issubclass(kind, (ServerMethod, PeerMethod)):
        raise ConfigError(f"methods: expected names, method classes or method objects, got {escaped(repr(method), 80)}")
    if isabstract(kind):
        lacking = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigError(f"methods: {kind.__name__} lacks what a method needs: {lacking}")
    if not isinstance(getattr(kind, "name", None), str):
        raise ConfigError(f"methods: {kind.__name__} has no name: give it one, name = 'my-method'")
    return kind


def _seeds(seeds: int | str | Iterable[int]) -> list[int]:
    if isinstance(seeds, str):
        return parse_seeds(seeds, "seeds")
    # A 0-d array is one number.
    several: Iterable[Any] = seeds if isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1) != 0 else [seeds]
    numbers_given = [_seed(each) for each in several]
    if not numbers_given:
        raise ConfigError("seeds: at least one is needed")
    return numbers_given


def _seed(value: Any) -> int:
    """Return a seed as an int: any integer type, 0 or more; raises ConfigError for other values."""
    with suppress(TypeError):
        if not isinstance(value, bool) and index(value) >= 0:
            return index(value)
    raise ConfigError(
        f"seeds: expected whole numbers from 0 up, or a text such as '0-4', got {escaped(repr(value), 80)}"
    )
