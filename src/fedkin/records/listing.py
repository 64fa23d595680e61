"""Lists of the runs in a folder, their settings and figures, and the difference between two runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.errors import RunError
from fedkin.methods import METHODS
from fedkin.records.claims import is_state, told_state
from fedkin.records.metrics import metric_of
from fedkin.records.reading import settings_in, summary_in
from fedkin.records.tables import flat

__all__ = ["Listed", "difference", "listed"]


@dataclass(frozen=True)
class Listed:
    """A run folder: its settings as a table, its summary (None before the run is finished), and its safe rounds.

    rounds: all rounds of a finished run; else the rounds up to the last checkpoint, from which the run is resumed.
    """

    folder: Path
    settings: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    rounds: int

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method", {}).get("name", "?"))

    @property
    def seed(self) -> int | None:
        """The seed; None if the settings have no seed."""
        seed: int | None = self.settings.get("run", {}).get("seed")
        return seed

    @property
    def planned(self) -> int:
        """The number of rounds in the settings."""
        return int(self.settings.get("training", {}).get("rounds", 0))

    def figures(self) -> dict[str, float]:
        """Return the figures of the run by name; empty before the run is finished.

        They are the mean of the task's metric over clients and its spread, the recovery of planted groups, the bytes in
        both directions, and the seconds.
        """
        if self.summary is None:
            return {}
        metric = metric_of(self.summary)
        found: dict[str, Any] = {}
        for name in ("mean", "worst10", "worst20", "std", "loss"):
            found[f"{metric.name} {name}" if name != "loss" else "loss"] = self.summary[metric.name].get(name)
        groups, seconds = (self.summary.get(name) or {} for name in ("groups", "seconds"))
        found |= {f"groups {name}": groups.get(name) for name in ("found", "ari", "nmi")}
        up, down = (self.summary["bytes"][way] for way in ("up", "down"))
        # Between peers, each message is the upload of one and the download of another.
        peers = self.method in METHODS and METHODS[self.method].kind == "peer"
        found |= {"bytes up": up, "bytes down": down, "bytes sent": up if peers else up + down}
        found["seconds"] = seconds.get("total")
        return {name: float(value) for name, value in found.items() if value is not None}


def listed(folders: Iterable[Path]) -> list[Listed]:
    """List all runs in these folders and below them, by path; raises RunError for a folder that does not exist."""
    found = set()
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder; name one that holds runs, for example runs/")
        found |= {path.parent for path in folder.rglob("experiment.toml") if _is_run(path.parent)}
    return [read(folder) for folder in sorted(found)]


def read(folder: Path) -> Listed:
    """Read the run in this folder; raises RunError if there is none, or if one of its files is damaged."""
    path = folder / "experiment.toml"
    if is_state(folder):
        raise RunError(told_state(folder))
    if not path.is_file():
        raise RunError(f"{folder}: no experiment.toml, so this is no run folder")
    if not _is_run(folder):
        inside = min((each.parent for each in folder.rglob("experiment.toml") if _is_run(each.parent)), default=None)
        hint = f"name a run inside it, for example {inside}" if inside else "there is no run in it yet"
        raise RunError(f"{folder}: no run but a comparison or a tuning, which holds runs; {hint}")
    settings, done = settings_in(path), folder / "summary.json"
    if not done.is_file():
        return Listed(folder, settings, None, _safe(folder))
    summary = summary_in(done)
    return Listed(folder, settings, summary, summary["rounds"])


def _safe(folder: Path) -> int:
    """Return the number of rounds up to the newest checkpoint."""
    names = (path.name for path in folder.glob("checkpoint/round-*.safetensors"))
    matches = (re.fullmatch(r"round-([0-9]+)\.safetensors", name) for name in names)
    return max((int(match[1]) for match in matches if match), default=0)


def difference(one: Listed, other: Listed) -> tuple[list[tuple[str, Any, Any]], list[tuple[str, float, float]]]:
    """Return (settings that differ, figures that both runs have), each as (name, value in one, value in other).

    A missing setting is None.
    """
    first, second = (flat(run.settings) for run in (one, other))
    names = sorted(first.keys() | second.keys())
    changed = [(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)]
    reached, against = one.figures(), other.figures()
    return changed, [(name, reached[name], against[name]) for name in reached if name in against]


def _is_run(folder: Path) -> bool:
    """Whether the folder is a run: the folder of a comparison has an experiment file too, and runs below it."""
    return not (folder / "plan.json").is_file()
