"""Compute the common encoding of participants' tables from summaries; rows are never shared.

Each participant sends a summary: sums, counts and lists of values of its own rows. The encoding and the target that
follow from all summaries equal those of a simulation over the same tables, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from fedkin.errors import DataError, first_few
from fedkin.federation import table_encoding
from fedkin.federation.table_columns import Columns, Reading, columns_of
from fedkin.federation.table_encoding import AsJson, Encoding, Moments, Profile, Target
from fedkin.federation.table_values import Column, is_number, kinds_of, name_of_type
from fedkin.untrusted import escaped

# The type of a column, which must be the same at all participants; "empty" is compatible with all types.
ColumnType = Literal["empty", "truth", "date", "time", "duration", "number", "text"]
_COLUMN_TYPES: dict[str, ColumnType] = {
    "nothing": "empty", "true and false": "truth", "dates": "date", "times": "time", "durations": "duration",
    "numbers": "number", "texts": "text",
}  # fmt: skip
_IN_WORDS = {kind: words for words, kind in _COLUMN_TYPES.items()}
_MOST_VALUES = 10_000
# The values of a text column must not be sent if more than the share _NUMBERS of its rows are numbers, or if it has
# more different values than the share _DIFFERENT of its rows, and more than _FEW.
_NUMBERS, _DIFFERENT, _FEW = 0.8, 0.5, 20
# Count, mean and sum of squares of so few numbers give the numbers.
_TOLD = {1: "1 row: its value itself leaves", 2: "2 rows: their values themselves leave"}


@dataclass(frozen=True)
class ColumnTypes(AsJson):
    """The types of a table's columns: the inputs, in the table's order, and the target. It contains no values."""

    what: ClassVar[str] = "the columns of a table"

    types: Mapping[str, ColumnType]
    target: ColumnType

    def unlike(self, common: ColumnTypes) -> str:
        """Return why a table with these columns does not fit the columns `common`; empty if it does."""
        for name, kind in common.types.items():
            if name not in self.types:
                extra = [escaped(repr(column), 60) for column in self.types if column not in common.types][:3]
                more = f", and it has {', '.join(extra)}, which most do not have" if extra else ""
                return f"it has no column {escaped(repr(name), 60)}, which most have{more}"
            if self.types[name] != kind and "empty" not in (self.types[name], kind):
                here, there = _IN_WORDS[self.types[name]], _IN_WORDS[kind]
                return f"its column {escaped(repr(name), 60)} holds {here}, and at most others {there}"
        if self.target == common.target:
            return ""
        return f"its target holds {_IN_WORDS[self.target]}, and at most others {_IN_WORDS[common.target]}"


def common_columns(tables: Mapping[str, ColumnTypes]) -> ColumnTypes:
    """Return the columns that most tables have, each with its most frequent type; the first table breaks ties."""
    first = next(iter(tables.values()))
    types: dict[str, ColumnType] = {}
    for name, count in Counter(name for table in tables.values() for name in table.types).items():
        if 2 * count + (name in first.types) > len(tables):
            kinds = Counter(table.types[name] for table in tables.values() if table.types.get(name, "empty") != "empty")
            types[name] = kinds.most_common(1)[0][0] if kinds else "empty"
    return ColumnTypes(types, Counter(table.target for table in tables.values()).most_common(1)[0][0])


@dataclass(frozen=True)
class TableSummary(AsJson):
    """All that a participant reveals about its table before the federation begins.

    types: of each input column, in the table's order; categories written as numbers in CSV files are "text", since only
    some participants' files may have leading zeros. profile: of its training rows. target: the type of the target;
    values: the target's different values, without counts; moments: the target's count, mean and sum of squares. One of
    both is None, since moments of few values tell how often each occurs.
    """

    what: ClassVar[str] = "the summary of a table"

    types: Mapping[str, ColumnType]
    profile: Profile
    target: ColumnType
    values: Annotated[tuple[str, ...], Field(max_length=_MOST_VALUES)] | None = None
    moments: Moments | None = None

    def columns(self, reading: Reading) -> ColumnTypes:
        """The types of the columns.

        A target of numbers that is declared as classes counts as text, since some participants' files may have leading
        zeros.
        """
        as_text = self.target == "number" and reading.kind not in (None, "regression")
        return ColumnTypes(self.types, "text" if as_text else self.target)

    def of(self, names: Collection[str]) -> TableSummary:
        """Return the summary of these input columns only."""
        numbers = {name: figures for name, figures in self.profile.numbers.items() if name in names}
        categories = {name: figures for name, figures in self.profile.categories.items() if name in names}
        types = {name: column_type for name, column_type in self.types.items() if name in names}
        return replace(self, types=types, profile=replace(self.profile, numbers=numbers, categories=categories))

    def check(self) -> None:
        """Raise DataError if the profile contradicts itself, or is of other columns."""
        self.profile.check()
        if set(self.types) != {*self.profile.numbers, *self.profile.categories}:
            raise DataError(f"{self.what}: the profile is of other columns")

    def words(self) -> list[str]:
        """The summary as lines of text for people."""
        lines = [f"the number of its training rows: {self.profile.rows}"]
        numbers = [name for name, moments in self.profile.numbers.items() if moments.count]
        if numbers:
            lines.append(f"count, mean and sum of squares of {', '.join(numbers)}")
        target = {} if self.moments is None else {"the target": self.moments}
        for name, moments in {**self.profile.numbers, **target}.items():
            if moments.count in _TOLD:
                lines.append(f"{name} is filled in {_TOLD[moments.count]}")
        for name, counts in self.profile.categories.items():
            rare = sorted(counts, key=lambda value: (counts[value], value))[:8]
            least = ", ".join(f"{escaped(value, 30)!r} {counts[value]}" for value in rare)
            lines.append(
                f"how often {name} has each of its {len(counts)} values (rare ones may identify people: {least})"
            )
        if self.values is not None:
            lines.append(f"the values of the target, without their numbers: {escaped(', '.join(self.values), 200)}")
        if self.moments is not None:
            lines.append("count, mean and sum of squares of the target")
        columns = [f"{escaped(name)} ({kind})" for name, kind in {**self.types, "the target": self.target}.items()]
        return [*lines, f"the names of its columns, and what each holds: {', '.join(columns)}"]


@dataclass(frozen=True)
class SharedEncoding(AsJson):
    """The common encoding of all participants: how columns become inputs, and what the target means."""

    what: ClassVar[str] = "an encoding"

    encoding: Encoding
    target: Target

    def check(self) -> None:
        """Raise DataError if the encoding lacks something, or the target has no classes."""
        self.encoding.check()
        if self.target.kind != "regression" and len(self.target.classes) < 2:
            raise DataError("an encoding: the target has no classes")


def summary_of(table: pa.Table, reading: Reading, where: str, typed: bool = False) -> TableSummary:
    """Summarise a participant's own rows; the column `reading.client` holds its name. Raises DataError.

    typed: whether all participants' files store types, so that a category stored as numbers must be so everywhere.

    >>> rows = pa.table({"who": ["ann"] * 3, "age": [50, 70, 60], "ill": [0, 1, 0]})
    >>> summary = summary_of(rows, Reading(target="ill", client="who", test_fraction=0), "rows")
    >>> summary.types, summary.profile.numbers["age"], summary.values
    ({'age': 'number'}, Moments(count=3, mean=60.0, squares=200.0), ('0', '1'))
    """
    columns = columns_of(table, reading, where)
    types = {name: _type_of(columns.inputs, name) for name in columns.inputs.column_names}
    for name in reading.categories:
        if types.get(name) == "number" and not typed:
            types[name] = "text"
    target_type = _type_of(table, reading.target)
    values, moments = _target_summary(table, reading, columns, target_type, where)
    (profile,) = table_encoding.profiles_of(columns, columns.inputs, columns.kinds, where)
    for name, counts in profile.categories.items():
        if types[name] == "text" and (words := _not_countable(counts, name in reading.categories)):
            raise DataError(f"{where}: column {name!r}: {words}")
    return TableSummary(types, profile, target_type, values, moments)


def _target_summary(
    table: pa.Table, reading: Reading, columns: Columns, kind: ColumnType, where: str
) -> tuple[tuple[str, ...] | None, Moments | None]:
    """(the target's different values, None) of classes, or (None, its moments) of numbers to predict."""
    if reading.kind == "regression" and kind == "text":
        raise DataError(f"{where}: column {reading.target!r}: expected numbers to predict, got texts")
    distinct = sorted(set(columns.values))
    if (reading.kind or table_encoding.kind_of(distinct, kind == "text")) != "regression":
        return tuple(distinct), None
    (profile,) = table_encoding.profiles_of(columns, table.select([reading.target]), {reading.target: "number"}, where)
    return None, profile.numbers[reading.target]


def _not_countable(counts: Mapping[str, int], declared: bool) -> str:
    """Return why the values of a text column must not be sent; empty if they may.

    declared: whether the experiment says that the column is a category.

    >>> _not_countable({"58,9": 1, "7,1": 2, "unknown": 1} | {f"{n}.5": 1 for n in range(9)}, False)[:44]
    "these texts are numbers, such as '58,9': say"
    """
    rows = sum(counts.values())
    numbers = {value: count for value, count in counts.items() if is_number(value.strip().replace(",", "."))}
    if not declared and sum(numbers.values()) > _NUMBERS * rows:
        return (
            f"these texts are numbers, such as {escaped(next(iter(numbers)), 30)!r}: say how they are written "
            "(data.decimal, data.missing), or, if they are codes, name the column in data.categories"
        )
    if len(counts) > max(_FEW, _DIFFERENT * rows):
        return (
            f"{len(counts)} different texts in {rows} rows would tell of single people: name the column in "
            "data.leave_out, or write it in a few categories"
        )
    return ""


def agree(summaries: Mapping[str, TableSummary], reading: Reading) -> SharedEncoding:
    """Compute the common encoding from all summaries, in any order; raises DataError naming who differs."""
    # Sort by file names ID.csv, as for a folder of files: the first one determines the order of the columns.
    order = sorted(summaries, key=lambda id: f"{id}.")
    columns = {id: summaries[id].columns(reading) for id in order}
    common = common_columns(columns)
    for id in order:
        if words := columns[id].unlike(common):
            raise DataError(f"{id}: {words}; expected the same everywhere")
    for id, words in unlike_targets(summaries, reading).items():
        raise DataError(f"{id}: {words}; expected the same everywhere")
    kinds: dict[str, Column] = {
        name: "category" if column_type == "text" or name in reading.categories else "number"
        for name, column_type in common.types.items()
    }
    encoding = Encoding.of([_with_kinds(summaries[id].profile, kinds) for id in order], kinds, reading.least)
    return SharedEncoding(encoding, _target({id: summaries[id] for id in order}, reading))


def unlike_targets(summaries: Mapping[str, TableSummary], reading: Reading) -> dict[str, str]:
    """Return the participants whose target has values that most write otherwise, or a risk cannot have, and why.

    Two values that differ only in case or spaces are two classes if one participant has both. In a risk the two values
    that most participants have count.
    """
    risk = reading.kind == "risk"
    values = {id: dict.fromkeys(summaries[id].values or ()) for id in sorted(summaries)}
    usual = _usual_spellings(values.values(), risk)
    classes = [value for value, spelling in usual.items() if value == spelling][: 2 if risk else None]
    reasons = {id: _unlike(each, usual, classes) for id, each in values.items()}
    return {id: reason for id, reason in reasons.items() if reason}


def _unlike(values: Iterable[str], usual: Mapping[str, str], classes: Sequence[str]) -> str:
    """Why a target with these values is unlike most; empty if it is not."""
    if unusual := [value for value in values if usual[value] != value]:
        most = _listed(usual[value] for value in unusual)
        return f"its target has {_listed(unusual)}, which most write {most}"
    if more := [value for value in values if value not in classes]:
        return f"its target has {_listed(more)}, and a risk has two values, here {_listed(classes)}"
    return ""


def _usual_spellings(values: Collection[Collection[str]], risk: bool) -> dict[str, str]:
    """Return how most participants write each value, the most frequent values first."""
    counts = Counter(value for each in values for value in each)
    commonest: dict[str, str] = {}  # spelling of each text without case and spaces
    usual: dict[str, str] = {}
    for value, _ in counts.most_common():
        spelling = commonest.setdefault(value.strip().casefold(), value)
        two_classes = not risk and any(value in each and spelling in each for each in values)
        usual[value] = value if two_classes else spelling
    return usual


def _listed(values: Iterable[str]) -> str:
    return first_few([repr(escaped(value, 30)) for value in sorted(values)], 4, " and ")


def _with_kinds(profile: Profile, kinds: Mapping[str, Column]) -> Profile:
    """A profile with exactly the columns of `kinds`: a column without values gets the kind that it has elsewhere."""
    numbers = {name: profile.numbers.get(name, Moments(0, 0.0, 0.0)) for name in kinds if kinds[name] == "number"}
    counts = {name: profile.categories.get(name, {}) for name in kinds if kinds[name] == "category"}
    return Profile(profile.rows, numbers, counts)


def _target(summaries: Mapping[str, TableSummary], reading: Reading) -> Target:
    where, text = f"target {reading.target!r}", any(summary.target == "text" for summary in summaries.values())
    lists = [summary.values for summary in summaries.values() if summary.values is not None]
    distinct = {value for values in lists for value in values} if len(lists) == len(summaries) else None
    kind = reading.kind or ("regression" if distinct is None else table_encoding.kind_of(distinct, text))
    if kind == "regression":
        if few := [id for id, summary in summaries.items() if summary.moments is None]:
            what = f"{first_few(few)} has few different values, like classes, and all together are numbers to predict"
            raise DataError(f"{where}: {what}: say data.kind = 'regression' or 'classification'")
        moments = [summary.moments for summary in summaries.values() if summary.moments is not None]
        return table_encoding.target_of_numbers(moments, where)
    if distinct is None:
        raise DataError(f"{where}: a participant sent no values, and they are classes")
    return table_encoding.target_of_classes(kind, distinct, text, reading.positive, where)


def _type_of(table: pa.Table, name: str) -> ColumnType:
    kinds_of(table.select([name]))  # raises DataError for unsupported types
    return _COLUMN_TYPES[name_of_type(table.schema.field(name).type)]
