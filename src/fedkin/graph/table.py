"""Tables of signatures from .npz, .csv or .parquet files: one vector, or one set of vectors, per client."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.errors import DataError
from fedkin.untrusted import Refused, arrays_in, parquet_in, printable, said, shown

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Signatures", "read_signatures"]

_TOGETHER = 16  # columns of a table that are read at a time


@dataclass(frozen=True)
class Signatures:
    """One vector, or one set of vectors, per client.

    ids: unique texts. x: vectors [n, d], or sets of vectors: an array [n, k, d], or n arrays [k_i, d] if sizes differ.
    """

    ids: tuple[str, ...]
    x: np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]

    @property
    def sets(self) -> bool:
        """Whether each client has a set of vectors, and not one vector."""
        return not isinstance(self.x, np.ndarray) or self.x.ndim == 3


def read_signatures(path: str | Path) -> Signatures:
    """Read a table of signatures; raises DataError that names the file, the client and the column.

    .npz: arrays `ids` [n] and `x` [n, d] or [n, k, d]. .csv (with a header line) and .parquet: the ids are in
    column `client`, or in the first column if there is no such column. All other columns are numbers, the vector's
    entries. With a column `centre`, each row is one vector of a client's set.
    """
    path = Path(path)
    readers = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path}: expected a .npz, .csv or .parquet file")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    found = readers[path.suffix.lower()](path)
    if len(found.ids) < 2:
        raise DataError(f"{path}: {len(found.ids) or 'no'} client; expected at least two to compare")
    return found


def _read_npz(path: Path) -> Signatures:
    try:
        arrays, names = arrays_in(path, ("ids", "x").__contains__)
    except (OSError, Refused) as error:
        raise DataError(f"{path}: not a .npz file of plain arrays ({error})") from None
    if "ids" not in arrays or "x" not in arrays:
        raise DataError(f"{path}: expected arrays 'ids' and 'x', found {', '.join(sorted(names)) or 'none'}")
    x, given = arrays["x"], arrays["ids"]
    if x.dtype.kind not in "fiu" or x.ndim not in (2, 3) or 0 in x.shape[1:]:
        raise DataError(f"{path}: 'x': expected numbers [n, d] or [n, k, d], got {x.dtype} of shape {x.shape}")
    if given.ndim != 1 or given.dtype.kind not in "Uiu":
        raise DataError(f"{path}: 'ids': expected one text or whole number per client, got {given.dtype}")
    ids = tuple(str(id) for id in given.tolist())
    if len(ids) != len(x):
        raise DataError(f"{path}: {len(ids)} ids but {len(x)} rows of 'x'; expected one id per row")
    _unique(path, ids, "")
    bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if bad.any():
        raise DataError(f"{path}: client {ids[int(np.argmax(bad))]!r}: a value is not finite; expected numbers")
    return Signatures(ids, x)


def _read_csv(path: Path) -> Signatures:
    import pyarrow as pa
    from pyarrow import csv

    try:
        names = csv.open_csv(path).schema.names
        ids = {names[0]: pa.string(), "client": pa.string(), "centre": pa.string()}
        table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=ids))
    except (pa.ArrowException, OSError, IndexError, ValueError) as error:
        raise DataError(f"{path}: not a readable table: {said(error)}") from None
    if all(_is_number(name) for name in names):
        raise DataError(f"{path}: the first line holds only numbers; expected column names")
    return _from_table(path, table)


def _read_parquet(path: Path) -> Signatures:
    import pyarrow as pa

    try:
        table = parquet_in(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable table: {said(error)}") from None
    return _from_table(path, table)


def _from_table(path: Path, table: pa.Table) -> Signatures:
    names = table.column_names
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} occurs twice; expected unique column names")
    key = "client" if "client" in names else names[0] if names else ""
    columns = [name for name in names if name not in (key, "centre")]
    if not columns:
        raise DataError(f"{path}: expected a column of ids and at least one of numbers, found {names}")
    ids = tuple("" if id is None else str(id) for id in table[key].to_pylist())
    if "" in ids:
        raise DataError(f"{path}: row {ids.index('') + 1} has no id in column {key!r}")
    _check_ids(path, ids)
    x = np.empty((len(ids), len(columns)))
    # Several columns at a time: one alone writes 8 bytes here and there.
    for at in range(0, len(columns), _TOGETHER):
        some = [_numbers(path, table, name, ids) for name in columns[at : at + _TOGETHER]]
        x[:, at : at + _TOGETHER] = np.array(some).T
    if "centre" not in names:
        _unique(path, ids, "; a column 'centre' would make them one set of vectors")
        return Signatures(ids, x)
    return _as_sets(path, ids, [str(centre) for centre in table["centre"].to_pylist()], x)


def _numbers(path: Path, table: pa.Table, name: str, ids: tuple[str, ...]) -> np.ndarray[Any, Any]:
    import pyarrow as pa

    column = table[name].combine_chunks()
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        odd = next((row for row, v in enumerate(column.to_pylist()) if not _is_number(v)), 0)
        what = column[odd].as_py()
        raise DataError(f"{path}: client {ids[odd]!r}, column {name!r}: expected a number, got {shown(repr(what), 80)}")
    values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"{path}: client {ids[at]!r}, column {name!r}: missing or not finite; expected a number")
    return values


def _as_sets(path: Path, ids: tuple[str, ...], centres: list[str], x: np.ndarray[Any, Any]) -> Signatures:
    rows: dict[str, list[int]] = {}
    seen: set[tuple[str, str]] = set()
    for row, pair in enumerate(zip(ids, centres, strict=True)):
        if pair in seen:
            raise DataError(f"{path}: client {pair[0]!r} has centre {pair[1]!r} twice, again in row {row + 1}")
        seen.add(pair)
        rows.setdefault(pair[0], []).append(row)
    sets = [x[members] for members in rows.values()]
    even = len({len(one) for one in sets}) == 1
    return Signatures(tuple(rows), np.stack(sets) if even else sets)


def _unique(path: Path, ids: tuple[str, ...], hint: str) -> None:
    _check_ids(path, ids)
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    for row, id in enumerate(ids):
        if id in first:
            raise DataError(f"{path}: client {id!r} is in rows {first[id] + 1} and {row + 1}{hint}")
        first[id] = row


def _check_ids(path: Path, ids: tuple[str, ...]) -> None:
    if all(ids) and printable("".join(ids)):
        return
    for row, id in enumerate(ids):
        check_id(path, row, id)


def check_id(path: Path, row: int, id: str) -> None:
    """Raise DataError for an id that is empty, or that a terminal obeys."""
    if not id:
        raise DataError(f"{path}: row {row + 1} has no id")
    if not printable(id):
        raise DataError(f"{path}: row {row + 1}: expected an id of printable characters, got {id!r}")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)
