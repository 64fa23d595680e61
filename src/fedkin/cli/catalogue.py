"""`fedkin list KIND [NAME]`: methods, scenarios, sources, models, metrics and presets, or every setting of one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from fedkin.cli.completion import KINDS, check_name, kind_names
from fedkin.cli.exit_status import quiet_interrupts
from fedkin.cli.options import JSON
from fedkin.cli.output import as_json, make_console

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["list_names"]

# The section of an experiment file in which a part of this kind is named.
_SECTIONS = {
    "methods": "method", "scenarios": "scenario", "sources": "data", "models": "model", "metrics": "metric",
}  # fmt: skip
_METHOD_KINDS = ("local", "global", "clustered", "personalised", "peer")


def list_names(
    kind: str = typer.Argument(..., help=f"{', '.join(KINDS)}.", metavar="KIND", autocompletion=kind_names),
    name: str | None = typer.Argument(None, help="Show this one in full; also FILE.py:CLASS.", metavar="NAME"),
    json: bool = JSON,
) -> None:
    """List methods, scenarios, sources, models, metrics or presets, or show one of them with all its settings."""
    if kind == "presets":
        _presets(name, json)
        return
    if name is not None:
        check_name(kind, name)
    with quiet_interrupts():
        from fedkin.running.plugins import KINDS as PARTS
        from fedkin.running.plugins import add_installed
    section = _SECTIONS[kind]
    add_installed()
    parts = PARTS[section].known
    if name is not None:
        name, part = _find(parts, name, section)
        facts, settings = _facts(part, kind), [] if kind == "metrics" else _settings(part, section)
        if json:
            print(as_json({"name": name, **facts, "about": inspect.getdoc(part) or "", "settings": settings}))
        else:
            _print_part(name, part, section, facts, settings)
        return
    rows = [{"name": each, **_facts(part, kind), "about": _first_paragraph(part), "from": _origin(part)}
            for each, part in parts.items()]  # fmt: skip
    if json:
        print(as_json(rows))
    elif kind == "methods":
        _print_methods(rows)
    else:
        _print_names(kind, rows)


def _presets(name: str | None, json: bool) -> None:
    """List the experiments that come with fedkin, or print one."""
    from fedkin.running.presets import preset_folder, preset_or_file

    if name is not None:
        print(preset_or_file(Path(name)).read_text(encoding="utf-8"), end="")
        return
    rows = [
        {"name": path.stem, "about": path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")}
        for path in sorted(preset_folder().glob("*.toml"))
    ]
    if json:
        print(as_json(rows))
    else:
        _print_names("presets", rows)


def _find(parts: Mapping[str, Any], name: str, section: str) -> tuple[str, Any]:
    """Return a part and its name, given its name or FILE.py:CLASS."""
    from fedkin.running.plugins import named_in
    from fedkin.settings import choose

    if section == "metric":
        part = choose(parts, name, "metrics")
        return name, part.part
    name = named_in([name], section, Path(), section)[0][0]
    return name, choose(parts, name, section)


def _facts(part: Any, kind: str) -> dict[str, str]:
    """Return what a part declares beside its settings."""
    if kind == "methods":
        needs = ["classes"] * part.needs_classes + ["equal models"] * (not part.unlike_models)
        return {
            "kind": part.kind, "paper": part.paper, "travels": part.travels, "needs": ", ".join(needs) or "nothing",
        }  # fmt: skip
    if kind == "metrics" and hasattr(part, "higher"):
        return {"better": "higher" if part.higher else "lower"}
    return {"planted groups": part.planted} if hasattr(part, "planted") else {}


def _origin(part: Any) -> str:
    """Return the file or package of a part; empty for fedkin's own."""
    from fedkin.running.plugins import origin

    return "" if (where := origin(part)) == "fedkin" else where


def _first_paragraph(part: Any) -> str:
    return (inspect.getdoc(getattr(part, "part", part)) or "").split("\n\n")[0].replace("\n", " ")


def _print_methods(rows: list[dict[str, str]]) -> None:
    """Print one line per method, grouped by kind."""
    heads = ["kind", "method", "paper", "needs", *(["from"] * any(row["from"] for row in rows))]
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=12 if head in ("kind", "method") else None)
    kinds = list(dict.fromkeys([*_METHOD_KINDS, *(row["kind"] for row in rows)]))
    before = ""
    for row in sorted(rows, key=lambda row: kinds.index(row["kind"])):
        cells = {**row, "method": row["name"], "kind": "" if row["kind"] == before else row["kind"]}
        table.add_row(*(cells[head] for head in heads))
        before = row["kind"]
    make_console().print(table)


def _print_names(kind: str, rows: list[dict[str, str]]) -> None:
    has_origin = any(row.get("from") for row in rows)
    has_better = any(row.get("better") for row in rows)
    heads = [kind.removesuffix("s"), *(["better"] * has_better), "what it is", *(["from"] * has_origin)]
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        better, origin = [row.get("better", "")] * has_better, [row.get("from", "")] * has_origin
        table.add_row(row["name"], *better, row["about"], *origin)
    make_console().print(table)


def _print_part(name: str, part: Any, section: str, facts: Mapping[str, str], settings: list[dict[str, str]]) -> None:
    console = make_console()
    console.print(Text(name, style="bold"))
    for key, value in facts.items():
        console.print(f"{key}: {value}")
    console.print(inspect.getdoc(part) or "")
    if settings:
        table = Table("setting", "default", "expected", box=None, pad_edge=False)
        for row in settings:
            table.add_row(row["setting"], row["default"], row["expected"])
        console.print(table)
    if tuned := _tuned_settings(part, section):
        console.print(f"tuned by `fedkin tune --equal`, beside training.lr: {tuned}")


def _tuned_settings(part: Any, section: str) -> str:
    """Return the settings that a method declares to be tuned, each with its range or its values."""
    from fedkin.settings import Span, tunables

    texts = []
    for path, span in tunables(part, section).items() if section != "metric" else ():
        if isinstance(span, Span):
            texts.append(f"{path} ({span.low:g} to {span.high:g}{', by its logarithm' if span.log else ''})")
        else:
            texts.append(f"{path} ({', '.join(map(str, span))})")
    return ", ".join(texts)


def _settings(model: type[BaseModel], prefix: str) -> list[dict[str, str]]:
    """Return one row per setting; those of inner sections have dotted names."""
    from pydantic import BaseModel

    from fedkin.cli.setting_types import describe_type, describe_value

    rows: list[dict[str, str]] = []
    for field, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows += _settings(kind, f"{prefix}.{field}")
            continue
        default = "(required)" if info.is_required() else describe_value(info.get_default(call_default_factory=True))
        expected = describe_type(kind, info.metadata)
        rows.append({"setting": f"{prefix}.{field}", "default": default, "expected": expected})
    return rows
