"""The roles of a table's columns: inputs, target, client, split; and which rows are of which client, and test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from fedkin.errors import DataError, nearest
from fedkin.federation import arrays, table_values
from fedkin.federation.arrays import Flags, Floats, Ints, Names
from fedkin.federation.table_values import Column

Kind = Literal["classification", "risk", "regression"]


class Reading(BaseModel):
    """The roles of a table's columns. See `Federation.from_frame`."""

    model_config = ConfigDict(frozen=True)

    target: str
    client: str
    time: str | None = None
    group: str | None = None
    person: str | None = None
    kind: Kind | None = None
    positive: str | None = None
    split: str | None = None
    test_fraction: float = Field(0.2, ge=0, lt=1)
    leave_out: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    least: int = Field(10, ge=1)
    seed: int = Field(0, ge=0)

    @property
    def roles(self) -> dict[str, str]:
        """{role: column} of the columns that are no inputs, without those left out."""
        names = {role: getattr(self, role) for role in ("target", "client", "time", "group", "person", "split")}
        if self.split in ("random", "time"):
            del names["split"]
        return {role: name for role, name in names.items() if name is not None}


@dataclass(frozen=True)
class Columns:
    """A table, split by the roles of its columns.

    inputs: the input columns; kinds: number or category, for each. client, group: [n] texts. rows: the rows of each
    client. is_test: [n] True for test rows. values: [n] the target's texts. others: names of the other columns. person:
    [n] number of each row's person at its client, if there is a column of persons. time: [n] each row's time
    as a number, if there is a column of times.
    """

    inputs: pa.Table
    kinds: Mapping[str, Column]
    client: Names
    rows: Mapping[str, Ints]
    is_test: Flags
    values: npt.NDArray[np.object_]
    group: Names | None
    others: Sequence[str]
    person: Ints | None
    time: Floats | None


def columns_of(table: pa.Table, reading: Reading, where: str = "frame") -> Columns:
    """Split the table by the roles of its columns; raises DataError naming `where`, column, and row or client."""
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows; expected one for each sample")
    others = _roles(table, reading, where)
    client = _names(table, reading.client, where)
    rows = arrays.rows_by_name(client)
    arrays.check_ids(rows, f"{where}: column {reading.client!r}")
    group = None if reading.group is None else _names(table, reading.group, where)
    person = None if reading.person is None else _persons(client, _names(table, reading.person, where))
    time = None if reading.time is None else _times(table, reading.time, where)
    is_test = _test_rows(table, reading, client, person, time, where)
    values = _target_texts(table, reading.target, client, where)
    inputs = table.select([name for name in table.column_names if name not in others])
    try:
        kinds = table_values.kinds_of(inputs, reading.categories)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Columns(inputs, kinds, client, rows, is_test, values, group, others, person, time)


def _roles(table: pa.Table, reading: Reading, where: str) -> list[str]:
    """Names of the columns that are not inputs; raises DataError for unknown columns, two of a name, and two roles."""
    named = [*reading.roles.items(), *(("leave_out", name) for name in reading.leave_out)]
    _check_columns(table.column_names, named, where)
    for name in (reading.target, reading.client):
        kind = table.schema.field(name).type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind):
            raise DataError(f"{where}: column {name!r}: expected texts or numbers, got {kind}")
    first: dict[str, str] = {}
    for role, name in [*named, *(("categories", name) for name in reading.categories)]:
        if first.setdefault(name, role) != role:
            raise DataError(f"{where}: {first[name]} and {role} are both {name!r}; expected different columns")
    return [name for _, name in named]


def _check_columns(columns: list[str], named: Sequence[tuple[str, str]], where: str) -> None:
    """Raise DataError if there is no column for a (role, name), or there are two columns of one name."""
    for role, name in named:
        if name not in columns:
            undivided = [column for column in columns if set(column).intersection(",;\t|")]
            how = f"; if {undivided[0]!r} is two, say data.delimiter" if undivided else ""
            raise DataError(f"{where}: {role}: no column {name!r}; {nearest(name, columns)}{how}")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise DataError(f"{where}: two columns are called {twice[0]!r}; expected different names")


def _names(table: pa.Table, name: str, where: str) -> Names:
    """[n] a column as texts; raises DataError where one is missing."""
    kind = table.schema.field(name).type
    named = ("numbers", "true and false", "nothing")
    if not table_values.is_text(kind) and table_values.name_of_type(kind) not in named:
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got {kind}")
    values, codes = table_values.codes(table, name)
    if pa.types.is_floating(kind) and any(not value.lstrip("-").isdigit() for value in values):
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got fractions")
    _need_all(table, name, codes < 0, where)
    arrays.need_no_nul(values, f"{where}: column {name!r}")
    return np.array(values, dtype=np.str_)[codes]


def _need_all(table: pa.Table, name: str, empty: Flags, where: str) -> None:
    """Raise DataError if a column is empty in some rows."""
    if empty.any():
        first = table_values.row_at(table, int(empty.argmax()))
        also = "NA, NaN and null count as empty in a file of text"
        raise DataError(f"{where}: column {name!r} is empty in {empty.sum()} rows, the first is {first} ({also})")


def _persons(client: Names, person: Names) -> Ints:
    """[n] number of each row's person at its client."""
    return np.unique(np.char.add(np.char.add(client, "\0"), person), return_inverse=True)[1].reshape(-1)


def _times(table: pa.Table, name: str, where: str) -> Floats:
    """[n] a column of dates, times or numbers as numbers; raises DataError where one is missing."""
    table_values.need_numbers(table, name, where, "a date, a time or a number")
    when = table_values.numbers(table, name)
    _need_all(table, name, np.isnan(when), where)
    return when


def _test_rows(
    table: pa.Table, reading: Reading, client: Names, person: Ints | None, time: Floats | None, where: str
) -> Flags:
    """Which rows are test rows; rows of a person are on one side."""
    split = reading.split or ("time" if reading.time is not None else "random")
    if split not in ("random", "time"):
        is_test = arrays.which_test(_names(table, split, where), f"{where}: column {split!r}", table.num_rows)
        if lacking := sorted(set(client.tolist()) - set(client[~is_test].tolist())):
            lacks = f"has no row with {split!r} = 'train'; expected at least one"
            raise DataError(f"{where}: client {lacking[0]!r} {lacks}")
        return is_test
    unit = np.arange(table.num_rows) if person is None else person
    _, first = np.unique(unit, return_index=True)
    if split == "random":
        return arrays.hold_out(client[first], reading.test_fraction, reading.seed)[unit]
    if time is None:
        raise DataError(f"{where}: split 'time' needs the name of the column: time=...")
    latest = np.full(len(first), -np.inf)
    np.maximum.at(latest, unit, time)
    return arrays.hold_out_last(client[first], latest, reading.test_fraction)[unit]


def _target_texts(table: pa.Table, name: str, client: Names, where: str) -> npt.NDArray[np.object_]:
    """The target's values as texts; raises DataError for a row without one."""
    values = table_values.texts(table, name)
    empty = [row for row, value in enumerate(values) if value is None or value in ("nan", "inf", "-inf")]
    if empty:
        first = f"of client {str(client[empty[0]])!r}, is {table_values.row_at(table, empty[0])}"
        raise DataError(
            f"{where}: target {name!r} is unknown in {len(empty)} rows, the first, {first}; leave such rows out"
        )
    return values
