"""Tables of clients from .npz, .csv or .parquet files: a vector per client, or a row per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.errors import DataError, GraphError, nearest
from fedkin.graph.plan import Plan, Spread
from fedkin.graph.signatures import Signature, sign
from fedkin.untrusted import Refused, arrays_in, error_text, escaped, parquet_in, printable

if TYPE_CHECKING:
    import pyarrow as pa

# A column of text with more values than this is a name, not a category.
_MOST_CATEGORIES = 200


def read_signatures(path: str | Path) -> tuple[tuple[str, ...], Any]:
    """Read one vector per client: (unique ids, [n, d] numbers); DataError names the file, the client and the column.

    .npz: arrays `ids` [n] and `x` [n, d]. .csv (with a header line) and .parquet: the ids are in column `client`, or in
    the first column if there is no such column. All other columns are numbers, the vector's entries.
    """
    path = _file(path)
    ids, x = _vectors_of_arrays(path) if path.suffix.lower() == ".npz" else _vectors_of_table(path)
    first: dict[str, int] = {}
    for row, id in enumerate(ids):
        if id in first:
            raise DataError(f"{path}: client {id!r} is in rows {first[id] + 1} and {row + 1}; expected one vector each")
        first[id] = row
    if len(ids) < 2:
        raise DataError(f"{path}: {len(ids) or 'no'} client; expected at least two to compare")
    return ids, x


def _vectors_of_arrays(path: Path) -> tuple[tuple[str, ...], Any]:
    ids, x, _ = _samples_of_arrays(path)
    if x.ndim != 2:
        raise DataError(f"{path}: 'x': expected numbers [n, d], one vector per client, got shape {x.shape}")
    return ids, x


def _vectors_of_table(path: Path) -> tuple[tuple[str, ...], Any]:
    table = _read_table(path, ("client",), first=True)
    names = table.column_names
    if path.suffix.lower() == ".csv" and all(_is_number(name) for name in names):
        raise DataError(f"{path}: the first line holds only numbers; expected column names")
    key = "client" if "client" in names else names[0] if names else ""
    columns = [name for name in names if name != key]
    if not columns:
        raise DataError(f"{path}: expected a column of ids and at least one of numbers, found {names}")
    ids = _ids_of(path, table, key)
    return ids, np.column_stack([_numbers(path, table, name, ids) for name in columns])


# -- files, ids and columns ----------------------------------------------------------------------------------------


def _file(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() not in (".npz", ".csv", ".parquet"):
        raise DataError(f"{path}: expected a .npz, .csv or .parquet file")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    return path


def _arrays(path: Path, *names: str) -> tuple[dict[str, Any], list[str]]:
    try:
        return arrays_in(path, names.__contains__)
    except (OSError, Refused) as error:
        raise DataError(f"{path}: not a .npz file of plain arrays ({error_text(error)})") from None


def _samples_of_arrays(path: Path) -> tuple[tuple[str, ...], Any, Any]:
    """Read (ids, x, y or None) from a .npz file."""
    arrays, names = _arrays(path, "ids", "x", "y")
    if not {"ids", "x"} <= arrays.keys():
        raise DataError(f"{path}: expected arrays 'ids' and 'x', found {', '.join(sorted(names)) or 'none'}")
    x, ids = arrays["x"], arrays["ids"]
    if x.dtype.kind not in "fiub" or x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{path}: 'x': expected numbers [n, d], got {x.dtype} of shape {x.shape}")
    if ids.ndim != 1 or ids.dtype.kind not in "Uiu":
        raise DataError(f"{path}: 'ids': expected one text or whole number per row of 'x', got {ids.dtype}")
    if len(ids) != len(x):
        raise DataError(f"{path}: {len(ids)} ids but {len(x)} rows of 'x'; expected one id per row")
    texts = tuple(map(str, ids.tolist()))
    _check_ids(path, texts)
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        raise DataError(f"{path}: client {texts[int(np.argmin(finite))]!r}: a value is not finite; expected numbers")
    return texts, x, arrays.get("y")


def _read_table(path: Path, texts: Sequence[str], *, first: bool = False) -> pa.Table:
    """Read a .csv or .parquet file with unique column names; of a .csv, `texts` (and the first column) as text."""
    import pyarrow as pa
    from pyarrow import csv

    try:
        if path.suffix.lower() == ".parquet":
            table = parquet_in(path)
        else:
            with path.open("rb") as file:
                line = file.readline(1 << 16).decode("utf-8", "replace")
            mark = max(",;\t|", key=line.count)
            if mark in line and "," not in line:
                raise Refused(f"{mark!r} separates its cells; save it with commas, and with points in numbers")
            names = csv.open_csv(path).schema.names
            kinds = dict.fromkeys([*texts, *names[:first]], pa.string())
            table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=kinds))
    except (pa.ArrowException, OSError, IndexError, KeyError, ValueError) as error:
        raise DataError(f"{path}: not a readable table: {error_text(error)}") from None
    names = table.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path}: column {twice[0]!r} occurs twice; expected unique column names")
    return table


def _ids_of(path: Path, table: pa.Table, key: str) -> tuple[str, ...]:
    ids = tuple("" if id is None else str(id) for id in table[key].to_pylist())
    _check_ids(path, ids, f" in column {key!r}")
    return ids


def _check_ids(path: Path, ids: Sequence[str], where: str = "") -> None:
    """Raise DataError for an id that is empty or has non-printable characters."""
    if all(ids) and printable("".join(ids)):
        return
    for row, id in enumerate(ids):
        if not id:
            raise DataError(f"{path}: row {row + 1} has no id{where}")
        if not printable(id):
            raise DataError(f"{path}: row {row + 1}: expected an id of printable characters, got {id!r}")


def _column(path: Path, table: pa.Table, name: str, ids: Sequence[str]) -> Any:
    """Return the values of a column, numbers or texts; raises DataError if one is missing."""
    column = table[name].combine_chunks()
    values = column.to_numpy(zero_copy_only=False)
    missing = np.array(column.is_null().to_pylist(), dtype=bool)
    if values.dtype.kind == "f":
        missing |= ~np.isfinite(values)
    if missing.any():
        row = int(np.argmax(missing))
        where = f"row {row + 1}, client {ids[row]!r}, column {name!r}"
        raise DataError(f"{path}: {where}: missing or not finite; fill in or leave out such rows")
    if values.dtype == object and not all(isinstance(value, str) for value in values):
        raise DataError(f"{path}: column {name!r}: expected numbers or texts, got {column.type}")
    return values.astype(str) if values.dtype == object else values


def _numbers(path: Path, table: pa.Table, name: str, ids: Sequence[str]) -> Any:
    values = _column(path, table, name, ids)
    if values.dtype.kind not in "fiu" and len(values):
        row = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
        value = escaped(repr(values[row].item()), 80)
        raise DataError(f"{path}: row {row + 1}, client {ids[row]!r}, column {name!r}: expected a number, got {value}")
    return values.astype(np.float64)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)


# -- raw rows of many clients, and signatures in a file ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of many clients: ids [n] of clients, one per row; x [n, d]; y [n], or None.

    per_feature: columns have units of their own. target: how y was read, "classes", "number" or "none".

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(90, 2))
    >>> rows = Rows(np.repeat(["a", "b", "c"], 30), x)
    >>> from fedkin.graph import find
    >>> find(rows.sign()).groups
    {'a': 0, 'b': 0, 'c': 0}
    """

    ids: Any
    x: Any
    y: Any = None
    per_feature: bool = False

    @property
    def target(self) -> str:
        """How the target was read."""
        if self.y is None:
            return "none"
        return "number" if self.y.dtype.kind == "f" else "classes"

    def sign(self, seed: int = 0) -> dict[str, Signature]:
        """Every client's signature, in the order of first rows; rows of a client keep their order."""
        ids, first, of = np.unique(self.ids, return_index=True, return_inverse=True)
        members = {str(ids[c]): np.flatnonzero(of == c) for c in np.argsort(first)}
        parts = {id: (self.x[rows], None if self.y is None else self.y[rows]) for id, rows in members.items()}
        plan = Plan.of((Spread.of(x, y, per_feature=self.per_feature) for x, y in parts.values()), seed=seed)
        return {id: sign(plan, x, y) for id, (x, y) in parts.items()}


def read_rows(path: str | Path, client: str = "client", target: str | None = None) -> Rows:
    """Read raw rows, one per sample, from .csv, .parquet or .npz; DataError says which row or column is wrong.

    .csv, .parquet: columns `client` and, if named, `target`; numbers are features, each scaled by itself;
    text with up to 200 values is a category, one-hot. .npz: arrays `ids` [n], x [n, ...] and, if there, y
    [n]. A target of text or whole numbers is a class, one of floats a number.
    """
    path = _file(path)
    rows = _rows_of_arrays(path) if path.suffix.lower() == ".npz" else _rows_of_table(path, client, target)
    counts = np.unique(rows.ids, return_counts=True)[1]
    if len(counts) < 2 or counts.max() == 1:
        what = "one client" if len(counts) < 2 else "one row per client"
        raise DataError(f"{path}: {what}; expected the raw samples of two or more clients, one row each")
    return rows


def _rows_of_arrays(path: Path) -> Rows:
    ids, x, y = _samples_of_arrays(path)
    if y is not None and y.shape != (len(ids),):
        raise DataError(f"{path}: 'y': expected {len(ids)} targets, one per row, got shape {y.shape}")
    return Rows(np.array(ids), x.reshape(len(x), -1), None if y is None else _target(path, "y", y))


def _rows_of_table(path: Path, client: str, target: str | None) -> Rows:
    table = _read_table(path, (client,))
    columns = table.column_names
    for name in (client, target):
        if name is not None and name not in columns:
            raise DataError(f"{path}: no column {name!r}; {nearest(name, columns)}")
    ids = _ids_of(path, table, client)
    blocks = [
        _features(path, name, _column(path, table, name, ids)) for name in columns if name not in (client, target)
    ]
    if not blocks:
        raise DataError(f"{path}: expected columns of samples beside {client!r}, found none")
    y = None if target is None else _target(path, target, _column(path, table, target, ids))
    return Rows(np.array(ids), np.hstack(blocks), y, per_feature=True)


def _features(path: Path, name: str, values: Any) -> Any:
    """Return numbers as one column [n, 1], and categories one-hot [n, categories]."""
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)[:, None]
    categories, of = np.unique(values, return_inverse=True)
    if values.dtype.kind != "U" or len(categories) > _MOST_CATEGORIES:
        has = f"has {len(categories)} different values that are not numbers"
        expected = f"expected numbers or at most {_MOST_CATEGORIES} categories; leave it out"
        raise DataError(f"{path}: column {name!r} {has}; {expected}")
    return np.eye(len(categories))[of]


def _target(path: Path, name: str, values: Any) -> Any:
    """Return classes numbered 0.. for text and whole numbers, float64 for floats."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise DataError(f"{path}: target {name!r}: row {int(np.argmin(np.isfinite(values))) + 1} is not finite")
        return values.astype(np.float64)
    if values.dtype.kind not in "Uiub":
        raise DataError(f"{path}: target {name!r}: expected classes or numbers, got {values.dtype}")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def write_signed(path: str | Path, signatures: Mapping[str, Signature]) -> None:
    """Write signatures by client id as a .npz of plain arrays, for `read_signed`.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from fedkin.graph import Rows
    >>> signed = Rows(np.repeat(["a", "b"], 20), np.arange(40.0)[:, None]).sign()
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "signed.npz"
    >>> write_signed(file, signed)
    >>> list(read_signed(file))
    ['a', 'b']
    """
    parts = [signature.to_bytes() for signature in signatures.values()]
    ends = np.cumsum([len(part) for part in parts])
    data = np.frombuffer(b"".join(parts), dtype=np.uint8)
    with Path(path).open("wb") as file:
        np.savez(file, ids=np.array(list(signatures), dtype=str), ends=ends, signatures=data)


def read_signed(path: str | Path) -> dict[str, Signature] | None:
    """Read signatures that `write_signed` wrote, or None if the file holds something else.

    >>> read_signed("table.csv") is None
    True
    """
    path = Path(path)
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    arrays, _ = _arrays(path, "ids", "ends", "signatures")
    if len(arrays) < 3:
        return None
    ids, ends, data = arrays["ids"], arrays["ends"], arrays["signatures"]
    valid = (ids.dtype.kind, data.dtype) == ("U", np.uint8) and ends.dtype.kind in "iu"
    valid = valid and ids.ndim == ends.ndim == data.ndim == 1 and len(ends) == len(ids) == len(set(ids.tolist()))
    # Ends that do not ascend, or lie beyond the data, leave bytes that are no signature.
    if not valid:
        raise DataError(f"{path}: not signatures as write_signed writes them; make the file again")
    _check_ids(path, ids.tolist())
    pieces = np.split(data, ends[:-1].astype(np.int64))
    try:
        return {id: Signature.from_bytes(piece.tobytes()) for id, piece in zip(ids.tolist(), pieces, strict=False)}
    except (DataError, GraphError) as error:
        raise DataError(f"{path}: {error}") from None
