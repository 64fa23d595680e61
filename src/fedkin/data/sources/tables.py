"""Your own tables, as CSV or Parquet: settings for the roles of the columns, and the conversion to a data set."""

from __future__ import annotations

import logging
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pydantic import NonNegativeInt, PositiveInt

from fedkin.data.csv_cells import CsvFormat
from fedkin.data.dataset import Dataset, Part
from fedkin.data.fetching import ROOTED
from fedkin.data.sources.base import Source, locate
from fedkin.data.table_files import code_like, column_notes, read_csv, read_folder, read_parquet
from fedkin.errors import DataError, first_few, nearest
from fedkin.federation import Scale
from fedkin.federation.summaries import SharedEncoding
from fedkin.federation.table_columns import Columns, Reading, columns_of
from fedkin.federation.table_encoding import Encoding, Target, encoded, find_target
from fedkin.federation.table_values import codes, remember
from fedkin.untrusted import error_text, escaped, most

_LOG = logging.getLogger("fedkin")


class TableSettings(Reading, Source):
    """Settings of a table; its column `tokens`, if set, has token ids, cut to `length` and filled up with `padding`."""

    client: str | None = None  # type: ignore[assignment]
    tokens: str | None = None
    length: PositiveInt | None = None
    padding: NonNegativeInt = 0

    def ids(self, rows: Sequence[Any], where: str) -> torch.Tensor:
        """[n, length] int64 token ids, from the column `tokens`: lists of whole numbers, single ones, or texts of them.

        Without `length`, the longest row has it. Raises DataError that names `where`, the row and the column.
        """
        lists = [_token_ids(row, f"{where}: row {number}: {self.tokens!r}") for number, row in enumerate(rows)]
        longest = max(map(len, lists), default=0)
        size = min(longest, self.length or longest)
        need = 8 * len(lists) * size
        if need > most(8 * sum(min(len(row), size) for row in lists)):
            number = next(number for number, row in enumerate(lists) if len(row) >= size)
            raise DataError(f"{where}: row {number}: {self.tokens!r}: has {len(lists[number]):,} token ids; filling up "
                            f"{len(lists):,} texts to that takes {need / 1e9:.1f} GB; set data.length")  # fmt: skip
        ids = np.full((len(lists), max(size, 1)), self.padding, np.int64)
        for number, row in enumerate(lists):
            ids[number, : min(len(row), size)] = row[:size]
        return torch.from_numpy(ids)


class TableSource(TableSettings):
    """A table with one row per sample: one file with a column of clients, or a folder with one file for each client.

    path: absolute, or below the data root, or else below the current folder. target: the column to predict. client: the
    column of clients; in a folder, without it, each file is a client with the file's name. tokens: the column of token
    ids, which is then the only input: lists of whole numbers, or texts of them such as "101 7592 102", cut to `length`
    and filled up with `padding`. `Federation.from_frame` explains the other settings.
    """

    path: Path

    # Endings of the files that this source reads, in lower case.
    endings: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read(self, path: Path) -> pa.Table:
        """The table of one file; raises OSError and ValueError."""

    @property
    def coded(self) -> list[str]:
        """The columns whose numbers are names: the categories, and a target of classes."""
        return [*self.categories, *([self.target] if self.kind in ("classification", "risk") else [])]

    def rows(self, root: Path) -> tuple[pa.Table, str | None]:
        """(all rows, the column of the clients, if it is known); raises DataError naming the file."""
        path = locate(root, self.path)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; expected {' or '.join(self.endings)}{ROOTED}")
        if path.is_dir():
            coded = self.coded if isinstance(self, Csv) else []
            return read_folder(path, self._file, self.endings, self.client, self.leave_out, coded)
        table = self._file(path)
        return remember(table, "files", [(path.name, table.num_rows)]), self.client

    def table(self, root: Path) -> tuple[pa.Table, Reading]:
        """(all rows, the roles of the columns); raises DataError naming the file and what was expected."""
        table, client = self.rows(root)
        if client is None:
            expected = "expected the name of the column that says whose each row is"
            has = ", ".join(map(escaped, table.column_names))
            raise DataError(f"{locate(root, self.path)}: data.client: {expected}; the table has {has}")
        return table, self.model_copy(update={"client": client})

    def load(self, root: Path) -> Dataset:
        """Read the files; raises DataError naming the file, the column and the row."""
        table, reading = self.table(root)
        where = str(locate(root, self.path))
        if self.tokens is not None:
            if self.tokens not in table.column_names:
                raise DataError(f"{where}: data.tokens: no column {self.tokens!r}; "
                                f"{nearest(self.tokens, table.column_names)}")  # fmt: skip
            x = self.ids(table.column(self.tokens).to_pylist(), where)
            return dataset_beside(x, table.drop_columns([self.tokens]), reading, where)
        warn(table, reading, where)
        return dataset_of(table, reading, where)

    def _file(self, path: Path) -> pa.Table:
        try:
            return self.read(path)
        except (OSError, EOFError, ValueError, KeyError, zlib.error, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read as a table ({error_text(error)})") from None


class Csv(CsvFormat, TableSource):
    """Your own table in one CSV file with a column of clients, or in a folder with a CSV file for each client.

    The first line has the columns' names. Numbers, dates (2026-11-22) and booleans are detected. Empty cells, NA, NaN
    and the texts in `missing` are missing values. Ids of clients and groups stay texts, so that 01 is not 1. Columns in
    `categories`, and the target if `kind` says that it holds classes, stay texts if they have numbers such as 007 or
    250.00. Without `kind` numbers of the target are numbers: 01 is the class 1. Files may be compressed (.csv.gz).
    delimiter: what divides the cells; without it what Excel's first line `sep=;` says, or the comma, semicolon, tab or
    bar that is most often in the first line, and as often in the second. decimal, thousands: the decimal sign, and the
    comma, point, apostrophe or space between thousands; without them, decimal commas and separators are detected where
    they are unambiguous, and refused where they are ambiguous. dates: the order of day, month and year, unless dates
    are written 2026-11-22 or 22.11.2026.
    """

    source: Literal["csv"] = "csv"

    endings: ClassVar = (".csv", ".csv.gz")

    def read(self, path: Path) -> pa.Table:
        names = [name for name in (self.client, self.group, self.person) if name is not None]
        return read_csv(path, self, names, self.coded, [*self.leave_out, *([self.tokens] if self.tokens else [])])


class Parquet(TableSource):
    """Your own table in one Parquet file with a column of clients, or in a folder with a file for each client."""

    source: Literal["parquet"] = "parquet"

    endings: ClassVar = (".parquet", ".pq")

    def read(self, path: Path) -> pa.Table:
        return read_parquet(path, lists=() if self.tokens is None else (self.tokens,))


# -- warnings about a table ----------------------------------------------------------------------------------------


def unnamed_codes(table: pa.Table, reading: Reading) -> dict[str, str]:
    """Return {column: example} for inputs that are read as numbers but written like codes."""
    named = {*reading.roles.values(), *reading.leave_out, *reading.categories}
    return {name: value for name, value in code_like(table).items() if name not in named}


def warn(table: pa.Table, reading: Reading, where: str) -> None:
    """Warn about columns of numbers that look like codes, and about columns that needed interpretation."""
    if codes := unnamed_codes(table, reading):
        columns = first_few([f"{escaped(name, 60)} ({escaped(value, 40)})" for name, value in codes.items()])
        _LOG.warning("%s: whole numbers with leading zeros are read as numbers: %s; if they are codes, name them in "
                     "data.categories", where, columns)  # fmt: skip
    notes = [
        f"column {escaped(name, 60)!r}: {note}"
        for name, note in column_notes(table).items()
        if name not in reading.leave_out
    ]
    if notes:
        _LOG.warning("%s: %s", where, first_few(notes, 5))


def all_rare_columns(table: pa.Table, encoding: Encoding, least: int) -> dict[str, str]:
    """Return {column: what to say} for categories of which no value has an input of its own, unless a note names them.

    Such a column says only whether it is empty.
    """
    said, noted = dict[str, str](), column_notes(table)
    how = "write numbers plainly, or texts in fewer categories, or leave the column out"
    for name in [name for name, values in encoding.values.items() if not values and name not in noted]:
        if different := codes(table, name)[0]:
            what = f"has {len(different)} texts, such as {escaped(different[0], 40)!r}"
            rare = f"none is in {least} training rows: all share one input"
            said[name] = f"column {escaped(name, 60)!r} {what}, and {rare}; {how}"
    return said


# -- data sets -----------------------------------------------------------------------------------------------------


def dataset_of(table: pa.Table, reading: Reading, where: str, shared: SharedEncoding | None = None) -> Dataset:
    """The data set of a table; raises DataError naming its path `where`, the column and the row.

    shared: the common encoding of a federation, if the table is that of one participant.
    """
    arrays = encoded(table, reading, where, None if shared is None else (shared.encoding, shared.target))
    if said := all_rare_columns(table, arrays.encoding, reading.least):
        _LOG.warning("%s: %s", where, first_few(list(said.values()), 5))
    dataset = _dataset(torch.from_numpy(arrays.x), arrays.y, arrays.columns, arrays.target, reading, where)
    return replace(dataset, encoding=arrays.encoding)


def dataset_beside(
    x: torch.Tensor, table: pa.Table, reading: Reading, where: str, target: Target | None = None,
    scale: Scale | None = None,
) -> Dataset:  # fmt: skip
    """The data set of inputs x [n, ...] and a table with n rows, whose columns give targets, clients and split.

    target: what the target means (None: found in the table). Raises DataError naming `where`, the column and the row.
    """
    columns = columns_of(table, reading, where)
    target = find_target(table, reading, columns, where) if target is None else target
    return replace(_dataset(x, target(table, reading.target), columns, target, reading, where), scale=scale)


def _dataset(
    x: torch.Tensor, y: npt.NDArray[Any], columns: Columns, target: Target, reading: Reading, where: str
) -> Dataset:  # fmt: skip
    untested = [id for id, rows in columns.rows.items() if not columns.is_test[rows].any()]
    if untested and reading.test_fraction and "split" not in reading.roles:
        how = "a client needs two rows, or two persons if data.person names them"
        _LOG.warning("%s: %d of %d clients have no test rows: %s; %s", where, len(untested), len(columns.rows),
                     first_few(untested), how)  # fmt: skip
    every = Part(x, torch.from_numpy(y), columns.client, columns.group, columns.person, columns.time)
    train, test = every.split(columns.is_test)
    return Dataset(Path(where).name.split(".")[0], train, test, target.task(*x.shape[1:]), target=target)


def _token_ids(row: Any, where: str) -> list[int]:
    """Return the token ids of a row; raises DataError if it holds anything else."""
    ids = _ids_in_text(row) if isinstance(row, str) else [row] if type(row) is int else row
    if not isinstance(ids, list) or not all(type(one) is int and one >= 0 for one in ids):
        got = escaped(repr(row), 40)
        raise DataError(f"{where}: expected a list of whole numbers, got {got}; tokenise texts first")
    if max(ids, default=0) >= 2**63:
        raise DataError(f"{where}: expected whole numbers below 2**63, got {escaped(repr(row), 40)}")
    return ids


def _ids_in_text(text: str) -> list[int] | None:
    words = text.split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        return None
    # 20 digits are too many for an id, and Python refuses to convert more than 4,300.
    return [int(word.lstrip("0")[:20] or 0) for word in words]
