"""Which runs of a report belong together: those of one method, and the baseline of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedkin.report.reading import Run

__all__ = ["counterpart", "labels_of", "titles_of"]

_SETTINGS = ("data", "scenario", "model", "training")


def labels_of(runs: Sequence[Run]) -> list[str]:
    """The label of each run's method: its name, plus its folder if a method occurs twice for a seed.

    No two runs have the same label and seed. runs: no folder twice.
    """
    taken = Counter((run.method, run.seed) for run in runs)
    twice = {method for (method, _), times in taken.items() if times > 1}
    homes = {method: _homes([run for run in runs if run.method == method]) for method in twice}
    return [
        f"{run.method} ({homes[run.method][run.folder.resolve()]})" if run.method in twice else run.method
        for run in runs
    ]


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

    methods = {label: run.method for run, label in zip(runs, labels, strict=True)}
    return {
        label: (str(METHODS[method].title) if method in METHODS else method) + label.removeprefix(method)
        for label, method in methods.items()
    }


def counterpart(run: Run, runs: Sequence[Run], method: str) -> Run | None:
    """The run of `method` with which to compare this one: same seed and same clients; None if there is none.

    Of several, the first one in the same folder with the same settings; then the only one in the same folder, because
    a comparison may give every method its own settings; then one elsewhere with the same settings.
    """
    like = [
        other for other in runs
        if other.method == method and other.seed == run.seed
        and other.federation == run.federation and set(other.clients) == set(run.clients)
    ]  # fmt: skip
    beside = [other for other in like if other.folder.resolve().parent == run.folder.resolve().parent]
    return _alike(run, beside) or (beside[0] if len(beside) == 1 else _alike(run, like))


def _alike(run: Run, others: Sequence[Run]) -> Run | None:
    """The first of these with the run's settings."""
    return next((other for other in others if _settings(other) == _settings(run)), None)


def _settings(run: Run) -> list[object]:
    """The settings that two runs must share so that only their methods differ."""
    return [run.summary["rounds"], *(run.settings.get(section) for section in _SETTINGS)]
