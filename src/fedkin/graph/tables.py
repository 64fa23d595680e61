"""Tables of clients from .npz, .csv or .parquet files: a vector or set of vectors per client, or a row per sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.errors import DataError, GraphError, nearest
from fedkin.graph.grouping_tests import Verdicts, find
from fedkin.graph.signatures import Plan, Signature, Spread, sign
from fedkin.untrusted import Refused, arrays_in, parquet_in, printable, said, shown

__all__ = ["Rows", "Signatures", "read_rows", "read_signatures", "read_signed", "write_signed"]


if TYPE_CHECKING:
    import pyarrow as pa


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
    readers = {".npz": _read_npz, ".csv": _from_table, ".parquet": _from_table}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path}: expected a .npz, .csv or .parquet file")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    signatures = readers[path.suffix.lower()](path)
    if len(signatures.ids) < 2:
        raise DataError(f"{path}: {len(signatures.ids) or 'no'} client; expected at least two to compare")
    return signatures


def _read_npz(path: Path) -> Signatures:
    arrays, names = _arrays(path, "ids", "x")
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


def _read_table(path: Path, texts: Sequence[str], *, first: bool = False) -> pa.Table:
    """Read a .csv or .parquet file with unique column names; of a .csv, `texts` (and the first column) as text."""
    import pyarrow as pa
    from pyarrow import csv

    try:
        if path.suffix.lower() == ".parquet":
            table = parquet_in(path)
        else:
            names = csv.open_csv(path).schema.names
            kinds = dict.fromkeys([*texts, *names[:first]], pa.string())
            table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=kinds))
    except (pa.ArrowException, OSError, IndexError, KeyError, ValueError) as error:
        raise DataError(f"{path}: not a readable table: {said(error)}") from None
    twice = sorted(name for name, count in Counter(table.column_names).items() if count > 1)
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} occurs twice; expected unique column names")
    return table


def _ids_of(path: Path, table: pa.Table, key: str) -> list[str]:
    ids = ["" if id is None else str(id) for id in table[key].to_pylist()]
    if "" in ids:
        raise DataError(f"{path}: row {ids.index('') + 1} has no id in column {key!r}")
    return ids


def _from_table(path: Path) -> Signatures:
    table = _read_table(path, ("client", "centre"), first=True)
    names = table.column_names
    if path.suffix.lower() == ".csv" and all(_is_number(name) for name in names):
        raise DataError(f"{path}: the first line holds only numbers; expected column names")
    key = "client" if "client" in names else names[0] if names else ""
    columns = [name for name in names if name not in (key, "centre")]
    if not columns:
        raise DataError(f"{path}: expected a column of ids and at least one of numbers, found {names}")
    ids = tuple(_ids_of(path, table, key))
    _check_ids(path, ids)
    x = np.array([_numbers(path, table, name, ids) for name in columns]).T.copy()
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


# -- raw rows of many clients, and signatures in a file ----------------------------------------------------------------


# A column of text with more values than this is a name, not a category.
_MOST_CATEGORIES = 200


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of many clients: ids [n] of clients, one per row; x [n, d]; y [n], or None; names of x's columns.

    per_feature: columns have units of their own. target: how y was read, "classes", "number" or "none".

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(90, 2))
    >>> rows = Rows(np.repeat(["a", "b", "c"], 30), x)
    >>> rows.find().groups
    {'a': 0, 'b': 0, 'c': 0}
    """

    ids: Any
    x: Any
    y: Any = None
    names: tuple[str, ...] = ()
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

    def find(self, *, alpha: float = 0.001, least: float = 0.0, seed: int = 0) -> Verdicts:
        """`find` of their signatures."""
        return find(self.sign(seed), alpha=alpha, least=least, seed=seed)


def read_rows(path: str | Path, client: str = "client", target: str | None = None) -> Rows:
    """Raw rows, one per sample, from .csv, .parquet or .npz; DataError says which row or column is wrong.

    .csv, .parquet: columns `client` and, if named, `target`; numbers are features, each scaled by itself;
    text with up to 200 values is a category, one-hot. .npz: arrays `ids` [n], x [n, ...] and, if there, y
    [n]. A target of text or whole numbers is a class, one of floats a number.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix.lower() == ".npz":
        rows = _from_npz(path)
    elif path.suffix.lower() in (".csv", ".parquet"):
        rows = _rows_from_table(path, client, target)
    else:
        raise DataError(f"{path}: expected a .npz, .csv or .parquet file")
    names, first, counts = np.unique(rows.ids, return_index=True, return_counts=True)
    for row, id in zip(first.tolist(), names.tolist(), strict=True):
        check_id(path, row, str(id))
    if len(counts) < 2 or counts.max() == 1:
        what = "one client" if len(counts) < 2 else "one row per client"
        raise DataError(f"{path}: {what}; expected the raw samples of two or more clients, one row each")
    return rows


def _from_npz(path: Path) -> Rows:
    arrays, names = _arrays(path, "ids", "x", "y")
    if "ids" not in arrays or "x" not in arrays:
        raise DataError(f"{path}: expected arrays 'ids' and 'x', found {', '.join(sorted(names)) or 'none'}")
    ids, x, y = arrays["ids"], arrays["x"], arrays.get("y")
    if ids.ndim != 1 or ids.dtype.kind not in "Uiu" or x.ndim < 2 or x.dtype.kind not in "fiub" or len(ids) != len(x):
        raise DataError(f"{path}: expected 'ids' [n] of text or whole numbers and 'x' [n, ...] of numbers, one per row")
    if y is not None and y.shape != ids.shape:
        raise DataError(f"{path}: 'y': expected {len(ids)} targets, one per row, got shape {y.shape}")
    return Rows(ids.astype(str), x.reshape(len(x), -1), None if y is None else _target(path, "y", y))


def _arrays(path: Path, *wanted: str) -> tuple[dict[str, Any], list[str]]:
    try:
        return arrays_in(path, wanted.__contains__)
    except (OSError, Refused) as error:
        raise DataError(f"{path}: not a .npz file of plain arrays ({said(error)})") from None


def _rows_from_table(path: Path, client: str, target: str | None) -> Rows:
    table = _read_table(path, (client,))
    known = table.column_names
    for name in (client, target):
        if name is not None and name not in known:
            raise DataError(f"{path}: no column {name!r}; {nearest(name, known)}")
    ids = np.array(_ids_of(path, table, client))
    columns, names = [], []
    for name in known:
        if name not in (client, target):
            values = np.asarray(_column(path, table, name))
            labels, block = _features(path, name, values)
            names += labels
            columns.append(block)
    if not columns:
        raise DataError(f"{path}: expected columns of samples beside {client!r}, found none")
    y = None if target is None else _target(path, target, np.asarray(_column(path, table, target)))
    return Rows(ids, np.hstack(columns), y, tuple(names), per_feature=True)


def _column(path: Path, table: Any, name: str) -> Any:
    column = table[name].combine_chunks()
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{path}: row {row + 1}, column {name!r}: missing; fill in or leave out such rows")
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype == object and not all(isinstance(value, str) for value in values):
        raise DataError(f"{path}: column {name!r}: expected numbers or texts, got {column.type}")
    return values.astype(str) if values.dtype == object else values


def _features(path: Path, name: str, values: Any) -> tuple[list[str], Any]:
    if values.dtype.kind in "fiub":
        values = values.astype(np.float64)
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise DataError(f"{path}: row {row + 1}, column {name!r}: not finite; expected a number")
        return [name], values[:, None]
    categories, of = np.unique(values, return_inverse=True)
    if values.dtype.kind != "U" or len(categories) > _MOST_CATEGORIES:
        raise DataError(
            f"{path}: column {name!r} has {len(categories)} different values that are not numbers; expected numbers or "
            f"at most {_MOST_CATEGORIES} categories; leave it out"
        )
    return [f"{name}={value}" for value in categories], np.eye(len(categories))[of]


def _target(path: Path, name: str, values: Any) -> Any:
    """Classes numbered 0.. for text and whole numbers, float64 for floats."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise DataError(f"{path}: target {name!r}: row {int(np.argmin(np.isfinite(values))) + 1} is not finite")
        return values.astype(np.float64)
    if values.dtype.kind not in "Uiub":
        raise DataError(f"{path}: target {name!r}: expected classes or numbers, got {values.dtype}")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def write_signed(path: str | Path, signatures: Mapping[str, Signature]) -> None:
    """Signatures by client id as a .npz of plain arrays, for `read_signed`.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from fedkin.graph import Rows
    >>> signed = Rows(np.repeat(["a", "b"], 20), np.arange(40.0)[:, None]).sign()
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "signed.npz"
    >>> write_signed(file, signed)
    >>> list(read_signed(file))
    ['a', 'b']
    """
    parts = [one.to_bytes() for one in signatures.values()]
    ends = np.cumsum([len(part) for part in parts])
    data = np.frombuffer(b"".join(parts), dtype=np.uint8)
    with Path(path).open("wb") as file:
        np.savez(file, ids=np.array(list(signatures), dtype=str), ends=ends, signatures=data)


def read_signed(path: str | Path) -> dict[str, Signature] | None:
    """Signatures that `write_signed` wrote, or None if the file holds something else.

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
    named = ids.ndim == ends.ndim == 1 and ids.dtype.kind == "U" and ends.dtype.kind in "iu" and len(ids) == len(ends)
    ends = ends.astype(np.int64) if named else np.zeros(0, dtype=np.int64)
    starts = np.concatenate([[0], ends])[: len(ends)]
    whole = named and data.dtype == np.uint8 and not (ends < starts).any() and (ends <= data.size).all()
    if not whole or len(set(ids.tolist())) < len(ids):
        raise DataError(f"{path}: not signatures as write_signed writes them; make the file again")
    for row, id in enumerate(ids.tolist()):
        check_id(path, row, id)
    pieces = data.tobytes()
    try:
        signatures = {str(id): Signature.from_bytes(pieces[a:b]) for id, a, b in zip(ids, starts, ends, strict=True)}
    except (DataError, GraphError) as error:
        raise DataError(f"{path}: {error}") from None
    return signatures
