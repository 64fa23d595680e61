"""The names of a report's methods: what their comparisons called them, told apart by their folders where needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedkin.methods import METHODS
from fedkin.records.controls import control_of, named
from fedkin.records.run import Result

__all__ = ["called", "labels_of", "titles_of"]


def labels_of(runs: Sequence[Result]) -> list[str]:
    """The label of each run's method: its name here, plus its folder if this occurs twice for a seed.

    No two runs have the same label and seed. runs: no folder twice.
    """
    names = [called(run) for run in runs]
    taken = Counter((name, run.seed) for name, run in zip(names, runs, strict=True))
    twice = {name for (name, _), times in taken.items() if times > 1}
    homes = {name: _homes([run for run, own in zip(runs, names, strict=True) if own == name]) for name in twice}
    return [
        f"{name} ({homes[name][_folder(run)]})" if name in twice else name
        for name, run in zip(names, runs, strict=True)
    ]


def called(run: Result) -> str:
    """What a run's comparison called it: its label, or else its method and control."""
    control = control_of(run)
    return run.label or (run.method if control is None else named(run.method, control))


def titles_of(runs: Sequence[Result], labels: Sequence[str]) -> dict[str, str]:
    """By label, in the order given: the method's name as in its paper, and the label's addition."""
    titles = {}
    for run, label in zip(runs, labels, strict=True):
        title = str(METHODS[run.method].title) if run.method in METHODS else run.method
        rest = label.removeprefix(run.label or run.method)
        titles[label] = f"{title} ({run.label}){rest}" if run.label else title + rest
    return titles


def _homes(mine: Sequence[Result]) -> dict[Path, str]:
    """What distinguishes a method's folders: the parent of a run, or the run's own if the parent holds a seed twice."""
    folders = [_folder(run) for run in mine]
    beside = Counter((folder.parent, run.seed) for folder, run in zip(folders, mine, strict=True))
    places = {folder: folder.parent if max(beside.values()) == 1 else folder for folder in folders}
    short = _shortest(set(places.values()))
    return {folder: short[place] for folder, place in places.items()}


def _shortest(places: set[Path]) -> dict[Path, str]:
    """The last parts of these paths, the fewest that distinguish them."""
    for count in range(1, max(len(place.parts) for place in places) + 1):
        short = {place: Path(*place.parts[-count:]).as_posix() for place in places}
        if len(set(short.values())) == len(places):
            return short
    raise AssertionError("whole paths differ")


def _folder(run: Result) -> Path:
    return (run.folder or Path()).resolve()
