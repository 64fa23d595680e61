"""Tables: what the columns are for, and their values as numbers or texts. The only place where either is decided."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedkin.errors import DataError, nearest
from fedkin.federation.arrays import check_ids, hold_out, hold_out_last, rows_by_name

__all__ = [
    "Column", "Columns", "Kind", "Reading", "as_table", "codes", "columns_of", "is_number", "kinds_of", "name_of_type",
    "need_numbers", "numbers", "row_at", "texts", "with_files",
    "without_views",
]  # fmt: skip

Column = Literal["number", "category"]
Kind = Literal["classification", "risk", "regression"]
Floats = npt.NDArray[np.float64]
Names = npt.NDArray[np.str_]
Flags = npt.NDArray[np.bool_]

_SECONDS_A_DAY = 86_400.0
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# Whole numbers up to this size are exact as float64.
_EXACT = 2.0**53
_FILES = b"fedkin.files"


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
    person: str | None = None


@dataclass(frozen=True)
class Columns:
    """A table by what its columns are for.

    inputs: the columns that the net sees, with their kinds. client, group: [n] texts. rows: those of each client.
    held: [n] which are test rows. values: [n] the target's texts. others: names of the columns that are no inputs.
    """

    inputs: pa.Table
    kinds: Mapping[str, Column]
    client: Names
    rows: Mapping[str, npt.NDArray[np.int64]]
    held: Flags
    values: npt.NDArray[np.object_]
    group: Names | None
    others: Sequence[str]

    def training(self, table: pa.Table) -> dict[str, pa.Table]:
        """The training rows of each client in a table of these rows."""
        return {id: table.take(rows[~self.held[rows]]) for id, rows in self.rows.items()}


def as_table(frame: Any, where: str = "frame") -> pa.Table:
    """A frame of pandas or polars, a dict of columns, or an Arrow table, as an Arrow table; raises DataError."""
    try:
        if isinstance(frame, pa.Table):
            return without_views(frame)
        if type(frame).__module__.split(".")[0] == "pandas":
            return without_views(pa.Table.from_pandas(frame, preserve_index=False))
        return without_views(pa.table(frame))
    except (TypeError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{where}: expected a frame of pandas or polars, an Arrow table or a dict of columns, each of one kind of "
            f"values; got {type(frame).__name__} ({reason})"
        ) from None


def without_views(table: pa.Table) -> pa.Table:
    """The table with texts in place of views of texts, of which Arrow can take no rows."""
    views = [field.name for field in table.schema if pa.types.is_string_view(field.type)]
    if not views:
        return table
    fields = [field.with_type(pa.string()) if field.name in views else field for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def with_files(table: pa.Table, files: Iterable[tuple[str, int]]) -> pa.Table:
    """The table, which remembers the files that its rows are from, in order, each with its number of rows."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _FILES: json.dumps(list(files))})


def row_at(table: pa.Table, row: int) -> str:
    """A row, counted from 0, in words: counted from 1 in its file, if the table remembers its files.

    >>> table = pa.table({"x": [1, 2, 3]})
    >>> row_at(table, 2), row_at(with_files(table, [("a.csv", 2), ("b.csv", 1)]), 2)
    ('row 2', 'row 1 of b.csv, counted from 1 below the names of columns')
    """
    before = 0
    for name, count in json.loads((table.schema.metadata or {}).get(_FILES, b"[]")):
        if before <= row < before + count:
            return f"row {row - before + 1} of {name}, counted from 1 below the names of columns"
        before += count
    return f"row {row}"


# -- what columns are for ------------------------------------------------------------------------------------------


def columns_of(table: pa.Table, reading: Reading, where: str = "frame") -> Columns:
    """The table by what its columns are for; raises DataError that names `where`, the column, and the row or client."""
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows; expected one for each sample")
    others = _roles(table, reading, where)
    client = _names(table, reading.client, where)
    rows = rows_by_name(client)
    check_ids(rows, f"{where}: column {reading.client!r}")
    group = None if reading.group is None else _names(table, reading.group, where)
    held = _held(table, reading, client, where)
    values = _target_texts(table, reading.target, client, where)
    inputs = table.select([name for name in table.column_names if name not in others])
    try:
        kinds = kinds_of(inputs, reading.categories)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Columns(inputs, kinds, client, rows, held, values, group, others)


def _roles(table: pa.Table, reading: Reading, where: str) -> list[str]:
    """Columns that are no inputs; raises DataError for a name that is no column, or is twice in the table."""
    columns = table.column_names
    split = reading.split if reading.split not in (None, "random", "time") else None
    roles = {
        "target": reading.target, "client": reading.client, "time": reading.time, "group": reading.group,
        "person": reading.person, "split": split,
    }  # fmt: skip
    named = [*roles.items(), *(("leave_out", name) for name in reading.leave_out)]
    for role, name in named:
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
    return [name for _, name in named if name is not None]


def _names(table: pa.Table, name: str, where: str) -> Names:
    """[n] a column as texts; raises DataError where one is missing."""
    kind = table.schema.field(name).type
    if pa.types.is_temporal(kind) or pa.types.is_nested(kind):
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got {kind}")
    values, place = codes(table, name)
    if pa.types.is_floating(kind) and any(not value.lstrip("-").isdigit() for value in values):
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got fractions")
    empty = np.flatnonzero(place < 0)
    if len(empty):
        raise DataError(
            f"{where}: column {name!r} is empty in {len(empty)} rows, the first is {row_at(table, empty[0])} "
            "(NA, NaN and null count as empty in a file of text)"
        )
    return np.array(values, dtype=np.str_)[place]


def _held(table: pa.Table, reading: Reading, client: Names, where: str) -> Flags:
    """Which rows are test rows."""
    split = reading.split or ("time" if reading.time is not None else "random")
    if split not in ("random", "time"):
        return _stated(table, split, client, where)
    # What is held out as a whole: a row, or all rows of a person at a client.
    if reading.person is None:
        unit = np.arange(table.num_rows)
    else:
        person = _names(table, reading.person, where)
        unit = np.unique(np.char.add(np.char.add(client, "\0"), person), return_inverse=True)[1].reshape(-1)
    _, first = np.unique(unit, return_index=True)
    if split == "random":
        return hold_out(client[first], reading.test_fraction, reading.seed)[unit]
    if reading.time is None:
        raise DataError(f"{where}: split 'time' needs the name of the column: time=...")
    need_numbers(table, reading.time, where, "a date, a time or a number")
    when = numbers(table, reading.time)
    empty = np.flatnonzero(np.isnan(when))
    if len(empty):
        row = row_at(table, empty[0])
        raise DataError(f"{where}: column {reading.time!r} is empty in {len(empty)} rows, the first is {row}")
    latest = np.full(len(first), -np.inf)
    np.maximum.at(latest, unit, when)
    return hold_out_last(client[first], latest, reading.test_fraction)[unit]


def _stated(table: pa.Table, split: str, client: Names, where: str) -> Flags:
    """Which rows a column says to be test rows."""
    stated = _names(table, split, where)
    held: Flags = stated == "test"
    odd = np.flatnonzero(~held & (stated != "train"))
    if len(odd):
        raise DataError(f"{where}: column {split!r}: expected 'train' or 'test', got {str(stated[odd[0]])!r}")
    for id, rows in rows_by_name(client).items():
        if held[rows].all():
            raise DataError(f"{where}: client {id!r} has no row with {split!r} = 'train'; expected at least one")
    return held


def _target_texts(table: pa.Table, name: str, client: Names, where: str) -> npt.NDArray[np.object_]:
    """The target's values as texts; raises DataError for a row without one."""
    values = texts(table, name)
    empty = [row for row, value in enumerate(values) if value is None or value in ("nan", "inf", "-inf")]
    if empty:
        raise DataError(
            f"{where}: target {name!r} is unknown in {len(empty)} rows, the first, of client "
            f"{str(client[empty[0]])!r}, is {row_at(table, empty[0])}; leave such rows out"
        )
    return values


# -- values of columns ---------------------------------------------------------------------------------------------


def kinds_of(table: pa.Table, categories: Sequence[str] = ()) -> dict[str, Column]:
    """Whether each column is a number (also dates, durations and booleans) or a category (texts, and those named).

    Raises DataError for a column that is neither, and for a name that is no column.
    """
    for name in categories:
        if name not in table.column_names:
            raise DataError(f"categories: no column {name!r}; the table has {', '.join(table.column_names)}")
    kinds: dict[str, Column] = {}
    for name in table.column_names:
        stored = _plain(table.schema.field(name).type)
        if name in categories or _is_text(stored):
            kinds[name] = "category"
        elif name_of_type(stored) != "texts":
            kinds[name] = "number"
        else:
            raise DataError(f"column {name!r}: expected numbers, texts, dates or booleans, got {stored}; leave it out")
    return kinds


def need_numbers(table: pa.Table, name: str, where: str, expected: str) -> None:
    """Raise DataError unless a column holds numbers, dates or booleans; expected: in words."""
    if kinds_of(table.select([name]))[name] != "number":
        kind = table.schema.field(name).type
        got = "texts: pandas.to_datetime makes dates of them" if "date" in expected else "texts"
        raise DataError(f"{where}: column {name!r}: expected {expected}, got {got if _is_text(kind) else kind}")


def name_of_type(stored: pa.DataType) -> str:
    """What people call values of this type."""
    kind = _plain(stored)
    tests = {
        "nothing": pa.types.is_null, "true and false": pa.types.is_boolean, "times": pa.types.is_time,
        "durations": pa.types.is_duration, "dates": pa.types.is_temporal,
    }  # fmt: skip
    for name, test in tests.items():
        if test(kind):
            return name
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "numbers" if numeric else "texts"


def numbers(table: pa.Table, name: str) -> Floats:
    """[n] a column as numbers, NaN where nothing is known: dates in days since 1970, times and durations in days."""
    values = _decoded(table.column(name))
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("ms"))
    kind = values.type
    if pa.types.is_temporal(kind):
        whole = values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        ticks = whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        days: Floats = ticks / _UNITS[kind.unit] / _SECONDS_A_DAY
        return days
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    floats: Floats = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.isfinite(floats), floats, np.nan)


def texts(table: pa.Table, name: str) -> npt.NDArray[np.object_]:
    """[n] a column as texts, None where nothing is known."""
    return np.array(_texts(table, name).to_pylist(), dtype=object)


def codes(table: pa.Table, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """(a column's different texts, sorted; [n] the place of each row's text among them, -1 where nothing is known)."""
    encoded = _texts(table, name).dictionary_encode()
    values = np.array([str(value) for value in encoded.dictionary.to_pylist()], dtype=object)
    order = np.argsort(values, kind="stable")
    place = np.empty(len(values) + 1, np.int64)
    place[order], place[-1] = np.arange(len(values)), -1
    return list(values[order]), place[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]


def is_number(text: str) -> bool:
    """Whether a text is a number, as in "1", "-2.5" and "1e3"."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _texts(table: pa.Table, name: str) -> Any:
    values = _decoded(table.column(name))
    if pa.types.is_floating(values.type):
        # Whole numbers with gaps are stored as floats: 3.0 is the category 3. Beyond 2^53 they are not exact.
        whole = pc.and_(pc.equal(values, pc.round(values)), pc.less_equal(pc.abs(values), _EXACT))
        if pc.all(whole, min_count=0).as_py():
            values = values.cast(pa.int64())
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _decoded(column: pa.ChunkedArray) -> Any:
    """A column as one array, its categories as their values."""
    values = column.combine_chunks()
    kind = values.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_string_view(kind.value_type):  # those of polars, of which Arrow takes none
            values = values.cast(pa.dictionary(kind.index_type, pa.string(), kind.ordered))
        values = values.dictionary_decode()
    return values


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
