"""What the sources of tables share: settings that say what the columns are for, and the way to a data set."""

from __future__ import annotations

import logging
import zlib
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import ROOTED
from fedkin.data.sources._tokens import texts_of
from fedkin.data.sources.base import Source, locate
from fedkin.errors import DataError
from fedkin.untrusted import said, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from fedkin.federation.summaries import SharedEncoding
    from fedkin.federation.table import Reading

__all__ = ["TableSource", "caution", "dataset_of", "unnamed_codes"]

# The column of the clients where each has a file of its own.
FILE = "file"


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
        """Endings of the files that this source reads."""

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
            self.leave_out, self.categories, self.least, self.seed,
        )  # fmt: skip

    def load(self, root: Path) -> Dataset:
        """Read the files; raises DataError naming the file, the column and the row."""
        table, client = self.table(root)
        if self.tokens is not None:
            where = str(locate(root, self.path))
            return texts_of(table, self.reading(client), self.tokens, self.length, self.padding, where)
        return dataset_of(table, self.reading(client), str(locate(root, self.path)))

    def _file(self, path: Path) -> pa.Table:
        import pyarrow as pa

        try:
            return self.read(path)
        except (OSError, EOFError, ValueError, KeyError, zlib.error, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read as a table ({said(error)})") from None

    def _folder(self, place: Path) -> tuple[pa.Table, str]:
        """The tables of all files; the same columns are expected in each."""
        import pyarrow as pa

        from fedkin.data.tables import code_like, with_code_like
        from fedkin.federation.table import with_files

        files = sorted(path for path in place.iterdir() if path.is_file() and path.name.endswith(self.endings))
        if not files:
            raise DataError(f"{place}: no {' or '.join(self.endings)} in it; expected one file for each client")
        tables = [self._file(path) for path in files]
        columns = set(tables[0].column_names)
        _same_columns(files, tables)
        if self.client is None:
            if FILE in columns:
                raise DataError(f"{files[0]}: a column is called {FILE!r}; name the column of clients: data.client")
            tables = [
                table.append_column(FILE, pa.array([path.name.split(".")[0]] * table.num_rows, pa.string()))
                for path, table in zip(files, tables, strict=True)
            ]
        found = {name: value for table in tables for name, value in code_like(table).items()}
        tables = self.alike(_without(tables, self.leave_out))
        try:
            whole = pa.concat_tables(tables, promote_options="permissive")
        except (TypeError, ValueError, pa.ArrowException) as error:
            which = _unlike(files, tables) or said(error)
            raise DataError(f"{place}: a column has values of different kinds in two files ({which})") from None
        whole = with_files(whole, [(path.name, table.num_rows) for path, table in zip(files, tables, strict=True)])
        return with_code_like(whole, found), self.client or FILE


def unnamed_codes(table: pa.Table, reading: Reading) -> dict[str, str]:
    """Inputs that are read as numbers and written like codes, each with such a value."""
    from fedkin.data.tables import code_like

    roles = {reading.target, reading.client, reading.time, reading.group, reading.split}
    named = {*roles, *reading.leave_out, *reading.categories}
    return {name: value for name, value in code_like(table).items() if name not in named}


def caution(
    table: pa.Table, reading: Reading, where: str, advice: str = "if they are codes, name them in data.categories"
) -> None:
    """Warn of columns that look like codes and are read as numbers."""
    if found := unnamed_codes(table, reading):
        told = ", ".join(f"{shown(name, 60)} ({shown(value, 40)})" for name, value in list(found.items())[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        logging.getLogger("fedkin").warning(
            "%s: whole numbers with leading zeros are read as numbers: %s%s; %s", where, told, more, advice
        )


def _same_columns(files: list[Path], tables: list[pa.Table]) -> None:
    """Raise DataError for the file whose columns are not those of most."""
    sets = [frozenset(table.column_names) for table in tables]
    usual = max(sets, key=sets.count)
    for path, columns in zip(files, sets, strict=True):
        if columns != usual:
            lacking, more = (", ".join(map(shown, sorted(names))) for names in (usual - columns, columns - usual))
            told = [f"no column {lacking}, which the other files have"] if lacking else []
            told += [f"a column {more}, which the other files do not have"] if more else []
            raise DataError(f"{path}: {', and '.join(told)}; expected the same ones in each")


def _without(tables: list[pa.Table], names: Iterable[str]) -> list[pa.Table]:
    """The tables with nothing in the columns of these names: who leaves a column out may have any kinds in it."""
    import pyarrow as pa

    tables = list(tables)
    for name in set(names) & set(tables[0].column_names):
        for place, table in enumerate(tables):
            at = table.column_names.index(name)
            tables[place] = table.set_column(at, name, pa.nulls(table.num_rows))
    return tables


def _unlike(files: list[Path], tables: list[pa.Table]) -> str | None:
    """Say which column cannot be joined, with the kinds of two files; of a text beside numbers, the first such one."""
    import pyarrow as pa

    from fedkin.federation.table import texts

    for name in tables[0].column_names:
        of = [table.select([name]) for table in tables]
        try:
            pa.concat_tables(of, promote_options="permissive")
            continue
        except (TypeError, ValueError, pa.ArrowException):
            kinds = [_kind(table.schema.field(name).type) for table in tables]
        at = kinds.index("texts") if "texts" in kinds else 0
        other = next((i for i, kind in enumerate(kinds) if kind not in (kinds[at], "nothing")), None)
        if other is None:  # of one kind, stored in ways that do not go together
            return shown(name)
        such = ""
        if kinds[at] == "texts":
            row, value = _first_text(texts(tables[at], name))
            such = f", such as {shown(value)!r} in row {row}"
        advice = "write numbers in all, or name it in categories or leave_out"
        if kinds[other] != "numbers":
            advice = f"write {kinds[other]} in all, or name it in leave_out"
        return f"{shown(name)}: {files[at].name} has {kinds[at]}{such}, {files[other].name} {kinds[other]}: {advice}"
    return None


def _kind(stored: pa.DataType) -> str:
    """What people call values of this type."""
    import pyarrow as pa

    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    if pa.types.is_null(stored):
        return "nothing"
    if pa.types.is_boolean(stored):
        return "true and false"
    if pa.types.is_temporal(stored):
        return "times" if pa.types.is_time(stored) else "durations" if pa.types.is_duration(stored) else "dates"
    numeric = pa.types.is_integer(stored) or pa.types.is_floating(stored) or pa.types.is_decimal(stored)
    return "numbers" if numeric else "texts"


def _first_text(values: Iterable[str | None]) -> tuple[int, str]:
    """Return (row, value) of the first text that is no number, counted from 1; else of the first."""
    found = [(row, str(value)) for row, value in enumerate(values, 1) if value is not None]
    for row, value in found:
        try:
            float(value)
        except ValueError:
            return row, value
    return found[0]


def dataset_of(table: pa.Table, reading: Reading, where: str, agreed: SharedEncoding | None = None) -> Dataset:
    """The data set of a table from the path `where`; raises DataError naming that, the column and the row.

    agreed: what all participants of a federation agreed on, of which these are the rows of one.
    """
    from fedkin.federation.encoding import encoded

    if agreed is None:  # else it was said when the participant read its table
        caution(table, reading, where)
    made = encoded(table, reading, where, None if agreed is None else (agreed.encoding, agreed.target))

    def part(chosen: Any) -> Part:
        return Part(
            torch.from_numpy(made.x[chosen]), torch.from_numpy(made.y[chosen]), made.client[chosen],
            None if made.group is None else made.group[chosen],
        )  # fmt: skip

    name = Path(where).name.split(".")[0]
    return Dataset(name, part(~made.held), part(made.held), made.task, encoding=made.encoding, target=made.target)
