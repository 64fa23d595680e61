"""`fedkin list KIND [NAME]`: methods, scenarios, sources, models, metrics and presets, or every setting of one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from rich.text import Text

from fedkin.cli.options import JSON, KINDS
from fedkin.cli.output import print_lines, print_table, printed_as_json
from fedkin.errors import ConfigError, nearest
from fedkin.running.progress import make_console

if TYPE_CHECKING:
    from pydantic import BaseModel

_METHOD_KINDS = ("local", "global", "clustered", "personalised", "peer")
_TYPES: dict[Any, str] = {
    int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", NoneType: "not set",
    Any: "anything",
}  # fmt: skip
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def list_names(
    kind: str = typer.Argument(..., help=f"{', '.join(KINDS)}.", metavar="KIND"),
    name: str | None = typer.Argument(None, help="Show this one in full; also FILE.py:CLASS.", metavar="NAME"),
    json: bool = JSON,
) -> None:
    """List methods, scenarios, sources, models, metrics or presets, or show one of them with all its settings.

    Examples:
    fedkin list methods
    fedkin list methods sfmtl-graph
    fedkin list presets digits-rotated > mine.toml
    """
    if kind not in KINDS:
        raise ConfigError(f"list: no kind {kind!r}; {nearest(kind, KINDS)}")
    if kind == "presets":
        _presets(name, json)
        return
    from fedkin.running import plugins
    from fedkin.settings import choose

    section = plugins.GROUPS[kind]
    plugins.add_installed()
    parts = plugins.KINDS[section].known
    if name is not None:
        (name,), _ = plugins.resolve_names([name], section, section)
        part = choose(parts, name, section)
        part = part.part if section == "metric" else part
        facts, settings = _facts(part, kind), [] if kind == "metrics" else _settings(part, section)
        whole = {"name": name, **facts, "about": inspect.getdoc(part) or "", "settings": settings}
        if not printed_as_json(json, whole):
            _print_part(name, part, section, facts, settings)
        return
    rows = [
        {"name": each, **_facts(part, kind), "about": _first_paragraph(part),
         "from": "" if (where := plugins.origin(part)) == "fedkin" else where}
        for each, part in parts.items()
    ]  # fmt: skip
    if printed_as_json(json, rows):
        return
    if kind == "methods":
        _print_methods(rows)
    else:
        _print_names(kind, rows)


def _presets(name: str | None, json: bool) -> None:
    """List the experiments that come with fedkin, or print one."""
    from fedkin.running.presets import preset_folder, preset_or_file

    if name is not None:
        from fedkin.running.experiment import load

        path = preset_or_file(Path(name))
        if not json:
            print(path.read_text(encoding="utf-8"), end="")
        else:
            printed_as_json(json, {**_preset(path), "experiment": load(path).table})
        return
    rows = list(map(_preset, sorted(preset_folder().glob("*.toml"))))
    if not printed_as_json(json, rows):
        _print_names("presets", rows)


def _preset(path: Path) -> dict[str, str]:
    return {"name": path.stem, "about": path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")}


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


def _first_paragraph(part: Any) -> str:
    return (inspect.getdoc(getattr(part, "part", part)) or "").split("\n\n")[0].replace("\n", " ")


def _print_methods(rows: list[dict[str, str]]) -> None:
    """Print the names by kind, and what they need: few lines, which fit a screen."""
    named: dict[str, list[str]] = {kind: [] for kind in _METHOD_KINDS}
    for row in rows:
        named.setdefault(row["kind"], []).append(row["name"] + f" ({row['from']})" * bool(row["from"]))
    print_table(("kind", "methods"), [(kind, ", ".join(names)) for kind, names in named.items()])
    print()
    print_lines([
        f"need classes: {', '.join(row['name'] for row in rows if 'classes' in row['needs'])}",
        f"clients may have unlike models: {', '.join(row['name'] for row in rows if 'models' not in row['needs'])}",
        "fedkin list methods NAME shows the paper, what is sent, and the settings",
    ])  # fmt: skip


def _print_names(kind: str, rows: list[dict[str, str]]) -> None:
    columns = {"name": kind.removesuffix("s"), "better": "better", "about": "what it is", "from": "from"}
    filled = [name for name in columns if any(row.get(name) for row in rows)]
    print_table([columns[name] for name in filled], [[row.get(name, "") for name in filled] for row in rows])


def _print_part(name: str, part: Any, section: str, facts: Mapping[str, str], settings: list[dict[str, str]]) -> None:
    console = make_console()
    console.print(Text(name, style="bold"))
    for key, value in facts.items():
        console.print(f"{key}: {value}")
    console.print(_flowed(inspect.getdoc(part) or ""))
    if settings:
        print_table(("setting", "default", "expected"), [list(row.values()) for row in settings])
    if tuned := _tuned_settings(part, section):
        console.print(f"tuned by `fedkin tune --equal`, beside training.lr: {tuned}")


def _flowed(text: str) -> str:
    """Join the lines of each paragraph, but not examples, equations and columns; a setting begins a new line."""
    parts = text.split("\n\n")
    kept = re.compile(r"^(?: |>>>)|\S  +\S", flags=re.M)
    return "\n\n".join(part if kept.search(part) else re.sub(r"\n(?!\w+: )", " ", part) for part in parts)


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


# -- settings in words: type and range, as a person writes them in TOML ------------------------------------------------


def _settings(model: type[BaseModel], prefix: str) -> list[dict[str, str]]:
    """Return one row per setting; those of inner sections have dotted names."""
    from pydantic import BaseModel

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


def describe_type(kind: Any, metadata: Iterable[Any] = ()) -> str:
    """Say what values of this type are, with the bounds in its metadata.

    >>> describe_type(tuple[Literal["hard", "soft"], ...] | None)
    'list of: hard or soft; or not set'
    """
    return "; or ".join(dict.fromkeys(_alternatives(kind, list(metadata))))


def describe_value(value: Any) -> str:
    """Write a default as a file would have it.

    >>> describe_value((0, 90)), describe_value(None), describe_value(True)
    ('[0, 90]', 'not set', 'true')
    """
    if value is None:
        return _TYPES[NoneType]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {describe_value(each)}" for name, each in value.items()) or "{}"
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, str):
        return f"[{', '.join(map(describe_value, value))}]"
    return str(value)


def _alternatives(kind: Any, metadata: list[Any]) -> list[str]:
    """Return the alternatives of a type, each in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        # An annotation is a bound, or holds several.
        bounds = [bound for each in inner[1:] for bound in getattr(each, "metadata", [each])]
        return _alternatives(inner[0], [*metadata, *bounds])
    if origin in (Union, UnionType):
        return [text for each in inner for text in _alternatives(each, [] if each is NoneType else metadata)]
    if origin is Literal:
        *first, last = map(describe_value, inner)
        return [f"{', '.join(first)} or {last}" if first else last]
    if origin in (dict, Mapping):
        return [f"table of: {describe_type(inner[-1])}"]
    if origin in (tuple, list, set, frozenset, Sequence):
        elements = dict.fromkeys(describe_type(each) for each in inner if each is not Ellipsis)
        return [f"list of: {' / '.join(elements)}{_bounds_text(metadata)}" if elements else "list"]
    return [_TYPES.get(kind, "table") + _bounds_text(metadata)]


def _bounds_text(metadata: Sequence[Any]) -> str:
    bounds = [
        f", {word} {getattr(each, name)}" for each in metadata for name, word in _BOUNDS.items() if hasattr(each, name)
    ]
    return "".join(bounds)
