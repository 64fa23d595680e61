"""FILE.py:NAME in tables of settings and lists of names: the files are read, and the parts have their own names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.errors import ConfigError
from fedkin.graph.own import STAGES, Stage
from fedkin.running.own import KINDS, in_file, named, read_own

__all__ = ["named_in", "stages_in", "stages_of", "taken_in"]

_CONTROL = re.compile(r"(.+\.py:\w+)(@?)(.*)")


def taken_in(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return an experiment's table with the name of the class for each FILE.py:CLASS, after reading the file.

    `own` lists the files then, with their hashes. Files that it lists already are read as well. Paths are relative to
    `folder`. Raises ConfigError, also for a file that has changed since its hash was noted.
    """
    made = dict(table)
    own = read_own(made, folder)
    made, files = _parts_in(made, folder, "")
    own += files
    if isinstance(made.get("methods"), Mapping):
        made["methods"], files = _methods_in(made["methods"], folder)
        own += files
    return {**made, "own": list(dict.fromkeys(own))} if own else made


def _methods_in(sections: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return (the sections [methods.NAME] with the names of parts for FILE.py:NAME, the files of these)."""
    made: dict[str, Any] = {}
    own: list[str] = []
    for name, inner in sections.items():
        where = f"methods.{name}"
        (known,), read = named_in([name], "method", folder, where)
        if known in made:
            raise ConfigError(f"{where}: this is {known!r}, which has a section of its own already; make one of both")
        made[known], files = _parts_in(inner, folder, f"{where}.") if isinstance(inner, Mapping) else (inner, [])
        own += [*read, *files]
    return made, own


def _parts_in(table: Mapping[str, Any], folder: Path, where: str) -> tuple[dict[str, Any], list[str]]:
    """Return (sections of an experiment with the names of parts for FILE.py:NAME, the files of these)."""
    made, own = dict(table), []
    for section, kind in KINDS.items():
        inner = made.get(section)
        name = inner.get(kind.field) if isinstance(inner, Mapping) else None
        at = f"{where}{section}.{kind.field}"
        if isinstance(name, str) and in_file(name, at):
            noted, known = named(name, section, folder, at)
            own.append(noted)
            made[section] = {**inner, kind.field: known}  # type: ignore[dict-item]
    if isinstance(made.get("method"), Mapping):
        made["method"], files = stages_in(made["method"], folder, f"{where}method")
        own += files
    run = made.get("run")
    names = run.get("metrics") if isinstance(run, Mapping) else None
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        known_names, files = named_in(names, "metric", folder, f"{where}run.metrics")
        own += files
        made["run"] = {**run, "metrics": known_names}  # type: ignore[dict-item]
    return made, own


def stages_in(table: Mapping[str, Any], folder: Path, where: str) -> tuple[dict[str, Any], list[str]]:
    """Return (a method's settings with the names of graph stages for FILE.py:NAME, the files of these)."""
    made, own = dict(table), []
    for name, value in table.items():
        if isinstance(value, Mapping):
            made[name], files = stages_in(value, folder, f"{where}.{name}")
            own += files
        # Only in a section of a graph a text can be nothing but a stage; elsewhere it may be any text.
        elif isinstance(value, str) and in_file(value, f"{where}.{name}" if where.endswith(".graph") else ""):
            noted, made[name] = named(value, "graph", folder, f"{where}.{name}")
            own.append(noted)
    return made, own


def stages_of(settings: Mapping[str, Any]) -> list[Stage]:
    """Return the graph stages of one's own that a method's settings name."""
    inner = [stage for value in settings.values() if isinstance(value, Mapping) for stage in stages_of(value)]
    return inner + [STAGES[value] for value in settings.values() if isinstance(value, str) and value in STAGES]


def named_in(names: Sequence[str], section: str, folder: Path, where: str) -> tuple[list[str], list[str]]:
    """Return (the names, with those of their classes for FILE.py:CLASS, and the files of these, for `own`)."""
    found, own = [], []
    for name in names:
        # A path may have an "@" itself.
        split = _CONTROL.fullmatch(name)
        base, at, control = split.groups() if split is not None else name.partition("@")
        if in_file(base, where):
            noted, base = named(base, section, folder, where)
            own.append(noted)
        found.append(f"{base}{at}{control}")
    return found, own
