"""Columns of an Arrow table: whether a column is a number or a category, and its values as numbers or texts."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedkin.errors import DataError
from fedkin.federation.arrays import Floats, Ints
from fedkin.untrusted import error_text

Column = Literal["number", "category"]

_SECONDS_A_DAY = 86_400.0
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# Whole numbers up to this size are exact as float64.
_EXACT = 2.0**53
# A whole number, or one with a decimal point or comma.
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")
# A code that no number is written as.
_LEADING = re.compile(r"0[0-9]+")


def as_table(frame: Any) -> pa.Table:
    """A frame of pandas or polars, a dict of columns, or an Arrow table, as an Arrow table; raises DataError."""
    try:
        if type(frame).__module__.split(".")[0] == "pandas":
            frame = pa.Table.from_pandas(frame, preserve_index=False)
        return without_views(frame if isinstance(frame, pa.Table) else pa.table(frame))
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        expected = "a frame of pandas or polars, an Arrow table or a dict of columns, of all clients, each of one kind"
        raise DataError(f"frame: expected {expected}; got {type(frame).__name__} ({error_text(error)})") from None


def without_views(table: pa.Table) -> pa.Table:
    """The table with texts instead of string views, from which Arrow cannot take rows."""
    fields = [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def remember(table: pa.Table, what: str, facts: Any) -> pa.Table:
    """The table with facts in its metadata, under the name `what`; for "files": each file and its number of rows."""
    metadata = table.schema.metadata or {}
    return table.replace_schema_metadata({**metadata, f"fedkin.{what}".encode(): json.dumps(facts)})


def remembered(table: pa.Table, what: str) -> Any:
    """The facts that `remember` stored; None if there are none, or if another program uses this name for other data."""
    try:
        return json.loads((table.schema.metadata or {}).get(f"fedkin.{what}".encode(), b"null"))
    except ValueError:
        return None


def row_at(table: pa.Table, row: int) -> str:
    """Describe a row, counted from 0; if the table remembers its files, by its number in its file, counted from 1.

    >>> table = pa.table({"x": [1, 2, 3]})
    >>> row_at(table, 2), row_at(remember(table, "files", [("a.csv", 2), ("b.csv", 1)]), 2)
    ('row 2', 'row 1 of b.csv, counted from 1 below the names of columns')
    """
    before = 0
    for name, count in remembered(table, "files") or ():
        if before <= row < before + count:
            return f"row {row - before + 1} of {name}, counted from 1 below the names of columns"
        before += count
    return f"row {row}"


# -- kinds of columns ----------------------------------------------------------------------------------------------


def kinds_of(table: pa.Table, categories: Sequence[str] = ()) -> dict[str, Column]:
    """Whether each column is a number (also dates, durations and booleans) or a category (texts, and `categories`).

    Raises DataError for a column that is neither, and for an unknown name in `categories`.
    """
    for name in categories:
        if name not in table.column_names:
            raise DataError(f"categories: no column {name!r}; the table has {', '.join(table.column_names)}")
    kinds: dict[str, Column] = {}
    for name in table.column_names:
        stored = _plain(table.schema.field(name).type)
        kinds[name] = "category" if name in categories or is_text(stored) else "number"
        if kinds[name] == "number" and name_of_type(stored) == "texts":
            how = "make texts of it, or leave it out"
            raise DataError(f"column {name!r}: expected numbers, texts, dates or booleans, got {stored}; {how}")
    return kinds


def refuse_decimal_texts(inputs: pa.Table, categories: Collection[str]) -> None:
    """Raise DataError for a column of a frame whose texts are all numbers, some with decimals, unless in `categories`.

    As texts, each number would be a category of its own.
    """
    for name in inputs.column_names:
        if name in categories or not is_text(inputs.schema.field(name).type):
            continue
        different = list(filter(None, map(str.strip, codes(inputs, name)[0])))
        decimal = next((text for text in different if "." in text or "," in text), None)
        if decimal is not None and all(map(_NUMBER.fullmatch, different)):
            raise DataError(
                f"frame: column {name!r}: expected numbers or categories, got texts that are numbers, such as "
                f"{decimal!r}: convert the column to numbers, or name it in categories"
            )


def need_numbers(table: pa.Table, name: str, where: str, expected: str) -> None:
    """Raise DataError unless a column holds numbers, dates or booleans; expected: words for the error message."""
    if kinds_of(table.select([name]))[name] != "number":
        kind = table.schema.field(name).type
        got = f"texts such as {next(iter(codes(table, name)[0]), '')!r}" if is_text(kind) else kind
        how = (
            ": if they are dates, data.dates (--dates) says their order in a CSV file (with a time of day, write "
            "2026-01-31 10:00), and pandas.to_datetime makes dates of them in a frame"
        )
        raise DataError(f"{where}: column {name!r}: expected {expected}, got {got}{how if 'date' in expected else ''}")


def need_known_texts(table: pa.Table, name: str, known: Collection[str]) -> None:
    """Raise DataError for numbers, or true and false, where training had texts (`known`) that these cannot be."""
    kind = name_of_type(table.schema.field(name).type)
    if kind not in ("numbers", "true and false") or not known or not (given := codes(table, name)[0]):
        return
    coded = next(filter(_LEADING.fullmatch, known), None)
    if coded or not any(text in ("true", "false") or is_number(text) for text in known):
        raise DataError(
            f"column {name!r}: expected texts such as {coded or min(known)!r}, as in training, got {kind} such as "
            f"{given[0]}"
        )


def name_of_type(stored: pa.DataType) -> str:
    """A word for people that names values of this type."""
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


# -- values of columns ---------------------------------------------------------------------------------------------


def numbers(table: pa.Table, name: str) -> Floats:
    """[n] a column as numbers, NaN for missing values: dates in days since 1970, times and durations in days."""
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
    """[n] a column as texts, None for missing values."""
    return np.array(_texts(table, name).to_pylist(), dtype=object)


def codes(table: pa.Table, name: str) -> tuple[list[str], Ints]:
    """(a column's different texts, sorted; [n] the index of each row's text among them, -1 for missing values)."""
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
        # Whole numbers with missing values are stored as floats: 3.0 is the category 3. Beyond 2^53 floats are inexact.
        whole = pc.and_(pc.equal(values, pc.round(values)), pc.less_equal(pc.abs(values), _EXACT))
        if pc.all(whole, min_count=0).as_py():
            values = values.cast(pa.int64())
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _decoded(column: pa.ChunkedArray) -> Any:
    """A column as one array, with dictionary codes replaced by their values."""
    values = column.combine_chunks()
    kind = values.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_string_view(kind.value_type):  # from polars; Arrow cannot take rows from them
            values = values.cast(pa.dictionary(kind.index_type, pa.string(), kind.ordered))
        values = values.dictionary_decode()
    return values


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are texts."""
    kind = _plain(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
