"""Several methods on the same federations for each seed: runs, new or read from their folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from fedkin.data.dataset import Dataset
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.folders import held
from fedkin.records import reading
from fedkin.records.controls import named, parted
from fedkin.records.files import add_sealed, csv_text, json_bytes, read_json, say
from fedkin.records.folder import tidy, untidy
from fedkin.records.models import Kept
from fedkin.records.recorder import ANEW
from fedkin.records.run import read_run
from fedkin.running.compared import line, table
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Result, Watcher, execute

__all__ = [
    "Cells",
    "OfExperiment",
    "compare",
    "compare_cells",
    "finished",
    "lasting",
    "read_finished",
    "run_experiment",
    "same_plan",
]


def run_experiment(
    experiment: Experiment,
    data_root: Path,
    folder: Path | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    watcher: Watcher | None = None,
    dataset: Dataset | None = None,
) -> Result:
    """Run one experiment; a finished run in `folder` is read instead of run again.

    Data and settings are checked before the folder is made. restart: whether a run in `folder` that is damaged, so that
    it can neither be read nor be gone on with, begins anew at round 0; else it is refused.
    """
    if folder is not None and (done := finished(experiment, folder, resume, restart)) is not None:
        return done
    dataset = dataset if dataset is not None else experiment.data.dataset(data_root)
    setup = experiment.setup(experiment.scenario.federation(dataset, experiment.run.seed), data_root)
    with nullcontext() if folder is None else experiment.claimed(folder, resume, data_root):
        return execute(
            setup, experiment.run, name=experiment.name, scenario=experiment.scenario.name, folder=folder,
            watcher=watcher, restart=restart, model=experiment.model,
        )  # fmt: skip


def lasting(result: Result) -> Result:
    """The result without its models in memory, if its folder has them: they are read from there when asked for."""
    if result.folder is None or isinstance(result.models, Kept):
        return result
    with suppress(RunError):
        kept = Kept(result.folder)
        return replace(result, models=kept) if len(kept) == len(result.models) else result
    return result


def finished(experiment: Experiment, folder: Path, resume: bool, restart: bool) -> Result | None:
    """Read the run in this folder if it is a finished run of this experiment, as `read_finished`; None if it is not."""
    if not (folder / "summary.json").exists():
        return None
    experiment.check_claim(folder, resume)
    if untidy(folder):
        with suppress(RunError), held(folder):  # where it cannot be done, it is read all the same
            tidy(folder)
    return read_finished(folder, restart)


def read_finished(folder: Path, restart: bool) -> Result | None:
    """Read a finished run as `read_run`; one that is damaged is made an unfinished one if `restart` says so."""
    try:
        result = read_run(folder)
        reading.checked(reading.Finished, result.summary, folder / "summary.json")
        return result
    except RunError as error:
        if not restart:
            raise RunError(f"{error}; {ANEW}") from None
        say("%s", f"{error}; beginning anew at round 0")
        (folder / "summary.json").unlink()
        return None


class Cells(Protocol):
    """What a comparison or a sweep runs: an experiment, or a federation that is at hand."""

    def for_method(self, name: str) -> Self:
        """Return the same for one method, or a control of one."""

    def with_changes(self, **changes: Any) -> Self:
        """Return the same with other values of some settings, which are written `section.field`."""

    def check(self, cells: Sequence[Self], seed: int) -> None:
        """Check all that these cells would run with, of which this is the base; raises ConfigError."""

    def run(self, seed: int, folder: Path | None, *, resume: bool, restart: bool, watcher: Watcher | None) -> Result:
        """Run it, or read the finished run in this folder."""

    def claimed(self, folder: Path, resume: bool, plan: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Hold the folder of all runs."""

    def planted(self, seed: int) -> bool:
        """Whether the clients' groups are known, so that there is an oracle."""


@dataclass(frozen=True, eq=False)
class OfExperiment(Cells):
    """Runs of an experiment. given: methods that were handed over as objects, by the names that they have here.

    names: by a name that is only used here, that of the method or control in the experiment.
    """

    experiment: Experiment
    data_root: Path
    given: Mapping[str, ServerMethod | PeerMethod] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    loaded: dict[str, Dataset] = field(default_factory=dict)

    def for_method(self, name: str) -> Self:
        base, control = parted(name)
        method = self.given.get(base)
        plan = self.experiment if method is None else self.experiment.with_method(method)
        known = self.names.get(base, base) if method is None else method.name
        known = known if control is None else named(known, control)
        made = replace(self, experiment=plan.for_method(known))
        return made if known == name else made.with_changes(**{"run.label": name})

    def with_changes(self, **changes: Any) -> Self:
        return replace(self, experiment=self.experiment.with_changes(**changes))

    def check(self, cells: Sequence[Self], seed: int) -> None:
        known: dict[str, Federation] = {}
        for cell in cells:
            plan = cell.experiment
            told = repr((plan.data, plan.scenario))
            if told not in known:
                known[told] = plan.scenario.federation(self._dataset(plan), seed)
            plan.setup(known[told], self.data_root)

    def run(self, seed: int, folder: Path | None, *, resume: bool, restart: bool, watcher: Watcher | None) -> Result:
        plan = self.experiment.with_changes(**{"run.seed": seed})
        return run_experiment(
            plan, self.data_root, folder, resume=resume, restart=restart, watcher=watcher, dataset=self._dataset(plan)
        )

    def claimed(self, folder: Path, resume: bool, plan: Mapping[str, Any]) -> AbstractContextManager[None]:
        whole = self.experiment
        for name, method in self.given.items():
            whole = whole.with_method(method) if name == method.name else whole
        return whole.claimed(folder, resume, self.data_root, plan)

    def planted(self, seed: int) -> bool:
        plan = self.experiment
        return plan.scenario.federation(self._dataset(plan), seed).planted is not None

    def _dataset(self, plan: Experiment) -> Dataset:
        """The data of this experiment, of which the last are kept."""
        told = repr(plan.data)
        if told not in self.loaded:
            dataset = plan.data.dataset(self.data_root)
            self.loaded.clear()
            self.loaded[told] = dataset
        return self.loaded[told]


def compare(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: Sequence[int],
    data_root: Path,
    folder: Path | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    watcher: Callable[[str, int, int, int], Watcher] | None = None,
    validation: Mapping[str, Any] | None = None,
) -> dict[str, dict[int, Result]]:
    """Run each method with each seed; returns the results by method and seed.

    restart: whether runs that are damaged begin anew (see `run_experiment`). validation: what a tuning of these methods
    found on held-out data (`fedkin.records.reading.Validation`), which `folder` keeps for the report's headline.
    watcher(method, seed, runs done, runs in all) returns the watcher of a run. `folder` gets `experiment.toml`,
    `plan.json` (methods and seeds) and a folder per run. At the end it gets `compare.json` (the summaries of the runs)
    and `compare.csv` (a line per method).
    """
    cells = OfExperiment(experiment, data_root)
    return compare_cells(
        cells, methods, seeds, folder, resume=resume, restart=restart, watcher=watcher, validation=validation
    )


def compare_cells(
    base: Cells, methods: Sequence[str], seeds: Sequence[int], folder: Path | None = None, *, resume: bool = False,
    restart: bool = False, watcher: Callable[[str, int, int, int], Watcher] | None = None,
    validation: Mapping[str, Any] | None = None,
) -> dict[str, dict[int, Result]]:  # fmt: skip
    """Compare as `compare`, of whatever can be run."""
    if not methods or len(set(methods)) < len(methods) or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError("--methods and --seeds: each must be named once, and at least one of each")
    cells = {name: base.for_method(name) for name in methods}
    base.check(list(cells.values()), seeds[0])
    plan = [(seed, name) for seed in seeds for name in cells]
    results: dict[str, dict[int, Result]] = {name: {} for name in methods}
    asked = {"methods": list(methods), "seeds": list(seeds)}
    with nullcontext() if folder is None else base.claimed(folder, resume, asked):
        if folder is not None and validation is not None:
            add_sealed(folder, {reading.VALIDATION: json_bytes(dict(validation))})
        for done, (seed, name) in enumerate(plan):
            result = cells[name].run(
                seed, folder / f"{name}-seed{seed}" if folder is not None else None, resume=resume, restart=restart,
                watcher=watcher(name, seed, done, len(plan)) if watcher is not None else None,
            )  # fmt: skip
            results[name][seed] = lasting(result)
        if folder is not None:
            every = json_bytes([row.summary for by_seed in results.values() for row in by_seed.values()])
            lines = csv_text([line(row) for row in table(results)]).encode()
            add_sealed(folder, {"compare.json": every, "compare.csv": lines})
    return results


def same_plan(folder: Path, plan: Mapping[str, Any], what: str) -> None:
    """Raise RunError if something with another plan was begun in this folder. what: what it is done to, in a word."""
    place = folder / "plan.json"
    if (folder / "experiment.toml").exists() and place.exists() and read_json(place) != json.loads(json.dumps(plan)):
        raise RunError(f"{place} differs from what to {what}: it must be the same in every option")
