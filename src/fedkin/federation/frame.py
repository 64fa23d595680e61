"""`Federation.from_frame`: clients from the rows of a table, and the arrays that a source makes of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedkin.errors import DataError, nearest
from fedkin.federation.checks import check_ids
from fedkin.federation.columns import codes, is_number, kinds_of, numbers, texts
from fedkin.federation.encoding import Encoding
from fedkin.federation.profiles import profile
from fedkin.federation.split import hold_out, hold_out_last, rows_by_name
from fedkin.tasks import Task

__all__ = ["Encoded", "Reading", "Target", "as_table", "encoded"]

Names = npt.NDArray[np.str_]
Flags = npt.NDArray[np.bool_]
Kind = Literal["classification", "risk", "regression"]

# A number with at most so many different whole values is taken for a class, if nothing is said.
_CLASSES = 20


@dataclass(frozen=True)
class Reading:
    """What the columns of a table are for. See `Federation.from_frame`."""

    target: str
    client: str
    time: str | None = None
    group: str | None = None
    kind: Kind | None = None
    positive: str | None = None
    split: str | None = None
    test_fraction: float = 0.2
    leave_out: Sequence[str] = ()
    categories: Sequence[str] = ()
    least: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Target:
    """What the values of the target mean: names of the classes in their order, or mean and deviation of a number."""

    kind: Kind
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class Encoded:
    """A table as arrays: inputs [n, d], targets, each row's client, its group, and whether it is a test row."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    client: Names
    held: Flags
    encoding: Encoding
    target: Target
    group: Names | None = field(default=None)

    @property
    def task(self) -> Task:
        """The task of these targets."""
        shape = (self.x.shape[1],)
        if self.target.kind == "regression":
            return Task.regression(1, shape)
        return Task(len(self.target.classes), shape, self.target.kind)


def as_table(frame: Any, where: str = "frame") -> pa.Table:
    """A frame of pandas or polars, a dict of columns, or an Arrow table, as an Arrow table; raises DataError."""
    try:
        if isinstance(frame, pa.Table):
            return frame
        if type(frame).__module__.split(".")[0] == "pandas":
            return pa.Table.from_pandas(frame, preserve_index=False)
        return pa.table(frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        said = " ".join(str(error).split())
        raise DataError(
            f"{where}: expected a frame of pandas or polars, an Arrow table or a dict of columns, each of one kind of "
            f"values; got {type(frame).__name__} ({said})"
        ) from None


def encoded(table: pa.Table, reading: Reading, where: str = "frame") -> Encoded:
    """The arrays of a table. Everything is fitted on the training rows, from sums and counts of each client.

    Raises DataError that names `where`, the column, and the row or client.
    """
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows; expected one for each sample")
    names = _roles(table, reading, where)
    client = _names(table, reading.client, where)
    rows = rows_by_name(client)
    check_ids(rows, f"{where}: column {reading.client!r}")
    group = None if reading.group is None else _names(table, reading.group, where)
    held = _held(table, reading, client, where)
    target, y = _target(table, reading, client, held, where)
    inputs = table.select([name for name in table.column_names if name not in names])
    try:
        kinds = kinds_of(inputs, reading.categories)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    told = [profile(inputs.take(own[~held[own]]), kinds) for own in rows.values()]
    encoding = Encoding.of(told, kinds, reading.least)
    x = encoding(inputs)
    if not x.shape[1]:
        raise DataError(f"{where}: no column is left for the inputs; expected at least one beside {', '.join(names)}")
    return Encoded(x, y, client, held, encoding, target, group)


def _roles(table: pa.Table, reading: Reading, where: str) -> list[str]:
    """Columns that are no inputs; raises DataError for a name that is no column, or is twice in the table."""
    columns = table.column_names
    split = reading.split if reading.split not in (None, "random", "time") else None
    wanted = {"target": reading.target, "client": reading.client, "time": reading.time, "group": reading.group}
    asked = [*wanted.items(), ("split", split), *(("leave_out", name) for name in reading.leave_out)]
    for role, name in asked:
        if name is not None and name not in columns:
            raise DataError(f"{where}: {role}: no column {name!r}; {nearest(name, columns)}")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise DataError(f"{where}: two columns are called {twice[0]!r}; expected different names")
    for name in (reading.target, reading.client):
        kind = table.schema.field(name).type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind):
            raise DataError(f"{where}: column {name!r}: expected texts or numbers, got {kind}")
    if reading.target == reading.client:
        raise DataError(f"{where}: target and client are both {reading.target!r}; expected two columns")
    return [name for _, name in asked if name is not None]


def _names(table: pa.Table, name: str, where: str) -> Names:
    """[n] a column as texts; raises DataError where one is missing."""
    kind = table.schema.field(name).type
    if pa.types.is_temporal(kind) or pa.types.is_nested(kind):
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got {kind}")
    found, place = codes(table, name)
    if pa.types.is_floating(kind) and any(not value.lstrip("-").isdigit() for value in found):
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got fractions")
    empty = np.flatnonzero(place < 0)
    if len(empty):
        raise DataError(f"{where}: column {name!r} is empty in {len(empty)} rows, the first is row {empty[0]}")
    return np.array(found, dtype=np.str_)[place]


def _held(table: pa.Table, reading: Reading, client: Names, where: str) -> Flags:
    """Which rows are test rows."""
    split = reading.split or ("time" if reading.time is not None else "random")
    if split == "random":
        return hold_out(client, reading.test_fraction, reading.seed)
    if split == "time":
        if reading.time is None:
            raise DataError(f"{where}: split 'time' needs the name of the column: time=...")
        _number(table, reading.time, where, "a date, a time or a number")
        when = numbers(table, reading.time)
        empty = np.flatnonzero(np.isnan(when))
        if len(empty):
            raise DataError(
                f"{where}: column {reading.time!r} is empty in {len(empty)} rows, the first is row {empty[0]}"
            )
        return hold_out_last(client, when, reading.test_fraction)
    told = _names(table, split, where)
    held: Flags = told == "test"
    odd = np.flatnonzero(~held & (told != "train"))
    if len(odd):
        raise DataError(f"{where}: column {split!r}: expected 'train' or 'test', got {str(told[odd[0]])!r}")
    for id, own in rows_by_name(client).items():
        if held[own].all():
            raise DataError(f"{where}: client {id!r} has no row with {split!r} = 'train'; expected at least one")
    return held


def _number(table: pa.Table, name: str, where: str, expected: str) -> None:
    if kinds_of(table.select([name]))[name] != "number":
        kind = table.schema.field(name).type
        raise DataError(f"{where}: column {name!r}: expected {expected}, got {kind}")


def _target(
    table: pa.Table, reading: Reading, client: Names, held: Flags, where: str
) -> tuple[Target, npt.NDArray[Any]]:
    """What the target means, and its values: labels from 0, or numbers in deviations from the training rows' mean."""
    name = reading.target
    values = texts(table, name)
    empty = [row for row, value in enumerate(values) if value is None or value in ("nan", "inf", "-inf")]
    if empty:
        raise DataError(
            f"{where}: target {name!r} is unknown in {len(empty)} rows, the first is row {empty[0]}, of client "
            f"{str(client[empty[0]])!r}; leave such rows out"
        )
    kind = reading.kind or _kind(table, name, values)
    if kind == "regression":
        _number(table, name, where, "numbers to predict")
        known = numbers(table, name)
        mean, deviation = float(known[~held].mean()), float(known[~held].std())
        if deviation == 0:
            raise DataError(f"{where}: target {name!r} is {mean:g} in every training row; expected different values")
        return Target(kind, (), mean, deviation), ((known - mean) / deviation).astype(np.float32)[:, None]
    classes = _classes(table, name, values)
    if len(classes) < 2:
        raise DataError(f"{where}: target {name!r} is {classes[0]!r} in every row; expected at least 2 classes")
    if kind == "risk":
        classes = _risk(classes, reading.positive, f"{where}: target {name!r}")
    number = {value: place for place, value in enumerate(classes)}
    return Target(kind, classes), np.array([number[value] for value in values], dtype=np.int64)


def _kind(table: pa.Table, name: str, values: npt.NDArray[np.object_]) -> Kind:
    """Two values are a risk; texts, booleans, and at most 20 whole numbers are classes; others are numbers."""
    different = set(values)
    if len(different) <= 2:
        return "risk"
    if kinds_of(table.select([name]))[name] == "category":
        return "classification"
    whole = all(value.lstrip("-").isdigit() for value in different)
    return "classification" if whole and len(different) <= _CLASSES else "regression"


def _classes(table: pa.Table, name: str, values: npt.NDArray[np.object_]) -> tuple[str, ...]:
    """The different values in order: as numbers where they are numbers."""
    different = {str(value) for value in values}
    if kinds_of(table.select([name]))[name] == "number" and all(is_number(value) for value in different):
        return tuple(sorted(different, key=float))
    return tuple(sorted(different))


def _risk(classes: tuple[str, ...], positive: str | None, where: str) -> tuple[str, ...]:
    """(no, yes): the event is `positive`, or else the later of the two."""
    if len(classes) != 2:
        raise DataError(f"{where} has {len(classes)} values; a risk has two: kind='classification'?")
    if positive is None:
        return classes
    if positive not in classes:
        raise DataError(f"{where}: positive: no value {positive!r}; expected {classes[0]!r} or {classes[1]!r}")
    return tuple(sorted(classes, key=lambda value: value == positive))
