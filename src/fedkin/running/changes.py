"""Changes of an experiment's settings from the command line: `section.field=value`."""

from __future__ import annotations

import copy
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedkin.errors import ConfigError, nearest
from fedkin.running.own import KINDS
from fedkin.running.own_tables import taken_in
from fedkin.untrusted import said, shown, toml_of

__all__ = ["SECTIONS", "assign", "changed", "setting_value", "taken_changes"]

SECTIONS = (
    "name", "own", "data", "scenario", "model", "training", "method", "methods", "faults", "privacy", "run", "network",
)  # fmt: skip

_NONE = "none"
_LOG = logging.getLogger("fedkin")

T = TypeVar("T")


class _Change(NamedTuple):
    """One `--set`: path, value, and the option's text for errors."""

    path: str
    value: Any
    option: str


def changed(table: Mapping[str, Any], changes: Sequence[str], check: Callable[[dict[str, Any]], T], where: str) -> T:
    """Apply changes `section.field=value` to a table, and return what `check` makes of it; raises ConfigError.

    none unsets a setting that does not itself know the value "none": the setting then has its default. Another kind of
    data, scenario, model or method drops the settings in the table that only the former kind has, which is logged.
    where: the file, for errors.
    """
    wanted = [_read(change) for change in changes]
    made = copy.deepcopy(dict(table))
    for change in wanted:
        assign(made, change.path, change.value, change.option)
    made = taken_in(made, Path())
    _drop_others(made, table, {change.path for change in wanted})
    try:
        return check(made)
    except ConfigError as error:
        unset = [one.path for one in wanted if one.value == _NONE and _about(error, one.path)]
        if not unset:
            raise ConfigError(f"{where}: {error}") from None
    for path in unset:
        _unset(made, path)
    try:
        return check(made)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def assign(table: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set `section.field` in place; raises ConfigError for a path that does not exist."""
    *sections, last = path.split(".")
    if not all([*sections, last]):
        raise ConfigError(f"{where}: expected section.field=value, got {path!r}")
    first = (sections or [last])[0]
    if first not in SECTIONS:
        whole = "" if sections else f"a setting is named with its section, such as method.{last}; "
        raise ConfigError(f"{where}: no section {first!r}; {whole}{nearest(first, SECTIONS)}")
    place = table
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{where}: {section!r} is a value, not a section")
    place[last] = value


def taken_changes(changes: Mapping[str, Any], folder: Path = Path()) -> tuple[dict[str, Any], list[str]]:
    """Return (changes by path with the names of parts for FILE.py:NAME, the files of these, for `own`).

    Files are relative to `folder`, by default the working folder.
    """
    made, own = {}, []
    for path, value in changes.items():
        alone: dict[str, Any] = {}
        assign(alone, path, copy.deepcopy(value), path)
        known = taken_in(alone, folder)
        made[path] = reduce(getitem, path.split("."), known)
        own += known.get("own", [])
    return made, own


def setting_value(text: str, where: str) -> Any:
    """Read the text of a setting as a TOML value if it is one, else as the text itself; raises ConfigError."""
    try:
        text.encode()
        return toml_of(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(f"{where}: {said(error)}") from None


def _read(change: str) -> _Change:
    where, equals, text = change.partition("=")
    if not equals:
        raise ConfigError(f"--set {change}: expected section.field=value")
    option = f"--set {shown(change, 80)}"
    return _Change(where.strip(), setting_value(text.strip(), option), option)


def _about(error: ConfigError, path: str) -> bool:
    """Whether the value of a setting that there is was refused."""
    text = str(error)
    return f"{path}: no " not in text and any(f"{path}{mark}" in text for mark in (":", "."))


def _unset(table: dict[str, Any], path: str) -> None:
    *sections, last = path.split(".")
    for section in sections:
        table = table[section]
    table.pop(last, None)


def _drop_others(made: dict[str, Any], before: Mapping[str, Any], given: set[str]) -> None:
    """Drop, where another kind was chosen, settings of the file that this kind does not have."""
    for section, (field, registry, _) in KINDS.items():
        old, new = before.get(section), made.get(section)
        if f"{section}.{field}" not in given or not isinstance(old, Mapping) or not isinstance(new, dict):
            continue
        kind = registry.get(new[field]) if isinstance(new[field], str) else None
        if kind is None or new[field] == old.get(field):
            continue
        touched = {path.split(".")[1] for path in given if path.startswith(f"{section}.")}
        dropped = [name for name in new if name not in kind.model_fields and name not in touched]
        for name in dropped:
            del new[name]
        if dropped:
            _LOG.warning("%s", f"{section}.{field} = {new[field]!r}: left out {', '.join(dropped)} of the file, "
                         f"which are settings of {shown(str(old.get(field)), 80)!r}")  # fmt: skip
