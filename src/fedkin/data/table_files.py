"""Read CSV and Parquet files into Arrow tables, with notes on how columns were interpreted.

The cells of a CSV file are read as texts first. Each column then becomes numbers, dates, truth values or texts by the
rules below. Ambiguous values are refused; the error names the setting that decides.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedkin.errors import DataError, first_few
from fedkin.federation.table_values import name_of_type, remember, remembered, texts, without_views
from fedkin.untrusted import Refused, error_text, escaped, most, parquet_in, within

_LOG = logging.getLogger("fedkin")

DATES = {"D.M.Y": "%d.%m.%Y", "D/M/Y": "%d/%m/%Y", "M/D/Y": "%m/%d/%Y"}

# A whole number with a leading zero, as in codes.
_LEADING = r"^\s*[+-]?0[0-9]"
# A leading zero, or a zero at the end of two or more decimals; 7.0 does not count: some programs write 7 like this.
_PADDED = r"^[+-]?0[0-9]|[.,][0-9]+0$"
_WHOLE = r"^[+-]?[0-9]+$"
_CLOCK = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$"
_DOTTED_DATE = r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}$"
# A currency in front of a number, and a unit behind it.
_UNIT = re.compile(r"^[$€£¥₹]\s?|\s?[A-Za-z%°µμ€$£][^\d\s]*$")
# Thousands separators: all kinds of spaces count as one separator, and so do both apostrophes.
_MARKS = str.maketrans("\u00a0\u2009\u202f\u2019", "   '")
_TIMES = [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC")]
_TIME_OF_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}"
_ZONED = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
_BLOCK = 1 << 20
_MIXED = 0.5


def _usual_marks(text: str) -> str:
    return text.translate(_MARKS)


class CsvFormat(BaseModel):
    """The format of a CSV file. A setting that is None is detected where this is unambiguous.

    missing: texts that stand for missing values, besides the usual ones.
    """

    model_config = ConfigDict(frozen=True)

    delimiter: str | None = Field(None, min_length=1, max_length=1)
    decimal: Literal[".", ","] | None = None
    thousands: str | None = Field(None, min_length=1, max_length=1)
    missing: tuple[str, ...] = ()
    dates: Literal["D.M.Y", "D/M/Y", "M/D/Y"] | None = None

    @field_validator("thousands")
    @classmethod
    def _a_mark(cls, mark: str | None) -> str | None:
        usual = _usual_marks(mark or ",")
        if usual not in ",.' ":
            raise ValueError(f"expected a comma, a point, an apostrophe or a space; got {mark!r}")
        return mark and usual

    @model_validator(mode="after")
    def _two_marks(self) -> Self:
        if self.thousands is not None and self.decimal == self.thousands:
            raise ValueError(f"decimal and thousands are both {self.decimal!r}; expected two marks")
        return self

    def allows(self, decimal: str, thousands: str) -> bool:
        """Whether numbers may have these marks; `thousands`: "" for numbers without."""
        return self.decimal in (None, decimal) and (not thousands or self.thousands in (None, thousands))


DETECTED = CsvFormat()

# (a column in its type, a note on how it was interpreted; "" if this was obvious)
Typed = tuple[pa.ChunkedArray, str]


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
    categories, which stay texts if one of their numbers has an insignificant zero ("007", "1.50"). untyped: columns
    that stay texts.

    Raises OSError, ValueError and pyarrow's errors.
    """
    _check_text(path)
    table, delimiter = _read_cells(path, csv_format)
    _check_quotes(table, delimiter)
    notes, leading = dict[str, str](), dict[str, str]()
    for place, name in enumerate(table.column_names):
        if name in untyped:
            continue
        cells = table.column(place)
        as_name, as_code = name in names, name in coded
        typed, note = _typed(cells, name, csv_format, delimiter, as_name or as_code)
        if (as_name and _is_whole(typed)) or (as_code and _has_lost_zeros(cells, typed)):
            typed = pc.utf8_trim_whitespace(cells)
        table = table.set_column(place, name, typed)
        if note:
            notes[name] = note
        if code := _code_example(cells, typed):
            leading[name] = code
    return remember(remember(table, "notes", notes), "codes", leading)


def _code_example(cells: pa.ChunkedArray, typed: pa.ChunkedArray) -> str:
    """The first cell with leading zeros of a column of whole numbers; empty if there is none."""
    if not pa.types.is_integer(typed.type):
        return ""
    rows = _rows_where(pc.match_substring_regex(cells, _LEADING))
    return str(cells[rows[0]].as_py().strip()) if rows else ""


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
    """Raise Refused for a file that is not UTF-8, naming the line; compressed files are unpacked for this check."""
    limit = most(path.stat().st_size)
    with _opened(path) as file:
        decoder, lines, read = codecs.getincrementaldecoder("utf-8")(), 1, 0
        while block := file.read(_BLOCK):
            if not read and 0 in block[:4]:  # in UTF-16 and UTF-32 every other byte is zero
                raise Refused(f"the file is UTF-16 or UTF-32, not UTF-8; {_SAVE}")
            read += len(block)
            if read > limit:
                return  # the reader of the table raises the error
            before = decoder.getstate()[0]
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                raise Refused(_not_utf8(before + block, error.start, lines)) from None
            lines += block.count(b"\n")
        if left := decoder.getstate()[0]:
            raise Refused(_not_utf8(left, 0, lines))


def _not_utf8(data: bytes, at: int, lines: int) -> str:
    """Error text: the line of the first byte that is not UTF-8, and the text around this byte."""
    line = lines + data.count(b"\n", 0, at)
    near = data[max(data.rfind(b"\n", 0, at) + 1, at - 20) : at + 10].partition(b"\n")[0].decode("latin-1")
    return f"line {line}: {escaped(repr(near))} is not UTF-8, perhaps Latin-1 or Windows-1252; {_SAVE}"


def _check_quotes(table: pa.Table, delimiter: str) -> None:
    """Raise Refused for a cell that contains rows of the table, because a quote in it was opened by mistake."""
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        for row in _rows_where(pc.greater(pc.count_substring(column, "\n"), 2)):
            inner = column[row].as_py().split("\n")[1:-1]
            if all(line.count(delimiter) == table.num_columns - 1 for line in inner):
                cell = f"row {row + 1}: the cell of {escaped(name, 60)!r} has {len(inner) + 2} lines"
                why = "a quote that opens there is never closed, or closed much later; remove or double it"
                raise Refused(f"{cell}, each like a row of the table: {why}")


def _rows_where(flags: pa.ChunkedArray) -> list[int]:
    return np.flatnonzero(flags.fill_null(False).to_numpy()).tolist()


# -- a folder of files ---------------------------------------------------------------------------------------------

# Name of the column of clients if each client has its own file.
FILE = "file"


def read_folder(
    place: Path, read: Callable[[Path], pa.Table], endings: Sequence[str], client: str | None,
    leave_out: Sequence[str], coded: Collection[str],
) -> tuple[pa.Table, str]:  # fmt: skip
    """(the rows of all files, the column of the clients); the same columns are expected in each file.

    client: None if each file is a client, named like the file without its ending. coded: columns that become texts in
    all files if they are texts in one: "007" in one file, 12 in another. Logs which entries are left out; raises
    DataError.
    """
    tables, empty = _tables_in(place, read, endings)
    if client is None:
        tables = _with_clients(tables, endings)
    if tables:
        _check_columns(tables, leave_out)
        return _joined(place, tables, leave_out, coded), client or FILE
    if empty is None:
        raise DataError(f"{place}: no {' or '.join(endings)} in it; expected one file for each client")
    return empty, client or FILE


def _tables_in(
    place: Path, read: Callable[[Path], pa.Table], endings: Sequence[str]
) -> tuple[dict[Path, pa.Table], pa.Table | None]:
    """(the tables with rows, by file; a table without rows, if there is one); logs which entries are left out."""
    entries = sorted(path for path in place.iterdir() if not path.name.startswith("."))
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
        _LOG.warning("%s: %d of %d entries are left out: %s", place, len(left_out), len(entries), reasons)
    return tables, empty


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
    place: Path, tables: Mapping[Path, pa.Table], leave_out: Sequence[str], coded: Collection[str]
) -> pa.Table:  # fmt: skip
    """One table with the rows of all files, and with metadata: their files, notes and codes."""
    notes, leading, parts = dict[str, str](), dict[str, str](), list[pa.Table]()
    as_text = {name for name in coded if any(_is_text_in(table, name) for table in tables.values())}
    for path, table in tables.items():
        leading |= code_like(table)
        notes |= {name: f"{note} ({path.name})" for name, note in column_notes(table).items()}
        parts.append(_with_common_types(table, leave_out, as_text))
    try:
        whole = pa.concat_tables(parts, promote_options="permissive")
    except (TypeError, ValueError, pa.ArrowException) as error:
        which = _unlike([path.name for path in tables], parts) or error_text(error)
        raise DataError(f"{place}: a column has values of different kinds in two files ({which})") from None
    whole = remember(whole, "files", [(path.name, table.num_rows) for path, table in tables.items()])
    return remember(remember(whole, "notes", notes), "codes", leading)


def _is_text_in(table: pa.Table, name: str) -> bool:
    return name in table.column_names and table.schema.field(name).type == pa.string()


def _with_common_types(table: pa.Table, leave_out: Sequence[str], as_text: Collection[str]) -> pa.Table:
    for number, name in enumerate(table.column_names):
        if name in leave_out:  # such a column may have a different type in each file
            table = table.set_column(number, name, pa.nulls(table.num_rows))
        elif name in as_text and _is_numeric(table.schema.field(number).type):
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


# -- types of columns ----------------------------------------------------------------------------------------------


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_whole(typed: pa.ChunkedArray) -> bool:
    """Whether all values are whole numbers, or true and false."""
    if pa.types.is_floating(typed.type):
        return _all(pc.equal(typed, pc.round(typed)))
    return bool(pa.types.is_integer(typed.type) or pa.types.is_boolean(typed.type))


def _has_lost_zeros(texts: pa.ChunkedArray, typed: pa.ChunkedArray) -> bool:
    """Whether texts became numbers and lost a leading zero, or a zero at the end of decimals."""
    numeric = _is_numeric(typed.type) or pa.types.is_boolean(typed.type)
    return bool(numeric and pc.any(pc.match_substring_regex(pc.utf8_trim_whitespace(texts), _PADDED)).as_py())


def _typed(column: pa.ChunkedArray, name: str, csv_format: CsvFormat, delimiter: str, plain: bool) -> Typed:
    """Convert a column of texts to its type; plain: it holds names or codes, so no number has a thousands separator."""
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column))]), ""
    if (whole := _cast(column, pa.int64())) is not None:
        return whole, ""
    texts, floats = column, _cast(column, pa.float64())
    if floats is None:  # trimming takes as long as all other steps, and few columns need it
        texts = pc.replace_substring_regex(pc.utf8_trim_whitespace(column), r"^\+", "")
        if (values := _cast(texts, pa.int64(), pa.bool_())) is not None:
            return values, ""
        if (dates := _dates(texts, name, csv_format.dates)) is not None:
            return dates
        floats = _cast(texts, pa.float64())
    if (plain_numbers := _plain_numbers(column, texts, floats, csv_format, plain)) is not None:
        return plain_numbers, ""
    return _marked_numbers(texts, column, name, csv_format, delimiter)


def _plain_numbers(
    column: pa.ChunkedArray, texts: pa.ChunkedArray, floats: pa.ChunkedArray | None, csv_format: CsvFormat, plain: bool
) -> pa.ChunkedArray | None:
    """Whole numbers, or floats unless their points may be marks of thousands; None for other columns.

    plain: no number has a mark of thousands; other columns stay texts.
    """
    if _all(pc.match_substring_regex(texts, _WHOLE)):
        whole = _cast(pc.replace_substring_regex(texts, r"^\+", ""), pa.int64())
        # Whole numbers beyond 64 bits are names; a float would lose digits.
        return column if whole is None else whole
    if plain:
        return column if floats is None else floats
    if floats is None or csv_format.decimal == ",":
        return None
    dotted = texts.filter(pc.match_substring(texts, "."))
    return None if _all(pc.match_substring_regex(dotted, _GROUPED), least=1) else floats


# Up to three digits, then groups of three digits, each after a point.
_GROUPED = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"


def _all(flags: pa.ChunkedArray, least: int = 0) -> bool:
    """Whether all known flags are true, and the column has at least `least` rows."""
    return len(flags) >= least and bool(pc.all(flags, min_count=0).as_py())


def _cast(texts: pa.ChunkedArray, *kinds: pa.DataType) -> pa.ChunkedArray | None:
    """The texts in the first of these types that all of them can have; None if there is none."""
    for kind in kinds:
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return texts.cast(kind)
    return None


def _dates(texts: pa.ChunkedArray, name: str, stated: str | None) -> Typed | None:
    """Dates and times: as 2026-01-31, as 31.1.2026 (no country writes the month first with points), or as stated.

    Raises Refused if some times have a zone and others have none.
    """
    if not _all(pc.match_substring_regex(texts, r"^[0-9]{1,4}[-./:]"), least=1):
        return None
    if _all(pc.match_substring_regex(texts, _CLOCK)):
        return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(_TIMES[0]).cast(pa.time32("s")), ""
    if (values := _cast(texts, pa.date32(), *_TIMES)) is not None:
        return values, ""
    if _all(pc.match_substring_regex(texts, _TIME_OF_DAY)):
        _check_zones(texts, name)
    if stated is None and not _all(pc.match_substring_regex(texts, _DOTTED_DATE)):
        return None
    values = pc.strptime(texts, format=DATES[stated or "D.M.Y"], unit="s", error_is_null=True)
    if values.null_count > texts.null_count:
        return None
    note = "" if stated else f"{texts.drop_null()[0].as_py()!r} is read as day.month.year"
    return values.cast(pa.date32()), note


def _check_zones(texts: pa.ChunkedArray, name: str) -> None:
    """Raise Refused if some times have a zone and others have none."""
    zoned = pc.match_substring_regex(texts, _ZONED)
    if pc.any(zoned).as_py() and not _all(zoned):
        rows = [_rows_where(each)[0] for each in (zoned, pc.invert(zoned))]
        one, other = (f"{texts[row].as_py()!r} in row {row + 1}" for row in rows)
        where = f"column {escaped(name, 60)!r}: {one} has a time zone, {other} has none"
        raise Refused(f"{where}; write all with a zone, or all without")


# -- numbers as people write them ----------------------------------------------------------------------------------


def is_number_like(text: str) -> bool:
    """Whether a text is a number in some notation: "65,2", "1.104", "1 037", "$5", "103 mg/dL"."""
    number = _usual_marks(_UNIT.sub("", text.strip()))
    return any(pattern.fullmatch(number) for pattern in _PATTERNS.values())


def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    point, mark = re.escape(decimal), re.escape(thousands)
    whole = rf"[0-9]+|[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+" if thousands else "[0-9]+"
    return re.compile(rf"[+-]?(?:(?:{whole})(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")


# {(decimal sign, thousands separator): the pattern of such a number}
_PATTERNS = {
    marks: _pattern(*marks)
    for marks in ((".", ""), (".", ","), (",", ""), (",", "."), (".", "'"), (",", "'"), (".", " "), (",", " "))
}


def _marked_numbers(
    texts: pa.ChunkedArray, column: pa.ChunkedArray, name: str, csv_format: CsvFormat, delimiter: str
) -> Typed:
    """Convert a column of numbers with decimal commas or thousands separators; other columns stay texts.

    Raises Refused if the numbers are ambiguous and no setting decides.
    """
    values = list(map(_usual_marks, texts.drop_null().unique().to_pylist()))
    readings = _readings(values, csv_format)
    if not readings:
        if _readings(values, DETECTED):
            raise Refused(f"column {escaped(name, 60)!r}: {_not_allowed(texts, values, csv_format)}")
        return column, _mixed(texts, values)
    (numbers, *_) = readings.values()
    if len(readings) > 1:
        mark = "," if any("," in value for value in values) else "."
        if mark == "," or delimiter != ",":
            raise Refused(f"column {escaped(name, 60)!r}: {_two_meanings(texts, mark)}")
        numbers = next(numbers for marks, numbers in readings.items() if marks[0] == mark)
    canonical = dict(zip(values, numbers, strict=True))
    return _as_numbers(texts, canonical), _note_of_change(canonical)


def _note_of_change(canonical: Mapping[str, str]) -> str:
    """The note on the first number that is written otherwise than it is read."""
    changed = next((value for value, number in canonical.items() if number != value), None)
    return "" if changed is None else f"{changed!r} is read as {canonical[changed]}"


def _as_numbers(texts: pa.ChunkedArray, canonical: Mapping[str, str]) -> pa.ChunkedArray:
    """Whole numbers if all are, else floats; canonical: {a number as written: the number with a point}."""
    floats = [None if text is None else float(canonical[_usual_marks(text)]) for text in texts.to_pylist()]
    numbers = pa.chunked_array([pa.array(floats, pa.float64())])
    whole = all(number.lstrip("-").isdigit() for number in canonical.values())
    exact = _cast(numbers, pa.int64()) if whole else None
    return numbers if exact is None else exact


def _readings(values: list[str], csv_format: CsvFormat) -> dict[tuple[str, str], list[str]]:
    """The possible numbers of all texts, by (decimal sign, thousands separator); equal readings appear once."""
    readings: dict[tuple[str, str], list[str]] = {}
    for marks, pattern in _PATTERNS.items():
        if csv_format.allows(*marks) and all(map(pattern.fullmatch, values)):
            numbers = [_canonical(value, marks) for value in values]
            if numbers not in readings.values():
                readings[marks] = numbers
    if len(readings) > 1 and csv_format.thousands is not None:
        return {marks: numbers for marks, numbers in readings.items() if marks[1] == csv_format.thousands}
    return readings


def _not_allowed(texts: pa.ChunkedArray, values: list[str], csv_format: CsvFormat) -> str:
    """Error text: the first number that is none with the settings, its row, and the settings."""
    odd = next((value for value in values if not _readings([value], csv_format)), values[0])
    row = next(row for row, text in enumerate(texts.to_pylist()) if text is not None and _usual_marks(text) == odd)
    stated = {"decimal": csv_format.decimal, "thousands": csv_format.thousands}
    which = " and ".join(f'data.{name} = "{mark}"' for name, mark in stated.items() if mark is not None)
    how = "correct it, or name the column in data.categories or data.leave_out"
    return f"{escaped(odd, 40)!r} in row {row + 1} is no number with {which}; {how}"


def _two_meanings(texts: pa.ChunkedArray, mark: str) -> str:
    """Error text: the first number with this mark, its row, and its two possible meanings."""
    row = _rows_where(pc.match_substring(texts, mark))[0]
    number = texts[row].as_py()
    meanings = " or ".join(_canonical(number, marks) for marks in ((mark, ""), ("", mark)))
    which = f'data.decimal = "{mark}", or data.thousands = "{mark}"'
    return f"{number!r} in row {row + 1} may be {meanings}; say which: {which}"


def _canonical(number: str, marks: tuple[str, str]) -> str:
    decimal, thousands = marks
    plain = number.replace(thousands, "") if thousands else number
    return (plain.replace(decimal, ".") if decimal else plain).lstrip("+")


def _mixed(texts: pa.ChunkedArray, values: list[str]) -> str:
    """A note that most values of a column are numbers, with the first one that is not; empty if most are not."""
    if sum(map(is_number_like, values)) <= _MIXED * len(values):
        return ""
    odd = next((value for value in values if not is_number_like(value)), None)
    if odd is None:
        return f"numbers such as {escaped(values[0], 40)!r} are read as text: write plain numbers, in one way"
    odd, where = escaped(odd, 40), f"in row {next(iter(_rows_where(pc.equal(texts, odd))), 0) + 1}"
    what = f"is read as text, although most of its values are numbers; not a number is {odd!r} {where}"
    return f'{what}: data.missing = ["{odd}"] if nothing is known there'
