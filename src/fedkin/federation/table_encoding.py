"""Convert tables to arrays: the roles of columns, their values as numbers or texts, and their encoding as inputs.

The encoding is computed from sums and counts of each client, never from rows: numbers, dates and booleans are
standardised; each category becomes a column. Missing values, and rare or unknown categories, have their own columns.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedkin.errors import DataError, nearest
from fedkin.federation.arrays import (
    Flags,
    Ints,
    Names,
    check_ids,
    hold_out,
    hold_out_last,
    need_no_nul,
    rows_by_name,
    which_test,
)
from fedkin.tasks import Task
from fedkin.untrusted import error_text, json_of

Column = Literal["number", "category"]
Kind = Literal["classification", "risk", "regression"]
Floats = npt.NDArray[np.float64]

_SECONDS_A_DAY = 86_400.0
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# Whole numbers up to this size are exact as float64.
_EXACT = 2.0**53
# A target of whole numbers with at most this many different values has classes, unless `kind` says otherwise.
CLASSES = 20
# The squares of larger numbers are not finite; such numbers are codes for missing values, such as the largest float.
_LARGEST = 1e150
# A whole number, or one with a decimal point or comma.
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")
_MISSING, _OTHER = "(missing)", "(other)"

Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


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
    client. is_test: [n] True for test rows. values: [n] the target's texts. others: names of the other columns.
    """

    inputs: pa.Table
    kinds: Mapping[str, Column]
    client: Names
    rows: Mapping[str, Ints]
    is_test: Flags
    values: npt.NDArray[np.object_]
    group: Names | None
    others: Sequence[str]

    def training(self, table: pa.Table) -> dict[str, pa.Table]:
        """The training rows of each client, from a table with the same rows."""
        return {id: table.take(rows[~self.is_test[rows]]) for id, rows in self.rows.items()}


def as_table(frame: Any) -> pa.Table:
    """A frame of pandas or polars, a dict of columns, or an Arrow table, as an Arrow table; raises DataError."""
    try:
        if type(frame).__module__.split(".")[0] == "pandas":
            frame = pa.Table.from_pandas(frame, preserve_index=False)
        return without_views(frame if isinstance(frame, pa.Table) else pa.table(frame))
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        expected = "a frame of pandas or polars, an Arrow table or a dict of columns, of all clients, each of one kind"
        raise DataError(f"frame: expected {expected}; got {type(frame).__name__} ({error_text(error)})") from None


def without_views(table: pa.Table) -> pa.Table:
    """The table with texts instead of string views, from which Arrow cannot take rows."""
    fields = [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def remember(table: pa.Table, what: str, facts: Any) -> pa.Table:
    """The table with facts in its metadata, under the name `what`; for "files": each file and its number of rows."""
    metadata = table.schema.metadata or {}
    return table.replace_schema_metadata({**metadata, f"fedkin.{what}".encode(): json.dumps(facts)})


def remembered(table: pa.Table, what: str) -> Any:
    """The facts that `remember` stored; None if there are none, or if another program uses this name for other data."""
    try:
        return json.loads((table.schema.metadata or {}).get(f"fedkin.{what}".encode(), b"null"))
    except ValueError:
        return None


def row_at(table: pa.Table, row: int) -> str:
    """Describe a row, counted from 0; if the table remembers its files, by its number in its file, counted from 1.

    >>> table = pa.table({"x": [1, 2, 3]})
    >>> row_at(table, 2), row_at(remember(table, "files", [("a.csv", 2), ("b.csv", 1)]), 2)
    ('row 2', 'row 1 of b.csv, counted from 1 below the names of columns')
    """
    before = 0
    for name, count in remembered(table, "files") or ():
        if before <= row < before + count:
            return f"row {row - before + 1} of {name}, counted from 1 below the names of columns"
        before += count
    return f"row {row}"


# -- roles of columns ----------------------------------------------------------------------------------------------


def columns_of(table: pa.Table, reading: Reading, where: str = "frame") -> Columns:
    """Split the table by the roles of its columns; raises DataError naming `where`, column, and row or client."""
    if table.num_rows == 0:
        raise DataError(f"{where}: no rows; expected one for each sample")
    others = _roles(table, reading, where)
    client = _names(table, reading.client, where)
    rows = rows_by_name(client)
    check_ids(rows, f"{where}: column {reading.client!r}")
    group = None if reading.group is None else _names(table, reading.group, where)
    is_test = _test_rows(table, reading, client, where)
    values = _target_texts(table, reading.target, client, where)
    inputs = table.select([name for name in table.column_names if name not in others])
    try:
        kinds = kinds_of(inputs, reading.categories)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Columns(inputs, kinds, client, rows, is_test, values, group, others)


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
    if not _is_text(kind) and name_of_type(kind) not in ("numbers", "true and false", "nothing"):
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got {kind}")
    values, place = codes(table, name)
    if pa.types.is_floating(kind) and any(not value.lstrip("-").isdigit() for value in values):
        raise DataError(f"{where}: column {name!r}: expected texts or whole numbers, got fractions")
    _need_all(table, name, place < 0, where)
    need_no_nul(values, f"{where}: column {name!r}")
    return np.array(values, dtype=np.str_)[place]


def _need_all(table: pa.Table, name: str, empty: Flags, where: str) -> None:
    """Raise DataError if a column is empty in some rows."""
    if empty.any():
        first = row_at(table, int(empty.argmax()))
        also = "NA, NaN and null count as empty in a file of text"
        raise DataError(f"{where}: column {name!r} is empty in {empty.sum()} rows, the first is {first} ({also})")


def _test_rows(table: pa.Table, reading: Reading, client: Names, where: str) -> Flags:
    """Which rows are test rows."""
    split = reading.split or ("time" if reading.time is not None else "random")
    if split not in ("random", "time"):
        is_test = which_test(_names(table, split, where), f"{where}: column {split!r}", table.num_rows)
        if lacking := sorted(set(client.tolist()) - set(client[~is_test].tolist())):
            lacks = f"has no row with {split!r} = 'train'; expected at least one"
            raise DataError(f"{where}: client {lacking[0]!r} {lacks}")
        return is_test
    # Hold out units: single rows, or all rows of a person at a client.
    if reading.person is None:
        unit = np.arange(table.num_rows)
    else:
        person = _names(table, reading.person, where)
        unit = np.unique(np.char.add(np.char.add(client, "\0"), person), return_inverse=True)[1].reshape(-1)
    _, first = np.unique(unit, return_index=True)
    if split == "random":
        return hold_out(client[first], reading.test_fraction, reading.seed)[unit]
    if reading.time is None:
        raise DataError(f"{where}: split 'time' needs the name of the column: time=...")
    need_numbers(table, reading.time, where, "a date, a time or a number")
    when = numbers(table, reading.time)
    _need_all(table, reading.time, np.isnan(when), where)
    latest = np.full(len(first), -np.inf)
    np.maximum.at(latest, unit, when)
    return hold_out_last(client[first], latest, reading.test_fraction)[unit]


def _target_texts(table: pa.Table, name: str, client: Names, where: str) -> npt.NDArray[np.object_]:
    """The target's values as texts; raises DataError for a row without one."""
    values = texts(table, name)
    empty = [row for row, value in enumerate(values) if value is None or value in ("nan", "inf", "-inf")]
    if empty:
        first = f"of client {str(client[empty[0]])!r}, is {row_at(table, empty[0])}"
        raise DataError(
            f"{where}: target {name!r} is unknown in {len(empty)} rows, the first, {first}; leave such rows out"
        )
    return values


# -- values of columns ---------------------------------------------------------------------------------------------


def kinds_of(table: pa.Table, categories: Sequence[str] = ()) -> dict[str, Column]:
    """Whether each column is a number (also dates, durations and booleans) or a category (texts, and `categories`).

    Raises DataError for a column that is neither, and for an unknown name in `categories`.
    """
    for name in categories:
        if name not in table.column_names:
            raise DataError(f"categories: no column {name!r}; the table has {', '.join(table.column_names)}")
    kinds: dict[str, Column] = {}
    for name in table.column_names:
        stored = _plain(table.schema.field(name).type)
        kinds[name] = "category" if name in categories or _is_text(stored) else "number"
        if kinds[name] == "number" and name_of_type(stored) == "texts":
            how = "make texts of it, or leave it out"
            raise DataError(f"column {name!r}: expected numbers, texts, dates or booleans, got {stored}; {how}")
    return kinds


def refuse_decimal_texts(inputs: pa.Table, categories: Collection[str]) -> None:
    """Raise DataError for a column of a frame whose texts are all numbers, some with decimals, unless in `categories`.

    As texts, each number would be a category of its own.
    """
    for name in inputs.column_names:
        if name in categories or not _is_text(inputs.schema.field(name).type):
            continue
        different = list(filter(None, map(str.strip, codes(inputs, name)[0])))
        decimal = next((text for text in different if "." in text or "," in text), None)
        if decimal is not None and all(map(_NUMBER.fullmatch, different)):
            raise DataError(
                f"frame: column {name!r}: expected numbers or categories, got texts that are numbers, such as "
                f"{decimal!r}: convert the column to numbers, or name it in categories"
            )


def need_numbers(table: pa.Table, name: str, where: str, expected: str) -> None:
    """Raise DataError unless a column holds numbers, dates or booleans; expected: words for the error message."""
    if kinds_of(table.select([name]))[name] != "number":
        kind = table.schema.field(name).type
        got = f"texts such as {next(iter(codes(table, name)[0]), '')!r}" if _is_text(kind) else kind
        how = (
            ": if they are dates, data.dates (--dates) says their order in a CSV file, and pandas.to_datetime makes "
            "dates of them in a frame"
        )
        raise DataError(f"{where}: column {name!r}: expected {expected}, got {got}{how if 'date' in expected else ''}")


def name_of_type(stored: pa.DataType) -> str:
    """A word for people that names values of this type."""
    kind = _plain(stored)
    tests = {
        "nothing": pa.types.is_null, "true and false": pa.types.is_boolean, "times": pa.types.is_time,
        "durations": pa.types.is_duration, "dates": pa.types.is_temporal,
    }  # fmt: skip
    for name, test in tests.items():
        if test(kind):
            return name
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "numbers" if numeric else "texts"


def numbers(table: pa.Table, name: str) -> Floats:
    """[n] a column as numbers, NaN for missing values: dates in days since 1970, times and durations in days."""
    values = _decoded(table.column(name))
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("ms"))
    kind = values.type
    if pa.types.is_temporal(kind):
        whole = values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        ticks = whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        days: Floats = ticks / _UNITS[kind.unit] / _SECONDS_A_DAY
        return days
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    floats: Floats = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.isfinite(floats), floats, np.nan)


def texts(table: pa.Table, name: str) -> npt.NDArray[np.object_]:
    """[n] a column as texts, None for missing values."""
    return np.array(_texts(table, name).to_pylist(), dtype=object)


def codes(table: pa.Table, name: str) -> tuple[list[str], Ints]:
    """(a column's different texts, sorted; [n] the index of each row's text among them, -1 for missing values)."""
    encoded = _texts(table, name).dictionary_encode()
    values = np.array([str(value) for value in encoded.dictionary.to_pylist()], dtype=object)
    order = np.argsort(values, kind="stable")
    place = np.empty(len(values) + 1, np.int64)
    place[order], place[-1] = np.arange(len(values)), -1
    return list(values[order]), place[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]


def is_number(text: str) -> bool:
    """Whether a text is a number, as in "1", "-2.5" and "1e3"."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _exact(text: str) -> int | float:
    """The number that a text is; whole numbers are not rounded as a float would be."""
    try:
        return int(text)
    except ValueError:  # a fraction, or more digits than Python reads
        return float(text)


def _texts(table: pa.Table, name: str) -> Any:
    values = _decoded(table.column(name))
    if pa.types.is_floating(values.type):
        # Whole numbers with missing values are stored as floats: 3.0 is the category 3. Beyond 2^53 floats are inexact.
        whole = pc.and_(pc.equal(values, pc.round(values)), pc.less_equal(pc.abs(values), _EXACT))
        if pc.all(whole, min_count=0).as_py():
            values = values.cast(pa.int64())
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _decoded(column: pa.ChunkedArray) -> Any:
    """A column as one array, with dictionary codes replaced by their values."""
    values = column.combine_chunks()
    kind = values.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_string_view(kind.value_type):  # from polars; Arrow cannot take rows from them
            values = values.cast(pa.dictionary(kind.index_type, pa.string(), kind.ordered))
        values = values.dictionary_decode()
    return values


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


# -- summaries of a client's rows ----------------------------------------------------------------------------------


class AsJson:
    """A dataclass that is sent or stored as JSON text and read back bit for bit; what: its name in errors."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    what: ClassVar[str] = ""

    def to_json(self) -> str:
        """The object as JSON text, which people can read before it is sent."""
        return json.dumps(asdict(self), ensure_ascii=False, default=sorted)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; raises DataError for any other text."""
        try:
            json_of(text)  # refuses unusual depth, sizes and characters
            value = TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DataError(f"{cls.what}: {where}: {error_text(ValueError(first['msg']))}") from None
        except ValueError as error:
            raise DataError(f"{cls.what}: cannot be read as JSON ({error_text(error)})") from None
        value.check()
        return value

    def check(self) -> None:
        """Raise DataError if fields contradict each other."""


@dataclass(frozen=True)
class Moments(AsJson):
    """Known values of a column of numbers at one client: count, mean, and sum of squared differences from the mean."""

    count: Count
    mean: Finite
    squares: Annotated[float, Field(allow_inf_nan=False, ge=0)]

    @classmethod
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """The moments of all values together, from those of parts (Chan, Golub and LeVeque, 1983)."""
        count = sum(part.count for part in parts)
        mean = math.fsum(part.count * part.mean for part in parts) / max(count, 1)
        squares = math.fsum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts if part.count)
        return cls(count, mean, squares)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.squares / max(self.count, 1))


@dataclass(frozen=True)
class Profile(AsJson):
    """All that a client reveals about its training rows: moments of numbers, and counts of categories."""

    what: ClassVar[str] = "a profile"

    rows: Count
    numbers: Mapping[str, Moments]
    categories: Mapping[str, Mapping[str, Count]]

    @classmethod
    def merged(cls, profiles: Iterable[Profile]) -> Profile:
        """The profile of all rows together; the order of the profiles does not matter.

        Raises DataError if they have different columns.

        >>> kinds = {"age": "number"}
        >>> parts = [profile(pa.table({"age": ages}), kinds) for ages in ([50, 70], [90])]
        >>> Profile.merged(parts) == profile(pa.table({"age": [50, 70, 90]}), kinds)
        True
        """
        parts = list(profiles)
        if not parts:
            raise DataError("profiles: expected at least one, got none")
        first = parts[0]
        for part in parts:
            first.check_columns(part)
        moments = {name: Moments.merged([part.numbers[name] for part in parts]) for name in first.numbers}
        counts = {name: Counter[str]() for name in first.categories}
        for part in parts:
            for name, client_counts in part.categories.items():
                counts[name].update(client_counts)
        categories = {name: dict(sorted(total.items())) for name, total in counts.items()}
        return cls(sum(part.rows for part in parts), moments, categories)

    def check_columns(self, other: Profile) -> None:
        """Raise DataError if another profile has other columns."""
        if (self.numbers.keys(), self.categories.keys()) != (other.numbers.keys(), other.categories.keys()):
            odd = sorted({*self.numbers, *self.categories} ^ {*other.numbers, *other.categories})
            what = f"{odd[0]!r} is in one only" if odd else "a column is a number in one and a category in another"
            raise DataError(f"profiles: expected the same columns in all; {what}")

    def check(self) -> None:
        """Raise DataError if it counts more values than rows."""
        by_column = {name: moments.count for name, moments in self.numbers.items()}
        by_column |= {name: sum(counts.values()) for name, counts in self.categories.items()}
        for name, count in by_column.items():
            if count > self.rows:
                raise DataError(f"a profile: column {name!r} has {count} values in {self.rows} rows")


def profile(table: pa.Table, kinds: Mapping[str, Column]) -> Profile:
    """All that a client reveals about these rows; raises DataError for a number too large to be squared.

    >>> shown = profile(pa.table({"age": [50, 70, None], "sex": ["f", "m", "f"]}), {"age": "number", "sex": "category"})
    >>> shown.numbers["age"], dict(shown.categories["sex"])
    (Moments(count=2, mean=60.0, squares=200.0), {'f': 2, 'm': 1})
    """
    moments, counts = {}, {}
    for name, kind in kinds.items():
        if kind == "category":
            values, place = codes(table, name)
            often = np.bincount(place[place >= 0], minlength=len(values)).tolist()
            counts[name] = dict(zip(values, often, strict=True))
            continue
        present = numbers(table, name)
        present = present[~np.isnan(present)]
        if len(present) and (largest := float(present[np.abs(present).argmax()])) and abs(largest) > _LARGEST:
            how = "if it means that nothing is known, leave the cell empty, or in a CSV file name it in data.missing"
            raise DataError(f"column {name!r}: {largest:g} is no measurement; {how}")
        mean = math.fsum(present) / len(present) if len(present) else 0.0
        moments[name] = Moments(len(present), mean, math.fsum((present - mean) ** 2))
    return Profile(table.num_rows, moments, counts)


def profiles_of(columns: Columns, table: pa.Table, kinds: Mapping[str, Column], where: str) -> list[Profile]:
    """The profile of each client's training rows in these columns."""
    profiles = []
    for id, rows in columns.training(table).items():
        try:
            profiles.append(profile(rows, kinds))
        except DataError as error:
            raise DataError(f"{where}: client {id!r}: {error}") from None
    return profiles


# -- the encoding --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoding(AsJson):
    """How rows of a table become inputs [n, d] of a net.

    kinds: the columns, in the order in which they are encoded. means, deviations: of numbers, over the training rows of
    all clients. values: the categories with an input of their own. flagged: columns with an input for missing values.
    """

    what: ClassVar[str] = "an encoding"
    # Values beyond this number of standard deviations are clipped: they are typing errors, and must not be learned.
    FAR: ClassVar[float] = 10.0

    kinds: Mapping[str, Column]
    means: Mapping[str, Finite] = field(default_factory=dict)
    deviations: Mapping[str, Finite] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flagged: frozenset[str] = frozenset()

    @classmethod
    def of(cls, profiles: Iterable[Profile], kinds: Mapping[str, Column], least: int = 10) -> Encoding:
        """The encoding of all clients' rows, from their profiles; the order of the clients does not matter.

        least: categories and missing values get inputs of their own if at least `least` rows have them; the other
        categories share one input.
        """
        total = Profile.merged(profiles)
        means, deviations, values, flagged = {}, {}, {}, set()
        for name, kind in kinds.items():
            if kind == "category":
                counts = total.categories[name]
                values[name] = tuple(sorted(value for value, often in counts.items() if often >= least))
                count = sum(counts.values())
            else:
                moments = total.numbers[name]
                count, means[name], deviations[name] = moments.count, moments.mean, moments.deviation
            if total.rows - count >= least:
                flagged.add(name)
        return cls(dict(kinds), means, deviations, values, frozenset(flagged))

    def check(self) -> None:
        """Raise DataError if the mean, the deviation or the values of a column are missing."""
        number = {name for name, kind in self.kinds.items() if kind == "number"}
        if not (number == set(self.means) == set(self.deviations) and set(self.values) == set(self.kinds) - number):
            raise DataError("an encoding: means, deviations and values are not those of its columns")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the d inputs: "age", "age=(missing)", "sex=f", "sex=(other)"."""
        names: list[str] = []
        for name, kind in self.kinds.items():
            ends = [""] if kind == "number" else [*self.values[name], _OTHER]
            if name in self.flagged:
                ends.append(_MISSING)
            names += [f"{name}={end}" if end else name for end in ends]
        return tuple(names)

    def spread(self, name: str) -> float:
        """The divisor for a column of numbers; 0 for a column that is constant up to rounding."""
        deviation = self.deviations[name]
        return deviation if deviation > 1e-9 * abs(self.means[name]) else 0.0

    def __call__(self, table: pa.Table) -> npt.NDArray[np.float32]:
        """Encode a table as inputs [n, d].

        A missing number becomes the mean, a missing category no category; an input marks both if the column is flagged.
        Numbers are clipped at 10 standard deviations. Raises DataError for a missing column.

        >>> kinds = {"age": "number", "sex": "category"}
        >>> encoding = Encoding.of([profile(pa.table({"age": [50, 70], "sex": ["f", "m"]}), kinds)], kinds, least=1)
        >>> encoding.names
        ('age', 'sex=f', 'sex=m', 'sex=(other)')
        >>> encoding(pa.table({"age": [60, None], "sex": ["f", "d"]})).tolist()
        [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
        """
        inputs: list[npt.NDArray[Any]] = []
        for name, kind in self.kinds.items():
            if name not in table.column_names:
                raise DataError(f"no column {name!r}; the table has {', '.join(table.column_names)}")
            columns, missing = (self._categories if kind == "category" else self._numbers)(table, name)
            inputs += [*columns, *([missing] if name in self.flagged else [])]
        return np.stack(inputs, axis=1).astype(np.float32) if inputs else np.zeros((table.num_rows, 0), np.float32)

    def _numbers(self, table: pa.Table, name: str) -> tuple[list[npt.NDArray[Any]], Flags]:
        values = numbers(table, name)
        missing = np.isnan(values)
        spread = self.spread(name)
        z = (values - self.means[name]) / spread if spread else np.zeros(len(values))
        return [np.clip(np.where(missing, 0.0, z), -self.FAR, self.FAR)], missing

    def _categories(self, table: pa.Table, name: str) -> tuple[list[npt.NDArray[Any]], Flags]:
        index = {value: place for place, value in enumerate(self.values[name])}
        values, code = codes(table, name)
        missing = code < 0
        place = np.array([*(index.get(value, len(index)) for value in values), -1], dtype=np.int64)[code]
        return [place == at for at in range(len(index) + 1)], missing


# -- the target ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target(AsJson):
    """What the target's values mean: names of the classes in order, or mean and standard deviation of a number."""

    kind: Kind
    classes: tuple[str, ...] = ()
    mean: Finite = 0.0
    deviation: Annotated[float, Field(allow_inf_nan=False, gt=0)] = 1.0

    def task(self, *shape: int) -> Task:
        """The task of these targets, with inputs of this shape."""
        return Task.regression(1, shape) if self.kind == "regression" else Task(len(self.classes), shape, self.kind)

    def __call__(self, table: pa.Table, name: str) -> npt.NDArray[Any]:
        """Convert a column to targets: labels 0, 1, ... [n], or standardised numbers [n, 1].

        Raises DataError for a value that is not a class.
        """
        if self.kind == "regression":
            return ((numbers(table, name) - self.mean) / self.deviation).astype(np.float32)[:, None]
        index = {value: place for place, value in enumerate(self.classes)}
        try:
            return np.array([index[value] for value in texts(table, name)], dtype=np.int64)
        except KeyError as error:
            raise DataError(f"target {name!r}: {error} is none of {', '.join(self.classes)}") from None


def find_target(table: pa.Table, reading: Reading, columns: Columns, where: str) -> Target:
    """Find out what the target means, from a table of all clients."""
    name = reading.target
    text = kinds_of(table.select([name]))[name] == "category"

    def moments() -> list[Moments]:
        need_numbers(table, name, where, "numbers to predict")
        return [client.numbers[name] for client in profiles_of(columns, table.select([name]), {name: "number"}, where)]

    return target_of(reading, set(columns.values), text, moments, f"{where}: target {name!r}")


def target_of(
    reading: Reading,
    different: Collection[str] | None,
    text: bool,
    moments: Callable[[], Sequence[Moments]],
    where: str,
) -> Target:
    """Find out what the target means; raises DataError if it is constant or contradicts `reading`.

    different: the target's values at all clients (None: it is a number); text: whether the values are texts. moments:
    returns the moments of each client. A number is standardised with the mean and deviation of training rows. Classes
    are sorted, as numbers if all are numbers. The event of a risk is `reading.positive`, or the class that sorts last,
    whether its letters are capital or small.
    """
    kind = reading.kind or ("regression" if different is None else kind_of(different, text))
    if kind == "regression":
        total = Moments.merged(moments())
        if total.deviation == 0:
            raise DataError(f"{where} is {total.mean:g} in every training row; expected different values")
        return Target("regression", (), total.mean, total.deviation)
    if different is None:
        raise DataError(f"{where}: a participant sent no values, and they are classes")
    classes = _sorted_classes(different, kind, text)
    if len(classes) < 2:
        raise DataError(f"{where} is {classes[0]!r} in every row; expected at least 2 classes")
    if kind == "risk":
        classes = _event_last(classes, reading.positive, where)
    return Target(kind, tuple(classes))


def _sorted_classes(different: Collection[str], kind: Kind, text: bool) -> list[str]:
    key: Callable[[str], Any] = str.casefold if kind == "risk" else str
    if not text and all(map(is_number, different)):
        key = _exact
    # Sorted twice: the order of a set, which differs from process to process, must not decide between equal keys.
    return sorted(sorted(map(str, different)), key=key)


def _event_last(classes: list[str], event: str | None, where: str) -> list[str]:
    """The two values of a risk, the event last (None: in the same order); raises DataError for other values."""
    if len(classes) != 2:
        raise DataError(f"{where} has {len(classes)} values; a risk has two: kind='classification'?")
    if event is not None and event not in classes:
        raise DataError(f"{where}: positive: no value {event!r}; expected {classes[0]!r} or {classes[1]!r}")
    return sorted(classes, key=lambda value: value == event)


def kind_of(different: Collection[str], text: bool) -> Kind:
    """The kind of a target: two values are a risk; texts and up to 20 whole numbers are classes; else a regression."""
    if len(different) <= 2:
        return "risk"
    whole = all(value.lstrip("-").isdigit() for value in different)
    return "classification" if text or (whole and len(different) <= CLASSES) else "regression"


# -- the arrays ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """A table as arrays: inputs [n, d] and targets, with their encoding and meaning, and the roles of the columns."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    columns: Columns
    encoding: Encoding
    target: Target


def encoded(
    table: pa.Table, reading: Reading, where: str = "frame", shared: tuple[Encoding, Target] | None = None
) -> Encoded:
    """The arrays of a table. Everything is fitted on the training rows, from sums and counts of each client.

    shared: the encoding and the target of a federation, if these are the rows of one of its clients. Raises
    DataError that names `where`, the column, and the row or client.
    """
    columns = columns_of(table, reading, where)
    if shared is None:
        target = find_target(table, reading, columns, where)
        profiles = profiles_of(columns, columns.inputs, columns.kinds, where)
        shared = Encoding.of(profiles, columns.kinds, reading.least), target
    encoding, target = shared
    y, x = target(table, reading.target), encoding(columns.inputs)
    if not x.shape[1]:
        others = ", ".join(columns.others)
        raise DataError(f"{where}: no column is left for the inputs; expected at least one beside {others}")
    return Encoded(x, y, columns, encoding, target)
