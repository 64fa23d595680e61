"""Names that a shell completes and that commands check first, read from the package's files without slow imports."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from fedkin.errors import ConfigError, nearest
from fedkin.running import presets

__all__ = [
    "KINDS", "check_experiment", "check_kind", "check_name", "data_set_names", "experiment_files", "kind_names",
    "method_lists", "names_of_kind", "table_names",
]  # fmt: skip

_PACKAGE = Path(__file__).parents[1]
# The kinds of `fedkin list`: the folder of their classes and the field with a class's name.
_CLASSES = {
    "methods": ("methods", "name"), "scenarios": ("data/scenarios", "name"), "sources": ("data/sources", "source"),
    "models": ("learning/models", "name"),
}  # fmt: skip
KINDS = (*_CLASSES, "metrics", "presets")


def names_of_kind(kind: str) -> list[str]:
    """Return the built-in names of a kind, sorted; none for metrics, which are functions."""
    if kind == "presets":
        return presets.preset_names()
    if kind not in _CLASSES:
        return []
    folder, field = _CLASSES[kind]
    pattern = re.compile(rf'^    {field}: (?:ClassVar\[str\]|Literal\["[^"]+"\]) = "([^"]+)"', re.MULTILINE)
    files = (_PACKAGE / folder).rglob("*.py")
    return sorted({name for path in files for name in pattern.findall(path.read_text(encoding="utf-8"))})


def check_experiment(path: str | None) -> None:
    """Raise ConfigError for an experiment file or preset that does not exist."""
    try:
        if path is not None:
            presets.preset_or_file(Path(path)).stat()
    except FileNotFoundError:
        raise presets.missing(Path(path or "")) from None
    except (OSError, ValueError):
        pass  # the reader of the file reports what is wrong with it


def check_kind(kind: str | None) -> None:
    """Raise ConfigError for a word that is no kind of `fedkin list`."""
    if kind not in (None, *KINDS):
        raise ConfigError(f"list: no kind {kind!r}; {nearest(str(kind), KINDS)}")


def check_name(kind: str, name: str) -> None:
    """Raise ConfigError for a name that neither fedkin nor an installed package can have."""
    names = names_of_kind(kind)
    if name in names or ":" in name or not names or kind == "presets" or "fedkin.methods" in sys.modules:
        return
    if not entry_points(group=f"fedkin.{kind}"):
        raise ConfigError(f"{kind.removesuffix('s')}: no {name!r}; {nearest(name, names)}")


def _starting_with(start: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(start)]


def kind_names(incomplete: str) -> list[str]:
    """Complete a kind of `fedkin list`."""
    return _starting_with(incomplete, KINDS)


def table_names(incomplete: str) -> list[str]:
    """Complete the name of a paper's table."""
    stems = sorted(path.stem for path in (presets.preset_folder() / "tables").glob("*.toml"))
    return _starting_with(incomplete, ["all", *stems])


def method_lists(incomplete: str) -> list[str]:
    """Complete the last of several method names separated by commas; no method is offered twice."""
    before, comma, last = incomplete.rpartition(",")
    names = _starting_with(last, names_of_kind("methods"))
    return [f"{before}{comma}{name}" for name in names if name not in before.split(",")]


def experiment_files(incomplete: str) -> list[str]:
    """Complete the name of a preset, an experiment file or a folder."""
    head, _, last = incomplete.rpartition("/")
    folder = Path(head or ("/" if incomplete.startswith("/") else "."))
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    paths = [
        f"{incomplete.removesuffix(last)}{path.name}{'/' if path.is_dir() else ''}"
        for path in entries
        if path.name.startswith(last) and not path.name.startswith(".") and (path.suffix == ".toml" or path.is_dir())
    ]
    return [*_starting_with(incomplete, presets.preset_names()), *paths]


def data_set_names(incomplete: str) -> list[str]:
    """Complete the name of a data set that `fedkin data fetch` knows."""
    origins = tomllib.loads((_PACKAGE / "data/origins.toml").read_text(encoding="utf-8"))
    return _starting_with(incomplete, origins)
