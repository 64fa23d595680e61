"""Runs in a list: settings, summary and figures of each run folder, also of runs that are not finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.errors import RunError
from fedkin.methods import METHODS
from fedkin.records import reading
from fedkin.records.files import describe_state_folder, is_state
from fedkin.records.metrics import metric_of
from fedkin.settings import differing, flat


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
    def metric(self) -> str:
        """The name of the metric by which clients are compared; empty before the run is finished."""
        return "" if self.summary is None else metric_of(self.summary).name

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
        values = flat({name: self.summary.get(name) for name in (self.metric, "groups", "bytes", "seconds")})
        names = [f"{self.metric}.{name}" for name in ("mean", "worst10", "worst20", "std", "loss")]
        names += ["groups.found", "groups.ari", "groups.nmi", "bytes.up", "bytes.down", "seconds.total"]
        figures = {name.replace(".", " "): float(values[name]) for name in names if name in values}
        # Between peers, each message is one peer's upload and another peer's download.
        peers = self.method in METHODS and METHODS[self.method].kind == "peer"
        return figures | {"bytes sent": figures["bytes up"] + (0.0 if peers else figures["bytes down"])}


def listed(folders: Iterable[Path]) -> tuple[list[Listed], list[str]]:
    """Return the runs in these folders and below them, by path, and why others cannot be read.

    Raises RunError for a folder that does not exist.
    """
    places: set[Path] = set()
    problems: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder; name one that holds runs, for example runs/")
        places |= set(reading.runs_below(folder, problems))
    runs = []
    for folder in sorted(places):
        try:
            runs.append(read_listed(folder))
        except RunError as error:
            problems.append(str(error))
    return runs, problems


def read_listed(folder: Path) -> Listed:
    """Read the run in this folder; raises RunError if there is none, or if one of its files is damaged."""
    path, end = folder / "experiment.toml", folder / "summary.json"
    if is_state(folder):
        raise RunError(describe_state_folder(folder))
    if not path.is_file():
        raise RunError(f"{folder}: no experiment.toml, so this is no run folder")
    if (folder / "plan.json").is_file():
        runs = reading.runs_below(folder)
        hint = f"name a run inside it, for example {min(runs)}" if runs else "there is no run in it yet"
        raise RunError(f"{folder}: no run but a comparison or a tuning, which holds runs; {hint}")
    reading.check_unchanged(folder, path.name)
    settings = reading.settings_in(path)
    if not end.is_file():
        rounds = reading.files_in(folder / "checkpoint", "safetensors")
        return Listed(folder, settings, None, max(rounds, default=0))
    reading.check_unchanged(folder, end.name)
    summary = reading.summary_in(end)
    return Listed(folder, settings, summary, summary["rounds"])


def listed_difference(one: Listed, other: Listed) -> tuple[list[tuple[str, Any, Any]], list[tuple[str, float, float]]]:
    """Return (settings that differ, figures that both runs have), each as (name, value in one, value in other)."""
    reached, against = one.figures(), other.figures()
    figures = [(name, reached[name], against[name]) for name in reached if name in against]
    return differing(one.settings, other.settings), figures
