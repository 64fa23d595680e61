"""`Federation.from_frame`: clients from the rows of a table, and the arrays that a source makes of one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedkin.errors import DataError, nearest
from fedkin.federation.checks import check_ids
from fedkin.federation.columns import Column, codes, is_number, kinds_of, numbers, texts
from fedkin.federation.encoding import Encoding
from fedkin.federation.profiles import Moments, Profile, profile
from fedkin.federation.rows import row_at
from fedkin.federation.split import hold_out, hold_out_last, rows_by_name
from fedkin.tasks import Task

__all__ = [
    "CLASSES", "Columns", "Encoded", "Kind", "Reading", "Target", "as_table", "classes_of", "columns_of", "encoded",
    "kind_of", "regression_of", "target_of",
]  # fmt: skip

Names = npt.NDArray[np.str_]
Flags = npt.NDArray[np.bool_]
Kind = Literal["classification", "risk", "regression"]

_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
# A number with at most so many different whole values is taken for a class, if nothing is said.
CLASSES = 20


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

    def task(self, width: int) -> Task:
        """The task of these targets, with so many inputs."""
        if self.kind == "regression":
            return Task.regression(1, (width,))
        return Task(len(self.classes), (width,), self.kind)

    def __call__(self, table: pa.Table, name: str) -> npt.NDArray[Any]:
        """A column as targets: labels from 0 [n], or deviations from the mean [n, 1].

        Raises DataError for a value that is no class.
        """
        if self.kind == "regression":
            return ((numbers(table, name) - self.mean) / self.deviation).astype(np.float32)[:, None]
        number = {value: place for place, value in enumerate(self.classes)}
        try:
            return np.array([number[value] for value in texts(table, name)], dtype=np.int64)
        except KeyError as error:
            raise DataError(f"target {name!r}: {error} is none of {', '.join(self.classes)}") from None


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
        return self.target.task(self.x.shape[1])


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


@dataclass(frozen=True)
class Columns:
    """A table by what its columns are for. own: rows by client. values: the target's texts. others: no inputs."""

    inputs: pa.Table
    kinds: Mapping[str, Column]
    client: Names
    own: Mapping[str, npt.NDArray[np.int64]]
    held: Flags
    values: npt.NDArray[np.object_]
    group: Names | None
    others: Sequence[str]

    def profiles(self, table: pa.Table, kinds: Mapping[str, Column]) -> list[Profile]:
        """What each client tells of these columns of its training rows."""
        return [profile(table.take(own[~self.held[own]]), kinds) for own in self.own.values()]


def encoded(
    table: pa.Table, reading: Reading, where: str = "frame", agreed: tuple[Encoding, Target] | None = None
) -> Encoded:
    """The arrays of a table. Everything is fitted on the training rows, from sums and counts of each client.

    agreed: the encoding and the target of a whole federation, of which these are the rows of one client. Raises
    DataError that names `where`, the column, and the row or client.
    """
    columns = columns_of(table, reading, where)
    target = target_of(table, reading, columns, where) if agreed is None else agreed[1]
    y = target(table, reading.target)
    encoding = Encoding.of(columns.profiles(columns.inputs, columns.kinds), columns.kinds, reading.least) if (
        agreed is None) else agreed[0]  # fmt: skip
    x = encoding(columns.inputs)
    if not x.shape[1]:
        others = ", ".join(columns.others)
        raise DataError(f"{where}: no column is left for the inputs; expected at least one beside {others}")
    return Encoded(x, y, columns.client, columns.held, encoding, target, columns.group)


def columns_of(table: pa.Table, reading: Reading, where: str = "frame") -> Columns:
    """The table by what its columns are for; raises DataError that names `where`, the column, and the row or client."""
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows; expected one for each sample")
    names = _roles(table, reading, where)
    client = _names(table, reading.client, where)
    rows = rows_by_name(client)
    check_ids(rows, f"{where}: column {reading.client!r}")
    group = None if reading.group is None else _names(table, reading.group, where)
    held = _held(table, reading, client, where)
    values = _values(table, reading.target, client, where)
    inputs = table.select([name for name in table.column_names if name not in names])
    try:
        kinds = kinds_of(inputs, reading.categories)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Columns(inputs, kinds, client, rows, held, values, group, names)


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
        raise DataError(
            f"{where}: column {name!r} is empty in {len(empty)} rows, the first is {row_at(table, empty[0])}"
        )
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
            first = row_at(table, empty[0])
            raise DataError(f"{where}: column {reading.time!r} is empty in {len(empty)} rows, the first is {first}")
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
        said = "texts: pandas.to_datetime makes dates of them" if "date" in expected else "texts"
        raise DataError(f"{where}: column {name!r}: expected {expected}, got {said if kind in _TEXTS else kind}")


def _values(table: pa.Table, name: str, client: Names, where: str) -> npt.NDArray[np.object_]:
    """The target's values as texts; raises DataError for a row without one."""
    values = texts(table, name)
    empty = [row for row, value in enumerate(values) if value is None or value in ("nan", "inf", "-inf")]
    if empty:
        raise DataError(
            f"{where}: target {name!r} is unknown in {len(empty)} rows, the first, of client "
            f"{str(client[empty[0]])!r}, is {row_at(table, empty[0])}; leave such rows out"
        )
    return values


def target_of(table: pa.Table, reading: Reading, columns: Columns, where: str) -> Target:
    """What the target means in a table of all clients."""
    name, different = reading.target, set(columns.values)
    text = kinds_of(table.select([name]))[name] == "category"
    kind = reading.kind or kind_of(different, text)
    if kind == "regression":
        _number(table, name, where, "numbers to predict")
        told = columns.profiles(table.select([name]), {name: "number"})
        return regression_of(Profile.merged(told).numbers[name], f"{where}: target {name!r}")
    return classes_of(different, text, kind, reading.positive, f"{where}: target {name!r}")


def kind_of(different: Collection[str], text: bool) -> Kind:
    """Two values are a risk; texts, and at most 20 whole numbers are classes; others are numbers."""
    if len(different) <= 2:
        return "risk"
    whole = all(value.lstrip("-").isdigit() for value in different)
    return "classification" if text or (whole and len(different) <= CLASSES) else "regression"


def regression_of(moments: Moments, where: str) -> Target:
    """A number in deviations from the training rows' mean; raises DataError if it is the same in all."""
    deviation = math.sqrt(moments.squares / max(moments.count, 1))
    if deviation == 0:
        raise DataError(f"{where} is {moments.mean:g} in every training row; expected different values")
    return Target("regression", (), moments.mean, deviation)


def classes_of(different: Collection[str], text: bool, kind: Kind, positive: str | None, where: str) -> Target:
    """The different values in order, as numbers where they are numbers; raises DataError for fewer than two."""
    as_numbers = not text and all(is_number(value) for value in different)
    classes = tuple(sorted(map(str, different), key=float if as_numbers else None))
    if len(classes) < 2:
        raise DataError(f"{where} is {classes[0]!r} in every row; expected at least 2 classes")
    return Target(kind, _risk(classes, positive, where) if kind == "risk" else classes)


def _risk(classes: tuple[str, ...], positive: str | None, where: str) -> tuple[str, ...]:
    """(no, yes): the event is `positive`, or else the later of the two."""
    if len(classes) != 2:
        raise DataError(f"{where} has {len(classes)} values; a risk has two: kind='classification'?")
    if positive is None:
        return classes
    if positive not in classes:
        raise DataError(f"{where}: positive: no value {positive!r}; expected {classes[0]!r} or {classes[1]!r}")
    return tuple(sorted(classes, key=lambda value: value == positive))
