"""Experiment files in TOML: every field is checked, and can be set as `section.field=value`."""

from __future__ import annotations

import copy
import logging
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import nn

from fedkin.data import Dataset
from fedkin.data.scenarios import Scenario
from fedkin.data.sources import SOURCES, Source
from fedkin.engines import ENGINES, Faults, Privacy, Setup
from fedkin.engines.failures import method_errors
from fedkin.engines.setup import EngineSettings, check_calls
from fedkin.errors import ConfigError, nearest
from fedkin.federation import AnyRoster, Federation
from fedkin.flow import AnyMethod
from fedkin.keys import key
from fedkin.learning.devices import Precision, check_precision, opened
from fedkin.learning.metrics import MEASURES, Measure
from fedkin.learning.models import MODELS, Model
from fedkin.learning.models.custom import Modules, pair_of
from fedkin.learning.models.pretrained import Tokens
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.network.settings import NetworkSettings
from fedkin.records.controls import changes_of, split_control
from fedkin.records.files import SETTINGS_BYTES, check_claim, claimed
from fedkin.running.plugins import KINDS, Resolver, add_installed, check_files_read, own_section, resolve_parts
from fedkin.running.presets import missing, preset_or_file
from fedkin.running.trackers import TRACKERS, check_trackers
from fedkin.settings import Settings, choose, flat, parse
from fedkin.tasks import Task
from fedkin.untrusted import error_text, escaped, printable, text_in, toml_of

__all__ = [
    "SECTIONS", "Experiment", "ProgramInputs", "RunSettings", "assign", "changed_experiment", "check_padding", "load",
    "names_a_folder", "nets_for", "public_from", "read_table", "resolve_changes", "setting_value", "without_none",
]  # fmt: skip


class RunSettings(EngineSettings):
    """The section `[run]`: the seed, the engine and its settings (see EngineSettings), and the records of a run.

    engine: "local", "ray", or for tests "loopback". dtype: type of parameters and inputs.
    precision: "bf16" computes bodies of nets in bfloat16 by torch's autocast, on a CPU or GPU that has instructions for
    it; parameters, messages, heads and losses stay in float32, and so do parts that fedkin froze (`frozen = true`).
    "float32" computes in `dtype`.
    evaluate_every, checkpoint_every: in rounds.
    embeddings_every: in rounds. Evaluated rounds divisible by it store class means of features for the report. The last
    round always stores them (0: only the last round).
    models: "last" stores each client's model after the last round with the run, "none" stores none. Clients with equal
    models share a file. models_limit_mb: if all different models together are larger (in MB of 2^20 bytes), none is
    stored, and a warning says so.
    metrics: further metrics of each client's model in every evaluation:
    names of `fedkin list metrics`, or FILE.py:NAME.
    trackers: trackers of the figures of every round: "tensorboard", "mlflow", "wandb" (a list, or a text with
    commas).
    label: the method's name in the report, if a comparison gave it another one: "mu=1"; its control is "mu=1@self".
    """

    seed: int = Field(0, ge=0, lt=10**18)
    engine: str = "local"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "float32"
    evaluate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    embeddings_every: int = Field(0, ge=0)
    models: Literal["last", "none"] = "last"
    models_limit_mb: float = Field(4096.0, gt=0)
    metrics: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    label: str | None = Field(None, max_length=200)

    @field_validator("trackers", "metrics", mode="before")
    @classmethod
    def _split_names(cls, names: Any) -> Any:
        return [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    @field_validator("trackers", "metrics")
    @classmethod
    def _known(cls, names: tuple[str, ...], about: ValidationInfo) -> tuple[str, ...]:
        registry: Mapping[str, Any] = TRACKERS if about.field_name == "trackers" else MEASURES
        for index, name in enumerate(names):
            if name not in registry:
                raise ValueError(f"no {name!r}; {nearest(name, registry)}")
            if name in names[:index]:
                raise ValueError(f"{name!r} is there twice")
        return names

    @field_validator("label")
    @classmethod
    def _in_a_line(cls, label: str | None) -> str | None:
        if label is not None and not printable(label):
            raise ValueError("expected a text in one line")
        return label

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.device != "cpu" and self.engine == "ray":
            raise ValueError(f"engine = 'ray' is for processors; leave it out with device = {self.device!r}")
        if self.precision == "bf16" and self.dtype != "float32":
            raise ValueError(f"precision = 'bf16' is for dtype = 'float32', not {self.dtype!r}; leave one of them out")
        return self

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type of `dtype`."""
        return torch.float64 if self.dtype == "float64" else torch.float32


SECTIONS = (
    "name", "own", "data", "scenario", "model", "training", "method", "methods", "faults", "privacy", "run", "network",
)  # fmt: skip
# The sections that say which samples the clients have.
SAMPLES = ("data", "scenario")

_LOG = logging.getLogger("fedkin")


# -- experiment files, and changes of settings -------------------------------------------------------------------------


def load(path: Path, changes: Sequence[str] = ()) -> Experiment:
    """Read the experiment in a TOML file, with changes as in `changed_experiment`; raises ConfigError.

    path: a file, or the name of a preset. Files that the experiment names (`own`, FILE.py:CLASS) are read relative to
    its folder, and files that changes name relative to the working folder.
    """
    path = preset_or_file(path)
    return changed_experiment(resolve_parts(read_table(path), path.parent), changes, str(path))


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file as a dict; raises ConfigError naming the file and the line."""
    try:
        return toml_of(text_in(path, SETTINGS_BYTES))
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML ({error_text(error)})") from None


def changed_experiment(table: Mapping[str, Any], changes: Sequence[str], where: str) -> Experiment:
    """Return the experiment of a table with changes `section.field=value`; raises ConfigError.

    A change without a value resets a setting to its default. If a change chooses another kind of data, scenario, model
    or method, settings that only the former kind has are dropped, with a log message. where: the file, for errors.
    """
    new, paths = copy.deepcopy(dict(table)), set()
    for change in changes:
        path, equals, text = (part.strip() for part in change.partition("="))
        option = f"--set {escaped(change, 80)}"
        if not equals:
            raise ConfigError(f"{option}: expected section.field=value")
        if not text and not _is_set(new, path):
            raise ConfigError(f"{option}: {path} is not set, so it cannot be unset")
        assign(new, path, setting_value(text, option) if text else None, option)
        paths.add(path)
    new = resolve_parts(without_none(new), Path())
    _drop_others(new, table, paths)
    try:
        return Experiment.of(new)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _is_set(table: Any, path: str) -> bool:
    for name in path.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table is not None


def assign(table: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set `section.field` in place; raises ConfigError for a path that does not exist."""
    *sections, last = path.split(".")
    if not all([*sections, last]):
        raise ConfigError(f"{where}: expected section.field=value, got {path!r}")
    first = (sections or [last])[0]
    if first not in SECTIONS:
        whole = "" if sections else f"a setting is named with its section, such as method.{last}; "
        raise ConfigError(f"{where}: no section {first!r}; {whole}{nearest(first, SECTIONS)}")
    section_table = table
    for section in sections:
        section_table = section_table.setdefault(section, {})
        if not isinstance(section_table, dict):
            raise ConfigError(f"{where}: {section!r} is a value, not a section")
    section_table[last] = value


def resolve_changes(changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return (changes by path, with a part's name in place of each FILE.py:NAME; the files read, for `own`).

    Files are relative to the working folder.
    """
    resolver = Resolver()
    for path in changes:
        assign({}, path, None, path)  # raises for a path that does not exist
    return {path: resolver.setting(path, value) for path, value in changes.items()}, resolver.files


def setting_value(text: str, where: str) -> Any:
    """Read a setting's text as a TOML value if it is one, else keep the text; raises ConfigError."""
    try:
        text.encode()
        return toml_of(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(f"{where}: {error_text(error)}") from None


def _drop_others(new: dict[str, Any], before: Mapping[str, Any], changed_paths: set[str]) -> None:
    """If another kind was chosen, drop the file's settings that this kind does not have."""
    for section, kind in KINDS.items():
        old_settings, settings = before.get(section), new.get(section, {})
        named, all_given = f"{section}.{kind.field}" in changed_paths, section in changed_paths
        if not named or all_given or not isinstance(old_settings, Mapping):
            continue
        name, old_name = settings.get(kind.field), old_settings.get(kind.field)
        if name != old_name and isinstance(name, str) and name in kind.known:
            changed = {path.split(".")[1] for path in changed_paths if path.startswith(f"{section}.")}
            kept = changed.union(kind.known[name].model_fields)
            if dropped := [setting for setting in settings if setting not in kept]:
                _LOG.warning("%s", f"{section}.{kind.field} = {name!r}: ignored {', '.join(dropped)} of the file "
                             f"(settings of {escaped(str(old_name), 80)!r})")  # fmt: skip
            new[section] = {setting: value for setting, value in settings.items() if setting in kept}


def without_none(value: Any) -> Any:
    """Drop settings that are None, since TOML has no null; a missing setting has its default None."""
    if isinstance(value, Mapping):
        return {name: without_none(item) for name, item in value.items() if item is not None}
    return value


# -- experiments -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class ProgramInputs:
    """Clients and a net from a program, in place of a file's sections [data], [scenario] and [model].

    clients: a federation, or a function that makes one for a seed. settings: the net's settings; modules, head: the net
    if it has no settings; see `fedkin.run`. measures: metrics in addition to `run.metrics`.
    """

    clients: Federation | Callable[[int], Federation]
    settings: Model | None = None
    modules: Modules | None = None
    head: str | None = None
    measures: Sequence[Measure] = ()
    name = ""  # each seed's federation has its own name
    pooled = False

    def loaded(self, root: Path) -> None:
        """Read nothing: the clients are there already."""

    def federation(self, dataset: None, seed: int) -> Federation:
        """Return the clients for this seed."""
        federation = self.clients if isinstance(self.clients, Federation) else self.clients(seed)
        if not isinstance(federation, Federation):
            raise ConfigError(f"the function of the seed has to return a Federation, and returned {federation!r:.80}")
        return federation

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head) of the modules."""
        assert self.modules is not None
        return pair_of(self.modules, task, self.head)


@dataclass(frozen=True)
class Experiment:
    """A checked experiment; `table` is the table that it was made from, and that can make it again.

    inputs: clients and net from a program; then also the value of `data`, `scenario` and, without settings, `model`.
    """

    name: str
    data: Source
    scenario: Scenario
    model: Model
    training: Training
    method: AnyMethod
    faults: Faults
    privacy: Privacy
    run: RunSettings
    network: NetworkSettings
    table: Mapping[str, Any]
    inputs: ProgramInputs | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any], inputs: ProgramInputs | None = None) -> Experiment:
        """Check a table; raises one ConfigError naming every field that is wrong, in all sections.

        inputs: clients and net in place of the table's sections; the method may then be missing, and is Local.
        """
        add_installed()
        if inputs is None:
            return cls(**_sections(table, {}), table=table)
        given = {"name": "", "data": inputs, "scenario": inputs, "model": inputs.settings or inputs}
        return cls(**_sections({"method": {"name": "local"}, **table}, given), table=table, inputs=inputs)

    def for_method(self, method: str) -> Experiment:
        """Return the experiment as `compare` runs it for one method: with the changes in `[methods.NAME]`.

        A control, such as "flt@self", gets the method's changes, then the changes that make the control, then its own.
        """
        table, changes = _table_of(self.table, method)
        try:
            return Experiment.of(table, self.inputs)
        except ConfigError as error:
            raise ConfigError(f"methods.{method}: {error}" if changes else str(error)) from None

    def with_own(self, files: Sequence[str]) -> Experiment:
        """Return the experiment with further files of own parts, as `resolve_names` returns them."""
        own = own_section([*self.table.get("own", ()), *files])
        return Experiment.of({**self.table, **own}, self.inputs) if files else self

    def with_method(self, method: AnyMethod) -> Experiment:
        """Return the experiment with this object's settings in the section of its method; raises ConfigError."""
        name, sections = method.name, dict(_section(self.table, "methods", {}))
        sections[name] = {**_section(sections, name, {}), "method": without_none(method.model_dump(mode="json"))}
        experiment = Experiment.of({**self.table, "methods": sections}, self.inputs)
        if (written := experiment.for_method(name).method) != method:
            raise ConfigError(
                f"{name}: its settings cannot be written to an experiment file: {method} became {written}"
            )
        return experiment

    def with_changes(self, **changes: Any) -> Experiment:
        """Return the experiment with other values of some fields, named `section.field`.

        Files that the values name (FILE.py:NAME) are read, relative to the working folder.
        """
        table, (values, files) = copy.deepcopy(dict(self.table)), resolve_changes(changes)
        for path, value in values.items():
            assign(table, path, value, "changes")
        return Experiment.of(table | own_section([*table.get("own", ()), *files]), self.inputs)

    def resolved(self) -> dict[str, Any]:
        """Return the complete table with defaults, as in `experiment.toml` of a run."""
        table: dict[str, Any] = {"own": self.table["own"]} if "own" in self.table else {}
        table |= {"name": self.name} if self.inputs is None else self._objects(self.inputs)
        dealt = ("data", "scenario") if self.inputs is None else ()
        for section in (*dealt, *([] if self.settings_of_net is None else ["model"]), "training"):
            table[section] = getattr(self, section).model_dump(mode="json")
        table["method"] = {"name": self.method.name, **self.method.model_dump(mode="json")}
        if "methods" in self.table:
            table["methods"] = self.table["methods"]
        # A simulation does not read [network], so the table has this section only if it was given.
        given = [*(["privacy"] if self.privacy != Privacy() else []), *(["network"] if "network" in self.table else [])]
        for section in ("faults", "run", *given):
            table[section] = getattr(self, section).model_dump(mode="json")
        filled: dict[str, Any] = without_none(table)
        return filled

    @property
    def settings_of_net(self) -> Model | None:
        """The settings from which the net can be made again; None for modules from a program."""
        return self.model if type(self.model) in MODELS.values() else None

    def _objects(self, inputs: ProgramInputs) -> dict[str, Any]:
        """Describe clients, net and metrics from a program, for the records: names, and the net's fingerprint."""
        federation, run = self.federation(Path()), self.run
        table: dict[str, Any] = {"federation": federation.name}
        if self.settings_of_net is None:
            net, _ = nets_for(self.model, federation, run.seed, run.torch_dtype, run.precision)
            table["net"] = net.fingerprint()
        return table | ({"metrics": [measure.name for measure in inputs.measures]} if inputs.measures else {})

    def to_toml(self) -> str:
        """Return `resolved()` as TOML text."""
        return tomli_w.dumps(self.resolved())

    def claimed(
        self, folder: Path, data_root: Path | None, plan: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[None]:
        """Lock `folder` for this experiment: a new folder, or one that was begun with the same experiment.

        plan: the content of plan.json for a new folder. Raises RunError.
        """
        root = None if data_root is None else str(data_root.resolve())
        return claimed(folder, self.to_toml(), plan=plan, data_root=root)

    def check_claim(self, folder: Path) -> None:
        """Check that `folder` was begun with this experiment; raises RunError."""
        check_claim(folder, self.to_toml())

    def federation(self, data_root: Path | None) -> Federation:
        """Load the data and distribute them to clients."""
        return self.scenario.federation(self.data.loaded(data_root or Path()), self.run.seed)

    def setup(self, federation: Federation, data_root: Path | None = None) -> Setup:
        """Return the setup for a runner; raises ConfigError for settings that do not fit the federation."""
        self.training.count(len(federation.at(1).seen))
        check_calls(type(self.method))
        with method_errors(self.method):
            self.method.check(federation)
        run = self.run
        check_trackers(run.trackers)
        check_precision(run.precision, opened(run.device))
        net, nets = nets_for(self.model, federation, run.seed, run.torch_dtype, run.precision)
        check_padding(self.data, dict.fromkeys([net, *(nets or {}).values()]))
        with method_errors(self.method):
            setup = Setup(
                self.method, federation, net, self.training, run.seed, run, nets,
                faults=self.faults, privacy=self.privacy,
            )  # fmt: skip
        return setup if data_root is None else replace(setup, public=public_from(data_root))


def nets_for(
    model: Model, federation: AnyRoster, seed: int, dtype: torch.dtype, precision: Precision = "float32"
) -> tuple[Net, dict[str, Net] | None]:
    """Return the server's net, and each client's own net (None if all clients have the server's net).

    Different bodies get heads with equal values, so that clients that share heads start from the same one. If all
    clients have the same body, they share one net.
    """
    deal: Callable[..., Mapping[str, Model]] | None = getattr(model, "deal_bodies", None)
    if deal is None:
        return Net.build(lambda: model.build(federation.task), key(seed, "net"), dtype, precision), None
    dealt = deal(federation)
    nets_by_body: dict[str, Net] = {}
    head: nn.Module | None = None
    for name, body in sorted({repr(body): body for body in dealt.values()}.items()):
        net = Net.build(partial(body.build, federation.task), key(seed, "net", name), dtype, precision)
        if head is None:
            head = net.module.head
        elif repr(head) != repr(net.module.head):
            raise ConfigError(
                f"model: all bodies need the same head, and {body.name!r} has {net.module.head}, another {head}"
            )
        nets_by_body[name] = Net(net.module.body, head, dtype, precision=precision)
    nets = {id: nets_by_body[repr(body)] for id, body in dealt.items()}
    return nets[min(nets)], nets if len(nets_by_body) > 1 else None


def check_padding(source: Source, nets: Iterable[Net]) -> None:
    """Raise ConfigError if a net's padding id differs from the id with which the source pads texts."""
    given = getattr(source, "padding", None)
    if given is None or getattr(source, "tokens", None) is None:
        return
    for net in nets:
        for module in net.module.modules():
            if isinstance(module, Tokens) and module.padding != given:
                raise ConfigError(
                    f"data.padding: texts are filled up with {given}, and padding is {module.padding} to the model; "
                    f"set data.padding = {module.padding}"
                )


def public_from(data_root: Path) -> Callable[[str], Dataset]:
    """Return a function that reads a data set in this folder by its name, and caches it."""

    @lru_cache(maxsize=4)
    def public(name: str) -> Dataset:
        source = parse(choose(SOURCES, name, "the server's data set"), {"source": name}, "the server's data set")
        return source.loaded(data_root)

    return public


# -- checks of a table -------------------------------------------------------------------------------------------------


def _sections(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an experiment by field; raises one ConfigError naming every error.

    given: the parts that a program handed over as objects.
    """
    parts, wrong = _checked(table, given)
    mistakes = list(wrong)
    try:
        for other in _section(table, "methods", {}):
            mistakes += _wrong_for(table, other, wrong, given)
    except ConfigError as error:
        mistakes += error.args
    if mistakes:
        raise ConfigError(*mistakes)
    return parts


def _checked(table: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return (the parts of an experiment by field, the errors); ignores the sections [methods.NAME]."""
    wrong = [f"{name}: no such section; {nearest(name, SECTIONS)}" for name in table if name not in SECTIONS]
    given_twice = [name for name in given if name in table]
    wrong += [f"{name}: handed over by a program, so that no setting changes it" for name in given_twice]
    misspelt = [field for field in SECTIONS if field not in table and any(f"'{field}'" in one for one in wrong)]
    try:
        check_files_read(table.get("own", []))
    except ConfigError as error:
        wrong += error.args
    parts = dict(given)
    # If a section's name was misspelt, do not also report the section as missing.
    left_out = {*given, *misspelt, "own", "methods"}
    for section in [section for section in SECTIONS if section not in left_out]:
        try:
            parts[section] = part_of(table, section)
        except ConfigError as error:
            wrong += error.args
    return parts, wrong


def _wrong_for(
    table: Mapping[str, Any], method: str, already_named: Sequence[str], given: Mapping[str, Any]
) -> list[str]:
    """The errors in a method's section, without the errors already found in the experiment."""
    try:
        changes_of(method, "methods")
        for path in flat(_section(_section(table, "methods", {}), method, {})):
            if (section := path.partition(".")[0]) in SAMPLES:
                why = f"methods are compared on the same samples, so that only [{section}] says this"
                return [f"methods.{method}.{path}: {why}"]
        _, wrong = _checked(_table_of(table, method)[0], given)
    except ConfigError as error:
        return [str(error)]
    return [f"methods.{method}: {one}" for one in wrong if one not in already_named]


def _table_of(table: Mapping[str, Any], method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the table of an experiment for one method, the changes that made it); raises ConfigError."""
    base, control = split_control(method)
    varied = copy.deepcopy(dict(table))
    sections = varied.pop("methods", {})
    changes = flat(_section(sections, base, {})) | changes_of(method)
    if control is not None:
        changes |= flat(_section(sections, method, {}))
    given = varied.get("method")
    if not isinstance(given, Mapping) or given.get("name") != base:
        varied["method"] = {"name": base}
    for path, value in changes.items():
        assign(varied, path, value, f"methods.{method}")
    return varied, changes


_PLAIN: Mapping[str, type[Settings]] = {
    "training": Training, "faults": Faults, "privacy": Privacy, "run": RunSettings, "network": NetworkSettings,
}  # fmt: skip


def part_of(table: Mapping[str, Any], section: str) -> Any:
    """Return the name, or the settings, source, scenario, model or method of a section."""
    if section == "name":
        name = table.get("name")
        if not isinstance(name, str) or not names_a_folder(name):
            raise ConfigError(f"name: expected a text that can name a folder, got {escaped(repr(name), 80)}")
        return name
    if section in _PLAIN:
        plain = parse(_PLAIN[section], _section(table, section, {}), section)
        if isinstance(plain, RunSettings):
            choose(ENGINES, plain.engine, "run.engine")
        return plain
    kind, settings = KINDS[section], dict(_section(table, section))
    if kind.field not in settings:
        raise ConfigError(f"{section}.{kind.field}: missing, and it has no default")
    part = choose(kind.known, settings[kind.field], f"{section}.{kind.field}")
    if section == "method":  # the name is no setting of the method
        del settings[kind.field]
    return parse(part, settings, section)


def names_a_folder(name: str) -> bool:
    """Whether this is a valid folder name on every operating system."""
    usual = printable(name) and not set(name) & set('/\\:*?"<>|') and not name.startswith(".")
    return usual and len(name.encode()) <= 200


def _section(table: Mapping[str, Any], name: str, default: Any = None) -> Mapping[str, Any]:
    section = table.get(name, default)
    if section is None:
        raise ConfigError(f"[{name}]: this section is missing")
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name}: expected a section [{name}], got {section!r}")
    return section
