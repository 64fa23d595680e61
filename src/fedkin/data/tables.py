"""Tables of people's records as arrays: reads CSV files by column, and prepares columns for a net."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedkin.data.letters import check_text
from fedkin.data.origins import missing
from fedkin.errors import DataError
from fedkin.keys import rng
from fedkin.untrusted import most, said, within

__all__ = [
    "Flags", "Floats", "arrays", "code_like", "filled", "hold_out_people", "indicators", "read_any_csv", "read_csv",
    "standardised", "with_code_like",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Kind = Literal["text", "number", "id"]

# Values beyond this number of standard deviations are clipped: they are typing errors, not signs of illness.
_FAR = 10.0
# A packed CSV file is rarely more than so many times as large as it was.
_TIMES = 30
# A number with a decimal comma, and perhaps points between thousands.
_COMMA = r"^\s*[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]*)?([eE][+-]?[0-9]+)?\s*$"
# A whole number with a zero in front, as codes have.
_LEADING = r"^\s*[+-]?0[0-9]"
_CODES = b"fedkin.codes"
# A zero in front, or one at the end of two decimals or more; 7.0 is how others write the whole number 7.
_PADDED = r"^[+-]?0[0-9]|[.,][0-9]+0$"


def read_csv(folder: Path, name: str, columns: Mapping[str, Kind]) -> pa.Table:
    """These columns of folder/name.csv, or of name.csv.gz if only that exists.

    A column is "text", "number" (empty cells are null) or "id" (a whole number in every row). Raises DataError naming
    the file and the column.
    """
    import pyarrow.csv as pc

    path = next((p for p in (folder / f"{name}.csv", folder / f"{name}.csv.gz") if p.is_file()), None)
    if path is None:
        raise DataError(
            f"{folder / name}.csv: no such file, nor {name}.csv.gz; expected a table of that name{missing(folder)}"
        )
    types = {"text": pa.string(), "number": pa.float64(), "id": pa.int64()}
    options = pc.ConvertOptions(
        include_columns=list(columns), column_types={column: types[kind] for column, kind in columns.items()},
        strings_can_be_null=True,
    )  # fmt: skip
    try:
        parsing = pc.ParseOptions(newlines_in_values=True)
        with pc.open_csv(path, convert_options=options, parse_options=parsing) as batches:
            table = pa.Table.from_batches(within(batches, most(path.stat().st_size)), batches.schema)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({said(error)}); expected columns {', '.join(columns)}") from None
    for column, kind in columns.items():
        if kind == "id" and table.column(column).null_count:
            raise DataError(f"{path}: column {column} is empty in some rows; expected a whole number in each")
    return table


def read_any_csv(
    path: Path, delimiter: str | None = None, names: Collection[str] = (), codes: Collection[str] = ()
) -> pa.Table:
    """All columns of a CSV file, in the types that their cells have in common.

    names: columns of names, whose whole numbers and truth values stay texts as they are written: "01" is not "1".
    codes: columns of categories, which stay texts if one of their numbers has a zero that says nothing: "007", "1.50".
    delimiter: None takes a comma, or, if the first line has none, the one of ";", tab and "|" that it has most often.
    Where it is no comma, a column of numbers with decimal commas, such as "1.250,5", is a column of numbers. Of columns
    that become whole numbers, `code_like` says which have leading zeros.
    Raises OSError, ValueError and pyarrow's errors.
    """
    import pyarrow.csv as pc

    check_text(path)
    delimiter = delimiter or _delimiter(path)
    parsing = pc.ParseOptions(newlines_in_values=True, delimiter=delimiter)
    options = pc.ConvertOptions(strings_can_be_null=True)
    # The types are guessed from the first block: of one as large as the file allows, they fit the whole file.
    size = path.stat().st_size
    whole = _TIMES * size if path.suffix == ".gz" else size + 1
    reading = pc.ReadOptions(block_size=max(1 << 20, min(whole, (1 << 31) - 1)))
    with pc.open_csv(path, reading, parsing, options) as batches:
        table = pa.Table.from_batches(within(batches, most(size)), batches.schema)
    table = table if delimiter == "," else _with_commas(table)
    fields, named = list(table.schema), {*names, *codes}
    counts = Counter(field.name for field in fields)
    once = [field for field in fields if counts[field.name] == 1]
    changed = [
        field.name for field in once
        if field.name in named and _loses_its_text(table.column(field.name), fractions=field.name not in names)
    ]  # fmt: skip
    plain = [field.name for field in once if field.name not in named and pa.types.is_integer(field.type)]
    table = with_code_like(table, _leading(path, plain, reading, parsing, most(size)))
    if not changed:
        return table
    options = pc.ConvertOptions(
        include_columns=changed, column_types=dict.fromkeys(changed, pa.string()), strings_can_be_null=True
    )
    with pc.open_csv(path, reading, parsing, options) as batches:
        written = pa.Table.from_batches(within(batches, most(size)), batches.schema)
    for name in changed:
        values = _trimmed(written.column(name))
        if name in names or _is_padded(values):
            table = table.set_column(table.column_names.index(name), name, values)
    return table


def with_code_like(table: pa.Table, found: Mapping[str, str]) -> pa.Table:
    """The table, which remembers a value of each column of whole numbers that are written like codes."""
    if not found:
        return table
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _CODES: json.dumps(dict(found))})


def code_like(table: pa.Table) -> dict[str, str]:
    """Columns of whole numbers whose file has leading zeros in them, such as "007", each with such a value."""
    try:
        found = json.loads((table.schema.metadata or {}).get(_CODES, b"{}"))
    except ValueError:  # a file of another program's, which has these words for something else
        return {}
    known = set(table.column_names)
    told = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in told if name in known and isinstance(value, str)}


def _leading(path: Path, columns: list[str], reading: Any, parsing: Any, limit: int) -> dict[str, str]:
    """The first value with a leading zero in each of these columns that has one."""
    import pyarrow.compute as pc
    import pyarrow.csv as csv

    found: dict[str, str] = {}
    if not columns:
        return found
    options = csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
    with csv.open_csv(path, reading, parsing, options) as batches:
        for batch in within(batches, limit):
            for name in columns:
                if name not in found and pc.any(like := pc.match_substring_regex(batch.column(name), _LEADING)).as_py():
                    found[name] = batch.column(name).filter(like)[0].as_py().strip()
    return {name: found[name] for name in columns if name in found}


def _loses_its_text(values: pa.ChunkedArray, fractions: bool) -> bool:
    """Whether these are truth values or numbers, which may have been written in several ways; fractions: also those."""
    import pyarrow.compute as pc

    if pa.types.is_floating(values.type) and not fractions:
        return bool(pc.all(pc.equal(values, pc.round(values)), min_count=0).as_py())
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(test(values.type) for test in tests)


def _is_padded(values: pa.ChunkedArray) -> bool:
    """Whether one of these texts of numbers has a zero that says nothing."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(values, _PADDED)).as_py())


def _trimmed(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """These texts of numbers without spaces around them, which readers of numbers ignore."""
    import pyarrow.compute as pc

    return pc.utf8_trim_whitespace(values)


def _with_commas(table: pa.Table) -> pa.Table:
    """The table with columns of texts as numbers where all of them are, and have decimal commas."""
    import pyarrow.compute as pc

    for place, name in enumerate(table.column_names):
        values = table.column(place)
        if not pa.types.is_string(values.type) or values.null_count == len(values):
            continue
        fits = pc.all(pc.match_substring_regex(values, _COMMA)).as_py()
        if fits and pc.any(pc.match_substring(values, ",")).as_py():
            points = pc.replace_substring(pc.replace_substring(values, ".", ""), ",", ".")
            table = table.set_column(place, name, pc.utf8_trim_whitespace(points).cast(pa.float64()))
    return table


def _delimiter(path: Path) -> str:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        first = file.readline(1 << 16)
    return "," if b"," in first else max(",;\t|", key=lambda one: first.count(one.encode()))


def arrays(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    """A table's columns as numpy arrays: texts ("" where empty), float64 (NaN where empty), int64."""
    found = {}
    for name in table.column_names:
        values = table.column(name)
        if pa.types.is_string(values.type):
            found[name] = np.asarray(values.fill_null("").to_pylist(), dtype=np.str_)
        else:
            found[name] = values.to_numpy()
    return found


def standardised(values: Floats, fit: Flags) -> Floats:
    """(value - mean) / sd of each column [n, d], with mean and sd of the rows `fit`; NaN becomes 0, the mean.

    A column without spread in these rows becomes 0; values beyond 10 sd are clipped.
    """
    known = values[fit]
    count = np.isfinite(known).sum(0)
    safe = np.where(np.isfinite(known), known, 0.0)
    mean = safe.sum(0) / np.maximum(count, 1)
    square = np.where(np.isfinite(known), (known - mean) ** 2, 0.0).sum(0) / np.maximum(count, 1)
    sd = np.sqrt(square)
    z = np.divide(values - mean, sd, out=np.zeros_like(values), where=sd > 0)
    cut: Floats = np.clip(np.nan_to_num(z, nan=0.0), -_FAR, _FAR)
    return cut


def filled(values: Floats, fit: Flags, least: int) -> Floats:
    """`standardised`, plus a 0/1 column for each column that is missing in at least `least` of the rows `fit`."""
    missing = ~np.isfinite(values)
    often = missing[fit].sum(0) >= least
    return np.concatenate([standardised(values, fit), missing[:, often].astype(np.float64)], axis=1)


def indicators(rows: Rows, codes: Rows, fit: Flags, least: int) -> tuple[Flags, Rows]:
    """(which rows have which code [n, kept], the kept codes, ascending).

    rows, codes: pairs of a row and a code. A code is kept if at least `least` of the rows `fit` [n] have it.

    >>> indicators(np.array([0, 0, 1]), np.array([7, 7, 3]), np.array([True, True]), least=1)[0].tolist()
    [[False, True], [True, False]]
    """
    known, number = np.unique(codes, return_inverse=True)
    pairs = np.unique(np.stack([rows, number.reshape(-1)]), axis=1)
    often = np.bincount(pairs[1][fit[pairs[0]]], minlength=len(known)) >= least
    column = np.cumsum(often) - 1
    table = np.zeros((len(fit), int(often.sum())), dtype=bool)
    mine = often[pairs[1]]
    table[pairs[0][mine], column[pairs[1][mine]]] = True
    return table, known[often]


def hold_out_people(client: npt.NDArray[np.str_], person: npt.NDArray[np.str_], fraction: float, seed: int) -> Flags:
    """Which rows are test rows: all rows of `fraction` of every client's people.

    A person belongs to the client of their first row, so that no person is in both splits. The draw is keyed by
    (seed, client). A client keeps at least one person for training.
    """
    known, first, number = np.unique(person, return_index=True, return_inverse=True)
    held = np.zeros(len(known), dtype=bool)
    home = client[first]
    for name in np.unique(home):
        mine = np.flatnonzero(home == name)
        count = min(max(round(len(mine) * fraction), int(fraction > 0)), len(mine) - 1)
        held[rng(seed, "hold-out", str(name)).permutation(mine)[:count]] = True
    of_rows: Flags = held[number]
    return of_rows
