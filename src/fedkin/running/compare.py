"""Several methods on the same federations for each seed: runs, new or read from their folders, and a row per method."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from fedkin.analysis.intervals import Added, added
from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.base import GROUP, groups_of
from fedkin.errors import ConfigError, RunError, nearest
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.records import reading
from fedkin.records.controls import named, parted, without_exchange
from fedkin.records.figures import COUNTED, figures_of, gains_over, spread
from fedkin.records.files import add_sealed, csv_text, json_bytes, read_json
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Watcher, lasting, run_experiment

__all__ = [
    "Cells", "OfExperiment", "Scored", "added_by_exchange", "compare", "compare_cells", "differences", "leave_out",
    "line", "same_plan", "table", "without_group",
]  # fmt: skip


def line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `table` for CSV: the seeds as text, and mean and standard deviation of each figure."""
    return {
        name: dict(zip(("mean", "sd"), value, strict=True)) if isinstance(value, tuple)
        else " ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
    }  # fmt: skip


class Scored(Protocol):
    """A run of which the clients' metrics, or at least their mean, are known."""

    def gains(self, other: Any, /) -> Mapping[str, float]:
        """Return how much better each client is here than in another run of the same kind."""


def differences(runs: Mapping[int, Scored], others: Mapping[int, Scored]) -> Added | None:
    """Return how much better one method's clients are than another's with the same seeds (see `added`)."""
    return added({seed: run.gains(others[seed]) for seed, run in runs.items() if seed in others})


def added_by_exchange(name: str, results: Mapping[str, Mapping[int, Scored]]) -> Added | None:
    """Return what communication adds to a method: the method minus its control without exchange, NAME@self.

    It is 0 for Local and for the control itself; None if the control was not run.
    """
    alone = without_exchange(name, results)
    return None if alone is None else differences(results[name], alone)


def table(results: Mapping[str, Mapping[int, Result]]) -> list[dict[str, Any]]:
    """Return a row per method: mean and spread (sample standard deviation) over seeds of the runs' figures.

    metric: the name of the metric. weighted: the mean with the clients' numbers of test samples as weights. pooled:
    over all test samples together. gain: mean over clients of the metric's gain over Local with the same seed. hurt:
    share of clients that are worse off than with Local. surely: mean number of clients that gained, lost, cannot be
    told apart from Local, or have too few events or test samples (`fedkin.analysis.paired`). adds: what communication
    adds, with the interval of its mean over seeds (`added_by_exchange`). unseen: mean of the metric over unseen
    clients. gap: how much worse that mean is. epsilon: the largest of any client, under `[privacy]`. bytes_sent: bytes
    of all messages, each message taken once. metrics: mean, sd and gain of each further metric (`run.metrics`), if any.
    """
    rows = []
    private = any("privacy" in result.summary for by_seed in results.values() for result in by_seed.values())
    for method, by_seed in results.items():
        metric = next(iter(by_seed.values())).metric
        row: dict[str, Any] = {"method": method, "seeds": sorted(by_seed), "metric": metric.name}
        summaries = [result.summary for result in by_seed.values()]
        figures = [figures_of(result) for result in by_seed.values()]
        names = ("mean", "pooled", "std", "worst10", "worst20", "variance", "weighted", "unseen", "gap")
        row |= {name: spread([one[name] for one in figures]) for name in names}
        row |= {f"bytes_{name}": spread([one["bytes"][name] for one in summaries]) for name in ("up", "down")}
        # Between peers, each message is the upload of one and the download of another, but it is sent once.
        row["bytes_sent"] = spread([one["bytes"] for one in figures])
        if private:
            row["epsilon"] = spread([one["epsilon"] for one in figures])
        row |= {name: spread([one["groups"].get(name) for one in summaries])
                for name in ("found", "ari", "ari_mean", "nmi")}  # fmt: skip
        row["flops"] = spread([one["flops"]["local_training"] for one in summaries])
        row["seconds"] = spread([one["seconds"] for one in figures])
        if told := sorted({text for result in by_seed.values() for text in result.summary.get("given", ())}):
            row["given"] = "; ".join(told)
        row |= _measured(by_seed, results.get("local") if method != "local" else None)
        row |= _against_local(method, by_seed, results.get("local"))
        row["adds"] = _added(method, results)
        rows.append(row)
    return rows


def _measured(by_seed: Mapping[int, Result], local: Mapping[int, Result] | None) -> dict[str, Any]:
    """Return each further metric that all runs have: mean and spread over seeds, and the gain over Local."""
    every = [result.summary.get("metrics") or {} for result in by_seed.values()]
    found: dict[str, Any] = {}
    for name in [name for name in every[0] if all(name in one for one in every)]:
        pair = spread([one[name].get("mean") for one in every])
        if pair is None:
            continue
        found[name] = dict(zip(("mean", "sd"), pair, strict=True))
        alone = [(local[seed].summary.get("metrics") or {}).get(name) for seed in by_seed] if local is not None else []
        if alone and all(one is not None and one.get("mean") is not None for one in alone):
            sign = 1 if every[0][name]["higher"] else -1
            found[name]["gain"] = float(np.mean([sign * (one[name]["mean"] - other["mean"])  # type: ignore[index]
                                                 for one, other in zip(every, alone, strict=True)]))  # fmt: skip
    return {"metrics": found} if found else {}


def _against_local(method: str, by_seed: Mapping[int, Result], local: Mapping[int, Result] | None) -> dict[str, Any]:
    none = {"gain": None, "hurt": None, "surely": None}
    if local is None or method == "local":
        return none
    gains = [gains_over(result, local[seed]) for seed, result in by_seed.items()]
    known = [one for one in gains if one is not None]
    if len(known) < len(gains):
        return none
    counts = [one.counts for one in known]
    surely = {name: float(np.mean([one.get(word, 0) for one in counts])) for name, word in COUNTED.items()}
    return {
        "gain": spread([one.mean for one in known]),
        "hurt": spread([one.hurt / len(one.by_client) for one in known]),
        "surely": surely if all(counts) else None,
    }


def _added(name: str, results: Mapping[str, Mapping[int, Result]]) -> dict[str, float | None] | None:
    found = added_by_exchange(name, results) if any(parted(other)[1] == "self" for other in results) else None
    return None if found is None else {"mean": found.value, "low": found.low, "high": found.high}


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


Results = Mapping[str, Mapping[int, Result]]


def without_group(experiment: Experiment, group: str) -> Experiment:
    """Return the experiment with this group of clients unseen; a source that fits to samples does not use theirs."""
    if "unseen" in type(experiment.data).model_fields:
        return experiment.with_changes(**{"data.unseen": [group]})
    return experiment.with_changes(**{"scenario.unseen": GROUP + group})


def leave_out(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: Sequence[int],
    data_root: Path,
    folder: Path,
    groups: Sequence[str] | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    watcher: Callable[[str, str, int, int, int], Watcher] | None = None,
) -> dict[str, Results]:
    """Run `compare` with each group left out; returns its results by the group that was left out.

    groups: the groups to leave out (None: all groups of the federation). watcher(group, method, seed, runs done, runs
    in all) returns the watcher of a run. `folder` gets `experiment.toml`, `plan.json`, and for each group a folder of
    `compare` with its name. Raises ConfigError for an unknown group, or if the experiment itself names unseen clients.
    """
    known = _groups(experiment, data_root)
    for group in groups or ():
        if group not in known:
            raise ConfigError(f"--leave-out: no group {group!r}; {nearest(group, known)}")
    chosen = list(groups or known)
    places = {group: folder / _folder_of(group) for group in chosen}
    if len(set(places.values())) < len(places):
        raise ConfigError(f"--leave-out: {', '.join(chosen)} would share a folder; rename the groups")
    plans = {group: without_group(experiment, group) for group in chosen}
    plan = {"methods": list(methods), "seeds": list(seeds), "leave_out": chosen}
    results: dict[str, Results] = {}
    with experiment.claimed(folder, resume, data_root, plan):
        for group, plan_of_group in plans.items():
            results[group] = compare(
                plan_of_group, methods, seeds, data_root, places[group], resume=resume, restart=restart,
                watcher=None if watcher is None else partial(watcher, group),
            )  # fmt: skip
    return results


def _folder_of(group: str) -> str:
    """Return the name of a group's folder; a long one is cut, and ends in a hash of the whole."""
    name = re.sub(r"[^\w.-]+", "-", group)
    if len(name.encode()) <= 200:
        return name
    return f"{name[:40]}-{blake2b(group.encode(), digest_size=8).hexdigest()}"


def _groups(experiment: Experiment, data_root: Path) -> list[str]:
    """Return the groups of the federation if no group is left out."""
    if experiment.scenario.unseen is not None or getattr(experiment.data, "unseen", None):
        raise ConfigError(
            "--leave-out chooses who is unseen: take scenario.unseen and data.unseen out of the experiment"
        )
    return groups_of(experiment.with_changes(**{"scenario.pooled": False}).federation(data_root))
