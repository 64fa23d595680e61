"""Columns of token ids as arrays, filled up with a padding id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.errors import DataError, nearest
from fedkin.federation import Task
from fedkin.untrusted import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from fedkin.federation.frame import Reading

__all__ = ["ids_of", "texts_of"]


def ids_of(rows: Sequence[Any], length: int | None, padding: int, where: str, column: str) -> torch.Tensor:
    """Return [n, length] int64 token ids of lists of whole numbers, or of texts such as "101 7592 102".

    Longer rows are cut; length: None is that of the longest row. Raises DataError that names `where`, the row and the
    column.
    """
    lists = [_list(row) for row in rows]
    longest = max((len(row) for row in lists if row is not None), default=0)
    size = min(longest, length or longest)
    made = np.full((len(lists), max(size, 1)), padding, np.int64)
    for number, row in enumerate(lists):
        if row is None:
            raise DataError(f"{where}: row {number}: {column!r}: expected a list of whole numbers, got "
                            f"{shown(repr(rows[number]), 40)}; tokenise texts first")  # fmt: skip
        made[number, : min(len(row), size)] = row[:size]
    return torch.from_numpy(made)


def _list(row: Any) -> list[int] | None:
    """Return the token ids of a row; None if it holds anything else."""
    if isinstance(row, str):
        words = row.split()
        return [int(word) for word in words] if words and all(w.isascii() and w.isdigit() for w in words) else None
    return row if isinstance(row, list) and all(type(one) is int and one >= 0 for one in row) else None


def texts_of(table: pa.Table, reading: Reading, tokens: str, length: int | None, padding: int, where: str) -> Dataset:
    """Return the data set of a table whose inputs are one column of token ids; raises DataError naming `where`."""
    from fedkin.federation.frame import columns_of, target_of

    if tokens not in table.column_names:
        raise DataError(f"{where}: data.tokens: no column {tokens!r}; {nearest(tokens, table.column_names)}")
    x = ids_of(table.column(tokens).to_pylist(), length, padding, where, tokens)
    others = table.drop_columns([tokens])
    columns = columns_of(others, reading, where)
    target = target_of(others, reading, columns, where)
    y = torch.from_numpy(target(others, reading.target))

    def part(chosen: Any) -> Part:
        group = None if columns.group is None else columns.group[chosen]
        return Part(x[chosen], y[chosen], columns.client[chosen], group)

    shape = tuple(x.shape[1:])
    task = Task.regression(1, shape) if target.kind == "regression" else Task(len(target.classes), shape, target.kind)
    return Dataset(Path(where).name.split(".")[0], part(~columns.held), part(columns.held), task, target=target)
