"""Experiment files: TOML in which every field is checked, and can be set as `section.field=value`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.data.scenarios import SCENARIOS, Scenario
from fedkin.data.sources import SOURCES, Source
from fedkin.engines import ENGINES, Faults, Privacy, Setup
from fedkin.engines.calls import check_calls
from fedkin.errors import ConfigError, nearest
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.learning.computing import check_kernels, check_precision
from fedkin.learning.devices import opened
from fedkin.learning.models import MODELS, Model
from fedkin.learning.training import Training
from fedkin.methods import METHODS
from fedkin.network.settings import NetworkSettings
from fedkin.records.controls import changes_of, parted
from fedkin.records.files import SETTINGS_BYTES, flat
from fedkin.records.folder import check_claim, claimed
from fedkin.running.changes import SECTIONS, assign, changed, taken_changes
from fedkin.running.nets import check_padding, nets_for, public_from
from fedkin.running.own import add_installed, check_read
from fedkin.running.own_tables import taken_in
from fedkin.running.presets import missing, preset_or_file
from fedkin.running.settings import RunSettings, modern, without_none
from fedkin.running.trackers import check_trackers
from fedkin.settings import choose, parse
from fedkin.untrusted import printable, said, shown, text_in, toml_of

__all__ = ["Experiment", "load", "names_a_folder", "read_table"]


@dataclass(frozen=True)
class Experiment:
    """A checked experiment; `table` is the table from which it was made, and from which it can be made again."""

    name: str
    data: Source
    scenario: Scenario
    model: Model
    training: Training
    method: ServerMethod | PeerMethod
    faults: Faults
    privacy: Privacy
    run: RunSettings
    network: NetworkSettings
    table: Mapping[str, Any]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Experiment:
        """Check a table; raises one ConfigError naming every field that is wrong, in all sections."""
        add_installed()
        parts, wrong = _checked(table)
        found = list(wrong)
        try:
            for other in _section(table, "methods", {}):
                found += _wrong_for(table, other, wrong)
        except ConfigError as error:
            found += error.args
        if found:
            raise ConfigError(*found)
        return cls(**parts, table=table)

    def for_method(self, method: str) -> Experiment:
        """Return the experiment as `compare` runs it for one method: with the changes in `[methods.NAME]`.

        A control, such as "flt@self", has the method's changes, then those that make the control, then its own.
        """
        table, changes = _varied(self.table, method)
        try:
            return Experiment.of(table)
        except ConfigError as error:
            raise ConfigError(f"methods.{method}: {error}" if changes else str(error)) from None

    def with_own(self, files: Sequence[str]) -> Experiment:
        """Return the experiment with files of own parts, as `named_in` returns them, beside those that it has."""
        own = list(dict.fromkeys([*self.table.get("own", []), *files]))
        return Experiment.of({**self.table, "own": own}) if own else self

    def with_method(self, method: ServerMethod | PeerMethod) -> Experiment:
        """Return the experiment with this object's settings in the section of its method; raises ConfigError."""
        table, name = copy.deepcopy(dict(self.table)), method.name
        sections = dict(_section(table, "methods", {}))
        sections[name] = {**_section(sections, name, {}), "method": without_none(method.model_dump(mode="json"))}
        made = Experiment.of({**table, "methods": sections})
        if (found := made.for_method(name).method) != method:
            raise ConfigError(f"{name}: its settings cannot be written to an experiment file: {method} became {found}")
        return made

    def with_changes(self, **changes: Any) -> Experiment:
        """Return the experiment with other values of some fields, which are written `section.field`.

        Files that these name (FILE.py:NAME) are read, relative to the working folder.
        """
        table, (known, files) = copy.deepcopy(dict(self.table)), taken_changes(changes)
        for path, value in known.items():
            assign(table, path, value, "--set")
        return Experiment.of({**table, "own": list(dict.fromkeys([*table.get("own", []), *files]))} if files else table)

    def resolved(self) -> dict[str, Any]:
        """Return the complete table with defaults, as in `experiment.toml` of a run."""
        table: dict[str, Any] = {"name": self.name, **({"own": self.table["own"]} if "own" in self.table else {})}
        for section in ("data", "scenario", "model", "training"):
            table[section] = getattr(self, section).model_dump(mode="json")
        table["method"] = {"name": self.method.name, **self.method.model_dump(mode="json")}
        if "methods" in self.table:
            table["methods"] = self.table["methods"]
        # A simulation does not read [network], and old runs have none: it is there only if it was given.
        given = [*(["privacy"] if self.privacy.on else []), *(["network"] if "network" in self.table else [])]
        for section in ("faults", "run", *given):
            table[section] = getattr(self, section).model_dump(mode="json")
        filled: dict[str, Any] = without_none(table)
        return filled

    def to_toml(self) -> str:
        """Return `resolved()` as TOML text."""
        return tomli_w.dumps(self.resolved())

    def claimed(
        self, folder: Path, resume: bool, data_root: Path, plan: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[None]:
        """Hold `folder` as the folder of this experiment against other processes: a new one, or one that is it already.

        Settings that an older run of the same experiment lacks have their defaults. plan: what plan.json of a new
        folder has. Raises RunError.
        """
        root = str(data_root.resolve())
        return claimed(folder, self.to_toml(), resume, _completed, plan=plan, data_root=root)

    def check_claim(self, folder: Path, resume: bool) -> None:
        """Check that `folder` is the folder of this experiment; raises RunError."""
        check_claim(folder, self.to_toml(), resume, _completed)

    def federation(self, data_root: Path) -> Federation:
        """Load the data and distribute them to clients."""
        return self.scenario.federation(self.data.dataset(data_root), self.run.seed)

    def setup(self, federation: Federation, data_root: Path | None = None) -> Setup:
        """Return the setup for a runner; raises ConfigError for settings that do not fit the federation."""
        self.training.count(len(federation.at(1).seen))
        check_calls(type(self.method))
        self.method.check(federation)
        run = self.run
        check_trackers(run.trackers)
        check_precision(run.precision, opened(run.device))
        check_kernels(run.kernels)
        net, nets = nets_for(self.model, federation, run.seed, run.torch_dtype, run.computing)
        check_padding(self.data, dict.fromkeys([net, *(nets or {}).values()]))
        setup = Setup(
            self.method, federation, net, self.training, run.seed, run, nets, faults=self.faults, privacy=self.privacy
        )
        return setup if data_root is None else replace(setup, public=public_from(data_root))


def _completed(text: str) -> str:
    """Return an experiment's text with the defaults of settings that it lacks."""
    return Experiment.of(modern(toml_of(text))).to_toml()


def load(path: Path, changes: Sequence[str] = (), begun: bool = False) -> Experiment:
    """Read the experiment in a TOML file, with changes `section.field=value` as `changed`; raises ConfigError.

    path: a file, or the name of a preset. Files that the experiment names (`own`, FILE.py:CLASS) are read, relative to
    its folder; those of changes to the working folder. begun: whether it is of a run, perhaps of an older version.
    """
    path = preset_or_file(path)
    table = modern(read_table(path)) if begun else read_table(path)
    return changed(taken_in(table, path.parent), changes, Experiment.of, str(path))


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file as a dict; raises ConfigError naming the file and the line."""
    try:
        text = text_in(path, SETTINGS_BYTES)
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({said(error)})") from None
    try:
        return toml_of(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {said(error)}") from None


def _name(table: Mapping[str, Any]) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not names_a_folder(name):
        raise ConfigError(f"name: expected a text that can name a folder, got {shown(repr(name), 80)}")
    return name


def _method(table: Mapping[str, Any]) -> ServerMethod | PeerMethod:
    name, rest = _named(table, "method", "name")
    return parse(choose(METHODS, name, "method.name"), rest, "method")


def _run(table: Mapping[str, Any]) -> RunSettings:
    run = parse(RunSettings, _section(table, "run", {}), "run")
    choose(ENGINES, run.engine, "run.engine")
    return run


def names_a_folder(name: str) -> bool:
    """Whether a folder can have this name on every system."""
    usual = printable(name) and not set(name) & set('/\\:*?"<>|') and not name.startswith(".")
    return usual and len(name.encode()) <= 200


def _section(table: Mapping[str, Any], name: str, default: Any = None) -> Mapping[str, Any]:
    section = table.get(name, default)
    if section is None:
        raise ConfigError(f"[{name}]: this section is missing")
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name}: expected a section [{name}], got {section!r}")
    return section


def _checked(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return (the parts of an experiment by field, what is wrong); the sections of methods are not looked at."""
    wrong = [f"{name}: no such section; {nearest(name, SECTIONS)}" for name in table if name not in SECTIONS]
    misspelt = [field for field in SECTIONS if field not in table and any(f"'{field}'" in one for one in wrong)]
    try:
        check_read(table.get("own", []))
    except ConfigError as error:
        wrong += error.args
    makers: dict[str, Callable[[], Any]] = {
        "name": lambda: _name(table),
        "data": lambda: _chosen(SOURCES, table, "data", "source"),
        "scenario": lambda: _chosen(SCENARIOS, table, "scenario", "name"),
        "model": lambda: _chosen(MODELS, table, "model", "name"),
        "training": lambda: parse(Training, _section(table, "training", {}), "training"),
        "method": lambda: _method(table),
        "faults": lambda: parse(Faults, _section(table, "faults", {}), "faults"),
        "privacy": lambda: parse(Privacy, _section(table, "privacy", {}), "privacy"),
        "run": lambda: _run(table),
        "network": lambda: parse(NetworkSettings, _section(table, "network", {}), "network"),
    }
    parts: dict[str, Any] = {}
    # That a section is missing says nothing new where its name was misspelt.
    for field in (field for field in makers if field not in misspelt):
        try:
            parts[field] = makers[field]()
        except ConfigError as error:
            wrong += error.args
    return parts, wrong


def _varied(table: Mapping[str, Any], method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the table of an experiment for one method, the changes that made it); raises ConfigError."""
    base, control = parted(method)
    changes = changes_of(method)
    made = copy.deepcopy(dict(table))
    sections = made.pop("methods", {})
    changes = flat(_section(sections, base, {})) | changes
    changes |= flat(_section(sections, method, {})) if control is not None else {}
    own = made.get("method")
    made["method"] = own if isinstance(own, Mapping) and own.get("name") == base else {"name": base}
    for path, value in changes.items():
        assign(made, path, value, f"methods.{method}")
    return made, changes


def _wrong_for(table: Mapping[str, Any], method: str, known: Sequence[str]) -> list[str]:
    """What is wrong in the section of a method, beyond what is known to be wrong in the experiment."""
    try:
        changes_of(method, "methods")
        _, wrong = _checked(_varied(table, method)[0])
    except ConfigError as error:
        return [str(error)]
    return [f"methods.{method}: {one}" for one in wrong if one not in known]


def _named(table: Mapping[str, Any], section: str, field: str) -> tuple[object, dict[str, Any]]:
    """Return (the value of the section's name field, its other fields)."""
    rest = dict(_section(table, section))
    if field not in rest:
        raise ConfigError(f"{section}.{field}: missing, and it has no default")
    return rest.pop(field), rest


def _chosen(registry: Mapping[str, Any], table: Mapping[str, Any], section: str, field: str) -> Any:
    name, _ = _named(table, section, field)
    return parse(choose(registry, name, f"{section}.{field}"), _section(table, section), section)
