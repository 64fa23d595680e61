"""`fedkin methods | scenarios | sources | models | metrics`: lists of each, where it is from, every setting of one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from fedkin.cli.names import method_names, model_names, preset_names, scenario_names, source_names
from fedkin.cli.screen import screen

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["methods", "metrics", "models", "presets", "scenarios", "sources"]

_HELP = "Show this one in full."
_METHOD = typer.Argument(None, help=_HELP, autocompletion=method_names)
_SCENARIO = typer.Argument(None, help=_HELP, autocompletion=scenario_names)
_SOURCE = typer.Argument(None, help=_HELP, autocompletion=source_names)
_MODEL = typer.Argument(None, help=_HELP, autocompletion=model_names)
_PRESET = typer.Argument(None, help="Print this one, to begin a file of your own.", autocompletion=preset_names)


def methods(name: str | None = _METHOD) -> None:
    """List the methods, or describe one with all its settings."""
    known = _known("method")
    if name is not None:
        name, method = _one(known, name, "method", "methods")
        facts = {"paper": method.paper, "kind": method.kind, "travels": method.travels, "needs": _needs(method)}
        _describe(name, method, "method", facts)
        return
    table = Table("method", "paper", "kind", "what travels", "needs", "from", box=None, pad_edge=False)
    for each, method in known.items():
        table.add_row(each, method.paper, method.kind, method.travels, _needs(method), _origin(method))
    screen().print(table)


def _known(section: str) -> Mapping[str, Any]:
    """All parts of a kind, with those of other packages."""
    from fedkin.running.own import KINDS, add_installed

    add_installed()
    return KINDS[section].known


def _one(known: Mapping[str, Any], name: str, section: str, where: str) -> tuple[str, Any]:
    """A part by its name, or by FILE.py:CLASS."""
    from fedkin.running.own_tables import named_in
    from fedkin.settings import choose

    name = named_in([name], section, Path(), where)[0][0]
    return name, choose(known, name, where)


def _origin(part: Any) -> str:
    """Where a part comes from; nothing for fedkin's own."""
    from fedkin.running.own import origin

    return "" if (where := origin(part)) == "fedkin" else where


def _needs(method: Any) -> str:
    """What a method needs from tasks and models."""
    needs = ["classes"] * method.needs_classes + ["equal models"] * (not method.unlike_models)
    return ", ".join(needs) or "nothing"


def scenarios(name: str | None = _SCENARIO) -> None:
    """List the scenarios (which client gets which samples), or describe one."""
    _catalogue(name, "scenario")


def sources(name: str | None = _SOURCE) -> None:
    """List the data sources, or describe one."""
    _catalogue(name, "data")


def models(name: str | None = _MODEL) -> None:
    """List the models, or describe one."""
    _catalogue(name, "model")


def presets(name: str | None = _PRESET) -> None:
    """List the experiments that come with fedkin, or print one."""
    from fedkin.running.presets import preset_folder, preset_or_file

    if name is not None:
        print(preset_or_file(Path(name)).read_text(encoding="utf-8"), end="")
        return
    table = Table("preset", "what it is", box=None, pad_edge=False)
    for path in sorted(preset_folder().glob("*.toml")):
        table.add_row(path.stem, path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "))
    screen().print(table)


def metrics() -> None:
    """List the further metrics for run.metrics, which are figures of each client."""
    table = Table("metric", "better", "what it is", "from", box=None, pad_edge=False)
    for name, measure in _known("metric").items():
        about = (inspect.getdoc(measure.part) or "").split("\n\n")[0].replace("\n", " ")
        table.add_row(name, "higher" if measure.higher else "lower", about, _origin(measure))
    screen().print(table)


def _catalogue(name: str | None, section: str) -> None:
    registry = _known(section)
    if name is not None:
        name, entry = _one(registry, name, section, section)
        _describe(name, entry, section, {"planted groups": entry.planted} if hasattr(entry, "planted") else {})
        return
    table = Table(section, "what it is", "from", box=None, pad_edge=False)
    for known, entry in registry.items():
        about = (inspect.getdoc(entry) or "").split("\n\n")[0].replace("\n", " ")
        table.add_row(known, about, _origin(entry))
    screen().print(table)


def _describe(name: str, entry: type[BaseModel], section: str, facts: Mapping[str, str]) -> None:
    console = screen()
    console.print(Text(name, style="bold"))
    for key, value in facts.items():
        console.print(f"{key}: {value}")
    console.print(inspect.getdoc(entry) or "")
    table = Table("setting", "default", "expected", box=None, pad_edge=False, title_justify="left")
    _rows(table, entry, section)
    if table.row_count:
        console.print(table)
    if tuned := _tuned(entry, section):
        console.print(f"tuned by `fedkin tune --equal`, beside training.lr: {tuned}")


def _tuned(entry: type[BaseModel], section: str) -> str:
    """The settings that a method declares to be tuned, each with its range or its values."""
    from fedkin.settings import Span, tunables

    return ", ".join(
        f"{path} ({span.low:g} to {span.high:g}{', by its logarithm' if span.log else ''})" if isinstance(span, Span)
        else f"{path} ({', '.join(map(str, span))})"
        for path, span in tunables(entry, section).items()
    )  # fmt: skip


def _rows(table: Table, entry: type[BaseModel], prefix: str) -> None:
    """One row per setting; those of inner sections with their dotted names."""
    from pydantic import BaseModel

    from fedkin.cli.kinds import kind_in_words, value_in_words

    for field, info in entry.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            _rows(table, kind, f"{prefix}.{field}")
            continue
        default = "(required)" if info.is_required() else value_in_words(info.get_default(call_default_factory=True))
        table.add_row(f"{prefix}.{field}", default, kind_in_words(kind, info.metadata))
