"""How the runs of a report were made, and how to make them again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from fedkin.records import reading
from fedkin.records.files import read_json
from fedkin.records.run import Result

__all__ = ["rerun"]


def rerun(runs: Sequence[Result], labels: Sequence[str]) -> dict[str, Any]:
    """Command lines, the experiments they need, versions and machine; each distinct one once.

    The command is empty where no command can do it: with samples that a program handed over in Python.
    """
    # The command line knows no labels.
    labelled = any(run.label for run in runs)
    command, experiment = "", ""
    if not any(_handed_over(run) for run in runs):
        command, experiment = (None if labelled else _comparison(runs)) or _single(runs)
    return {
        "command": command,
        "experiment": experiment,
        "needsData": any(run.settings.get("data", {}).get("source") not in (None, "digits") for run in runs),
        "runs": [
            {
                "label": label,
                "seed": run.seed,
                "rounds": run.summary["rounds"],
                "engine": run.summary.get("engine"),
                "dtype": run.summary.get("dtype"),
                "precision": run.summary.get("precision", run.summary.get("dtype")),
                "parameters": run.summary.get("parameters"),
                "seconds": (run.summary.get("seconds") or {}).get("total"),
            }
            for run, label in zip(runs, labels, strict=True)
        ],
        "experiments": _different(runs, labels, experiment),
        "versions": _different_tables([run.summary.get("versions") or {} for run in runs]),
        "machine": _different_tables([run.summary.get("machine") or {} for run in runs]),
    }


def _handed_over(run: Result) -> bool:
    """Whether the federation of a run was an object in Python, which its settings only name."""
    return isinstance(run.settings.get("federation"), str) and "data" not in run.settings


def _comparison(runs: Sequence[Result]) -> tuple[str, str] | None:
    """The command that made a comparison, if these are all the runs of one."""
    folders = [(run.folder or Path()).resolve() for run in runs]
    homes = {folder.parent for folder in folders}
    home = homes.pop()
    plan, experiment = home / "plan.json", home / "experiment.toml"
    if homes or not plan.is_file() or not experiment.is_file():
        return None
    made = reading.checked(reading.Plan, read_json(plan), plan)
    names, seeds = made["methods"], [str(seed) for seed in made["seeds"]]
    if {f"{name}-seed{seed}" for name in names for seed in seeds} != {folder.name for folder in folders}:
        return None
    reading.settings_in(experiment)
    command = f"fedkin compare experiment.toml --methods {quote(','.join(names))} --seeds {','.join(seeds)}"
    return command, experiment.read_text(encoding="utf-8")


def _single(runs: Sequence[Result]) -> tuple[str, str]:
    """The command of a single run: its experiment.toml is complete, seed included."""
    if len(runs) == 1:
        return "fedkin run experiment.toml", _experiment(runs[0])
    return "fedkin run experiment.toml   # once for each experiment below", ""


def _different(runs: Sequence[Result], labels: Sequence[str], shown: str) -> list[dict[str, str]]:
    """Each method's experiment, with seeds that differ in nothing else joined, without the `shown` one."""
    by_settings: dict[str, tuple[str, str, list[int]]] = {}
    for run, label in zip(runs, labels, strict=True):
        same = json.dumps([label, {**run.settings, "run": {**run.settings.get("run", {}), "seed": None}}])
        by_settings.setdefault(same, (label, _experiment(run), []))[2].append(run.seed)
    return [
        {"name": f"{label}, seed {', '.join(map(str, seeds))}", "text": text}
        for label, text, seeds in by_settings.values() if text and text != shown
    ]  # fmt: skip


def _different_tables(tables: Sequence[dict[str, Any]]) -> dict[str, str]:
    """One table for all runs; where they differ, it has every value."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return {key: ", ".join(dict.fromkeys(str(table[key]) for table in tables if key in table)) for key in keys}


def _experiment(run: Result) -> str:
    """The text of the experiment file; empty without one."""
    path = (run.folder or Path()) / "experiment.toml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
