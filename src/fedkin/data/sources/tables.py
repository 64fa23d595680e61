"""Your own tables, as CSV or Parquet: settings that say what the columns are for, and the way to a data set."""

from __future__ import annotations

import logging
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import ROOTED
from fedkin.data.sources.base import Source, locate
from fedkin.errors import DataError, nearest
from fedkin.federation import Task
from fedkin.untrusted import most, said, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from fedkin.data.tables import Written
    from fedkin.federation.summaries import SharedEncoding
    from fedkin.federation.table import Reading

__all__ = ["Csv", "Parquet", "TableSource", "dataset_of", "ids_of", "unnamed_codes", "warn_of_codes", "warn_of_notes"]

# The column of the clients where each has a file of its own.
FILE = "file"
_LOG = logging.getLogger("fedkin")


class TableSource(Source):
    """A table with one row per sample: one file with a column of clients, or a folder with one file for each client.

    path: absolute, or below the data root, or else below the current folder. target: the column to predict. client: the
    column of clients; in a folder, without it, a client is a file by its name. tokens: the column of token ids, then
    the only input: lists of whole numbers, or texts of them such as "101 7592 102", cut to `length` and filled up with
    `padding`. What the other settings mean is said at `Federation.from_frame`.
    """

    path: Path
    target: str
    client: str | None = None
    time: str | None = None
    group: str | None = None
    person: str | None = None
    kind: Literal["classification", "risk", "regression"] | None = None
    positive: str | None = None
    split: str | None = None
    test_fraction: float = Field(0.2, ge=0, lt=1)
    leave_out: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    least: int = Field(10, ge=1)
    seed: int = Field(0, ge=0)
    tokens: str | None = None
    length: int | None = Field(None, ge=1)
    padding: int = Field(0, ge=0)

    @property
    @abstractmethod
    def endings(self) -> tuple[str, ...]:
        """Endings of the files that this source reads, in small letters."""

    @abstractmethod
    def read(self, path: Path) -> pa.Table:
        """The table of one file; raises OSError and ValueError."""

    def alike(self, tables: list[pa.Table]) -> list[pa.Table]:
        """The tables of several files, with the types that they are to have in common."""
        return tables

    def rows(self, root: Path) -> tuple[pa.Table, str | None]:
        """(all rows, the column of the clients, if it is known); raises DataError naming the file."""
        place = locate(root, self.path)
        if not place.exists():
            raise DataError(f"{place}: no such file or folder; expected {' or '.join(self.endings)}{ROOTED}")
        if place.is_dir():
            return self._folder(place)
        from fedkin.federation.table import with_files

        table = self._file(place)
        return with_files(table, [(place.name, table.num_rows)]), self.client

    def table(self, root: Path) -> tuple[pa.Table, str]:
        """(all rows, the column of the clients); raises DataError naming the file and what was expected."""
        table, client = self.rows(root)
        if client is None:
            raise DataError(
                f"{locate(root, self.path)}: data.client: expected the name of the column that says whose each row is; "
                f"the table has {', '.join(map(shown, table.column_names))}"
            )
        return table, client

    def reading(self, client: str) -> Reading:
        """What the columns are for; client: the column of the clients."""
        from fedkin.federation.table import Reading

        return Reading(
            self.target, client, self.time, self.group, self.kind, self.positive, self.split, self.test_fraction,
            self.leave_out, self.categories, self.least, self.seed, self.person,
        )  # fmt: skip

    def load(self, root: Path) -> Dataset:
        """Read the files; raises DataError naming the file, the column and the row."""
        table, client = self.table(root)
        where, reading = str(locate(root, self.path)), self.reading(client)
        if self.tokens is not None:
            return _of_tokens(table, reading, self.tokens, self.length, self.padding, where)
        warn_of_codes(table, reading, where)
        warn_of_notes(table, reading, where)
        return dataset_of(table, reading, where)

    def _file(self, path: Path) -> pa.Table:
        import pyarrow as pa

        try:
            return self.read(path)
        except (OSError, EOFError, ValueError, KeyError, zlib.error, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read as a table ({said(error)})") from None

    def _ending(self, path: Path) -> str | None:
        """Which of the endings a file has, whatever its letters' case."""
        return next((end for end in self.endings if path.name.lower().endswith(end)), None)

    def _folder(self, place: Path) -> tuple[pa.Table, str]:
        """The tables of all files; the same columns are expected in each."""
        import pyarrow as pa

        from fedkin.data.tables import code_like, noted, with_notes
        from fedkin.federation.table import with_files

        entries = sorted(path for path in place.iterdir() if not path.name.startswith("."))
        files = [path for path in entries if path.is_file() and self._ending(path) is not None]
        if not files:
            raise DataError(f"{place}: no {' or '.join(self.endings)} in it; expected one file for each client")
        every = {path: self._file(path) for path in files}
        left_out = {path: "a folder" if path.is_dir() else "another ending" for path in entries if path not in every}
        left_out |= {path: "no rows" for path, table in every.items() if not table.num_rows}
        _say_left_out(place, len(entries), left_out)
        files = [path for path in files if path not in left_out] or files
        tables = [every[path] for path in files]
        _same_columns(files, tables, self.leave_out)
        if self.client is None:
            tables = self._with_names(files, tables)
        codes = {name: value for table in tables for name, value in code_like(table).items()}
        notes = {name: f"{note} ({path.name})" for path, table in zip(files, tables, strict=True)
                 for name, note in noted(table).items()}  # fmt: skip
        tables = self.alike(_without(tables, self.leave_out))
        try:
            whole = pa.concat_tables(tables, promote_options="permissive")
        except (TypeError, ValueError, pa.ArrowException) as error:
            which = _unlike(files, tables) or said(error)
            raise DataError(f"{place}: a column has values of different kinds in two files ({which})") from None
        whole = with_files(whole, [(path.name, table.num_rows) for path, table in zip(files, tables, strict=True)])
        return with_notes(whole, notes, codes), self.client or FILE

    def _with_names(self, files: list[Path], tables: list[pa.Table]) -> list[pa.Table]:
        """The tables with the name of its file in each row: the file's own, without its ending."""
        import pyarrow as pa

        if FILE in tables[0].column_names:
            raise DataError(f"{files[0]}: a column is called {FILE!r}; name the column of clients: data.client")
        ids = [path.name[: -len(self._ending(path) or "")] for path in files]
        if twice := [path for place, path in enumerate(files) if ids[place] in ids[:place]]:
            raise DataError(
                f"{twice[0]}: another file has the same name but for its ending; each is a client: rename one"
            )
        return [
            table.append_column(FILE, pa.array([id] * table.num_rows, pa.string()))
            for id, table in zip(ids, tables, strict=True)
        ]


class Csv(TableSource):
    """Your own table in one CSV file with a column of clients, or in a folder with a CSV file for each client.

    The first line has the columns' names. Numbers, dates (2026-11-22) and booleans are found; empty cells, NA and NaN
    are missing values, and what `missing` names; ids of clients and groups are the texts of the file, so that 01 is not
    1; so are the columns in `categories`, and the target if `kind` says that it is classes, with numbers such as 007 or
    250.00. Without `kind` numbers of the target are numbers: 01 is the class 1. Files may be packed (.csv.gz).
    delimiter: what separates the cells; without it a comma, or, if the first line has none, the semicolon, tab or bar
    that is most often in it. decimal, thousands: the marks in numbers; without them decimal commas, marks between
    thousands, currencies and units are found where they can mean one thing, and refused where they can mean two. dates:
    the order of day, month and year, where dates are not written 2026-11-22 or 22.11.2026.
    """

    source: Literal["csv"] = "csv"
    delimiter: str | None = Field(None, min_length=1, max_length=1)
    decimal: Literal[".", ","] | None = None
    thousands: str | None = Field(None, min_length=1, max_length=1)
    missing: tuple[str, ...] = ()
    dates: Literal["D.M.Y", "D/M/Y", "M/D/Y"] | None = None

    @property
    def endings(self) -> tuple[str, ...]:
        return (".csv", ".csv.gz")

    @property
    def written(self) -> Written:
        """How the files are written, as far as the settings say it."""
        from fedkin.data.tables import Written

        names = [name for name in (self.client, self.group, self.person) if name is not None]
        untyped = [*self.leave_out, *([] if self.tokens is None else [self.tokens])]
        return Written(
            self.delimiter, self.decimal, self.thousands, self.missing, self.dates, names, self._coded, untyped
        )

    def read(self, path: Path) -> pa.Table:
        from fedkin.data.tables import read_csv

        return read_csv(path, self.written)

    def alike(self, tables: list[pa.Table]) -> list[pa.Table]:
        """The tables with texts in columns of names where some of them have texts: "007" in one file, 12 in another."""
        import pyarrow as pa

        from fedkin.federation.table import texts

        tables = list(tables)
        for name in set(self._coded) & set(tables[0].column_names):
            kinds = [table.schema.field(name).type for table in tables]
            if pa.string() not in kinds:
                continue
            for place, (table, kind) in enumerate(zip(tables, kinds, strict=True)):
                if pa.types.is_integer(kind) or pa.types.is_floating(kind):
                    column = table.column_names.index(name)
                    tables[place] = table.set_column(column, name, pa.array(texts(table, name), pa.string()))
        return tables

    @property
    def _coded(self) -> list[str]:
        """The columns whose numbers are names: of categories, and of classes."""
        return [*self.categories, *([self.target] if self.kind in ("classification", "risk") else [])]


class Parquet(TableSource):
    """Your own table in one Parquet file with a column of clients, or in a folder with a file for each client."""

    source: Literal["parquet"] = "parquet"

    @property
    def endings(self) -> tuple[str, ...]:
        return (".parquet", ".pq")

    def read(self, path: Path) -> pa.Table:
        from fedkin.data.tables import read_parquet

        return read_parquet(path, lists=() if self.tokens is None else (self.tokens,))


# -- what is said of a table ---------------------------------------------------------------------------------------


def unnamed_codes(table: pa.Table, reading: Reading) -> dict[str, str]:
    """Inputs that are read as numbers and written like codes, each with such a value."""
    from fedkin.data.tables import code_like

    no_inputs = {reading.target, reading.client, reading.time, reading.group, reading.person, reading.split}
    named = {*no_inputs, *reading.leave_out, *reading.categories}
    return {name: value for name, value in code_like(table).items() if name not in named}


def warn_of_codes(
    table: pa.Table, reading: Reading, where: str, advice: str = "if they are codes, name them in data.categories"
) -> None:
    """Warn of columns that look like codes and are read as numbers."""
    if codes := unnamed_codes(table, reading):
        _LOG.warning(
            "%s: whole numbers with leading zeros are read as numbers: %s; %s", where,
            _listed([f"{shown(name, 60)} ({shown(value, 40)})" for name, value in codes.items()]), advice,
        )  # fmt: skip


def warn_of_notes(table: pa.Table, reading: Reading, where: str) -> None:
    """Say how columns were read that are not written plainly."""
    from fedkin.data.tables import noted

    notes = {name: note for name, note in noted(table).items() if name not in reading.leave_out}
    if notes:
        _LOG.warning("%s: %s", where, _listed([f"column {shown(name, 60)!r}: {note}" for name, note in notes.items()]))


def _listed(items: Sequence[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _say_left_out(place: Path, count: int, left_out: dict[Path, str]) -> None:
    """Say which entries of a folder are not read, and why."""
    if left_out:
        names = _listed([f"{shown(path.name, 60)} ({why})" for path, why in sorted(left_out.items())])
        _LOG.warning("%s: %d of %d entries are left out: %s", place, len(left_out), count, names)


# -- files that are to go together ---------------------------------------------------------------------------------


def _same_columns(files: list[Path], tables: list[pa.Table], leave_out: Sequence[str]) -> None:
    """Raise DataError for the file whose columns are not those of most, but for columns that are left out."""
    sets = [frozenset(table.column_names) - set(leave_out) for table in tables]
    usual = max(sets, key=sets.count)
    for path, columns in zip(files, sets, strict=True):
        if columns != usual:
            lacking, more = (", ".join(map(shown, sorted(names))) for names in (usual - columns, columns - usual))
            found = [f"no column {lacking}, which the other files have"] if lacking else []
            found += [f"a column {more}, which the other files do not have"] if more else []
            raise DataError(
                f"{path}: {', and '.join(found)}; expected the same ones in each, or those in data.leave_out"
            )


def _without(tables: list[pa.Table], names: Iterable[str]) -> list[pa.Table]:
    """The tables with nothing in the columns of these names: who leaves a column out may have any kinds in it."""
    import pyarrow as pa

    plain = []
    for table in tables:
        for name in set(names) & set(table.column_names):
            table = table.set_column(table.column_names.index(name), name, pa.nulls(table.num_rows))
        plain.append(table)
    return plain


def _unlike(files: list[Path], tables: list[pa.Table]) -> str | None:
    """Say which column cannot be joined, with the kinds of two files; of a text beside numbers, the first such one."""
    import pyarrow as pa

    from fedkin.federation.table import is_number, name_of_type, texts

    for name in tables[0].column_names:
        types = [table.schema.field(name).type for table in tables]
        try:
            pa.concat_tables([table.select([name]) for table in tables], promote_options="permissive")
            continue
        except (TypeError, ValueError, pa.ArrowException):
            kinds = [name_of_type(kind) for kind in types]
        at = kinds.index("texts") if "texts" in kinds else 0
        other = next((i for i, kind in enumerate(kinds) if kind not in (kinds[at], "nothing")), None)
        if other is None:  # of one kind, stored in ways that do not go together
            zones = {getattr(kind, "tz", None) for kind in types if pa.types.is_timestamp(kind)}
            if len(zones) > 1:
                zoned = next(i for i, kind in enumerate(types) if getattr(kind, "tz", None))
                plain = next(i for i, kind in enumerate(types) if getattr(kind, "tz", None) is None)
                return (f"{shown(name)}: times in {files[zoned].name} have a zone, those in {files[plain].name} have "
                        "none: write all with, or all without")  # fmt: skip
            return (
                f"{shown(name)}: {files[0].name} has {types[0]}, another one {next(k for k in types if k != types[0])}"
            )
        example = ""
        if kinds[at] == "texts":
            values = [(row, str(one)) for row, one in enumerate(texts(tables[at], name), 1) if one is not None]
            row, value = next((pair for pair in values if not is_number(pair[1])), values[0])
            example = f", such as {shown(value)!r} in row {row}"
        advice = "write numbers in all, or name it in categories or leave_out"
        if kinds[other] != "numbers":
            advice = f"write {kinds[other]} in all, or name it in leave_out"
        return f"{shown(name)}: {files[at].name} has {kinds[at]}{example}, {files[other].name} {kinds[other]}: {advice}"
    return None


# -- data sets -----------------------------------------------------------------------------------------------------


def dataset_of(table: pa.Table, reading: Reading, where: str, shared: SharedEncoding | None = None) -> Dataset:
    """The data set of a table from the path `where`; raises DataError naming that, the column and the row.

    shared: the encoding of a whole federation, of which these are the rows of one participant.
    """
    from fedkin.federation.encoding import encoded

    arrays = encoded(table, reading, where, None if shared is None else (shared.encoding, shared.target))
    x, y = torch.from_numpy(arrays.x), torch.from_numpy(arrays.y)
    train, test = _parts(x, y, arrays.client, arrays.group, arrays.held)
    name = Path(where).name.split(".")[0]
    return Dataset(name, train, test, arrays.task, encoding=arrays.encoding, target=arrays.target)


def _parts(x: torch.Tensor, y: torch.Tensor, client: Any, group: Any, held: Any) -> tuple[Part, Part]:
    """(training rows, test rows)."""
    train, test = (
        Part(x[rows], y[rows], client[rows], None if group is None else group[rows]) for rows in (~held, held)
    )
    return train, test


def _of_tokens(
    table: pa.Table, reading: Reading, tokens: str, length: int | None, padding: int, where: str
) -> Dataset:  # fmt: skip
    """The data set of a table whose inputs are one column of token ids; raises DataError naming `where`."""
    from fedkin.federation.encoding import target_of
    from fedkin.federation.table import columns_of

    if tokens not in table.column_names:
        raise DataError(f"{where}: data.tokens: no column {tokens!r}; {nearest(tokens, table.column_names)}")
    x = ids_of(table.column(tokens).to_pylist(), length, padding, where, tokens)
    others = table.drop_columns([tokens])
    columns = columns_of(others, reading, where)
    target = target_of(others, reading, columns, where)
    y = torch.from_numpy(target(others, reading.target))
    train, test = _parts(x, y, columns.client, columns.group, columns.held)
    shape = tuple(x.shape[1:])
    task = Task.regression(1, shape) if target.kind == "regression" else Task(len(target.classes), shape, target.kind)
    return Dataset(Path(where).name.split(".")[0], train, test, task, target=target)


def ids_of(rows: Sequence[Any], length: int | None, padding: int, where: str, column: str) -> torch.Tensor:
    """Return [n, length] int64 token ids of lists of whole numbers, of single ones, or of texts such as "101 7592 102".

    Longer rows are cut; length: None is that of the longest row. Raises DataError that names `where`, the row and the
    column.
    """
    lists: list[list[int]] = []
    for number, given in enumerate(rows):
        row = _token_ids(given)
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
    ids = np.full((len(lists), max(size, 1)), padding, np.int64)
    for number, row in enumerate(lists):
        ids[number, : min(len(row), size)] = row[:size]
    return torch.from_numpy(ids)


def _token_ids(row: Any) -> list[int] | None:
    """Return the token ids of a row; None if it holds anything else."""
    if type(row) is int:
        row = [row]
    if isinstance(row, str):
        words = row.split()
        # 20 digits are too many for an id, and Python takes no more than 4,300.
        ids = [int(w.lstrip("0")[:20] or 0) for w in words if w.isascii() and w.isdigit()]
        return ids if words and len(ids) == len(words) else None
    return row if isinstance(row, list) and all(type(one) is int and one >= 0 for one in row) else None
