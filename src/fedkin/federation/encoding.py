"""Tables as arrays, by an encoding that is made of sums and counts of each client, and of no rows.

Numbers, dates and booleans are standardised; categories become one column each. What is missing, rare or unknown has a
place of its own.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedkin.errors import DataError
from fedkin.federation.table import (
    Column,
    Columns,
    Kind,
    Reading,
    codes,
    columns_of,
    is_number,
    kinds_of,
    need_numbers,
    numbers,
    texts,
)
from fedkin.tasks import Task
from fedkin.untrusted import json_of, said

__all__ = [
    "CLASSES", "Encoded", "Encoding", "Moments", "Profile", "Target", "classes_of", "encoded", "from_json", "kind_of",
    "profile", "profiles_of", "regression_of", "target_of",
]  # fmt: skip

# A number with at most so many different whole values is taken for a class, if nothing is said.
CLASSES = 20
# Squares of larger numbers are not finite: they are codes for what is missing, such as the largest float.
_LARGEST = 1e150
_MISSING, _OTHER = "(missing)", "(other)"

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
_STRICT = ConfigDict(extra="forbid")


def from_json(kind: type[T], text: str, what: str) -> T:
    """The dataclass that this JSON text holds, with the same bits; raises DataError for any other text."""
    try:
        json_of(text)  # refuses unusual depth, sizes and characters
        value = TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{what}: {'.'.join(map(str, first['loc']))}: {said(ValueError(first['msg']))}") from None
    except ValueError as error:
        raise DataError(f"{what}: cannot be read as JSON ({said(error)})") from None
    return value


# -- what a client tells of its rows -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Known values of a number's column at one client: how many, their mean, and the sum of squares about it."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    count: Count
    mean: Finite
    squares: Annotated[float, Field(allow_inf_nan=False, ge=0)]

    @classmethod
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """The moments of all values: the mean of means, and the squares about it (Chan, Golub and LeVeque, 1983)."""
        count = sum(one.count for one in parts)
        mean = math.fsum(one.count * one.mean for one in parts) / max(count, 1)
        squares = math.fsum(one.squares + one.count * (one.mean - mean) ** 2 for one in parts if one.count)
        return cls(count, mean, squares)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.squares / max(self.count, 1))


@dataclass(frozen=True)
class Profile:
    """All that a client tells of its training rows: moments of numbers, and counts of categories."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    rows: Count
    numbers: Mapping[str, Moments]
    categories: Mapping[str, Mapping[str, Count]]

    @classmethod
    def merged(cls, profiles: Iterable[Profile]) -> Profile:
        """The profile of all rows of these profiles, which are of the same columns; their order does not matter.

        Raises DataError if they are not.

        >>> kinds = {"age": "number"}
        >>> parts = [profile(pa.table({"age": ages}), kinds) for ages in ([50, 70], [90])]
        >>> Profile.merged(parts) == profile(pa.table({"age": [50, 70, 90]}), kinds)
        True
        """
        parts = list(profiles)
        if not parts:
            raise DataError("profiles: expected at least one, got none")
        first = parts[0]
        for one in parts:
            if (one.numbers.keys(), one.categories.keys()) != (first.numbers.keys(), first.categories.keys()):
                odd = sorted({*one.numbers, *one.categories} ^ {*first.numbers, *first.categories})
                what = f"{odd[0]!r} is in one only" if odd else "a column is a number in one and a category in another"
                raise DataError(f"profiles: expected the same columns in all; {what}")
        moments = {name: Moments.merged([one.numbers[name] for one in parts]) for name in first.numbers}
        counts: dict[str, dict[str, int]] = {}
        for name in first.categories:
            total: Counter[str] = Counter()
            for one in parts:
                total.update(one.categories[name])
            counts[name] = dict(sorted(total.items()))
        return cls(sum(one.rows for one in parts), moments, counts)

    def to_json(self) -> str:
        """The profile as JSON text: all that leaves a client, to be read before it does."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The profile that `to_json` wrote, with the same bits; raises DataError for any other text."""
        return from_json(cls, text, "a profile").checked()

    def checked(self) -> Profile:
        """Itself; raises DataError if it counts more values than rows."""
        known = {name: one.count for name, one in self.numbers.items()}
        known |= {name: sum(counts.values()) for name, counts in self.categories.items()}
        for name, count in known.items():
            if count > self.rows:
                raise DataError(f"a profile: column {name!r} has {count} values in {self.rows} rows")
        return self


def profile(table: pa.Table, kinds: Mapping[str, Column]) -> Profile:
    """What a client tells of these rows, and all of it; raises DataError for a number too large to be squared.

    >>> told = profile(pa.table({"age": [50, 70, None], "sex": ["f", "m", "f"]}), {"age": "number", "sex": "category"})
    >>> told.numbers["age"], dict(told.categories["sex"])
    (Moments(count=2, mean=60.0, squares=200.0), {'f': 2, 'm': 1})
    """
    moments, counts = {}, {}
    for name, kind in kinds.items():
        if kind == "category":
            values, place = codes(table, name)
            often = np.bincount(place[place >= 0], minlength=len(values)).tolist()
            counts[name] = dict(zip(values, often, strict=True))
            continue
        known = numbers(table, name)
        known = known[~np.isnan(known)]
        if len(known) and (largest := float(known[np.abs(known).argmax()])) and abs(largest) > _LARGEST:
            raise DataError(
                f"column {name!r}: {largest:g} is no measurement; if it means that nothing is known, leave the cell "
                "empty, or in a CSV file name it, as it is written, in data.missing"
            )
        mean = math.fsum(known) / len(known) if len(known) else 0.0
        moments[name] = Moments(len(known), mean, math.fsum((known - mean) ** 2))
    return Profile(table.num_rows, moments, counts)


def profiles_of(columns: Columns, table: pa.Table, kinds: Mapping[str, Column], where: str) -> list[Profile]:
    """What each client tells of these columns of its training rows."""
    profiles = []
    for id, rows in columns.training(table).items():
        try:
            profiles.append(profile(rows, kinds))
        except DataError as error:
            raise DataError(f"{where}: client {id!r}: {error}") from None
    return profiles


# -- the encoding --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoding:
    """How rows of a table become inputs [n, d] of a net.

    kinds: the columns, in the order in which they are encoded. means, deviations: of numbers, over the training rows of
    all clients. values: the categories that have a column each. flagged: columns whose missing values have a column.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    # Values beyond this number of standard deviations are clipped: they are typing errors, not what is to be learned.
    FAR: ClassVar[float] = 10.0

    kinds: Mapping[str, Column]
    means: Mapping[str, Finite] = field(default_factory=dict)
    deviations: Mapping[str, Finite] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flagged: frozenset[str] = frozenset()

    @classmethod
    def of(cls, profiles: Iterable[Profile], kinds: Mapping[str, Column], least: int = 10) -> Encoding:
        """The encoding of all clients' rows, from their profiles; the order of the clients does not matter.

        least: a category, or what is missing, has a column if so many rows have it; all other categories share one.
        """
        whole = Profile.merged(profiles)
        means, deviations, values, flagged = {}, {}, {}, set()
        for name, kind in kinds.items():
            if kind == "category":
                counts = whole.categories[name]
                values[name] = tuple(sorted(value for value, often in counts.items() if often >= least))
                known = sum(counts.values())
            else:
                moments = whole.numbers[name]
                known, means[name], deviations[name] = moments.count, moments.mean, moments.deviation
            if whole.rows - known >= least:
                flagged.add(name)
        return cls(dict(kinds), means, deviations, values, frozenset(flagged))

    def to_json(self) -> str:
        """The encoding as JSON text, for every participant and for a model's later use."""
        return json.dumps(asdict(self), ensure_ascii=False, default=sorted)

    @classmethod
    def from_json(cls, text: str) -> Encoding:
        """The encoding that `to_json` wrote, with the same bits; raises DataError for any other text."""
        return from_json(cls, text, "an encoding").checked()

    def checked(self) -> Encoding:
        """Itself; raises DataError if it lacks a mean, a deviation or the values of one of its columns."""
        number = {name for name, kind in self.kinds.items() if kind == "number"}
        if not (number == set(self.means) == set(self.deviations) and set(self.values) == set(self.kinds) - number):
            raise DataError("an encoding: means, deviations and values are not those of its columns")
        return self

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each of the d inputs is: "age", "age=(missing)", "sex=f", "sex=(other)"."""
        names: list[str] = []
        for name, kind in self.kinds.items():
            ends = [""] if kind == "number" else [*self.values[name], _OTHER]
            if name in self.flagged:
                ends.append(_MISSING)
            names += [f"{name}={end}" if end else name for end in ends]
        return tuple(names)

    def spread(self, name: str) -> float:
        """What a number is divided by; 0 for a column that is constant but for rounding: it has nothing to say."""
        deviation = self.deviations[name]
        return deviation if deviation > 1e-9 * abs(self.means[name]) else 0.0

    def __call__(self, table: pa.Table) -> npt.NDArray[np.float32]:
        """[n, d] inputs. A missing number is its mean, a missing category no category; both have their flag, if any.

        Numbers are clipped at 10 standard deviations. Raises DataError for a column that is not there.

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

    def _numbers(self, table: pa.Table, name: str) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        values = numbers(table, name)
        missing = np.isnan(values)
        spread = self.spread(name)
        z = (values - self.means[name]) / spread if spread else np.zeros(len(values))
        return [np.clip(np.where(missing, 0.0, z), -self.FAR, self.FAR)], missing

    def _categories(self, table: pa.Table, name: str) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        number = {value: place for place, value in enumerate(self.values[name])}
        values, code = codes(table, name)
        missing = code < 0
        place = np.array([*(number.get(value, len(number)) for value in values), -1], dtype=np.int64)[code]
        return [place == at for at in range(len(number) + 1)], missing


# -- the target ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What the values of the target mean: names of the classes in their order, or mean and deviation of a number."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    kind: Kind
    classes: tuple[str, ...] = ()
    mean: Finite = 0.0
    deviation: Annotated[float, Field(allow_inf_nan=False, gt=0)] = 1.0

    def task(self, width: int) -> Task:
        """The task of these targets, with so many inputs."""
        if self.kind == "regression":
            return Task.regression(1, (width,))
        return Task(len(self.classes), (width,), self.kind)

    def __call__(self, table: pa.Table, name: str) -> npt.NDArray[Any]:
        """A column as targets: labels from 0 [n], or deviations from the mean [n, 1].

        Raises DataError for a value that is no class.
        """
        if self.kind == "regression":
            return ((numbers(table, name) - self.mean) / self.deviation).astype(np.float32)[:, None]
        number = {value: place for place, value in enumerate(self.classes)}
        try:
            return np.array([number[value] for value in texts(table, name)], dtype=np.int64)
        except KeyError as error:
            raise DataError(f"target {name!r}: {error} is none of {', '.join(self.classes)}") from None


def target_of(table: pa.Table, reading: Reading, columns: Columns, where: str) -> Target:
    """What the target means in a table of all clients."""
    name, different = reading.target, set(columns.values)
    text = kinds_of(table.select([name]))[name] == "category"
    kind = reading.kind or kind_of(different, text)
    if kind == "regression":
        need_numbers(table, name, where, "numbers to predict")
        profiles = profiles_of(columns, table.select([name]), {name: "number"}, where)
        return regression_of(Profile.merged(profiles).numbers[name], f"{where}: target {name!r}")
    return classes_of(different, text, kind, reading.positive, f"{where}: target {name!r}")


def kind_of(different: Collection[str], text: bool) -> Kind:
    """Two values are a risk; texts, and at most 20 whole numbers are classes; others are numbers."""
    if len(different) <= 2:
        return "risk"
    whole = all(value.lstrip("-").isdigit() for value in different)
    return "classification" if text or (whole and len(different) <= CLASSES) else "regression"


def regression_of(moments: Moments, where: str) -> Target:
    """A number in deviations from the training rows' mean; raises DataError if it is the same in all."""
    if moments.deviation == 0:
        raise DataError(f"{where} is {moments.mean:g} in every training row; expected different values")
    return Target("regression", (), moments.mean, moments.deviation)


def classes_of(different: Collection[str], text: bool, kind: Kind, positive: str | None, where: str) -> Target:
    """The different values in order, as numbers where they are numbers; raises DataError for fewer than two.

    positive: the event of a risk, which is then the later of the two classes.
    """
    as_numbers = not text and all(is_number(value) for value in different)
    classes = tuple(sorted(map(str, different), key=float if as_numbers else None))
    if len(classes) < 2:
        raise DataError(f"{where} is {classes[0]!r} in every row; expected at least 2 classes")
    if kind == "risk":
        if len(classes) != 2:
            raise DataError(f"{where} has {len(classes)} values; a risk has two: kind='classification'?")
        if positive is not None and positive not in classes:
            raise DataError(f"{where}: positive: no value {positive!r}; expected {classes[0]!r} or {classes[1]!r}")
        if positive is not None:
            classes = tuple(sorted(classes, key=lambda value: value == positive))
    return Target(kind, classes)


# -- the arrays ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """A table as arrays: inputs [n, d], targets, each row's client, its group, and whether it is a test row."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    client: npt.NDArray[np.str_]
    held: npt.NDArray[np.bool_]
    encoding: Encoding
    target: Target
    group: npt.NDArray[np.str_] | None = None

    @property
    def task(self) -> Task:
        """The task of these targets."""
        return self.target.task(self.x.shape[1])


def encoded(
    table: pa.Table, reading: Reading, where: str = "frame", shared: tuple[Encoding, Target] | None = None
) -> Encoded:
    """The arrays of a table. Everything is fitted on the training rows, from sums and counts of each client.

    shared: the encoding and the target of a whole federation, of which these are the rows of one client. Raises
    DataError that names `where`, the column, and the row or client.
    """
    columns = columns_of(table, reading, where)
    if shared is None:
        target = target_of(table, reading, columns, where)
        profiles = profiles_of(columns, columns.inputs, columns.kinds, where)
        encoding = Encoding.of(profiles, columns.kinds, reading.least)
    else:
        encoding, target = shared
    y = target(table, reading.target)
    x = encoding(columns.inputs)
    if not x.shape[1]:
        others = ", ".join(columns.others)
        raise DataError(f"{where}: no column is left for the inputs; expected at least one beside {others}")
    return Encoded(x, y, columns.client, columns.held, encoding, target, columns.group)
