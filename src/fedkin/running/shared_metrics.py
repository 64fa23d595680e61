"""Further metrics over a network: each participant has them itself, for what others send names no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.errors import ConfigError
from fedkin.learning.metrics import MEASURES
from fedkin.running.experiment import Experiment
from fedkin.running.plugins import GROUPS, KINDS, add_installed, files_of, in_file, named_in, stages_of
from fedkin.untrusted import shown


def check_own(experiment: Experiment) -> None:
    """Raise ConfigError for files of one's own that bring anything but further metrics."""
    files = files_of(MEASURES[name] for name in experiment.run.metrics if name in MEASURES)
    stages = stages_of(experiment.method.model_dump())
    parts = [type(experiment.data), type(experiment.model), type(experiment.method), *stages]
    others = set(files_of(parts)) | (set(experiment.table.get("own", ())) - set(files))
    if others:
        raise ConfigError(f"own: over a network files stay where they are. {as_package(sorted(others)[0], parts)}")


def as_package(file: str, parts: Sequence[Any]) -> str:
    """Return what to do with a file of one's own, so that every participant has its parts: the lines of a package.

    file: as `own` lists it. parts: those of the experiment, of which the lines name those from this file.
    """
    module = Path(file.partition("#")[0]).stem
    names = {group: KINDS[section] for group, section in GROUPS.items()}
    lines = [
        f'[project.entry-points."fedkin.{group}"]\n{name} = "{module}:{getattr(part, "part", part).__name__}"'
        for part in parts if file in files_of([part])
        for group, kind in names.items() for name, known in kind.known.items() if known is part
    ]  # fmt: skip
    package = "\n".join(["[project]", f'name = "{module}"', 'version = "1"', "[tool.setuptools]",
                         f'py-modules = ["{module}"]', *lines])  # fmt: skip
    return (
        f"Write these lines into pyproject.toml beside {module}.py, run `pip install .` there at every participant, "
        "and name the part without its file (a metric may stay in a file that each of them has: --metric):\n\n"
        f"{package}"
    )


def read_metrics(named: Sequence[str], where: str = "--metric") -> tuple[list[str], list[str]]:
    """Read this participant's own metrics, each FILE.py:NAME; returns (names, files). Raises ConfigError."""
    for each in named:
        if not in_file(each, where):
            raise ConfigError(f"{where}: expected FILE.py:NAME, got {shown(repr(each), 80)}")
    return named_in(named, "metric", Path(), where)


def check_metrics(names: Iterable[str]) -> None:
    """Raise ConfigError for a further metric that this participant does not have."""
    add_installed()
    for name in names:
        if in_file(name):
            raise ConfigError(
                f"run.metrics: {shown(repr(name), 80)} names a file, and what others send names none: write the "
                "metric's own name there"
            )
        if name not in MEASURES:
            raise ConfigError(
                f"run.metrics: no metric {shown(repr(name), 80)}: give --metric FILE.py:NAME, or install the package "
                "that brings it"
            )


def with_metrics(table: Mapping[str, Any], own: Sequence[str] = ()) -> Experiment:
    """Return the experiment of a table from elsewhere, also with metrics that this participant lacks.

    own: names of metrics from its own files. Raises ConfigError for one for which the experiment does not ask.
    """
    add_installed()
    run = table.get("run", {})
    listed = run.get("metrics", ()) if isinstance(run, Mapping) else ()
    metric_names = [name.strip() for name in listed.split(",")] if isinstance(listed, str) else listed
    if not isinstance(metric_names, (list, tuple)) or not all(isinstance(name, str) for name in metric_names):
        return Experiment.of(table)
    if more := [name for name in own if name not in metric_names]:
        raise ConfigError(f"--metric: the experiment does not ask for {more[0]!r}: "
                          f"{shown(', '.join(metric_names), 200) or 'for none'}")  # fmt: skip
    lacking = [name for name in metric_names if name not in MEASURES]
    if not lacking:
        return Experiment.of(table)
    partial_experiment = Experiment.of(
        {**table, "run": {**run, "metrics": [name for name in metric_names if name in MEASURES]}}
    )
    return replace(
        partial_experiment, run=partial_experiment.run.model_copy(update={"metrics": tuple(metric_names)}), table=table
    )


def sendable(experiment: Experiment, text: str) -> str:
    """Return an experiment's text for others: as it is, but with metrics by name where it names this one's files.

    Raises ConfigError for own parts that no other participant would have.
    """
    check_own(experiment)
    if "own" not in experiment.table:
        return text
    return tomli_w.dumps({name: value for name, value in experiment.table.items() if name != "own"})
