"""Tables of papers, run: every row tuned with the same budget, then all rows and their controls over the seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedkin.analysis.added import Added, added
from fedkin.records.finishing import lighten
from fedkin.running.candidates import at_the_border
from fedkin.running.compare import lasting, run_experiment
from fedkin.running.compared import differences
from fedkin.running.controls import changes_of, named
from fedkin.running.experiment import Experiment, load
from fedkin.running.loop import Result, Watcher
from fedkin.running.papers import Claim, Equally, PaperTable, Part, Row
from fedkin.running.tuning import HoldOut, Tried, best, tune

__all__ = ["Chosen", "Done", "figure", "judged", "mean_over", "reproduce", "runs_of"]

# Figures of which less is better.
_LESS = ("std", "variance", "bytes")

Hears = Callable[[str, int, int], Watcher]


@dataclass(frozen=True)
class Chosen:
    """What the tuning of a row chose: changed settings; which of them are at the border of what was tried; failures."""

    settings: Mapping[str, Any]
    border: tuple[str, ...] = ()
    failed: int = 0


@dataclass(frozen=True)
class Done:
    """A federation of a table whose runs have all ended: results by row and seed, the experiment and the tuning."""

    part: Part
    experiment: Experiment
    results: Mapping[str, Mapping[int, Result]]
    chosen: Mapping[str, Chosen]


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
) -> Iterator[Done]:
    """Run a table, federation after federation; what is in `folder` is gone on with, and finished runs are read.

    presets: the folder of the definition. finished: run nothing, and leave out federations that have not ended.
    models: keep the models and the last state of each run, which take most of its space and which no page needs.
    hears(what, runs done, runs in all) returns the watcher of a run. Raises ConfigError and RunError, as `tune` and
    `run_experiment`.
    """
    seen, total, light = 0, runs_of(table), not (models or finished)
    for part in table.federation:
        base = load(presets / part.preset).with_own(table.own).with_changes(**part.set)
        dataset = base.data.load(data_root)
        planted = base.scenario.federation(dataset, table.seeds[0]).planted is not None
        place = folder / re.sub(r"[^\w.+-]+", "-", part.name)
        if finished and not _ended(table, table.names(planted), place):
            continue
        heard = None if hears is None else partial(_heard, hears, part.name, total)
        chosen: dict[str, Chosen] = {}
        for row in table.rows():
            if row.tuned_as is None and table.tune is not None:
                found = _tuned(table.tune, base, row, data_root, place / "tuning" / row.name, restart, heard, seen)
                if light:
                    _lightened(place / "tuning" / row.name)
                chosen[row.name] = _chosen(found, dataset.task.metric.higher)
                seen += _tries(table.tune)
            elif row.tuned_as is None:
                chosen[row.name] = Chosen({})
        for row in table.rows():
            if row.tuned_as is not None:
                chosen[row.name] = chosen[row.tuned_as]
        results: dict[str, dict[int, Result]] = {name: {} for name in table.names(planted)}
        for seed in table.seeds:
            for name in results:
                row, control = table.row_of(name)
                experiment = _changed(base, row, chosen[row.name].settings, control)
                result = run_experiment(
                    experiment.with_changes(**{"run.seed": seed}), data_root, place / "runs" / f"{name}-seed{seed}",
                    resume=True, restart=restart, dataset=dataset if experiment.data == base.data else None,
                    watcher=None if heard is None else heard(f"{name} seed {seed}", seen),
                )  # fmt: skip
                results[name][seed] = replace(result, models={}) if light else lasting(result)
                if light:
                    _lightened(place / "runs" / f"{name}-seed{seed}")
                seen += 1
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


def _ended(table: PaperTable, names: Sequence[str], place: Path) -> bool:
    """Whether all tunings and runs of a federation have ended."""
    tuned = [row.name for row in table.rows() if row.tuned_as is None] if table.tune is not None else []
    ends = [place / "tuning" / name / "tuned.toml" for name in tuned]
    ends += [place / "runs" / f"{name}-seed{seed}" / "summary.json" for name in names for seed in table.seeds]
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


def _chosen(tried: Sequence[Tried], higher: bool) -> Chosen:
    failed = sum(each.failed is not None for each in tried)
    if (one := best(tried, higher)) is None:
        return Chosen({}, failed=failed)
    return Chosen(one.settings, tuple(at_the_border(one.settings, [each.settings for each in tried])), failed)


def figure(result: Result, name: str) -> float | None:
    """A figure of one run; None if it is not known."""
    found: Any
    if name == "bytes":
        return float(sum(message[4] for message in result.messages))
    if name == "ari":
        found = result.summary["groups"].get("ari")
    elif name == "unseen":
        found = (result.summary.get("unseen") or {}).get("mean")
    else:
        found = result.summary[result.metric.name].get(name)
    return None if found is None else float(found)


def judged(claim: Claim, results: Mapping[str, Mapping[int, Result]]) -> Added | None:
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
    for seed, result in mine.items():
        value = figure(result, claim.figure)
        other = 0.0 if theirs is None else figure(theirs[seed], claim.figure)
        if value is None or other is None:
            return None
        if theirs is None or claim.figure == "ari":
            gap = value - other
        else:
            gap = other - value if claim.figure in _LESS else result.metric.better(value, other)
        each[seed] = {"": gap}
    return added(each)


def mean_over(results: Mapping[int, Result], name: str) -> list[float]:
    """A figure of each seed's run, in the order of the seeds; empty if any is unknown."""
    values = [figure(results[seed], name) for seed in sorted(results)]
    return [] if None in values else [value for value in values if value is not None]
