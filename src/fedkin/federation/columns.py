"""Columns of Arrow tables as numbers or texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedkin.errors import DataError

__all__ = ["Column", "codes", "is_number", "kinds_of", "numbers", "texts"]

Column = Literal["number", "category"]
Floats = npt.NDArray[np.float64]

_DAY = 86_400.0


def kinds_of(table: pa.Table, categories: Sequence[str] = ()) -> dict[str, Column]:
    """Whether each column is a number (also dates, durations and booleans) or a category (texts, and those named).

    Raises DataError for a column that is neither, and for a name that is no column.
    """
    for name in categories:
        if name not in table.column_names:
            raise DataError(f"categories: no column {name!r}; the table has {', '.join(table.column_names)}")
    found: dict[str, Column] = {}
    for name in table.column_names:
        kind = table.schema.field(name).type
        if name in categories or _is_text(kind):
            found[name] = "category"
        elif _is_numeric(kind) or pa.types.is_null(kind):
            found[name] = "number"
        else:
            raise DataError(f"column {name!r}: expected numbers, texts, dates or booleans, got {kind}; leave it out")
    return found


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_temporal)
    return any(test(kind) for test in tests)


def numbers(table: pa.Table, name: str) -> Floats:
    """[n] a column as numbers, NaN where nothing is known: dates in days since 1970, times and durations in days."""
    values = table.column(name).combine_chunks()
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = _decoded(values)
        kind = values.type
    if pa.types.is_date(kind):
        values = values.cast(pa.timestamp("ms"))
        kind = values.type
    if pa.types.is_temporal(kind):
        unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
        whole = values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        made: Floats = whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / unit / _DAY
        return made
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    read: Floats = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.isfinite(read), read, np.nan)


def _decoded(values: Any) -> Any:
    """A column of categories as their values."""
    kind = values.type
    if pa.types.is_string_view(kind.value_type):  # those of polars, of which Arrow takes none
        values = values.cast(pa.dictionary(kind.index_type, pa.string(), kind.ordered))
    return values.dictionary_decode()


def texts(table: pa.Table, name: str) -> npt.NDArray[np.object_]:
    """[n] a column as texts, None where nothing is known."""
    return np.array(_texts(table, name).to_pylist(), dtype=object)


def codes(table: pa.Table, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """(a column's different texts, sorted; [n] the place of each row's text among them, -1 where nothing is known)."""
    made = _texts(table, name).dictionary_encode()
    found = np.array([str(value) for value in made.dictionary.to_pylist()], dtype=object)
    order = np.argsort(found, kind="stable")
    place = np.empty(len(found) + 1, np.int64)
    place[order], place[-1] = np.arange(len(found)), -1
    return list(found[order]), place[made.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)]


def _texts(table: pa.Table, name: str) -> Any:
    values = table.column(name).combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = _decoded(values)
    if pa.types.is_floating(values.type) and pc.all(pc.equal(values, pc.round(values)), min_count=0).as_py():
        # Whole numbers with gaps are read as floats: 3.0 is the category 3.
        values = values.cast(pa.int64(), safe=False)
    if not _is_text(values.type):
        values = values.cast(pa.string())
    return values


def is_number(text: str) -> bool:
    """Whether a text is a number, as in "1", "-2.5" and "1e3"."""
    try:
        float(text)
    except ValueError:
        return False
    return True
