"""Plug-ins: methods, scenarios, sources, models, metrics and graph stages from the user's files and other packages.

They are registered next to the built-in parts, under the name that they declare, and are used in the same way. A file
is read only if the user names it in an experiment file or on the command line, never because of network data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import logging
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from fedkin.settings import flat
from fedkin.untrusted import escaped, plain_word

# A path may contain "@" itself; after a method's name, "@" begins the control.
_IN_FILE = re.compile(r"(?P<path>.+\.py):(?P<part>[A-Za-z_]\w*)(?P<control>@.*)?")
_LOG = logging.getLogger("fedkin")
# Groups of entry points (fedkin.GROUP) and kinds of `fedkin list`, with the experiment section that names such a part.
GROUPS = {
    "methods": "method", "scenarios": "scenario", "sources": "data", "models": "model", "metrics": "metric",
    "graph": "graph",
}  # fmt: skip


class Kind(NamedTuple):
    """Parts of one kind: the field in their section that names one, all known parts by name, and their base classes.

    decorator: if a decorator makes them, what it says about a part, and how it is written.
    """

    field: str
    known: dict[str, Any]
    bases: tuple[type[Any], ...]
    decorator: str = ""

    def defines(self, part: Any, module: str) -> bool:
        """Whether `part` looks like a part of this kind and is defined in this module."""
        if isinstance(part, type):
            defined_here = part.__module__ == module and not isabstract(part)
            return defined_here and (issubclass(part, self.bases) or (self.known is MODELS and _is_module(part)))
        return isinstance(part, self.bases) and _module_of(part) == module

    def name_and_part(self, part: Any, label: str = "") -> tuple[str, Any]:
        """Return (the name that a part declares, the part); raises ConfigError for an invalid or unnamed part.

        A torch module as a model is wrapped in a class of settings.
        """
        if self.known is MODELS and _is_module(part):
            part = plain(part)
        label = label or getattr(part, "__name__", repr(part))
        if self.decorator:
            if isinstance(part, self.bases):
                return part.name, part
            raise ConfigError(f"{label} does not say {self.decorator} above it")
        fits = isinstance(part, type) and issubclass(part, self.bases)
        if not fits:
            of = " or ".join(base.__name__ for base in self.bases)
            raise ConfigError(f"{label} is no {of}: write class {label}({self.bases[0].__name__})")
        if missing := sorted(getattr(part, "__abstractmethods__", ())):
            raise ConfigError(f"{label} lacks what it needs: {', '.join(missing)}")
        declared = part.model_fields.get(self.field)
        name = declared.default if declared is not None else part.__dict__.get(self.field)
        if not plain_word(name):
            raise ConfigError(f"{part.__name__} has no {self.field}, or one that is no plain word: give it its own")
        return name, part


KINDS: Mapping[str, Kind] = {
    "data": Kind("source", SOURCES, (Source,)),
    "scenario": Kind("name", SCENARIOS, (Scenario,)),
    "model": Kind("name", MODELS, (Model,)),
    "method": Kind("name", METHODS, (ServerMethod, PeerMethod)),
    "metric": Kind("name", MEASURES, (Measure,), "whether higher is better: put @fedkin.metric(higher=True)"),
    "graph": Kind("name", STAGES, (Stage,), "which stage it is: put @fedkin.graph.stage('groups')"),
}


def _module_of(part: Any) -> str:
    """Return the module that defines a part; empty if there is none."""
    if isinstance(part, Measure):
        return part.home
    return getattr(part if isinstance(part, type) else getattr(part, "part", None), "__module__", None) or ""


def _is_module(part: object) -> bool:
    return isinstance(part, type) and issubclass(part, nn.Module)


@cache
def add_installed() -> None:
    """Add the parts of other packages, by their entry points in `GROUPS`.

    For a part that cannot be used, only a warning is logged, which names its package.
    """
    for group, section in GROUPS.items():
        kind = KINDS[section]
        for point in sorted(entry_points(group=f"fedkin.{group}"), key=lambda point: point.value):
            where = f"{point.dist.name if point.dist is not None else 'a package'}: {point.value}"
            try:
                part = point.load()
                if isinstance(part, Measure) and not part.module:
                    part = replace(part, module=point.module)
                name, part = kind.name_and_part(part)
                if kind.known.setdefault(name, part) is not part:
                    raise ConfigError(f"there is {name!r} already")
            except (Exception, SystemExit) as error:  # other packages may raise anything
                _LOG.warning("%s cannot be used: %s", where, escaped(f"{type(error).__name__}: {error}", 300))


_FIELDS = {f"{section}.{kind.field}": section for section, kind in KINDS.items()}


def resolve_parts(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Read the files of an experiment's table; returns the table with part names in place of FILE.py:CLASS.

    Its `own` then lists the files with their hashes. Files that `own` already lists are read too. Paths are relative to
    `folder`. Raises ConfigError, also for a file that has changed since its hash was noted.
    """
    resolver = Resolver(folder, read_own(table, folder))
    return {name: resolver.setting(name, value) for name, value in table.items()} | own_section(resolver.files)


def resolve_names(names: Sequence[str], section: str, where: str) -> tuple[list[str], list[str]]:
    """Return (names, with part names in place of FILE.py:CLASS; the files that were read, for `own`)."""
    resolver = Resolver()
    return [resolver.name(name, section, where) for name in names], resolver.files


def own_section(files: Sequence[str]) -> dict[str, list[str]]:
    """Return the part `own` of an experiment's table for these files; empty without files."""
    return {"own": list(dict.fromkeys(files))} if files else {}


@dataclass
class Resolver:
    """Reads each FILE.py:NAME in settings, and puts the part's name in its place.

    folder: where relative paths begin. files: those that were read, as listed in `own`.
    """

    folder: Path = Path()
    files: list[str] = field(default_factory=list)

    def setting(self, path: str, value: Any) -> Any:
        """Return the value of a setting with part names, at any depth; raises ConfigError.

        path: of the setting or section, such as "model.name" or "methods.mine.method.graph.groups".
        """
        if not path.startswith("methods."):
            return self._value(value, path, "")
        _, method, *inner = path.split(".", 2)
        return self._value(value, "".join(inner), f"methods.{method}.")

    def _value(self, value: Any, path: str, prefix: str) -> Any:
        """As `setting`; prefix: "methods.NAME." for a path inside the section of a method, where sections repeat."""
        where = f"{prefix}{path}"
        if isinstance(value, Mapping):
            if path == "methods":
                return self._methods(value, where)
            return {key: self._value(inner, f"{path}.{key}".lstrip("."), prefix) for key, inner in value.items()}
        if path == "run.metrics":
            names = value.split(",") if isinstance(value, str) else value
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                return value
            return [self.name(name.strip(), "metric", where) for name in names]
        section = _FIELDS.get(path) or ("graph" if path.startswith("method.") else None)
        if section is None or not isinstance(value, str):
            return value
        # A text in a method's graph section must be a stage; elsewhere in a method it may be any text.
        return self.name(value, section, where, required=path in _FIELDS or ".graph." in path)

    def _methods(self, sections: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the sections [methods.NAME], with method names in place of FILE.py:NAME, also inside them."""
        changed: dict[str, Any] = {}
        for key, inner in sections.items():
            location = f"{where}.{key}"
            name = self.name(key, "method", location)
            if name in changed:
                raise ConfigError(
                    f"{location}: this is {name!r}, which has a section of its own already; make one of both"
                )
            changed[name] = self._value(inner, "", f"{location}.")
        return changed

    def name(self, name: str, section: str, where: str, required: bool = True) -> str:
        """Read the file of FILE.py:NAME, add it to `files`, and return the part's name; other names stay unchanged.

        required: whether `name` must be a part. Raises ConfigError; for such a name also for FILE.py without a NAME.
        """
        split = _IN_FILE.fullmatch(name)
        if split is None:
            if required and name.partition("@")[0].endswith(".py"):
                raise ConfigError(
                    f"{where}: {escaped(name)}: say which part of the file is meant: {escaped(name)}:NAME"
                )
            return name
        file_path, label = str((self.folder / split["path"]).resolve()), split["part"]
        file = _read_file(file_path, where)
        if (section, label) not in file.parts:
            reason = _why_no_part(section, label, file, sys.modules[Path(file_path).stem])
            raise ConfigError(f"{where}: {split['path']}: {reason}")
        self.files.append(file.listed)
        return file.parts[section, label][0] + (split["control"] or "")


def with_absolute_paths(value: Any) -> Any:
    """Return a setting with absolute paths in each FILE.py:NAME, so that the working folder does not matter."""
    if isinstance(value, Mapping):
        return {name: with_absolute_paths(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_absolute_paths(each) for each in value]
    split = _IN_FILE.fullmatch(value) if isinstance(value, str) and "," not in value else None
    return value if split is None else f"{Path(split['path']).resolve()}:{split['part']}{split['control'] or ''}"


def stages_of(settings: Mapping[str, Any]) -> list[Stage]:
    """Return the registered graph stages that a method's settings name."""
    return [STAGES[value] for value in flat(settings).values() if isinstance(value, str) and value in STAGES]


class _UserFile(NamedTuple):
    """A file that was read: its path, its hash, and its parts as {(section, label in the file): (name, part)}."""

    path: str
    digest: str
    parts: dict[tuple[str, str], tuple[str, Any]]

    @property
    def listed(self) -> str:
        """The file as `own` lists it."""
        return f"{self.path}#{self.digest}"


_FILES: dict[str, _UserFile] = {}  # by path


def without_hash(listed: str) -> tuple[str, str]:
    """Split a file as `own` lists it into its path, which may contain "#", and its hash ("" if it has none).

    >>> without_hash("a#b/mine.py#0123456789abcdef")
    ('a#b/mine.py', '0123456789abcdef')
    """
    path, _, digest = listed.rpartition("#")
    return (path, digest) if re.fullmatch("[0-9a-f]{16}", digest) else (listed, "")


def read_own(table: Mapping[str, Any], folder: Path) -> list[str]:
    """Read the files that settings name in `own`; returns them with their hashes.

    Raises ConfigError, also for a file that has changed since its hash was noted.
    """
    listed = table.get("own", [])
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ConfigError("own: expected a list of files, such as own = ['my.py']")
    files = []
    for text in listed:
        path, digest = without_hash(text)
        file_path = str((folder / path).resolve())
        read = _read_file(file_path, "own")
        if digest not in ("", read.digest):
            raise ConfigError(
                f"own: {file_path} has changed since this was begun (its hash was {digest}, and is {read.digest}): "
                "put it back, or start again"
            )
        files.append(read.listed)
    return files


def _read_file(file_path: str, where: str) -> _UserFile:
    """Import a file and register its parts; returns its hash and parts."""
    try:
        digest = hashlib.sha256(Path(file_path).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ConfigError(f"{where}: {file_path}: {error.strerror or error}") from None
    if file_path in _FILES:
        if _FILES[file_path].digest == digest:
            return _FILES[file_path]
        for (section, _), (name, _) in _FILES.pop(file_path).parts.items():
            KINDS[section].known.pop(name, None)
    file = _UserFile(file_path, digest, _named_parts(_import_file(file_path, where), f"{where}: {file_path}"))
    for (section, _), (name, part) in file.parts.items():
        KINDS[section].known[name] = part
    _FILES[file_path] = file
    return file


def _import_file(path: str, where: str) -> Any:
    """Import a file as the module of the same name, so that processes that start later can import it too."""
    name, folder = Path(path).stem, str(Path(path).parent)
    if not name.isidentifier():
        raise ConfigError(f"{where}: {path}: its name cannot be that of a Python module; rename it")
    loaded = sys.modules.get(name)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
    if spec is not None and spec.origin != path:
        raise ConfigError(f"{where}: {path}: there is a Python module {name!r} already; rename the file")
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 0
        raise ConfigError(
            f"{where}: {path}, line {line}: {type(error).__name__}: {escaped(' '.join(str(error).split()), 300)}"
        ) from None
    return module


def _named_parts(module: Any, where: str) -> dict[tuple[str, str], tuple[str, Any]]:
    """Return the (name, part) of each part that a module defines, by (section, label); raises ConfigError."""
    named: dict[tuple[str, str], tuple[str, Any]] = {}
    parts: dict[tuple[str, str], Any] = {}
    for (label, thing), (section, kind) in itertools.product(vars(module).items(), KINDS.items()):
        if not kind.defines(thing, module.__name__):
            continue
        try:
            name, part = kind.name_and_part(thing)
            if parts.setdefault((section, name), part) is not part or kind.known.get(name, part) is not part:
                raise ConfigError(f"{label} is {name!r}, and there is a {section} {name!r} already")
        except ConfigError as error:
            if _is_module(thing):  # it may be only a building block of others
                continue
            raise ConfigError(f"{where}: {error}") from None
        named[section, label] = name, part
    return named


def _why_no_part(section: str, label: str, file: _UserFile, module: Any) -> str:
    """Explain why the object `label` in a file is no part of this kind."""
    if hasattr(module, label):
        try:
            KINDS[section].name_and_part(getattr(module, label), label)
        except ConfigError as error:
            return str(error)
    labels = [other for of, other in file.parts if of == section]
    hint = nearest(label, labels) if labels else f"the file has no {section} with a name"
    return f"no {section} {label!r}; {hint}"


def origin(part: Any) -> str:
    """Return where a part comes from: "fedkin", a file, or the name of another package."""
    module = _module_of(part)
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file if file in _FILES else module.partition(".")[0]


def is_own(file: str) -> bool:
    """Return whether this is a user's file that was read."""
    return file in _FILES


def files_of(parts: Iterable[Any]) -> list[str]:
    """Return the user's files that define these parts, as listed in `own`; parts from packages are left out."""
    places = dict.fromkeys(origin(part) for part in parts)
    return [_FILES[place].listed for place in places if place in _FILES]


def check_files_read(own: object) -> None:
    """Raise ConfigError for files in `own` that were not read: only the user may name files."""
    listed = [file.listed for file in _FILES.values()]
    for text in own if isinstance(own, list) else [own]:
        if text not in listed:
            named = escaped(str(text), 200)
            raise ConfigError(f"own: {named}: files are read for an experiment file that you name, only")
