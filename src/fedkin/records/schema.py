"""The forms of a run's files: what reading them back relies on, checked where they are read.

A form says nothing of what else a file holds: older runs have less in it, newer ones more.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import RunError
from fedkin.records.files import read_json
from fedkin.records.metrics import metric_of
from fedkin.tasks import Metric

__all__ = [
    "MEND", "Facts", "Finished", "Line", "Plan", "Spent", "Summary", "Trials", "checked", "files_in", "judged",
    "lines_in", "settings_in", "summary_in", "table_in",
]  # fmt: skip

# What to do about a file that is not what a run leaves.
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
# Columns of a table, by what they are called in an error.
_KINDS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "whole numbers": pa.types.is_integer,
    "numbers": pa.types.is_floating,
    "texts": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
}


class _Form(BaseModel):
    """JSON's types as they are: no text that reads as a number, no true for 1, no NaN."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Ways(_Form):
    up: int = Field(ge=0)
    down: int = Field(ge=0)


class _Statistics(_Form):
    """Of a metric over clients; a figure that is not known is None or absent."""

    mean: float | None = None
    std: float | None = None
    worst10: float | None = None
    worst20: float | None = None
    variance: float | None = None
    loss: float | None = None


class _Groups(_Form):
    found: int | None = None
    ari: float | None = None
    nmi: float | None = None
    modularity: float | None = None


class Spent(_Form):
    """A line of timing.jsonl."""

    round: int
    total: float | None = None


class Line(_Form):
    """A line of rounds.jsonl; `judged` looks at its metric."""

    round: int
    bytes: _Ways
    groups: _Groups | None
    sampled: list[str] | None = None
    unseen: _Statistics | None = None
    gap: float | None = None


class _Seconds(_Form):
    total: float | None = None


class Summary(_Form):
    """summary.json; `judged` looks at its metric."""

    method: str
    seed: int = Field(ge=0)
    rounds: int = Field(ge=0)
    bytes: _Ways
    groups: _Groups | None = None
    unseen: _Statistics | None = None
    gap: float | None = None
    seconds: _Seconds | None = None
    engine: str | None = None
    dtype: str | None = None
    parameters: int | None = None
    versions: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None


class _Shares(_Ways):
    up_per_client: float
    down_per_client: float


class _Floats(_Shares):
    largest_upload: int


class _Flops(_Form):
    local_training: float | None


class _Parts(_Seconds):
    total: float
    local: float
    graph: float
    evaluate: float


class Finished(Summary):
    """A summary as the terminal prints it, which needs more of it than a report."""

    scenario: str
    clients: int
    bytes: _Shares
    floats: _Floats
    flops: _Flops
    groups: _Groups
    seconds: _Parts


class _Client(_Form):
    n_train: int | None = None
    n_test: int | None = None
    group: str | None = None
    labels: dict[str, int] = {}
    about: dict[str, Any] = {}
    seen: bool = True


class _Task(_Form):
    classes: int | None = None


class Facts(_Form):
    """federation.json."""

    task: _Task = _Task()
    clients: dict[str, _Client] = {}


class Plan(_Form):
    """plan.json of a comparison."""

    methods: list[str]
    seeds: list[int]
    leave_out: list[str] | None = None


class Trials(Plan):
    """plan.json of a tuning; `try` has [method or None, setting, values] for each setting."""

    hold_out: str
    tries: list[Annotated[tuple[str | None, str, list[Any]], Field(strict=False)]] = Field(alias="try")


class _Method(_Form):
    name: str = ""


class _Rounds(_Form):
    rounds: int = 0


class _Seed(_Form):
    seed: int = 0


class _Experiment(_Form):
    data: dict[str, Any] = {}
    scenario: dict[str, Any] = {}
    model: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    method: _Method = _Method()
    training: _Rounds = _Rounds()
    run: _Seed = _Seed()


def checked(form: type[_Form], value: Any, where: str | Path) -> Any:
    """`value` as it is, if it has this form; raises RunError naming the file and the first place that is wrong."""
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
    """Raise RunError for a row without figures of the metric; None stands for a round that was not evaluated."""
    if metric.name not in row:
        raise RunError(f"{where}: no {metric.name} in it, by which the clients of this run are compared; {MEND}")
    if row[metric.name] is not None:
        checked(_Statistics, row[metric.name], f"{where}: {metric.name}")


def summary_in(path: Path, form: type[Summary] = Summary) -> dict[str, Any]:
    """A run's summary; raises RunError naming the file and what is wrong with it."""
    summary: dict[str, Any] = checked(form, read_json(path), path)
    metric = metric_of(summary)
    judged(summary, metric, path)
    if summary[metric.name] is None:
        raise RunError(f"{path}: {metric.name}: expected a table of names and values, got None; {MEND}")
    return summary


def settings_in(path: Path) -> dict[str, Any]:
    """The settings of a run as a table, from its TOML file; raises RunError naming the file and what is wrong."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{path}: not TOML: {error}; {MEND}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read as text ({error}); {MEND}") from None
    if dated := _dated(table):
        raise RunError(f"{path}: {dated}: a date or a time, which no setting is; {MEND}")
    settings: dict[str, Any] = checked(_Experiment, table, path)
    return settings


def lines_in(path: Path, form: type[_Form]) -> list[dict[str, Any]]:
    """A file with a line of JSON per round, each of this form; raises RunError naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as a line of JSON per round ({error})") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RunError(f"{path}: line {number}: not readable as JSON ({error})") from None
        found.append(checked(form, row, f"{path}: line {number}"))
    return found


def table_in(path: Path, columns: Mapping[str, str], gaps: Sequence[str] = (), more: bool = False) -> Any:
    """These columns of a Parquet file, each of the kind that is named; only those in `gaps` may lack values.

    more: whether further columns are read too, and follow.
    kinds: "whole numbers", "numbers", "texts". Raises RunError naming the file and the column.
    """
    try:
        table = pq.read_table(path.absolute(), columns=None if more else list(columns))
        table = table.select([*columns, *(name for name in table.column_names if name not in columns)])
        table.validate(full=True)
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"{path}: not readable as the table of a run ({first})") from None
    for name, kind in columns.items():
        column = table.column(name)
        if not _KINDS[kind](column.type):
            raise RunError(f"{path}: column {name!r}: expected {kind}, got {column.type}; {MEND}")
        if column.null_count and name not in gaps:
            raise RunError(f"{path}: column {name!r}: {column.null_count} values are missing; {MEND}")
    return table


def files_in(folder: Path, kind: str) -> dict[int, Path]:
    """Files with this ending by their round; raises RunError for one without."""
    found = {}
    for path in sorted(folder.glob(f"round-*.{kind}")):
        number = path.stem.removeprefix("round-")
        if not (number.isascii() and number.isdigit()):
            raise RunError(f"{path}: no such round; expected round-NUMBER.{kind}: rename this file or take it away")
        found[int(number)] = path
    return found


def _dated(value: Any, name: str = "") -> str | None:
    """The name of the first value that is a date or a time: TOML has these, JSON has not."""
    if isinstance(value, (date, time)):
        return name
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = (_dated(part, f"{name}.{key}" if name else str(key)) for key, part in inside)
    return next((one for one in found if one is not None), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
