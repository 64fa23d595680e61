"""Which runs of a report belong together: those of one method, and the baseline of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedkin.report.reading import Run

__all__ = ["control_of", "counterpart", "labels_of", "named", "titles_of"]

_SETTINGS = ("data", "scenario", "model", "training")


def labels_of(runs: Sequence[Run]) -> list[str]:
    """The label of each run's method: its name here, plus its folder if this occurs twice for a seed.

    No two runs have the same label and seed. runs: no folder twice.
    """
    names = [named(run) for run in runs]
    taken = Counter((name, run.seed) for name, run in zip(names, runs, strict=True))
    twice = {name for (name, _), times in taken.items() if times > 1}
    homes = {name: _homes([run for run, own in zip(runs, names, strict=True) if own == name]) for name in twice}
    return [
        f"{name} ({homes[name][run.folder.resolve()]})" if name in twice else name
        for name, run in zip(names, runs, strict=True)
    ]


def named(run: Run) -> str:
    """What a run's comparison called it: its label, or else its method and control."""
    return run.label or run.method + control_of(run)


def control_of(run: Run) -> str:
    """The text "@self" of a run that `compare` made as a method's control; else an empty one.

    Its label says it, or else its folder.
    """
    if run.label:
        return "".join(run.label.partition("@")[1:])
    name = run.folder.resolve().name
    return name.removeprefix(run.method).rpartition("-seed")[0] if name.startswith(f"{run.method}@") else ""


def _homes(mine: Sequence[Run]) -> dict[Path, str]:
    """What distinguishes a method's folders: the parent of a run, or the run's own if the parent holds a seed twice."""
    folders = [run.folder.resolve() for run in mine]
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


def titles_of(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, str]:
    """By label, in the order given: the method's name as in its paper, and the label's addition."""
    from fedkin.methods import METHODS

    found = {}
    for run, label in zip(runs, labels, strict=True):
        title = str(METHODS[run.method].title) if run.method in METHODS else run.method
        rest = label.removeprefix(run.label or run.method)
        found[label] = f"{title} ({run.label}){rest}" if run.label else title + rest
    return found


def counterpart(run: Run, runs: Sequence[Run], method: str, control: str = "") -> Run | None:
    """The run of `method`, or its `control`, to compare this one with: same seed and clients; None if there is none.

    Of the run's own method, only one with the same label, beside the control, is meant.
    Of several, the first one in the same folder with the same settings; then the only one in the same folder, because
    a comparison may give every method its own settings; then one elsewhere with the same settings.
    """
    like = [
        other for other in runs
        if other.method == method and control_of(other) == control and other.seed == run.seed
        and other.federation == run.federation and set(other.clients) == set(run.clients)
        and (method != run.method or _labelled(other) == _labelled(run))
    ]  # fmt: skip
    beside = [other for other in like if other.folder.resolve().parent == run.folder.resolve().parent]
    return _alike(run, beside) or (beside[0] if len(beside) == 1 else _alike(run, like))


def _labelled(run: Run) -> str:
    """The label of a run without its control; empty for a method under its own name."""
    return run.label.partition("@")[0]


def _alike(run: Run, others: Sequence[Run]) -> Run | None:
    """The first of these with the run's settings."""
    return next((other for other in others if _settings(other) == _settings(run)), None)


def _settings(run: Run) -> list[object]:
    """The settings that two runs must share so that only their methods differ."""
    return [run.summary["rounds"], *(run.settings.get(section) for section in _SETTINGS)]
