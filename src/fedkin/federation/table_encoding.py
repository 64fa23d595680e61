"""Convert tables to arrays: the encoding of columns as inputs, and the meaning of the target.

The encoding is computed from sums and counts of each client, never from rows: numbers, dates and booleans are
standardised; each category becomes a column. Missing values, and rare or unknown categories, have their own columns.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedkin.errors import DataError, first_few
from fedkin.federation.arrays import Flags
from fedkin.federation.table_columns import Columns, Kind, Reading, columns_of
from fedkin.federation.table_values import Column, codes, is_number, kinds_of, need_numbers, numbers, row_at, texts
from fedkin.tasks import Task
from fedkin.untrusted import error_text, escaped, json_of

# A target of whole numbers with at most this many different values has classes, unless `kind` says otherwise.
CLASSES = 20
# The squares of larger numbers are not finite; such numbers are codes for missing values, such as the largest float.
_LARGEST = 1e150
# In float32, the square of an error of more deviations is not finite.
_FARTHEST = 1e18
_MISSING, _OTHER = "(missing)", "(other)"

Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


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
    def merged(cls, profiles: Sequence[Profile]) -> Profile:
        """The profile of all rows together, from profiles of the same columns; their order does not matter.

        >>> kinds = {"age": "number"}
        >>> parts = [profile(pa.table({"age": ages}), kinds) for ages in ([50, 70], [90])]
        >>> Profile.merged(parts) == profile(pa.table({"age": [50, 70, 90]}), kinds)
        True
        """
        moments = {name: Moments.merged([part.numbers[name] for part in profiles]) for name in profiles[0].numbers}
        counts = {name: Counter[str]() for name in profiles[0].categories}
        for part in profiles:
            for name, client_counts in part.categories.items():
                counts[name].update(client_counts)
        categories = {name: dict(sorted(total.items())) for name, total in counts.items()}
        return cls(sum(part.rows for part in profiles), moments, categories)

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
    """The profile of each client's training rows in these columns of a table with the same rows."""
    profiles = []
    for id, rows in columns.rows.items():
        try:
            profiles.append(profile(table.take(rows[~columns.is_test[rows]]), kinds))
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
    def of(cls, profiles: Sequence[Profile], kinds: Mapping[str, Column], least: int = 10) -> Encoding:
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

        Raises DataError for a value that is not a class, and for a number that is too large to be one.
        """
        if self.kind == "regression":
            return self._standardised(table, name)
        index = {value: place for place, value in enumerate(self.classes)}
        try:
            return np.array([index[value] for value in texts(table, name)], dtype=np.int64)
        except KeyError as error:
            raise DataError(f"target {name!r}: {error} is none of {', '.join(self.classes)}") from None

    def _standardised(self, table: pa.Table, name: str) -> npt.NDArray[np.float32]:
        values = numbers(table, name)
        far = np.abs(values - self.mean) > _FARTHEST * self.deviation
        if far.any():
            row = int(far.argmax())
            what = f"{values[row]:g} in {row_at(table, row)} is no measurement"
            raise DataError(f"target {name!r}: {what}; correct it, or leave such rows out")
        return ((values - self.mean) / self.deviation).astype(np.float32)[:, None]


def find_target(table: pa.Table, reading: Reading, columns: Columns, where: str) -> Target:
    """Find out what the target means, from a table of all clients; raises DataError."""
    name, different, where_target = reading.target, set(columns.values), f"{where}: target {reading.target!r}"
    text = kinds_of(table.select([name]))[name] == "category"
    kind = reading.kind or kind_of(different, text)
    if kind != "regression":
        return target_of_classes(kind, different, text, reading.positive, where_target)
    need_numbers(table, name, where, "numbers to predict")
    profiles = profiles_of(columns, table.select([name]), {name: "number"}, where)
    return target_of_numbers([client.numbers[name] for client in profiles], where_target)


def target_of_numbers(moments: Sequence[Moments], where: str) -> Target:
    """A number, standardised by the mean and deviation of all clients' training rows; raises DataError if constant."""
    total = Moments.merged(moments)
    if total.deviation == 0:
        raise DataError(f"{where} is {total.mean:g} in every training row; expected different values")
    return Target("regression", (), total.mean, total.deviation)


def target_of_classes(kind: Kind, different: Collection[str], text: bool, event: str | None, where: str) -> Target:
    """Classes, sorted, as numbers if all are numbers; raises DataError if there are fewer than two.

    different: the target's values at all clients; text: whether they are texts. event: that of a risk, which has two
    classes; None: the class that sorts last, whether its letters are capital or small.
    """
    key: Callable[[str], Any] = str.casefold if kind == "risk" else str
    if not text and all(map(is_number, different)):
        key = _exact
    # Sorted twice: the order of a set, which differs from process to process, must not decide between equal keys.
    classes = sorted(sorted(map(str, different)), key=key)
    if len(classes) < 2:
        raise DataError(f"{where} is {classes[0]!r} in every row; expected at least 2 classes")
    if kind == "risk":
        if len(classes) != 2:
            raise DataError(f"{where} has {len(classes)} values; a risk has two: kind='classification'?")
        if event is not None and event not in classes:
            raise DataError(f"{where}: positive: no value {event!r}; expected {classes[0]!r} or {classes[1]!r}")
        classes = sorted(classes, key=lambda value: value == event)
    return Target(kind, tuple(classes))


def _exact(text: str) -> int | float:
    """The number that a text is; whole numbers are not rounded as a float would be."""
    try:
        return int(text)
    except ValueError:  # a fraction, or more digits than Python reads
        return float(text)


def kind_of(different: Collection[str], text: bool) -> Kind:
    """The kind of a target: two values are a risk; texts and up to 20 whole numbers are classes; else a regression."""
    if len(different) <= 2:
        return "risk"
    whole = all(value.lstrip("-").isdigit() for value in different)
    return "classification" if text or (whole and len(different) <= CLASSES) else "regression"


def lone_classes(clients: Mapping[str, Mapping[str, int]]) -> str:
    """Name the classes that one client alone has, if the others have at least two; empty if there are none.

    clients: for each client its classes, with their numbers of rows (0: not known).

    >>> lone_classes({"ann": {"no": 9, "yess": 2}, "bob": {"no": 7, "yes": 3}, "eve": {"no": 5, "yes": 4}})
    "only ann has class 'yess' (2 rows), and it has no 'yes': a typo?"
    """
    total, found = Counter(name for classes in clients.values() for name in classes), list[str]()
    for id, classes in sorted(clients.items()):
        elsewhere = total - Counter(list(classes))
        usual = [name for name, often in elsewhere.items() if 2 * often >= len(clients) and name not in classes]
        lacks = f", and it has no {escaped(usual[0], 30)!r}" if len(usual) == 1 else ""
        for name in sorted(classes.keys() - elsewhere.keys()) if len(elsewhere) > 1 else ():
            rows = f" ({classes[name]:,} row{'s' * (classes[name] > 1)})" if classes[name] else ""
            found.append(f"only {id} has class {escaped(name, 30)!r}{rows}{lacks}")
    return f"{first_few(found, 4, '; ')}: a typo?" if found else ""


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
    try:
        y = target(table, reading.target)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    x = encoding(columns.inputs)
    if not x.shape[1]:
        others = ", ".join(columns.others)
        raise DataError(f"{where}: no column is left for the inputs; expected at least one beside {others}")
    return Encoded(x, y, columns, encoding, target)
