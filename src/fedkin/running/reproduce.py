"""Tables of papers, run: every row tuned with the same budget, then all rows and their controls over the seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedkin.analysis.intervals import Added, added
from fedkin.errors import ConfigError
from fedkin.records.controls import changes_of, named, without_exchange
from fedkin.records.folder import lighten
from fedkin.records.metrics import value_of
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment, load
from fedkin.running.loop import Watcher, run_experiment
from fedkin.running.papers import Claim, Equally, PaperTable, Part, Row
from fedkin.running.tune import HoldOut, Tried, best, tune
from fedkin.tasks import METRICS, Metric

__all__ = [
    "FIGURES", "GIVEN", "Chosen", "Done", "Known", "Run", "added_by_exchange", "differences", "judged", "mean_over",
    "reproduce", "runs_of", "words_of",
]  # fmt: skip


# In the CSV of a page.
FIGURES = ("mean", "worst10", "worst20", "std", "unseen", "ari", "bytes")
GIVEN = "; "


@dataclass(frozen=True)
class Run:
    """One run of a row.

    clients: their number. figures: by name, without those that are not known. given: what was told to the method.
    values: the metric of each client that takes part, by id, None if it has none; empty if only figures are known.
    """

    metric: Metric
    clients: int
    figures: Mapping[str, float]
    given: tuple[str, ...] = ()
    values: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result) -> Self:
        """Return what is kept of a result."""
        summary, name = result.summary, result.metric.name
        known: dict[str, Any] = {
            **{each: summary[name].get(each) for each in ("mean", "worst10", "worst20", "std", "variance")},
            "unseen": (summary.get("unseen") or {}).get("mean"), "ari": summary["groups"].get("ari"),
            "bytes": result.sent,
        }  # fmt: skip
        values = {id: value_of(score) for id, score in sorted(result.scores.items()) if id not in result.unseen}
        figures = {each: float(value) for each, value in known.items() if value is not None}
        return cls(result.metric, summary["clients"], figures, tuple(summary.get("given") or ()), values)

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Self:
        """Return the run of a line of a page's CSV; raises KeyError or ValueError for a line that has no run."""
        metric = METRICS[row["metric"]]
        figures = {name: float(row[name]) for name in FIGURES if row.get(name)}
        if "std" in figures:
            figures["variance"] = ((100 if metric.share else 1) * figures["std"]) ** 2
        told = row.get("given") or ""
        return cls(metric, int(row["clients"]), figures, tuple(told.split(GIVEN)) if told else ())


def differences(mine: Mapping[int, Run], theirs: Mapping[int, Run]) -> Added | None:
    """Return how much better one row's clients are than another's with the same seeds (see `added`).

    Where only the figures of a run are known, the difference of the means stands for the mean of the differences.
    """
    return added({seed: _gains(run, theirs[seed]) for seed, run in mine.items() if seed in theirs})


def _gains(run: Run, other: Run) -> dict[str, float]:
    better = run.metric.better
    if not (run.values and other.values):
        return {"": better(run.figures["mean"], other.figures["mean"])}
    pairs = {id: (value, other.values.get(id)) for id, value in run.values.items()}
    return {id: better(a, b) for id, (a, b) in pairs.items() if a is not None and b is not None}


def added_by_exchange(name: str, results: Mapping[str, Mapping[int, Run]]) -> Added | None:
    """Return what communication adds to a row: the row minus its control without exchange, NAME@self.

    It is 0 for Local and for the control itself; None if the control was not run.
    """
    alone = without_exchange(name, results)
    return None if alone is None else differences(results[name], alone)


def mean_over(runs: Mapping[int, Run], name: str) -> Sequence[float]:
    """Return a figure of each seed's run, in the order of the seeds; empty if any is unknown."""
    values = [runs[seed].figures.get(name) for seed in sorted(runs)]
    return [] if None in values else [value for value in values if value is not None]


# Figures of which less is better.
_LESS = ("std", "variance", "bytes")

Hears = Callable[[str, int, int], Watcher]


@dataclass(frozen=True)
class Chosen:
    """What the tuning of a row chose: changed settings; which of them are at the border of what was tried; failures."""

    settings: Mapping[str, Any]
    border: tuple[str, ...] = ()
    failed: int = 0


class Known(NamedTuple):
    """What a page has said of a run, and of the tuning of its row: the settings in words, and how many failed."""

    run: Run
    tuned: str
    failed: int = 0


@dataclass(frozen=True)
class Done:
    """A federation of a table whose runs have all ended: results by row and seed, the experiment and the tuning."""

    part: Part
    experiment: Experiment
    results: Mapping[str, Mapping[int, Run]]
    chosen: Mapping[str, Chosen]

    @property
    def first(self) -> Run:
        """The first run of the first row."""
        return next(iter(next(iter(self.results.values())).values()))

    def unmatched_views(self, table: PaperTable) -> list[str]:
        """Return the rows that train on views, as tuned, that no row of Local has."""
        made = {
            row.name: _changed(self.experiment, row, self.chosen[row.name].settings, None) for row in table.rows()
        }  # fmt: skip
        beside = [one.training.augment for one in made.values() if one.method.name == "local"]
        views = {name: getattr(one.method, "augment", None) for name, one in made.items()}
        return [name for name, one in views.items() if one is not None and one not in beside]

    @property
    def share(self) -> bool:
        """Whether the metric is a share, which is written in points."""
        return self.first.metric.share


def reproduce(
    table: PaperTable,
    presets: Path,
    data_root: Path,
    folder: Path,
    *,
    restart: bool = False,
    finished: bool = False,
    models: bool = False,
    hears: Hears | None = None,
    known: Mapping[str, Mapping[str, Mapping[int, Known]]] | None = None,
) -> Iterator[Done]:
    """Run a table, federation after federation; what is in `folder` is gone on with, and finished runs are read.

    presets: the folder of the definition. finished: run nothing, and leave out federations that have not ended.
    models: keep the models and the last state of each run, which take most of its space and which no page needs.
    hears(what, runs done, runs in all) returns the watcher of a run. known: runs by federation, row and seed that are
    taken as they are, with the tuning of their rows. Raises ConfigError and RunError, as `tune` and `run_experiment`.
    """
    seen, total, light = 0, runs_of(table), not (models or finished)
    for part in table.federation:
        place = folder / re.sub(r"[^\w.+-]+", "-", part.name)
        mine = (known or {}).get(part.name, {})
        if finished and not place.is_dir() and not mine:
            continue
        base = load(presets / part.preset).with_own(table.own).with_changes(**part.set)
        dataset = base.data.load(data_root)
        planted = base.scenario.federation(dataset, table.seeds[0]).planted is not None
        if finished and not _ended(table, table.names(planted), place, mine):
            continue
        heard = None if hears is None else partial(_heard, hears, part.name, total)
        chosen: dict[str, Chosen] = {}
        for row in table.rows():
            if row.tuned_as is None and table.tune is not None and mine.get(row.name):
                chosen[row.name] = _recalled(table.tune, base, row, next(iter(mine[row.name].values())))
                seen += _tries(table.tune)
            elif row.tuned_as is None and table.tune is not None:
                found = _tuned(table.tune, base, row, data_root, place / "tuning" / row.name, restart, heard, seen)
                if light:
                    _lightened(place / "tuning" / row.name)
                chosen[row.name] = _chosen(table.tune, base, row, found, dataset.task.metric.higher)
                seen += _tries(table.tune)
            elif row.tuned_as is None:
                chosen[row.name] = Chosen({})
        for row in table.rows():
            if row.tuned_as is not None:
                chosen[row.name] = chosen[row.tuned_as]
        results: dict[str, dict[int, Run]] = {name: {} for name in table.names(planted)}
        for seed in table.seeds:
            for name in results:
                seen += 1
                if seed in mine.get(name, {}):
                    results[name][seed] = mine[name][seed].run
                    continue
                row, control = table.row_of(name)
                experiment = _changed(base, row, chosen[row.name].settings, control)
                result = run_experiment(
                    experiment.with_changes(**{"run.seed": seed}), data_root, place / "runs" / f"{name}-seed{seed}",
                    resume=True, restart=restart, dataset=dataset if experiment.data == base.data else None,
                    watcher=None if heard is None else heard(f"{name} seed {seed}", seen - 1),
                )  # fmt: skip
                results[name][seed] = Run.of(result)
                if light:
                    _lightened(place / "runs" / f"{name}-seed{seed}")
        yield Done(part, base, results, chosen)


def _lightened(folder: Path) -> None:
    """Remove the models and states of all finished runs in this folder."""
    for path in folder.rglob("summary.json"):
        lighten(path.parent)


def runs_of(table: PaperTable) -> int:
    """How many runs a table has at most: candidates and compared ones."""
    tuned = sum(row.tuned_as is None for row in table.rows()) if table.tune is not None else 0
    tries = 0 if table.tune is None else tuned * _tries(table.tune)
    return len(table.federation) * (tries + len(table.names(planted=True)) * len(table.seeds))


def _ended(
    table: PaperTable, names: Sequence[str], place: Path, known: Mapping[str, Mapping[int, Known]]
) -> bool:  # fmt: skip
    """Whether all tunings and runs of a federation have ended."""
    tuned = [row.name for row in table.rows() if row.tuned_as is None] if table.tune is not None else []
    ends = [place / "tuning" / name / "tuned.toml" for name in tuned if not known.get(name)]
    ends += [
        place / "runs" / f"{name}-seed{seed}" / "summary.json"
        for name in names for seed in table.seeds if seed not in known.get(name, {})
    ]  # fmt: skip
    return all(path.is_file() for path in ends)


def _tries(how: Equally) -> int:
    """The runs of one row's tuning."""
    return len(how.seeds) * sum(count for count, _ in how.equal().rungs(1))


def _changed(base: Experiment, row: Row, chosen: Mapping[str, Any], control: str | None) -> Experiment:
    """The experiment of a row: the preset's settings of its method, the row's, those tuned, and the control's."""
    last = {} if control is None else changes_of(named(row.method, control))
    return base.for_method(row.method).with_changes(**{**chosen, **row.set, **last})


def _heard(hears: Hears, federation: str, total: int, what: str, seen: int) -> Watcher:
    """The watcher of a run of this federation."""
    return hears(f"{federation}: {what}", seen, total)


def _tuned(
    how: Equally, base: Experiment, row: Row, data_root: Path, place: Path, restart: bool,
    heard: Callable[[str, int], Watcher] | None, seen: int,
) -> Sequence[Tried]:  # fmt: skip
    """The candidates of a row; seen: the runs that the table has done before."""
    found = tune(
        _changed(base, row, {}, None), [row.method],
        how.equal(tuple(row.set)), HoldOut.parse(row.hold_out or how.hold_out), how.seeds, data_root, place,
        resume=True, restart=restart,
        watcher=None if heard is None
        else lambda method, values, seed, done, of: heard(f"tuning {row.name} seed {seed}", seen + done),
    )  # fmt: skip
    return found[row.method]


def _chosen(how: Equally, base: Experiment, row: Row, tried: Sequence[Tried], higher: bool) -> Chosen:
    failed = sum(each.failed is not None for each in tried)
    if (one := best(tried, higher)) is None:
        return Chosen({}, failed=failed)
    experiment, every = _changed(base, row, {}, None), [each.settings for each in tried]
    return Chosen(one.settings, tuple(how.equal(tuple(row.set)).border(experiment, one.settings, every)), failed)


def _recalled(how: Equally, base: Experiment, row: Row, known: Known) -> Chosen:
    """What the tuning of a row chose, by the words that a page has for it; raises ConfigError for unknown words."""
    if how.optuna:
        raise ConfigError(f"row {row.name!r}: Optuna chose its candidates by their figures, which no page has: run it")
    experiment, equal = _changed(base, row, {}, None), how.equal(tuple(row.set))
    tried = equal.settings(experiment)
    for one in tried:
        if words_of(one) == known.tuned:
            return Chosen(one, tuple(equal.border(experiment, one, tried)), known.failed)
    raise ConfigError(
        f"row {row.name!r}: the page says that it was tuned to {known.tuned!r}, which is none of the candidates of "
        f"this definition ({'; '.join(map(words_of, tried))}): it was written from another one"
    )


def words_of(settings: Mapping[str, Any]) -> str:
    """Return tuned settings in words, as a page has them.

    >>> words_of({"training.lr": 0.1, "method.mu": 1}), words_of({})
    ('lr 0.1, mu 1', 'as it is')
    """
    return ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in settings.items()) or "as it is"


def judged(claim: Claim, results: Mapping[str, Mapping[int, Run]]) -> Added | None:
    """What a claim is about, with its interval over the seeds, to be held against `claim.needed`; None if unknown.

    It is the difference of the two rows, above 0 if `better` is the better one, or without `than` the figure itself.
    The mean is compared client by client; other figures run by run. Less is better for std, variance and bytes.
    """
    assert claim.better is not None
    mine = results.get(claim.better)
    theirs = None if claim.than is None else results.get(claim.than)
    if mine is None or (claim.than is not None and theirs is None):
        return None
    if theirs is not None and claim.figure == "mean":
        return differences(mine, theirs)
    each: dict[int, Mapping[str, float]] = {}
    for seed, run in mine.items():
        value = run.figures.get(claim.figure)
        other = 0.0 if theirs is None else theirs[seed].figures.get(claim.figure)
        if value is None or other is None:
            return None
        if theirs is None or claim.figure == "ari":
            gap = value - other
        else:
            gap = other - value if claim.figure in _LESS else run.metric.better(value, other)
        each[seed] = {"": gap}
    return added(each)
