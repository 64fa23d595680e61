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
from fedkin.untrusted import most, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from fedkin.federation.table import Reading

__all__ = ["ids_of", "texts_of"]


def ids_of(rows: Sequence[Any], length: int | None, padding: int, where: str, column: str) -> torch.Tensor:
    """Return [n, length] int64 token ids of lists of whole numbers, of single ones, or of texts such as "101 7592 102".

    Longer rows are cut; length: None is that of the longest row. Raises DataError that names `where`, the row and the
    column.
    """
    lists: list[list[int]] = []
    for number, given in enumerate(rows):
        row = _list(given)
        if row is None or max(row, default=0) >= 2**63:
            what = "a list of whole numbers" if row is None else "whole numbers below 2**63"
            raise DataError(f"{where}: row {number}: {column!r}: expected {what}, got {shown(repr(given), 40)}"
                            f"{'; tokenise texts first' if row is None else ''}")  # fmt: skip
        lists.append(row)
    longest = max(map(len, lists), default=0)
    size = min(longest, length or longest)
    need = 8 * len(lists) * size
    if need > most(8 * sum(min(len(row), size) for row in lists)):
        number = next(number for number, row in enumerate(lists) if len(row) >= size)
        raise DataError(f"{where}: row {number}: {column!r}: has {len(lists[number]):,} token ids; filling up "
                        f"{len(lists):,} texts to that takes {need / 1e9:.1f} GB; set data.length")  # fmt: skip
    made = np.full((len(lists), max(size, 1)), padding, np.int64)
    for number, row in enumerate(lists):
        made[number, : min(len(row), size)] = row[:size]
    return torch.from_numpy(made)


def _list(row: Any) -> list[int] | None:
    """Return the token ids of a row; None if it holds anything else."""
    if type(row) is int:
        row = [row]
    if isinstance(row, str):
        words = row.split()
        # 20 digits are too many for an id, and Python takes no more than 4,300.
        ids = [int(w.lstrip("0")[:20] or 0) for w in words if w.isascii() and w.isdigit()]
        return ids if words and len(ids) == len(words) else None
    return row if isinstance(row, list) and all(type(one) is int and one >= 0 for one in row) else None


def texts_of(table: pa.Table, reading: Reading, tokens: str, length: int | None, padding: int, where: str) -> Dataset:
    """Return the data set of a table whose inputs are one column of token ids; raises DataError naming `where`."""
    from fedkin.federation.encoding import target_of
    from fedkin.federation.table import columns_of

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
