"""Where a row of a table was read: its file, and its number in that file."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa

__all__ = ["row_at", "with_files"]

_FILES = b"fedkin.files"


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
