"""Read a run's files, and check them against schemas."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import RunError
from fedkin.records.files import JSON_BYTES, SETTINGS_BYTES, faults, has_records, read_json, seal_of
from fedkin.records.metrics import metric_of
from fedkin.tasks import Metric
from fedkin.untrusted import error_text, escaped, json_of, parquet_in, text_in, toml_of

M = TypeVar("M", bound=BaseModel)


class FileSchema(BaseModel):
    """A strict JSON object: a text is no number, true is not 1, and NaN is refused."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Ways(FileSchema):
    up: int = Field(ge=0)
    down: int = Field(ge=0)


class Statistics(FileSchema):
    """Statistics of a metric over clients; an unknown figure is None or missing."""

    mean: float | None = None
    std: float | None = None
    worst10: float | None = None
    worst20: float | None = None
    variance: float | None = None
    loss: float | None = None
    weighted: float | None = None
    pooled: float | None = None
    stderr: float | None = None
    clients: int | None = None
    left_out: int | None = None


class _Groups(FileSchema):
    found: int | None = None
    ari: float | None = None
    nmi: float | None = None
    modularity: float | None = None


class TimingLine(FileSchema):
    """A line of timing.jsonl."""

    round: int
    total: float | None = None


class RoundLine(FileSchema):
    """A line of rounds.jsonl; `reading.check_metric` checks its metric."""

    round: int
    bytes: _Ways
    groups: _Groups | None
    sampled: list[str] | None = None
    figures: dict[str, Any] | None = None
    unseen: Statistics | None = None
    gap: float | None = None
    metrics: dict[str, Statistics] | None = None
    events: dict[Literal["joined", "left", "drifted"], list[str]] = {}


class _Missed(FileSchema):
    count: int
    round: int
    phase: str
    reason: str


class _Missing(FileSchema):
    kinds: dict[str, int]
    clients: dict[str, _Missed]


class _Epsilon(FileSchema):
    max: float | None
    mean: float | None
    clients: dict[str, float | None]


class _Privacy(FileSchema):
    """Epsilon is None if it has no bound."""

    epsilon: _Epsilon
    delta: float
    releases: dict[str, int]
    open: dict[str, list[str]]


class _Measured(Statistics):
    """A further metric; values: of each client, None if not determined."""

    title: str
    higher: bool
    values: dict[str, float | None]


class _Flops(FileSchema):
    local_training: float | None


class _Seconds(FileSchema):
    total: float
    local: float
    graph: float
    evaluate: float


class Summary(FileSchema):
    """The parts of the file summary.json that are read; `reading.check_metric` checks its metric."""

    method: str
    scenario: str
    seed: int = Field(ge=0)
    rounds: int = Field(ge=0)
    clients: int
    bytes: _Ways
    flops: _Flops
    groups: _Groups
    seconds: _Seconds
    unseen: Statistics | None = None
    gap: float | None = None
    engine: str | None = None
    dtype: str | None = None
    parameters: int | None = None
    versions: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    missing: _Missing | None = None
    calibration: dict[str, float | None] = {}
    given: list[str] | None = None
    warnings: list[str] | None = None
    events: list[str] | None = None
    privacy: _Privacy | None = None
    metrics: dict[str, _Measured] | None = None
    training_paths: list[dict[str, str]] | None = None


class _Client(FileSchema):
    n_train: int | None = None
    n_test: int | None = None
    group: str | None = None
    labels: dict[str, int] = {}
    about: dict[str, Any] = {}
    seen: bool = True


class _Task(FileSchema):
    classes: int | None = None


class Facts(FileSchema):
    """The file federation.json."""

    task: _Task = _Task()
    clients: dict[str, _Client] = {}
    fingerprint: str | None = None


class PlanFile(FileSchema):
    """The file plan.json of a comparison, a tuning or a sweep; it can be resumed only with the same plan.

    values: [method or None, setting, values] for each setting that is tried. hold_out: the held-out data that judge
    candidates. equal: number of candidates for every method, the range of their rates, and the seed of their draws.
    """

    command: Literal["compare", "tune", "sweep"] = "compare"
    methods: list[str]
    seeds: list[int]
    leave_out: list[str] | None = None
    hold_out: str | None = None
    values: list[Annotated[tuple[str | None, str, list[Any]], Field(strict=False)]] = []
    equal: (
        Annotated[tuple[int, Annotated[tuple[float, float], Field(strict=False)] | None, int], Field(strict=False)]
        | None
    ) = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file: the values that are no defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


def plan_in(folder: Path) -> PlanFile:
    """Read the plan file of a folder; raises RunError naming the file and the field."""
    return record_in(folder / "plan.json", PlanFile)


# Next to an experiment that `fedkin tune` wrote, and in a comparison of this experiment.
VALIDATION = "validation.json"


class Validation(FileSchema):
    """The file validation.json: each method's mean on held-out training data ("samples:0.2", "clients:0.2")."""

    hold_out: str = Field(pattern=r"^(samples|clients):\d*\.?\d+(e-\d+)?$")
    means: dict[str, float]


class _Method(FileSchema):
    name: str = ""


class _Rounds(FileSchema):
    rounds: int = 0


class _Run(FileSchema):
    seed: int = 0
    label: str | None = None


class ExperimentFile(FileSchema):
    """The file experiment.toml of a run or a comparison."""

    data: dict[str, Any] = {}
    scenario: dict[str, Any] = {}
    model: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    method: _Method = _Method()
    training: _Rounds = _Rounds()
    run: _Run = _Run()


# Advice for a damaged or changed file.
MEND = "put the file back as it was, or run this again in another folder"
# Types of columns, by their names in error messages.
_KINDS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "whole numbers": pa.types.is_integer,
    "numbers": pa.types.is_floating,
    "texts": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
}


def check_unchanged(folder: Path, *names: str) -> None:
    """Raise RunError for the first of these files that is not as the seal of its folder says."""
    if wrong := faults(folder, seal_of(folder).files, names):
        raise RunError(f"{wrong[0]}; {MEND}")


def checked(form: type[M], value: Any, where: str | Path) -> M:
    """Return `value` as an object of this schema; raises RunError naming the file and the first wrong field."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        got = "" if first["type"] == "missing" else f", got {escaped(repr(first['input']), 60)}"
        problem = first["msg"][:1].lower() + first["msg"][1:]
        raise RunError(f"{where}: {location + ': ' if location else ''}{problem}{got}; {MEND}") from None


def record_in(path: Path, form: type[M]) -> M:
    """Read a JSON file of this schema; raises RunError naming the file and the first wrong field."""
    return checked(form, read_json(path), path)


def check_metric(row: Mapping[str, Any], metric: Metric, where: str | Path) -> None:
    """Raise RunError for a row without figures of the metric; None is allowed: a round without evaluation."""
    if metric.name not in row:
        raise RunError(f"{where}: no {metric.name} in it, by which the clients of this run are compared; {MEND}")
    if row[metric.name] is not None:
        checked(Statistics, row[metric.name], f"{where}: {metric.name}")


def summary_in(path: Path) -> dict[str, Any]:
    """Read the summary of a run; raises RunError that names the file and the fault."""
    summary: dict[str, Any] = read_json(path)
    checked(Summary, summary, path)
    metric = metric_of(summary)
    check_metric(summary, metric, path)
    if summary[metric.name] is None:
        raise RunError(f"{path}: {metric.name}: expected a table of names and values, got None; {MEND}")
    return summary


def settings_in(path: Path) -> dict[str, Any]:
    """Read the settings of a run from its TOML file, as a table; raises RunError that names the file and the fault."""
    try:
        table = toml_of(text_in(path, SETTINGS_BYTES))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read as TOML ({error_text(error)}); {MEND}") from None
    checked(ExperimentFile, table, path)
    return table


def lines_in(path: Path, form: type[FileSchema]) -> list[dict[str, Any]]:
    """Read a file with a line of JSON per round, each with this schema; raises RunError naming the line."""
    try:
        lines = text_in(path, JSON_BYTES).splitlines()
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as a line of JSON per round ({error_text(error)})") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json_of(line)
        except ValueError as error:
            raise RunError(f"{path}: line {number}: not readable as JSON ({error_text(error)})") from None
        checked(form, row, f"{path}: line {number}")
        rows.append(row)
    return rows


def table_of(path: Path, columns: pa.Schema, gaps: Sequence[str] | None = None) -> pa.Table:
    """Read a table with these columns, and possibly more after them; raises RunError naming file and column.

    Columns of numbers or texts may have another width. gaps: columns that may lack values (None: columns of numbers).
    """
    table = _parquet_with(path, columns.names)
    for field in columns:
        column = table.column(field.name)
        kind = next(kind for kind, fits in _KINDS.items() if fits(field.type))
        if not _KINDS[kind](column.type):
            raise RunError(f"{path}: column {field.name!r}: expected {kind}, got {column.type}; {MEND}")
        if column.null_count and (kind != "numbers" if gaps is None else field.name not in gaps):
            raise RunError(f"{path}: column {field.name!r}: {column.null_count} values are missing; {MEND}")
    return table


def _parquet_with(path: Path, names: Sequence[str]) -> pa.Table:
    """Read a table with these columns first; raises RunError."""
    try:
        table = parquet_in(path)
        return table.select([*names, *(name for name in table.column_names if name not in names)])
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so this is no finished run") from None
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise RunError(f"{path}: not readable as the table of a run ({error_text(error)})") from None


def rows_in(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table as tuples."""
    return list(zip(*table.to_pydict().values(), strict=True))


def files_in(folder: Path, kind: str) -> dict[int, Path]:
    """Return the files with this ending by their round; raises RunError for a file whose name has no round."""
    files = {}
    for path in sorted(folder.glob(f"round-*.{kind}")):
        number = path.stem.removeprefix("round-")
        if not (number.isascii() and number.isdigit()):
            raise RunError(f"{path}: no such round; expected round-NUMBER.{kind}: rename this file or take it away")
        files[int(number)] = path
    return files


def runs_below(folder: Path, problems: list[str] | None = None) -> list[Path]:
    """Return the run folders below a folder; not folders of comparisons, which have an experiment file too.

    problems: gets a line for each folder that cannot be read (None: RunError is raised).
    """

    def unreadable(error: OSError) -> None:
        problem = f"{error.filename}: cannot be read ({error.strerror})"
        if problems is None:
            raise RunError(problem)
        problems.append(problem)

    folders = [Path(place) for place, _, names in os.walk(folder, onerror=unreadable) if "experiment.toml" in names]
    return [each for each in folders if has_records(each) and not (each / "plan.json").is_file()]
