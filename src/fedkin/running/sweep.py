"""Runs of methods over a grid of settings and several seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedkin.errors import ConfigError
from fedkin.records.files import add_sealed, csv_text
from fedkin.running.choices import Choice, check_methods, grid
from fedkin.running.compare import Cells, OfExperiment, same_plan
from fedkin.running.compared import line, table
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Result, Watcher

__all__ = ["Swept", "rows", "sweep", "sweep_cells", "words"]

_LONGEST = 100  # characters of a folder's name


@dataclass(frozen=True)
class Swept:
    """A method with some settings, and its results by seed."""

    method: str
    settings: Mapping[str, Any]
    results: Mapping[int, Result]


def words(settings: Mapping[str, Any]) -> str:
    """Settings in one line, by their last names.

    >>> words({"training.lr": 0.1, "method.q": "all"})
    'lr=0.1, q=all'
    """
    return ", ".join(f"{path.rpartition('.')[2]}={value}" for path, value in settings.items()) or "as it is"


def sweep(
    experiment: Experiment, methods: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int], data_root: Path,
    folder: Path | None, *, resume: bool = False, restart: bool = False,
    watcher: Callable[[str, Mapping[str, Any], int, int, int], Watcher] | None = None,
) -> list[Swept]:  # fmt: skip
    """Run every method with every combination of the values that are for it, and with every seed.

    `folder` gets `experiment.toml`, `plan.json`, a folder of runs for each combination, and at the end `sweep.json` and
    `sweep.csv`, a line for each method and combination. A sweep that was stopped goes on with `resume`; finished runs
    are read. restart: whether runs that are damaged begin anew. watcher(method, settings, seed, runs done, runs in all)
    returns the watcher of a run. Everything is checked before the first run; raises ConfigError.
    """
    base = OfExperiment(experiment, data_root)
    return sweep_cells(base, methods, choices, seeds, folder, resume=resume, restart=restart, watcher=watcher)


def sweep_cells(
    base: Cells, methods: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int], folder: Path | None, *,
    resume: bool = False, restart: bool = False,
    watcher: Callable[[str, Mapping[str, Any], int, int, int], Watcher] | None = None,
) -> list[Swept]:  # fmt: skip
    """Sweep as `sweep`, over whatever can be run."""
    for names, option in (
        (methods, "--methods"),
        (seeds, "--seeds"),
        ([(c.method, c.path) for c in choices], "--grid"),
    ):
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{option}: at least one is needed, and none twice")
    check_methods(choices, methods, "--grid")
    cells = [
        (name, settings, base.for_method(name).with_changes(**settings))
        for name in methods
        for settings in grid(choices, name)
    ]
    plan = {
        "methods": list(methods), "seeds": list(seeds), "grid": [[c.method, c.path, list(c.values)] for c in choices],
    }  # fmt: skip
    if folder is not None:
        same_plan(folder, plan, "sweep")
    base.check([cell for _, _, cell in cells], seeds[0])
    found: list[Swept] = []
    with nullcontext() if folder is None else base.claimed(folder, resume, plan):
        for name, settings, cell in cells:
            results: dict[int, Result] = {}
            for seed in seeds:
                done = len(found) * len(seeds) + len(results)
                results[seed] = cell.run(
                    seed, None if folder is None else folder / _named(settings) / f"{name}-seed{seed}",
                    resume=resume, restart=restart,
                    watcher=watcher(name, settings, seed, done, len(cells) * len(seeds)) if watcher else None,
                )  # fmt: skip
            found.append(Swept(name, settings, results))
        if folder is not None:
            lines = [line(row) for row in rows(found)]
            add_sealed(folder, {"sweep.json": json.dumps(lines).encode(), "sweep.csv": csv_text(lines).encode()})
    return found


def rows(found: Sequence[Swept]) -> list[dict[str, Any]]:
    """Return a row as of `compare.table` for each method and combination, and its settings.

    gain and hurt are against Local with the same settings and seed, where Local was swept with them.
    """
    made = []
    for one in found:
        mine: dict[str, Mapping[int, Result]] = {one.method: one.results}
        alone = next((o for o in found if o.method == "local" and dict(o.settings) == dict(one.settings)), None)
        if alone is not None:
            mine["local"] = alone.results
        made.append({"settings": words(one.settings), **dict(one.settings), **table(mine)[0]})
    return made


def _named(settings: Mapping[str, Any]) -> str:
    """Return the name of a combination's folder; a long one is cut, and ends in a hash of the whole."""
    whole = words(settings)
    name = re.sub(r"[^\w.=+-]+", "_", whole)
    if len(name.encode()) <= _LONGEST and name == whole.replace(", ", "_"):
        return name
    # Other characters were lost, so that two combinations could share this name.
    return f"{name[:40]}-{blake2b(json.dumps(dict(settings), default=str).encode(), digest_size=6).hexdigest()}"
