"""Read CSV and Parquet files, or a folder of them, into Arrow tables, with notes on how columns were interpreted.

The cells of a CSV file are read as texts first. Each column then becomes numbers, dates, truth values or texts
(`csv_cells.py`).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from fedkin.data.csv_cells import DETECTED, CsvFormat, code_example, rows_where, typed_column
from fedkin.errors import DataError, first_few
from fedkin.federation.table_values import name_of_type, remember, remembered, texts, without_views
from fedkin.untrusted import Refused, error_text, escaped, most, parquet_in, within

_LOG = logging.getLogger("fedkin")

_BLOCK = 1 << 20


def column_notes(table: pa.Table) -> dict[str, str]:
    """Return {column: note} for columns that needed interpretation; the note says how they were read."""
    return _of_columns(table, "notes")


def code_like(table: pa.Table) -> dict[str, str]:
    """Return {column: example} for columns of whole numbers that have leading zeros in the file, such as "007"."""
    return _of_columns(table, "codes")


def _of_columns(table: pa.Table, what: str) -> dict[str, str]:
    held, columns = remembered(table, what), set(table.column_names)
    items = held.items() if isinstance(held, dict) else ()
    return {name: value for name, value in items if name in columns and isinstance(value, str)}


# -- files ---------------------------------------------------------------------------------------------------------


def read_parquet(path: Path, lists: Collection[str] = ()) -> pa.Table:
    """All columns of a Parquet file. lists: columns that may hold lists of whole numbers."""
    table = without_views(parquet_in(path, lists=lists))
    # By default, pandas stores its row numbers as a column.
    return table.drop_columns([name for name in table.column_names if re.fullmatch(r"__index_level_\d+__", name)])


def read_csv(
    path: Path, csv_format: CsvFormat = DETECTED, names: Collection[str] = (), coded: Collection[str] = (),
    untyped: Collection[str] = (),
) -> pa.Table:  # fmt: skip
    """All columns of a CSV file in UTF-8, each in the type that fits all its cells; see `column_notes` and `code_like`.

    The delimiter is that of a first line `sep=;`, or the one of comma, ";", tab and "|" that the first line has most
    often, and the second as often. names: columns of names, which stay texts: "01" is not "1". coded: columns of
    categories, which stay texts unless all their numbers are spelt as usual (not "007", "1.50", "1E2"). untyped:
    columns that stay texts.

    Raises OSError, ValueError and pyarrow's errors.
    """
    _check_text(path)
    table, delimiter = _read_cells(path, csv_format)
    _check_quotes(table, delimiter)
    notes, leading = dict[str, str](), dict[str, str]()
    for index, name in enumerate(table.column_names):
        if name in untyped:
            continue
        cells = table.column(index)
        typed, note = typed_column(cells, name, csv_format, delimiter, as_name=name in names, as_code=name in coded)
        table = table.set_column(index, name, typed)
        if note:
            notes[name] = note
        if code := code_example(cells, typed):
            leading[name] = code
    return remember(remember(table, "notes", notes), "codes", leading)


def _read_cells(path: Path, csv_format: CsvFormat) -> tuple[pa.Table, str]:
    """(all cells of a CSV file as texts, the delimiter)."""
    import pyarrow.csv as pc_csv

    head, skip, delimiter = _header(path, csv_format.delimiter)
    size = path.stat().st_size
    options = pc_csv.ConvertOptions(
        column_types=dict.fromkeys(head, pa.string()), strings_can_be_null=True,
        null_values=[*pc_csv.ConvertOptions().null_values, *csv_format.missing],
    )  # fmt: skip
    # A cell must fit into two blocks that are read at once; unpacked, a .gz file may be far larger.
    block = max(_BLOCK, min(30 * size if path.suffix == ".gz" else size + 1, (1 << 31) - 1))
    reading = pc_csv.ReadOptions(block_size=block, skip_rows=skip)
    parsing = pc_csv.ParseOptions(newlines_in_values=True, delimiter=delimiter)
    with pc_csv.open_csv(path, reading, parsing, options) as batches:
        table = pa.Table.from_batches(within(batches, most(size)), batches.schema)
    if odd := [field.name for field in table.schema if not pa.types.is_string(field.type)]:
        raise Refused(f"the name of column {escaped(odd[0], 40)!r} has several lines; expected names in one line")
    return table, delimiter


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb"))


def _header(path: Path, delimiter: str | None) -> tuple[list[str], int, str]:
    """(names of the columns, lines before them, the delimiter)."""
    with _opened(path) as file:
        decoded = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")  # any line end becomes \n
        lines = [decoded.readline(1 << 16) for _ in range(3)]
    skip, stated = 0, re.fullmatch(r'"?sep=(.)"?\s*', lines[0])  # as Excel writes it
    if stated is not None:
        skip, delimiter = 1, delimiter or stated[1]
    if delimiter is None:
        delimiter = _delimiter(lines[skip], lines[skip + 1])
    return next(csv.reader(io.StringIO(lines[skip]), delimiter=delimiter), []), skip, delimiter


# A quoted cell, which may continue on the next line.
_QUOTED = re.compile(r'(?:^|(?<=[,;\t|]))"(?:[^"]|"")*(?:"|$)')


def _delimiter(first: str, second: str) -> str:
    """The first line's most frequent mark that the second line has equally often, else its most frequent mark."""
    first, second = _QUOTED.sub("", first), _QUOTED.sub("", second)
    by_count = sorted(",;\t|", key=lambda mark: -first.count(mark))
    return next((mark for mark in by_count if first.count(mark) == second.count(mark) > 0), by_count[0])


_SAVE = "save it as UTF-8 (in a spreadsheet: CSV UTF-8)"


def _check_text(path: Path) -> None:
    """Raise Refused for a file that is not UTF-8 or has NUL bytes, naming the line; compressed ones are unpacked."""
    limit, read = most(path.stat().st_size), 0
    with _opened(path) as file:
        if _is_text(file, limit):
            return
        file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(limit + 1), b""), 1):
            if number == 1 and 0 in line[:4]:  # in UTF-16 and UTF-32 every other byte is zero
                raise Refused(f"the file is UTF-16 or UTF-32, not UTF-8; {_SAVE}")
            read += len(line)
            if read > limit:
                return  # the reader of the table raises the error
            if 0 in line:
                raise Refused(f"line {number} has a NUL byte: the file is damaged, or no text; restore it")
            try:
                line.decode()
            except UnicodeDecodeError as error:
                near = repr(line[max(0, error.start - 20) : error.start + 10].rstrip(b"\n").decode("latin-1"))
                what = f"{escaped(near)} is not UTF-8, perhaps Latin-1 or Windows-1252; {_SAVE}"
                raise Refused(f"line {number}: {what}") from None


def _is_text(file: BinaryIO, limit: int) -> bool:
    """Whether a file, or its first `limit` bytes and the rest of their block, is UTF-8 without NUL bytes."""
    decoder, left = codecs.getincrementaldecoder("utf-8")(), limit
    try:
        while block := file.read(_BLOCK) if left >= 0 else b"":
            left -= len(block)
            decoder.decode(block)
            if 0 in block:
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _check_quotes(table: pa.Table, delimiter: str) -> None:
    """Raise Refused for a cell that contains rows of the table, because a quote in it was opened by mistake."""
    for index, name in enumerate(table.column_names):
        column = table.column(index)
        for row in rows_where(pc.greater(pc.count_substring(column, "\n"), 2)):
            inner = column[row].as_py().split("\n")[1:-1]
            if all(line.count(delimiter) == table.num_columns - 1 for line in inner):
                cell = f"row {row + 1}: the cell of {escaped(name, 60)!r} has {len(inner) + 2} lines"
                why = "a quote that opens there is never closed, or closed much later; remove or double it"
                raise Refused(f"{cell}, each like a row of the table: {why}")


# -- a folder of files ---------------------------------------------------------------------------------------------

# Name of the column of clients if each client has its own file.
FILE = "file"


def read_folder(
    folder: Path, read: Callable[[Path], pa.Table], endings: Sequence[str], client: str | None,
    leave_out: Sequence[str], coded: Collection[str],
) -> tuple[pa.Table, str]:  # fmt: skip
    """(the rows of all files, the column of the clients); the same columns are expected in each file.

    client: None if each file is a client, named like the file without its ending. coded: columns that become texts in
    all files if their types differ: "007" in one file, 12 in another. Logs which entries are left out; raises
    DataError.
    """
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    tables, left_out, empty = dict[Path, pa.Table](), list[str](), None
    for path in entries:
        if path.is_dir():
            left_out.append(f"{escaped(path.name, 60)} (a folder)")
        elif not path.name.lower().endswith(tuple(endings)):
            left_out.append(f"{escaped(path.name, 60)} (another ending)")
        elif (table := read(path)).num_rows:
            tables[path] = table
        else:
            left_out.append(f"{escaped(path.name, 60)} (no rows)")
            empty = table
    if left_out:
        reasons = first_few(left_out)
        _LOG.warning("%s: %d of %d entries are left out: %s", folder, len(left_out), len(entries), reasons)
    if client is None:
        tables = _with_clients(tables, endings)
    if tables:
        _check_columns(tables, leave_out)
        return _joined(folder, tables, leave_out, coded), client or FILE
    if empty is None:
        raise DataError(f"{folder}: no {' or '.join(endings)} in it; expected one file for each client")
    return empty, client or FILE


def _with_clients(tables: Mapping[Path, pa.Table], endings: Sequence[str]) -> dict[Path, pa.Table]:
    """The tables with a column of the client's name, which is that of the file without its ending."""
    named, ids = dict[Path, pa.Table](), set[str]()
    for path, table in tables.items():
        ending = next(end for end in endings if path.name.lower().endswith(end))
        id = path.name[: -len(ending)]
        if id in ids:
            raise DataError(f"{path}: another file has this name but for its ending; each is a client: rename one")
        if FILE in table.column_names:
            raise DataError(f"{path}: a column is called {FILE!r}; name the column of clients: data.client")
        ids.add(id)
        named[path] = table.append_column(FILE, pa.array([id] * table.num_rows, pa.string()))
    return named


def _check_columns(tables: Mapping[Path, pa.Table], leave_out: Sequence[str]) -> None:
    """Raise DataError for a file whose columns differ from those of most files; columns left out do not count."""
    sets = {path: frozenset(table.column_names) - set(leave_out) for path, table in tables.items()}
    usual = Counter(sets.values()).most_common(1)[0][0]
    for path, columns in sets.items():
        differences = []
        if lacking := sorted(usual - columns):
            differences.append(f"no column {', '.join(map(escaped, lacking))}, which the other files have")
        if more := sorted(columns - usual):
            differences.append(f"a column {', '.join(map(escaped, more))}, which the other files do not have")
        if differences:
            expected = "expected the same ones in each, or those in data.leave_out"
            raise DataError(f"{path}: {', and '.join(differences)}; {expected}")


def _joined(
    folder: Path, tables: Mapping[Path, pa.Table], leave_out: Sequence[str], coded: Collection[str]
) -> pa.Table:  # fmt: skip
    """One table with the rows of all files, and with metadata: their files, notes and codes."""
    notes, leading, parts = dict[str, str](), dict[str, str](), list[pa.Table]()
    as_text = {name for name in coded if len(_types_of(name, tables.values()) - {pa.null()}) > 1}
    for path, table in tables.items():
        leading |= code_like(table)
        notes |= {name: f"{note} ({path.name})" for name, note in column_notes(table).items()}
        parts.append(_with_common_types(table, leave_out, as_text))
    try:
        whole = pa.concat_tables(parts, promote_options="permissive")
    except (TypeError, ValueError, pa.ArrowException) as error:
        which = _unlike([path.name for path in tables], parts) or error_text(error)
        raise DataError(f"{folder}: a column has values of different kinds in two files ({which})") from None
    whole = remember(whole, "files", [(path.name, table.num_rows) for path, table in tables.items()])
    return remember(remember(whole, "notes", notes), "codes", leading)


def _types_of(name: str, tables: Iterable[pa.Table]) -> set[pa.DataType]:
    return {table.schema.field(name).type for table in tables if name in table.column_names}


def _with_common_types(table: pa.Table, leave_out: Sequence[str], as_text: Collection[str]) -> pa.Table:
    for number, name in enumerate(table.column_names):
        if name in leave_out:  # such a column may have a different type in each file
            table = table.set_column(number, name, pa.nulls(table.num_rows))
        elif name in as_text:
            table = table.set_column(number, name, pa.array(texts(table, name), pa.string()))
    return table


def _unlike(files: list[str], tables: list[pa.Table]) -> str | None:
    """Error text: the column that cannot be joined, and its types in two files; None if all can."""
    for name in tables[0].column_names:
        types = [table.schema.field(name).type for table in tables]
        try:
            pa.unify_schemas([pa.schema([(name, kind)]) for kind in types], promote_options="permissive")
        except (TypeError, ValueError, pa.ArrowException):
            what = _types_in_two_files(name, types, files, tables)
            return f"{escaped(name)}: {what}: write one kind in all, or name it in categories or leave_out"
    return None


def _types_in_two_files(name: str, types: list[pa.DataType], files: list[str], tables: list[pa.Table]) -> str:
    kinds = [name_of_type(kind) for kind in types]
    one = kinds.index("texts") if "texts" in kinds else 0
    other = next(at for at, kind in enumerate(types) if kind not in (types[one], pa.null()))
    what = [f"{files[at]} has {kinds[at] if kinds[one] != kinds[other] else types[at]}" for at in (one, other)]
    if note := column_notes(tables[one]).get(name):
        what.append(f"and {files[one]} {note}")
    return ", ".join(what)
