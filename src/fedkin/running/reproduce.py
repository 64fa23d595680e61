"""Run the tables of papers: tune every row with the same budget, then run all rows and controls with all seeds."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pyarrow.compute as pc

from fedkin.analysis.intervals import Added, added
from fedkin.records.comparison import figures_of
from fedkin.records.controls import changes_of, named, split_control
from fedkin.records.files import drop_models
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.grid import FAILED, Cell, HoldOut, Runs, Watchers, run_cells, stage_watchers
from fedkin.running.papers import Claim, EqualBudget, Figure, PaperTable, Part, Row
from fedkin.running.tune import at_the_border, best, tune
from fedkin.tasks import METRICS

# Columns of a page's CSV.
FIGURES = get_args(Figure)
Cells = Mapping[str, str]
GIVEN = "; "


def figures_row(result: Result) -> dict[str, Any]:
    """Return a run's cells of a page's CSV: its metric, clients, given prior knowledge and known figures."""
    figures = {**figures_of(result, None), "bytes": result.sent, **_best_round(result)}
    return {
        "metric": result.metric.name, "clients": result.summary["clients"],
        "given": GIVEN.join(result.summary.get("given") or ()),
        **{name: float(value) for name in FIGURES if (value := figures.get(name)) is not None},
    }  # fmt: skip


def _best_round(result: Result) -> dict[str, float]:
    """The round with the best mean over unseen clients (over all, if none are unseen), and the bytes sent by then."""
    means = {
        round: statistics.fmean(known)
        for round, values in sorted(result.values_by_round.items())
        if (known := [value for id, value in values.items() if id in result.unseen or not result.unseen])
    }
    if not means:
        return {}
    best = max(means, key=lambda round: result.metric.better(means[round], 0.0))
    messages = result.message_table
    until = messages.filter(pc.less_equal(messages["round"], best))
    return {"best_round": best, "best_bytes": pc.sum(until["bytes"]).as_py() or 0}


# Figures for which less is better.
_LESS = ("std", "variance", "gap", "bytes", "best_round", "best_bytes")


@dataclass(frozen=True)
class TunedRow:
    """The result of a row's tuning: changed settings, those at the border of the tried values, number of failures."""

    settings: Mapping[str, Any]
    border: tuple[str, ...] = ()
    failed: int = 0


@dataclass(frozen=True)
class FinishedPart:
    """A federation of a table whose runs have all ended: the experiment, `figures_row` by row and seed, and the tuning.

    failed: why a row or a control failed in training; it then has no results. seeds: those that ran.
    """

    part: Part
    experiment: Experiment
    seeds: Sequence[int]
    results: Mapping[str, Mapping[int, Mapping[str, Any]]]
    chosen: Mapping[str, TunedRow]
    failed: Mapping[str, str] = field(default_factory=dict)

    def unmatched_views(self, table: PaperTable) -> list[str]:
        """Return the rows that train on views, as tuned, for which no row has Local on the same views."""
        chosen = self.chosen
        experiments = {
            row.name: _changed(self.experiment, row, chosen[row.name].settings)
            for row in table.rows() if row.name in chosen
        }  # fmt: skip
        of_local = [
            experiment.training.augment for experiment in experiments.values() if experiment.method.name == "local"
        ]
        views = {name: getattr(experiment.method, "augment", None) for name, experiment in experiments.items()}
        return [name for name, view in views.items() if view is not None and view not in of_local]


def reproduce(
    table: PaperTable, presets: Path, data_root: Path, folder: Path, *, finished: bool = False,
    tuned: Mapping[str, Mapping[str, TunedRow]] | None = None, watch: Watchers | None = None,
) -> Iterator[FinishedPart]:  # fmt: skip
    """Run a table, one federation after another; resumes what `folder` holds and reads finished runs.

    presets: the folder of the definition. finished: run nothing, and leave out unfinished federations. tuned: the
    results of an earlier tuning, by federation and row: nothing is tuned, and other rows are left out.
    watch(what, runs done, runs in all) returns the watcher of a run. Raises ConfigError and RunError, like `tune` and
    `run_experiment`.
    """
    if tuned is not None:
        table = table.model_copy(update={"tune": None})
    runs = _TableRuns(table, data_root, folder, not finished, watch)
    for part in table.federation:
        if finished and not runs.folder_of(part).is_dir():
            continue
        base = Runs(part.experiment(presets), data_root)
        names = table.names(base.federation(table.seeds[0]).planted is not None)
        if tuned is not None:
            names = [name for name in names if table.row_of(name)[0].name in tuned[part.name]]
        if not finished or runs.ended(part, names):
            yield runs.finish(part, base, names, {} if tuned is None else tuned[part.name])


@dataclass
class _TableRuns:
    """The runs of a table.

    light: whether to remove models and states of finished runs. done: number of runs so far, for the progress.
    """

    table: PaperTable
    data_root: Path
    folder: Path
    light: bool
    watch: Watchers | None
    done: int = 0

    def ended(self, part: Part, names: Sequence[str]) -> bool:
        """Whether all tunings and runs of a federation have ended."""
        home = self.folder_of(part)
        tunings = (home / "tuning" / row.name / "tuned.toml" for row in _tuned_rows(self.table))
        runs = (home / "runs" / f"{name}-seed{seed}" for name in names for seed in self.table.seeds)
        return all(path.is_file() for path in tunings) and all(
            (run / "summary.json").is_file() or (run / FAILED).is_file() for run in runs
        )

    def finish(self, part: Part, base: Runs, names: Sequence[str], tuned: Mapping[str, TunedRow]) -> FinishedPart:
        """Tune every row without `tuned_as`, then run all rows and controls with every seed.

        tuned: the result of an earlier tuning, by row.
        """
        chosen = {row.name: TunedRow({}) for row in self.table.rows()} | dict(tuned)
        chosen |= {row.name: self._tune(part, base, row) for row in _tuned_rows(self.table)}
        as_others = {row.name: row.tuned_as for row in self.table.rows() if row.tuned_as is not None}
        chosen |= {name: chosen[other] for name, other in as_others.items() if name not in tuned}
        cells = []
        for name in names:
            row, control = self.table.row_of(name)
            experiment = _changed(base.experiment, row, chosen[row.name].settings, control)
            cells.append(Cell(name, {}, replace(base, experiment=experiment), name))
        outcomes = run_cells(
            cells, self.table.seeds, self.folder_of(part) / "runs", self._kept, self._stage_watchers(part), failed=str
        )
        self.done += len(cells) * len(self.table.seeds)
        results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in names}
        failed: dict[str, str] = {}
        for name, by_seed in zip(names, outcomes, strict=True):
            for seed, run in by_seed.items():
                if isinstance(run, str):
                    failed.setdefault(name, f"seed {seed}: {run}")
                else:
                    results[name][seed] = run
        # A control of a row that failed has not ended.
        ended = {name: runs for name, runs in results.items() if not {name, split_control(name)[0]} & set(failed)}
        return FinishedPart(part, base.experiment, self.table.seeds, ended, chosen, failed)

    def _kept(self, result: Result) -> dict[str, Any] | str:
        if result.folder is not None:
            self._lighten(result.folder)
        return figures_row(result)

    def _tune(self, part: Part, base: Runs, row: Row) -> TunedRow:
        how = self.table.tune
        assert how is not None
        experiment = _changed(base.experiment, row)
        folder = self.folder_of(part) / "tuning" / row.name
        candidates = tune(
            experiment, [row.method], how.equal(tuple(row.set)), HoldOut.parse(row.hold_out or how.hold_out), how.seeds,
            self.data_root, folder, watch=self._stage_watchers(part, f": tuning {row.name}"),
        )[row.method]  # fmt: skip
        self.done += _tries(how)
        self._lighten(folder)
        failed = sum(candidate.failed is not None for candidate in candidates)
        winner = best(candidates, base.dataset().task.metric.higher)
        if winner is None:
            return TunedRow({}, failed=failed)
        border = at_the_border(experiment, winner.settings, [candidate.settings for candidate in candidates])
        return TunedRow(winner.settings, tuple(border), failed)

    def folder_of(self, part: Part) -> Path:
        """The folder of a federation."""
        return self.folder / re.sub(r"[^\w.+-]+", "-", part.name)

    def _lighten(self, folder: Path) -> None:
        """Remove models and states of finished runs: they take most of the space, and no page needs them."""
        if self.light:
            for path in folder.rglob("summary.json"):
                drop_models(path.parent)

    def _stage_watchers(self, part: Part, stage: str = "") -> Watchers | None:
        return stage_watchers(self.watch, f"{part.name}{stage}", self.done, runs_of(self.table))


def _tuned_rows(table: PaperTable) -> list[Row]:
    """The rows with their own tuning."""
    return [row for row in table.rows() if row.tuned_as is None] if table.tune is not None else []


def runs_of(table: PaperTable) -> int:
    """The largest number of runs of a table: candidates and compared runs."""
    tries = 0 if table.tune is None else len(_tuned_rows(table)) * _tries(table.tune)
    return len(table.federation) * (tries + len(table.names(planted=True)) * len(table.seeds))


def _tries(how: EqualBudget) -> int:
    """The largest number of runs of one row's tuning."""
    return 3 * len(how.seeds) * how.candidates


def _changed(
    base: Experiment, row: Row, chosen: Mapping[str, Any] | None = None, control: str | None = None
) -> Experiment:
    """The experiment of a row: the preset's settings for its method, then tuned ones, the row's, and the control's."""
    last = {} if control is None else changes_of(named(row.method, control))
    return base.for_method(row.method).with_changes(**{**(chosen or {}), **row.set, **last})


def claim_value(claim: Claim, results: Mapping[str, Mapping[int, Cells]]) -> Added | None:
    """The value of a claim with its interval over seeds, to compare with `claim.needed`; None if unknown.

    The value is the difference of the two rows, above 0 if `better` is better; without `than`, the figure itself.
    results: cells of a page's CSV, by row and seed.
    """
    assert claim.better is not None
    runs = results.get(claim.better, {})
    if claim.than is not None:
        return difference(claim.figure, runs, results.get(claim.than, {}))
    return added({seed: {"": float(text)} if (text := of.get(claim.figure)) else {} for seed, of in runs.items()})


def difference(figure: Figure, runs: Mapping[int, Cells], others: Mapping[int, Cells]) -> Added | None:
    """How much better a figure is in some runs than in others with the same seeds; None if one is unknown."""
    # Runs with one seed score the same clients: the difference of their means is the mean of the clients' differences.
    return added({seed: _gap(figure, of, others[seed]) for seed, of in runs.items() if seed in others})


def _gap(figure: Figure, run: Cells, other: Cells) -> dict[str, float]:
    """How much better a figure is in one run than in another; empty if it is not known in both."""
    value, others = run.get(figure), other.get(figure)
    if not value or not others:
        return {}
    less = figure in _LESS or (figure != "ari" and not METRICS[run["metric"]].higher)
    return {"": float(others) - float(value) if less else float(value) - float(others)}
