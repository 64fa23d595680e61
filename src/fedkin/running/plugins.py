"""Parts that are not fedkin's own: methods, scenarios, sources, models, metrics, graph stages of files and packages.

They are put among the built-in ones under the name that they give themselves, and are then used as those are. A file is
read only where its user names it, in an experiment file or on the command line; never by what comes over a network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from inspect import isabstract
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from fedkin.data.scenarios import SCENARIOS, Scenario
from fedkin.data.sources import SOURCES, Source
from fedkin.errors import ConfigError, nearest
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.graph.stages import STAGES, Stage
from fedkin.learning.metrics import MEASURES, Measure
from fedkin.learning.models import MODELS, Model, plain
from fedkin.methods import METHODS
from fedkin.untrusted import plain_word, shown

__all__ = [
    "KINDS", "add_installed", "check_read", "files_of", "in_file", "named", "named_in", "origin", "placed", "read_own",
    "stages_in", "stages_of", "taken_in",
]  # fmt: skip


_IN_FILE = re.compile(r"(?P<path>.+\.py):(?P<part>[A-Za-z_]\w*)")
_LOG = logging.getLogger("fedkin")
# Entry points fedkin.GROUP, and what they bring.
_GROUPS = {
    "methods": "method", "scenarios": "scenario", "sources": "data", "models": "model", "metrics": "metric",
    "graph": "graph",
}  # fmt: skip


class Kind(NamedTuple):
    """Parts of one kind: the field of their section that names one, all by name, and what they are made from."""

    field: str
    known: dict[str, Any]
    bases: tuple[type, ...]

    def has(self, part: Any, module: str) -> bool:
        """Whether this is meant to be such a part, and is defined in this module."""
        if isinstance(part, type):
            own = part.__module__ == module and not isabstract(part)
            return own and (issubclass(part, self.bases) or (self.known is MODELS and _is_module(part)))
        return isinstance(part, self.bases) and _home(part) == module

    def taken(self, part: Any) -> tuple[str, Any]:
        """Return (the name that a part gives itself, the part); raises ConfigError for what is none, or has no name.

        A torch module as a model becomes settings of it.
        """
        if self.known is MODELS and _is_module(part):
            part = plain(part)
        if isinstance(part, (Measure, Stage)) and isinstance(part, self.bases):
            return part.name, part
        told = getattr(part, "__name__", repr(part))
        if self.known is STAGES:
            raise ConfigError(f"{told} does not say which stage it is: put @fedkin.graph.stage('groups') above it")
        if self.known is MEASURES:
            raise ConfigError(f"{told} does not say whether higher is better: put @fedkin.metric(higher=True) above it")
        of = " or ".join(base.__name__ for base in self.bases)
        if not isinstance(part, type) or not issubclass(part, self.bases) or isabstract(part):
            raise ConfigError(f"expected a class that is a {of} and has all that one needs")
        field = part.model_fields.get(self.field)  # type: ignore[attr-defined]
        name = field.default if field is not None else part.__dict__.get(self.field)
        if not plain_word(name):
            raise ConfigError(f"{part.__name__} has no {self.field}, or one that is no plain word: give it its own")
        return name, part


KINDS: Mapping[str, Kind] = {
    "data": Kind("source", SOURCES, (Source,)),
    "scenario": Kind("name", SCENARIOS, (Scenario,)),
    "model": Kind("name", MODELS, (Model,)),
    "method": Kind("name", METHODS, (ServerMethod, PeerMethod)),
    "metric": Kind("name", MEASURES, (Measure,)),
    "graph": Kind("name", STAGES, (Stage,)),
}


class _Read(NamedTuple):
    """A file that was read: the hash of its bytes, its parts by section and name, and why others are none."""

    digest: str
    parts: dict[str, tuple[str, str]]
    refused: dict[str, str]


_FILES: dict[str, _Read] = {}


@cache
def add_installed() -> None:
    """Add the parts of other packages, by their entry points in `_GROUPS`.

    One that cannot be used harms nobody: a warning names its package.
    """
    for group, section in _GROUPS.items():
        kind = KINDS[section]
        for point in sorted(entry_points(group=f"fedkin.{group}"), key=lambda point: point.value):
            where = f"{point.dist.name if point.dist is not None else 'a package'}: {point.value}"
            try:
                part = point.load()
                if isinstance(part, Measure) and not part.module:
                    part = replace(part, module=point.module)
                name, part = kind.taken(part)
                if kind.known.setdefault(name, part) is not part:
                    raise ConfigError(f"there is {name!r} already")
            except Exception as error:  # whatever another package does
                _LOG.warning("%s cannot be used: %s", where, shown(f"{type(error).__name__}: {error}", 300))


def in_file(name: str, where: str = "") -> bool:
    """Whether this names a part of a file: FILE.py:NAME.

    where: the setting, if it can be nothing but a part; raises ConfigError for a file without a name then.
    """
    if where and name.endswith(".py"):
        raise ConfigError(f"{where}: {shown(name)}: say which part of the file is meant: {shown(name)}:NAME")
    return _IN_FILE.fullmatch(name) is not None


def placed(value: Any) -> Any:
    """Return a setting with absolute paths in each FILE.py:NAME, so that it means the same in every working folder."""
    if isinstance(value, Mapping):
        return {name: placed(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [placed(each) for each in value]
    split = _IN_FILE.fullmatch(value) if isinstance(value, str) and "," not in value else None
    return value if split is None else f"{Path(split['path']).resolve()}:{split['part']}"


def origin(part: Any) -> str:
    """Return where a part comes from: "fedkin", a file, or the package that brings it."""
    module = _home(part)
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file if file in _FILES else module.partition(".")[0]


def _home(part: Any) -> str:
    """Return the module whose code a part is; empty for what is none."""
    if isinstance(part, Measure):
        return part.home
    return getattr(part if isinstance(part, type) else getattr(part, "part", None), "__module__", None) or ""


def files_of(parts: Iterable[Any]) -> list[str]:
    """Return the files that these parts are from, as `own` lists them; none for those that are from no file."""
    places = dict.fromkeys(origin(part) for part in parts)
    return [f"{place}#{_FILES[place].digest}" for place in places if place in _FILES]


def read_own(table: Mapping[str, Any], folder: Path) -> list[str]:
    """Read the files that settings name in `own`; returns them with their hashes.

    Raises ConfigError, also for one that has changed since its hash was noted.
    """
    listed = table.get("own", [])
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ConfigError("own: expected a list of files, such as own = ['my.py']")
    return [_noted(text, folder) for text in listed]


def check_read(own: object) -> None:
    """Raise ConfigError for files that were not read: what came from elsewhere than its user may not name files."""
    for text in own if isinstance(own, list) else [own]:
        path, _, digest = str(text).partition("#")
        if path not in _FILES or _FILES[path].digest != digest:
            named = shown(str(text), 200)
            raise ConfigError(f"own: {named}: files are read for an experiment file that you name, only")


def _noted(text: str, folder: Path) -> str:
    """Read a file of `own`; returns it with its hash."""
    path, _, digest = text.partition("#")
    place = str((folder / path).resolve())
    read = _read(place, "own")
    if digest not in ("", read.digest):
        raise ConfigError(
            f"own: {place} has changed since this was begun (its hash was {digest}, and is {read.digest}): put it "
            "back, or begin anew"
        )
    return f"{place}#{read.digest}"


def named(text: str, section: str, folder: Path, where: str) -> tuple[str, str]:
    """Read the file of FILE.py:CLASS; returns (the file with its hash, the name of the class); raises ConfigError."""
    split = _IN_FILE.fullmatch(text)
    if split is None:
        raise ConfigError(f"{where}: expected FILE.py:NAME, got {shown(repr(text), 80)}")
    place = str((folder / split["path"]).resolve())
    read = _read(place, where)
    known = {part: name for part, (of, name) in read.parts.items() if of == section}
    if split["part"] in read.refused:
        raise ConfigError(f"{where}: {split['path']}: {read.refused[split['part']]}")
    if split["part"] not in known:
        thing = getattr(sys.modules[Path(place).stem], split["part"], None)
        lacks = _lacking(thing, KINDS[section])
        if lacks:
            raise ConfigError(f"{where}: {split['path']}: {split['part']} {lacks}")
        if section in ("metric", "graph") and callable(thing):
            KINDS[section].taken(thing)  # says what it lacks
        have = nearest(split["part"], known) if known else f"the file has no {section} with a name"
        raise ConfigError(f"{where}: {split['path']}: no {section} {split['part']!r}; {have}")
    return f"{place}#{read.digest}", known[split["part"]]


def _lacking(thing: Any, kind: Kind) -> str | None:
    """Return why a class is no part of this kind; None for what is none of its classes, or has another reason."""
    others = tuple(base for each in KINDS.values() if each is not kind for base in each.bases)
    if not isinstance(thing, type) or kind.known is MODELS or issubclass(thing, others):
        return None
    if not issubclass(thing, kind.bases):
        expected = " or ".join(base.__name__ for base in kind.bases)
        return f"is no {expected}: write class {thing.__name__}({kind.bases[0].__name__})"
    missing = sorted(getattr(thing, "__abstractmethods__", ()))
    return f"lacks what it needs: {', '.join(missing)}" if missing else None


def _read(place: str, where: str) -> _Read:
    """Import a file and put its parts among the others; returns what it has."""
    try:
        digest = hashlib.sha256(Path(place).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ConfigError(f"{where}: {place}: {error.strerror or error}") from None
    before = _FILES.get(place)
    if before is not None and before.digest == digest:
        return before
    for section, name in before.parts.values() if before is not None else ():
        KINDS[section].known.pop(name, None)
    _FILES.pop(place, None)
    found, refused = _parts(_module(place, where), place, where)
    for _, section, name, part in found:
        KINDS[section].known[name] = part
    _FILES[place] = _Read(digest, {label: (section, name) for label, section, name, _ in found}, refused)
    return _FILES[place]


def _module(place: str, where: str) -> Any:
    """Import a file as the module of its name, so that processes that are started later can import it too."""
    name, folder = Path(place).stem, str(Path(place).parent)
    if not name.isidentifier():
        raise ConfigError(f"{where}: {place}: its name cannot be that of a Python module; rename it")
    known = sys.modules.get(name)
    spec = known.__spec__ if known is not None else importlib.util.find_spec(name)
    if spec is not None and spec.origin != place:
        raise ConfigError(f"{where}: {place}: there is a Python module {name!r} already; rename the file")
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 0
        raise ConfigError(
            f"{where}: {place}, line {line}: {type(error).__name__}: {shown(' '.join(str(error).split()), 300)}"
        ) from None
    return module


def _parts(module: Any, place: str, where: str) -> tuple[list[tuple[str, str, str, Any]], dict[str, str]]:
    """Return (class, section, name, part) of what a module defines, and why torch modules in it are no models.

    Raises ConfigError if another part cannot be used: a torch module may be there only for others to use.
    """
    found: list[tuple[str, str, str, Any]] = []
    refused: dict[str, str] = {}
    for label, own in vars(module).items():
        for section in (section for section, kind in KINDS.items() if kind.has(own, module.__name__)):
            try:
                name, part = KINDS[section].taken(own)
                others = [each[3] for each in found if each[1:3] == (section, name)]
                if any(other is not part for other in (*others, KINDS[section].known.get(name, part))):
                    raise ConfigError(f"{label} is {name!r}, and there is a {section} {name!r} already")
            except ConfigError as error:
                if not _is_module(own):
                    raise ConfigError(f"{where}: {place}: {error}") from None
                refused[label] = str(error)
                continue
            found.append((label, section, name, part))
    return found, refused


def _is_module(part: object) -> bool:
    return isinstance(part, type) and issubclass(part, nn.Module)


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
