"""`fedkin methods | scenarios | sources | models`: lists of each, and every setting of one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from fedkin.cli.screen import screen

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["methods", "models", "scenarios", "sources"]

_NAME = typer.Argument(None, help="Show this one in full.")


def methods(name: str | None = _NAME) -> None:
    """List the methods, or describe one with all its settings."""
    from fedkin.methods import METHODS
    from fedkin.settings import choose

    if name is not None:
        method = choose(METHODS, name, "methods")
        facts = {"paper": method.paper, "kind": method.kind, "travels": method.travels, "needs": _needs(method)}
        _describe(name, method, "method", facts)
        return
    table = Table("method", "paper", "kind", "what travels", "needs", box=None, pad_edge=False)
    for known, method in METHODS.items():
        table.add_row(known, method.paper, method.kind, method.travels, _needs(method))
    screen().print(table)


def _needs(method: Any) -> str:
    """What a method needs from tasks and models."""
    needs = ["classes"] * method.needs_classes + ["equal models"] * (not method.unlike_models)
    return ", ".join(needs) or "nothing"


def scenarios(name: str | None = _NAME) -> None:
    """List the scenarios (which client gets which samples), or describe one."""
    from fedkin.data.scenarios import SCENARIOS

    _catalogue(SCENARIOS, name, "scenario")


def sources(name: str | None = _NAME) -> None:
    """List the data sources, or describe one."""
    from fedkin.data.sources import SOURCES

    _catalogue(SOURCES, name, "data")


def models(name: str | None = _NAME) -> None:
    """List the models, or describe one."""
    from fedkin.learning.models import MODELS

    _catalogue(MODELS, name, "model")


def _catalogue(registry: Mapping[str, Any], name: str | None, section: str) -> None:
    if name is not None:
        from fedkin.settings import choose

        entry = choose(registry, name, section)
        _describe(name, entry, section, {"planted groups": entry.planted} if hasattr(entry, "planted") else {})
        return
    table = Table(section, "what it is", box=None, pad_edge=False)
    for known, entry in registry.items():
        table.add_row(known, (inspect.getdoc(entry) or "").split("\n\n")[0].replace("\n", " "))
    screen().print(table)


def _describe(name: str, entry: type[BaseModel], section: str, facts: Mapping[str, str]) -> None:
    console = screen()
    console.print(Text(name, style="bold"))
    for key, value in facts.items():
        console.print(f"{key}: {value}")
    console.print(inspect.getdoc(entry) or "")
    table = Table("setting", "default", "type", box=None, pad_edge=False, title_justify="left")
    _rows(table, entry, section)
    if table.row_count:
        console.print(table)


def _rows(table: Table, entry: type[BaseModel], prefix: str) -> None:
    from pydantic import BaseModel

    """One row per setting; those of inner sections with their dotted names."""
    for field, info in entry.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            _rows(table, kind, f"{prefix}.{field}")
            continue
        default = "(required)" if info.is_required() else str(info.get_default(call_default_factory=True))
        shown = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        table.add_row(f"{prefix}.{field}", default, shown)
