"""How participants that never show each other a row agree on the inputs and the target of a table.

Each tells sums, counts and lists of values of its own rows. What comes of all of them is the encoding and the target
of a simulation over the same tables, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from fedkin.errors import DataError
from fedkin.federation.columns import Column, kinds_of
from fedkin.federation.encoding import Encoding
from fedkin.federation.frame import Reading, Target, classes_of, columns_of, kind_of, regression_of
from fedkin.federation.profiles import Moments, Profile, finite, held_in
from fedkin.untrusted import shown

__all__ = ["Agreed", "Told", "agreed_on", "check_alike", "told_of"]

# What a column holds, as far as it must be the same everywhere; "empty" fits everything.
_EMPTY, _NUMBER, _TEXT = "empty", "number", "text"
_TYPES = {
    _EMPTY: pa.types.is_null, "truth": pa.types.is_boolean, "date": pa.types.is_date, "instant": pa.types.is_timestamp,
    "time": pa.types.is_time, "duration": pa.types.is_duration, _NUMBER: lambda kind: pa.types.is_integer(kind)
    or pa.types.is_floating(kind) or pa.types.is_decimal(kind), _TEXT: lambda kind: True,
}  # fmt: skip
_MOST = 10_000  # different values of a target


@dataclass(frozen=True)
class Told:
    """All that a participant tells of its table before the federation begins.

    types: of each input column, in the table's order; numbers of CSV files that name categories are "text", since
    only some participants' may have zeros in front. profile: of its training rows. target: what the target holds;
    values: its different values, without counts; moments: its count, mean and sum of squares. Each only where needed.
    """

    types: Mapping[str, str]
    profile: Profile
    target: str
    values: tuple[str, ...] | None = None
    moments: Moments | None = None

    def to_json(self) -> str:
        """The same as JSON text: all that leaves, to be read before it does."""
        tree = {**asdict(replace(self, profile=None)), "profile": json.loads(self.profile.to_json())}  # type: ignore[arg-type]
        return json.dumps({**tree, "types": list(self.types.items())}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Told:
        """What `to_json` wrote; raises DataError for any other text."""
        held = held_in(text, "what is told of a table", {"types", "profile", "target", "values", "moments"})
        read = Profile.from_json(json.dumps(held["profile"]))
        try:
            types = {str(name): str(kind) for name, kind in held["types"]}
            values = None if held["values"] is None else tuple(map(str, held["values"]))
            moments = None if held["moments"] is None else Moments(
                int(held["moments"]["count"]),
                *(finite(held["moments"][name], f"moments.{name}") for name in ("mean", "squares")))  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DataError("what is told of a table: not readable") from None
        if not {*types.values(), held["target"]} <= set(_TYPES) or len(values or ()) > _MOST:
            raise DataError("what is told of a table: columns of a kind that is not known, or too many values")
        if set(types) != {*read.numbers, *read.categories} or (moments is not None and moments.squares < 0):
            raise DataError("what is told of a table: the profile is of other columns")
        return cls(types, read, str(held["target"]), values, moments)

    def words(self) -> list[str]:
        """The same for people, in lines."""
        lines = [f"the number of its training rows: {self.profile.rows}"]
        numbers = [name for name, one in self.profile.numbers.items() if one.count]
        if numbers:
            lines.append(f"count, mean and sum of squares of {', '.join(numbers)}")
        for name, counts in self.profile.categories.items():
            rare = sorted(counts, key=lambda value: (counts[value], value))[:8]
            least = ", ".join(f"{shown(value, 30)!r} {counts[value]}" for value in rare)
            lines.append(
                f"how often {name} has each of its {len(counts)} values (rare ones may identify people: {least})"
            )
        if self.values is not None:
            lines.append(f"the values of the target, without their numbers: {shown(', '.join(self.values), 200)}")
        if self.moments is not None:
            lines.append("count, mean and sum of squares of the target")
        held = [f"{shown(name)} ({kind})" for name, kind in {**self.types, "the target": self.target}.items()]
        return [*lines, f"the names of its columns, and what each holds: {', '.join(held)}"]


@dataclass(frozen=True)
class Agreed:
    """What came of it: how columns become inputs, and what the target means."""

    encoding: Encoding
    target: Target

    def to_json(self) -> str:
        """The same as JSON text, for every participant."""
        return json.dumps({"encoding": json.loads(self.encoding.to_json()), "target": asdict(self.target)},
                          ensure_ascii=False)  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> Agreed:
        """What `to_json` wrote, with the same bits; raises DataError for any other text."""
        held = held_in(text, "an encoding", {"encoding", "target"})
        encoding = Encoding.from_json(json.dumps(held["encoding"]))
        try:
            fields = dict(held["target"])
            kind = {kind: kind for kind in ("classification", "risk", "regression")}[fields["kind"]]
            mean, deviation = (finite(fields[name], name) for name in ("mean", "deviation"))
            target = Target(kind, tuple(map(str, fields["classes"])), mean, deviation)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError):
            raise DataError("an encoding: the target is not readable") from None
        if deviation <= 0 or (kind != "regression" and len(target.classes) < 2):
            raise DataError("an encoding: the target has no spread, or no classes")
        return cls(encoding, target)


def told_of(table: pa.Table, reading: Reading, where: str, typed: bool = False) -> Told:
    """What a participant tells of its own rows, `reading.client` being a column of its name; raises DataError.

    typed: whether the files of all store types, so that numbers which name categories must be numbers everywhere.

    >>> rows = pa.table({"who": ["ann"] * 3, "age": [50, 70, 60], "ill": [0, 1, 0]})
    >>> told = told_of(rows, Reading("ill", "who", test_fraction=0), "rows")
    >>> told.types, told.profile.numbers["age"], told.values
    ({'age': 'number'}, Moments(count=3, mean=60.0, squares=200.0), ('0', '1'))
    """
    columns = columns_of(table, reading, where)
    types = {name: _type(columns.inputs, name) for name in columns.inputs.column_names}
    types |= {name: _TEXT for name in reading.categories if types.get(name) == _NUMBER and not typed}
    kind, different = _type(table, reading.target), sorted(set(columns.values))
    values: tuple[str, ...] | None = tuple(different)
    moments: Moments | None = None
    if reading.kind not in ("classification", "risk") and kind != _TEXT:
        if reading.kind == "regression" or kind_of(different, text=False) == "regression":
            values = None
        (one,) = columns.profiles(table.select([reading.target]), {reading.target: "number"})
        moments = one.numbers[reading.target]
    elif reading.kind == "regression":
        raise DataError(f"{where}: column {reading.target!r}: expected numbers to predict, got texts")
    (mine,) = columns.profiles(columns.inputs, columns.kinds)
    return Told(types, mine, kind, values, moments)


def agreed_on(told: Mapping[str, Told], reading: Reading) -> Agreed:
    """What all of these agree on, whatever the order in which they came; raises DataError that names who differs."""
    # In the order of files named ID.csv, whose first one says in which order the columns are.
    order = sorted(told, key=lambda id: f"{id}.")
    check_alike(told)
    types = _types(told, order)
    kinds: dict[str, Column] = {
        name: "category" if kind == _TEXT or name in reading.categories else "number" for name, kind in types.items()
    }
    encoding = Encoding.of([_filled(told[id].profile, kinds) for id in order], kinds, reading.least)
    return Agreed(encoding, _target([told[id] for id in order], reading))


def check_alike(told: Mapping[str, Told]) -> None:
    """Raise DataError if the tables of these participants have not the same columns, of the same types."""
    _types(told, sorted(told))
    # Of numbers that are classes for sure no moments are told: they are texts where some have zeros in front.
    names = {_TEXT if one.target == _NUMBER and one.moments is None else one.target for one in told.values()}
    if len(names) > 1:
        kinds = {one.target for one in told.values()}
        raise DataError(f"the target holds {' and '.join(sorted(kinds))}; expected the same everywhere")


def _types(told: Mapping[str, Told], order: list[str]) -> dict[str, str]:
    """The type of each column at those who have values in it, in the order of the first."""
    first, types = order[0], dict(told[order[0]].types)
    for id in order[1:]:
        if odd := sorted(set(types) ^ set(told[id].types)):
            one, other = (id, first) if odd[0] in types else (first, id)
            raise DataError(f"{one} has no column {odd[0]!r}, which {other} has; expected the same ones")
        for name, kind in told[id].types.items():
            if kind != types[name] and _EMPTY not in (kind, types[name]):
                raise DataError(
                    f"column {name!r} holds {kind} at {id} and {types[name]} elsewhere; expected the same everywhere"
                )
            types[name] = types[name] if kind == _EMPTY else kind
    return types


def _filled(told: Profile, kinds: Mapping[str, Column]) -> Profile:
    """A profile in which a column without values is what it is elsewhere."""
    numbers = {name: told.numbers.get(name, Moments(0, 0.0, 0.0)) for name, kind in kinds.items() if kind == "number"}
    counts = {name: told.categories.get(name, {}) for name, kind in kinds.items() if kind == "category"}
    return Profile(told.rows, numbers, counts)


def _target(told: list[Told], reading: Reading) -> Target:
    where = f"target {reading.target!r}"
    text, lists = any(one.target == _TEXT for one in told), [one.values for one in told if one.values is not None]
    different = {value for values in lists for value in values}
    kind = reading.kind or (kind_of(different, text) if len(lists) == len(told) else "regression")
    if kind != "regression":
        if len(lists) < len(told):
            raise DataError(f"{where}: a participant told no values, and they are classes")
        return classes_of(different, text, kind, reading.positive, where)
    moments = [one.moments for one in told if one.moments is not None]
    if len(moments) < len(told):
        raise DataError(f"{where}: expected numbers to predict, and a participant has none")
    each = [Profile(one.count, {"y": one}, {}) for one in moments]
    return regression_of(Profile.merged(each).numbers["y"], where)


def _type(table: pa.Table, name: str) -> str:
    kinds_of(table.select([name]))  # refuses what is neither
    kind = table.schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return next(word for word, test in _TYPES.items() if test(kind))
