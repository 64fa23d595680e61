"""Reading of a run's files; each file is checked against its schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from fedkin.errors import RunError
from fedkin.records.files import JSON_BYTES, SETTINGS_BYTES, read_json
from fedkin.records.metrics import metric_of
from fedkin.records.schema import Form, Settings, Statistics, Summary
from fedkin.tasks import Metric
from fedkin.untrusted import json_of, parquet_in, said, shown, text_in, toml_of

__all__ = [
    "MEND", "checked", "files_in", "judged", "lines_in", "rows_in", "settings_in", "summary_in", "table_in",
    "table_of",
]  # fmt: skip

# Advice about a file that is damaged or that someone has changed.
MEND = "put the file back as it was, or run this anew in another folder"
_WORDS = {
    "missing": "it is missing",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "int_type": "expected a whole number",
    "greater_than_equal": "expected no number below 0",
    "string_type": "expected a text",
    "bool_type": "expected true or false",
    "list_type": "expected a list",
    "dict_type": "expected a table of names and values",
    "model_type": "expected a table of names and values",
}
# Types of columns, by their names in error messages.
_KINDS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "whole numbers": pa.types.is_integer,
    "numbers": pa.types.is_floating,
    "texts": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
}


def checked(form: type[Form], value: Any, where: str | Path) -> Any:
    """Return `value` if it fits this schema; raises RunError naming the file and the first wrong field."""
    try:
        form.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        got = "" if first["type"] == "missing" else f", got {_short(first['input'])}"
        told = _WORDS.get(first["type"], first["msg"])
        raise RunError(f"{where}: {place + ': ' if place else ''}{told}{got}; {MEND}") from None
    return value


def judged(row: Mapping[str, Any], metric: Metric, where: str | Path) -> None:
    """Raise RunError for a row without figures of the metric; None is allowed, for a round without evaluation."""
    if metric.name not in row:
        raise RunError(f"{where}: no {metric.name} in it, by which the clients of this run are compared; {MEND}")
    if row[metric.name] is not None:
        checked(Statistics, row[metric.name], f"{where}: {metric.name}")


def summary_in(path: Path, form: type[Summary] = Summary) -> dict[str, Any]:
    """Read the summary of a run; raises RunError that names the file and the fault."""
    summary: dict[str, Any] = checked(form, read_json(path), path)
    metric = metric_of(summary)
    judged(summary, metric, path)
    if summary[metric.name] is None:
        raise RunError(f"{path}: {metric.name}: expected a table of names and values, got None; {MEND}")
    return summary


def settings_in(path: Path) -> dict[str, Any]:
    """Read the settings of a run from its TOML file, as a table; raises RunError that names the file and the fault."""
    try:
        text = text_in(path, SETTINGS_BYTES)
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read as text ({said(error)}); {MEND}") from None
    try:
        table = toml_of(text)
    except ValueError as error:
        raise RunError(f"{path}: not TOML: {said(error)}; {MEND}") from None
    if dated := _dated(table):
        raise RunError(f"{path}: {dated}: a date or a time, which no setting is; {MEND}")
    settings: dict[str, Any] = checked(Settings, table, path)
    return settings


def lines_in(path: Path, form: type[Form]) -> list[dict[str, Any]]:
    """Read a file with a line of JSON per round, each with this schema; raises RunError naming the line."""
    try:
        lines = text_in(path, JSON_BYTES).splitlines()
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as a line of JSON per round ({said(error)})") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json_of(line)
        except ValueError as error:
            raise RunError(f"{path}: line {number}: not readable as JSON ({said(error)})") from None
        found.append(checked(form, row, f"{path}: line {number}"))
    return found


def table_in(path: Path, columns: Mapping[str, str], gaps: Sequence[str] = (), more: bool = False) -> Any:
    """Read these columns of a Parquet file, each with its kind; only those in `gaps` may have missing values.

    more: whether the other columns are read too; they come after the named ones.
    kinds: "whole numbers", "numbers", "texts". Raises RunError naming the file and the column.
    """
    try:
        table = parquet_in(path, None if more else list(columns))
        table = table.select([*columns, *(name for name in table.column_names if name not in columns)])
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise RunError(f"{path}: not readable as the table of a run ({said(error)})") from None
    for name, kind in columns.items():
        column = table.column(name)
        if not _KINDS[kind](column.type):
            raise RunError(f"{path}: column {name!r}: expected {kind}, got {column.type}; {MEND}")
        if column.null_count and name not in gaps:
            raise RunError(f"{path}: column {name!r}: {column.null_count} values are missing; {MEND}")
    return table


def table_of(path: Path, columns: pa.Schema) -> pa.Table:
    """Read a table that has at least these columns; numbers may be missing. Raises RunError naming file and column."""
    kinds = {field.name: next(kind for kind, fits in _KINDS.items() if fits(field.type)) for field in columns}
    return table_in(path, kinds, [name for name, kind in kinds.items() if kind == "numbers"], more=True)


def rows_in(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table as tuples."""
    return list(zip(*table.to_pydict().values(), strict=True))


def files_in(folder: Path, kind: str) -> dict[int, Path]:
    """Return the files with this ending by their round; raises RunError for a file whose name has no round."""
    found = {}
    for path in sorted(folder.glob(f"round-*.{kind}")):
        number = path.stem.removeprefix("round-")
        if not (number.isascii() and number.isdigit()):
            raise RunError(f"{path}: no such round; expected round-NUMBER.{kind}: rename this file or take it away")
        found[int(number)] = path
    return found


def _dated(value: Any, name: str = "") -> str | None:
    """Return the name of the first value that is a date or a time, which TOML has and JSON does not."""
    if isinstance(value, (date, time)):
        return name
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = (_dated(part, f"{name}.{key}" if name else str(key)) for key, part in inside)
    return next((one for one in found if one is not None), None)


def _short(value: Any) -> str:
    return shown(repr(value), 60)
