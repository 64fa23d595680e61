"""The runs of a report: their methods' names, the runs to compare them with, and clients' gains over Local."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.analysis.paired import LEAST_EVENTS, LEAST_SAMPLES
from fedkin.errors import RunError
from fedkin.methods import METHODS
from fedkin.records.comparison import Gains, gains_over
from fedkin.records.controls import named, split_control
from fedkin.records.run import Result
from fedkin.settings import flat

LOCAL, FEDAVG = "local", "fedavg"
_NETWORKED = ("network", "peer")  # engines
# Settings that two runs must share so that only their methods differ.
_SECTIONS = ("data", "scenario", "model", "training")
# Settings of [run] that change what is learned.
_LEARNING = ("run.network", "run.alone", "run.adversaries")

RULE = (
    "Gained or hurt: the 95 % interval of the paired difference to Local, on the same test samples, is all above or "
    "all below 0. Each client is judged separately: of 100 clients without any difference, about 5 get a wrong "
    "verdict. "
    f"Too few: less than {LEAST_EVENTS} events or {LEAST_EVENTS} others in a risk task, less than {LEAST_SAMPLES} test "
    "samples in other tasks; if persons are known, persons count."
)


# -- names -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportRun:
    """A run in a report.

    label, title: of its method in the report. local: the comparable run of Local, if there is one; gain: its clients'
    gain over that run.
    """

    run: Result
    label: str
    title: str
    local: Result | None
    gain: Gains | None


def report_runs(runs: Sequence[Result]) -> list[ReportRun]:
    """The runs with their labels, titles and gains; runs: from distinct folders."""
    labels = labels_of(runs)
    titles = titles_of(runs, labels)
    reported = []
    for run, label in zip(runs, labels, strict=True):
        local = None if run.method == LOCAL else counterpart(run, runs, LOCAL)
        try:
            gain = None if local is None else gains_over(run, local)
        except ValueError as error:
            raise RunError(
                f"{run.folder} and {local and local.folder}: {error}; both must be as they were written"
            ) from None
        reported.append(ReportRun(run, label, titles[label], local, gain))
    return reported


def labels_of(runs: Sequence[Result]) -> list[str]:
    """The label of each run's method: its name here, plus its folder if runs of this name differ in more than the seed.

    Runs with the same label are `seeds_of_one`. runs: from distinct folders.
    """
    names = [comparison_name(run) for run in runs]
    labels = list(names)
    for name in set(names):
        numbers = [number for number, other in enumerate(names) if other == name]
        mine = [runs[number] for number in numbers]
        if not seeds_of_one(mine):
            for number, folder in zip(numbers, _distinguishing_folders(mine), strict=True):
                labels[number] = f"{name} ({folder})"
    return labels


def seeds_of_one(runs: Sequence[Result]) -> bool:
    """Whether runs of one method differ in nothing but seeds: no seed is there twice, and each setting is the same.

    A setting that one of them does not have does not count.
    """
    values: dict[str, list[Any]] = {}
    for run in runs:
        for path, value in flat(run.settings).items():
            of_learning = path in _LEARNING or not path.startswith(("run.", "name"))
            if of_learning and path.rpartition(".")[2] != "seed":
                values.setdefault(path, []).append(value)
    same = all(value == others[0] for others in values.values() for value in others)
    return same and len({run.seed for run in runs}) == len(runs)


def _distinguishing_folders(runs: Sequence[Result]) -> list[str]:
    """The folders of runs of one method, below their common folder, as far as needed to distinguish them."""
    folders = [folder_of(run) for run in runs]
    # The parent folder distinguishes runs of several comparisons, unless it holds different ones itself.
    beside: dict[Path, list[Result]] = {}
    for folder, run in zip(folders, runs, strict=True):
        beside.setdefault(folder.parent, []).append(run)
    places = [folder.parent for folder in folders] if all(map(seeds_of_one, beside.values())) else folders
    common = os.path.commonpath(places)
    return [place.relative_to(common).as_posix() for place in places]


def folder_of(run: Result) -> Path:
    """The absolute folder of a run that was read from one."""
    return (run.folder or Path()).resolve()


def comparison_name(run: Result) -> str:
    """The name of a run in its comparison: its label, or else its method and control."""
    control = control_of(run)
    return run.label or (run.method if control is None else named(run.method, control))


def titles_of(runs: Sequence[Result], labels: Sequence[str]) -> dict[str, str]:
    """Titles by label, in the given order: the method's name in its paper, with the label's addition."""
    titles = {}
    for run, label in zip(runs, labels, strict=True):
        title = str(METHODS[run.method].title) if run.method in METHODS else run.method
        rest = label.removeprefix(run.label or run.method)
        titles[label] = f"{title} ({run.label}){rest}" if run.label else title + rest
    return titles


def given_of(runs: Iterable[Result]) -> list[str]:
    """The prior knowledge that a method was given in these runs, each text once."""
    return list(dict.fromkeys(text for run in runs for text in run.summary.get("given") or ()))


# -- runs that differ in one thing -------------------------------------------------------------------------------------


def control_of(run: Result) -> str | None:
    """The control that this run of a comparison is, by its label or else its folder; None for a method itself."""
    if run.label:
        return split_control(run.label)[1]
    folder = "" if run.folder is None else run.folder.resolve().name
    method, control = split_control(folder.rpartition("-seed")[0])
    return control if method == run.method else None


def counterpart(run: Result, runs: Sequence[Result], method: str, control: str | None = None) -> Result | None:
    """Return the run of this method (and control), with the same clients and seed, to compare `run` with; else None.

    If it is the run's own method, the label must be the same too. Of several, take the first one in the same folder
    with the same settings; then the only one in the same folder, because a comparison may give every method its own
    settings; then one elsewhere with the same settings.
    """
    of_method = [other for other in runs if other.method == method and control_of(other) == control]
    like = [other for other in of_method if _comparable(run, other)]
    in_folder = [other for other in like if folder_of(other).parent == folder_of(run).parent]
    alike = _with_settings_of(run, in_folder)
    return alike or (in_folder[0] if len(in_folder) == 1 else _with_settings_of(run, like))


def _with_settings_of(run: Result, others: Sequence[Result]) -> Result | None:
    return next((other for other in others if _settings(other) == _settings(run)), None)


def _comparable(run: Result, other: Result) -> bool:
    """Whether seed and clients are the same, and for runs of one method also the label."""
    if other.method == run.method and split_control(other.label)[0] != split_control(run.label)[0]:
        return False
    federations_equal = other.seed == run.seed and other.federation == run.federation
    return federations_equal and set(other.client_facts) == set(run.client_facts)


def _settings(run: Result) -> list[object]:
    return [run.summary["rounds"], *(run.settings.get(section) for section in _SECTIONS)]


# -- gains over Local --------------------------------------------------------------------------------------------------


def verdicts_of(reported: ReportRun, ids: Sequence[str]) -> dict[str, Any] | None:
    """For each client, in the order of `ids`: interval of its metric, events, and interval and verdict of its gain.

    "withheld": why no gain has a verdict; empty if gains have verdicts. None if nothing is known about any client.
    """
    run, withheld = reported.run, _withheld(reported)
    events = {id: outcomes.events for id, outcomes in run.outcomes.items() if id not in run.unseen}
    intervals = {id: _rounded_bounds(bounds) for id, bounds in run.intervals().items() if id not in run.unseen}
    if not (events or withheld or intervals):
        return None
    sure = {} if reported.gain is None else reported.gain.sure
    columns: dict[str, Mapping[str, Any]] = {
        "own": intervals, "events": events,
        "gain": {id: _rounded_bounds(difference[1:3]) for id, (difference, _) in sure.items()},
        "verdict": {id: verdict for id, (_, verdict) in sure.items()},
    }  # fmt: skip
    return {name: [values.get(id) for id in ids] for name, values in columns.items()} | {"withheld": withheld}


def _withheld(reported: ReportRun) -> str:
    """Explain why outcomes of single test samples are unknown in a run or in Local; empty if gains are judged."""
    runs = (reported.run, reported.local) if reported.gain is not None else ()
    without = next((run for run in runs if run is not None and not run.outcomes), None)
    if without is None:
        return ""
    if without.summary.get("engine") in _NETWORKED:
        return "no per-sample outcomes leave a client over a network"
    return "no per-sample outcomes were kept"


def _rounded_bounds(bounds: Sequence[float | int | None] | None) -> list[float] | None:
    if bounds is None or None in bounds:
        return None
    return [float(f"{end:.6g}") for end in bounds if end is not None]
