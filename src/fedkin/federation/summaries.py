"""How participants that never show each other a row share one encoding of their tables.

Each sends a summary: sums, counts and lists of values of its own rows. The encoding and the target that follow from all
summaries are those of a simulation over the same tables, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from fedkin.errors import DataError
from fedkin.federation.table import (
    AsJson,
    Column,
    Encoding,
    Moments,
    Profile,
    Reading,
    Target,
    columns_of,
    is_number,
    kind_of,
    kinds_of,
    name_of_type,
    profiles_of,
    target_of,
)
from fedkin.untrusted import escaped

# What a column holds, as far as it must be the same everywhere; "empty" fits everything.
Held = Literal["empty", "truth", "date", "time", "duration", "number", "text"]
_HELD: dict[str, Held] = {
    "nothing": "empty", "true and false": "truth", "dates": "date", "times": "time", "durations": "duration",
    "numbers": "number", "texts": "text",
}  # fmt: skip
_MOST_VALUES = 10_000
# The values of a column of texts are not told one by one if this share of its rows are numbers, or if there are more
# different ones than this share of its rows, and than a few.
_NUMBERS, _DIFFERENT, _FEW = 0.8, 0.5, 20


@dataclass(frozen=True)
class ColumnTypes(AsJson):
    """What the columns of a table hold: the inputs, in the table's order, and the target. No value is in it."""

    what: ClassVar[str] = "the columns of a table"

    types: Mapping[str, Held]
    target: Held

    def unlike(self, common: ColumnTypes) -> str:
        """Return why a table of these columns cannot take part where `common` are needed; empty if it can."""
        for name, held in common.types.items():
            if name not in self.types:
                extra = [escaped(repr(each), 60) for each in self.types if each not in common.types][:3]
                more = f", and it has {', '.join(extra)}, which most have not" if extra else ""
                return f"it has no column {escaped(repr(name), 60)}, which most have{more}"
            if self.types[name] != held and "empty" not in (self.types[name], held):
                return f"its column {escaped(repr(name), 60)} holds {self.types[name]}, and that of most holds {held}"
        return (
            "" if self.target == common.target else f"its target holds {self.target}, and that of most {common.target}"
        )


def common_columns(tables: Mapping[str, ColumnTypes]) -> ColumnTypes:
    """Return the columns that most of these tables have, with what they hold at most; the first one breaks ties."""
    first, *others = tables.values()
    have = Counter(name for each in tables.values() for name in each.types)
    types: dict[str, Held] = {}
    for name in [*first.types, *(name for each in others for name in each.types)]:
        if 2 * have[name] + (name in first.types) > len(tables):
            held = Counter(each.types[name] for each in tables.values() if each.types.get(name, "empty") != "empty")
            types[name] = held.most_common(1)[0][0] if held else "empty"
    return ColumnTypes(types, Counter(each.target for each in tables.values()).most_common(1)[0][0])


@dataclass(frozen=True)
class TableSummary(AsJson):
    """All that a participant says of its table before the federation begins.

    types: of each input column, in the table's order; numbers of CSV files that name categories are "text", since
    only some participants' may have zeros in front. profile: of its training rows. target: what the target holds;
    values: its different values, without counts; moments: its count, mean and sum of squares. Each only where needed.
    """

    what: ClassVar[str] = "the summary of a table"

    types: Mapping[str, Held]
    profile: Profile
    target: Held
    values: Annotated[tuple[str, ...], Field(max_length=_MOST_VALUES)] | None = None
    moments: Moments | None = None

    @property
    def columns(self) -> ColumnTypes:
        """What the columns hold.

        Of numbers that are classes for sure no moments are sent: they are texts where some have zeros in front.
        """
        return ColumnTypes(self.types, "text" if self.target == "number" and self.moments is None else self.target)

    def of(self, names: Collection[str]) -> TableSummary:
        """Return what is said of these input columns alone."""
        numbers = {name: one for name, one in self.profile.numbers.items() if name in names}
        categories = {name: one for name, one in self.profile.categories.items() if name in names}
        types = {name: held for name, held in self.types.items() if name in names}
        return replace(self, types=types, profile=replace(self.profile, numbers=numbers, categories=categories))

    def check(self) -> None:
        """Raise DataError if the profile contradicts itself, or is of other columns."""
        self.profile.check()
        if set(self.types) != {*self.profile.numbers, *self.profile.categories}:
            raise DataError(f"{self.what}: the profile is of other columns")

    def words(self) -> list[str]:
        """The same for people, in lines."""
        lines = [f"the number of its training rows: {self.profile.rows}"]
        numbers = [name for name, one in self.profile.numbers.items() if one.count]
        if numbers:
            lines.append(f"count, mean and sum of squares of {', '.join(numbers)}")
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
        held = [f"{escaped(name)} ({kind})" for name, kind in {**self.types, "the target": self.target}.items()]
        return [*lines, f"the names of its columns, and what each holds: {', '.join(held)}"]


@dataclass(frozen=True)
class SharedEncoding(AsJson):
    """What all participants share: how columns become inputs, and what the target means."""

    what: ClassVar[str] = "an encoding"

    encoding: Encoding
    target: Target

    def check(self) -> None:
        """Raise DataError if the encoding lacks something, or the target has no classes."""
        self.encoding.check()
        if self.target.kind != "regression" and len(self.target.classes) < 2:
            raise DataError("an encoding: the target has no classes")


def summary_of(table: pa.Table, reading: Reading, where: str, typed: bool = False) -> TableSummary:
    """What a participant says of its own rows, `reading.client` being a column of its name; raises DataError.

    typed: whether the files of all store types, so that numbers which name categories must be numbers everywhere.

    >>> rows = pa.table({"who": ["ann"] * 3, "age": [50, 70, 60], "ill": [0, 1, 0]})
    >>> summary = summary_of(rows, Reading(target="ill", client="who", test_fraction=0), "rows")
    >>> summary.types, summary.profile.numbers["age"], summary.values
    ({'age': 'number'}, Moments(count=3, mean=60.0, squares=200.0), ('0', '1'))
    """
    columns = columns_of(table, reading, where)
    types = {name: _held(columns.inputs, name) for name in columns.inputs.column_names}
    for name in reading.categories:
        if types.get(name) == "number" and not typed:
            types[name] = "text"
    held, different = _held(table, reading.target), sorted(set(columns.values))
    values: tuple[str, ...] | None = tuple(different)
    moments: Moments | None = None
    if reading.kind == "regression" and held == "text":
        raise DataError(f"{where}: column {reading.target!r}: expected numbers to predict, got texts")
    if reading.kind in (None, "regression") and held != "text":
        if reading.kind == "regression" or kind_of(different, text=False) == "regression":
            values = None
        target = table.select([reading.target])
        (profile,) = profiles_of(columns, target, {reading.target: "number"}, where)
        moments = profile.numbers[reading.target]
    (profile,) = profiles_of(columns, columns.inputs, columns.kinds, where)
    for name, counts in profile.categories.items():
        if types[name] == "text" and (words := _not_countable(counts, name in reading.categories)):
            raise DataError(f"{where}: column {name!r}: {words}")
    return TableSummary(types, profile, held, values, moments)


def _not_countable(counts: Mapping[str, int], declared: bool) -> str:
    """Return why the values of a column of texts must not be told one by one; empty if they may.

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
    """The encoding that follows from all summaries, in any order; raises DataError that names who differs."""
    # In the order of files named ID.csv, whose first one says in which order the columns are.
    order = sorted(summaries, key=lambda id: f"{id}.")
    common = common_columns({id: summaries[id].columns for id in order})
    for id in order:
        if words := summaries[id].columns.unlike(common):
            raise DataError(f"{id}: {words}; expected the same everywhere")
    kinds: dict[str, Column] = {
        name: "category" if held == "text" or name in reading.categories else "number"
        for name, held in common.types.items()
    }
    encoding = Encoding.of([_filled(summaries[id].profile, kinds) for id in order], kinds, reading.least)
    return SharedEncoding(encoding, _target([summaries[id] for id in order], reading))


def _filled(profile: Profile, kinds: Mapping[str, Column]) -> Profile:
    """A profile in which a column without values is what it is elsewhere."""
    numbers = {name: profile.numbers.get(name, Moments(0, 0.0, 0.0)) for name in kinds if kinds[name] == "number"}
    counts = {name: profile.categories.get(name, {}) for name in kinds if kinds[name] == "category"}
    return Profile(profile.rows, numbers, counts)


def _target(summaries: list[TableSummary], reading: Reading) -> Target:
    where, text = f"target {reading.target!r}", any(one.target == "text" for one in summaries)
    lists = [one.values for one in summaries if one.values is not None]
    different = {value for values in lists for value in values} if len(lists) == len(summaries) else None

    def moments() -> list[Moments]:
        held = [one.moments for one in summaries if one.moments is not None]
        if len(held) < len(summaries):
            raise DataError(f"{where}: expected numbers to predict, and a participant has none")
        return held

    return target_of(reading, different, text, moments, where)


def _held(table: pa.Table, name: str) -> Held:
    kinds_of(table.select([name]))  # refuses what is neither
    return _HELD[name_of_type(table.schema.field(name).type)]
