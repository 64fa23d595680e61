"""Columns of tables as numbers, by an encoding that is made of sums and counts of each client, and of no rows.

Numbers, dates and booleans are standardised; categories become one column each. What is missing, rare or unknown has a
place of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedkin.errors import DataError

__all__ = ["Column", "Encoding", "Moments", "Profile", "is_number", "kinds_of", "numbers", "profile", "texts"]

Column = Literal["number", "category"]
Floats = npt.NDArray[np.float64]

# Values beyond this number of standard deviations are clipped: they are typing errors, not what is to be learned.
_FAR = 10.0
_DAY = 86_400.0
_MISSING, _OTHER = "(missing)", "(other)"


@dataclass(frozen=True)
class Moments:
    """Known values of a number's column at one client: how many, their mean, and the sum of squares about it."""

    count: int
    mean: float
    squares: float


@dataclass(frozen=True)
class Profile:
    """All that a client tells of its training rows: moments of numbers, and counts of categories."""

    rows: int
    numbers: Mapping[str, Moments]
    categories: Mapping[str, Mapping[str, int]]


def kinds_of(table: pa.Table, categories: Sequence[str] = ()) -> dict[str, Column]:
    """Whether each column is a number (also dates, durations and booleans) or a category (texts, and those named).

    Raises DataError for a column that is neither, and for a name that is no column.
    """
    for name in categories:
        if name not in table.column_names:
            raise DataError(f"categories: no column {name!r}; the table has {', '.join(table.column_names)}")
    found: dict[str, Column] = {}
    for name in table.column_names:
        kind = table.schema.field(name).type
        if name in categories or _is_text(kind):
            found[name] = "category"
        elif _is_numeric(kind) or pa.types.is_null(kind):
            found[name] = "number"
        else:
            raise DataError(f"column {name!r}: expected numbers, texts, dates or booleans, got {kind}; leave it out")
    return found


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_temporal)
    return any(test(kind) for test in tests)


def numbers(table: pa.Table, name: str) -> Floats:
    """[n] a column as numbers, NaN where nothing is known: dates in days since 1970, times and durations in days."""
    values = table.column(name).combine_chunks()
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_date(kind):
        values = values.cast(pa.timestamp("ms"))
        kind = values.type
    if pa.types.is_temporal(kind):
        unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
        whole = values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        made: Floats = whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / unit / _DAY
        return made
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    read: Floats = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.isfinite(read), read, np.nan)


def texts(table: pa.Table, name: str) -> npt.NDArray[np.object_]:
    """[n] a column as texts, None where nothing is known."""
    values = table.column(name).combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type) and pc.all(pc.equal(values, pc.round(values)), min_count=0).as_py():
        # Whole numbers with gaps are read as floats: 3.0 is the category 3.
        values = values.cast(pa.int64(), safe=False)
    if not _is_text(values.type):
        values = values.cast(pa.string())
    return np.array(values.to_pylist(), dtype=object)


def is_number(text: str) -> bool:
    """Whether a text is a number, as in "1", "-2.5" and "1e3"."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def profile(table: pa.Table, kinds: Mapping[str, Column]) -> Profile:
    """What a client tells of these rows, and all of it.

    >>> told = profile(pa.table({"age": [50, 70, None], "sex": ["f", "m", "f"]}), {"age": "number", "sex": "category"})
    >>> told.numbers["age"], dict(told.categories["sex"])
    (Moments(count=2, mean=60.0, squares=200.0), {'f': 2, 'm': 1})
    """
    moments, counts = {}, {}
    for name, kind in kinds.items():
        if kind == "category":
            counts[name] = dict(Counter(value for value in texts(table, name) if value is not None))
            continue
        known = numbers(table, name)
        known = known[~np.isnan(known)]
        mean = math.fsum(known) / len(known) if len(known) else 0.0
        moments[name] = Moments(len(known), mean, math.fsum((known - mean) ** 2))
    return Profile(table.num_rows, moments, counts)


@dataclass(frozen=True)
class Encoding:
    """How rows of a table become inputs [n, d] of a net.

    kinds: the columns, in the order in which they are encoded. means, deviations: of numbers, over the training rows of
    all clients. values: the categories that have a column each. flagged: columns whose missing values have a column.
    """

    kinds: Mapping[str, Column]
    means: Mapping[str, float] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flagged: frozenset[str] = frozenset()

    @classmethod
    def of(cls, profiles: Iterable[Profile], kinds: Mapping[str, Column], least: int = 10) -> Encoding:
        """The encoding of all clients' rows, from their profiles; the order of the clients does not matter.

        least: a category, or what is missing, has a column if so many rows have it; all other categories share one.
        """
        told = list(profiles)
        rows = sum(one.rows for one in told)
        means, deviations, values, flagged = {}, {}, {}, set()
        for name, kind in kinds.items():
            if kind == "category":
                count: Counter[str] = Counter()
                for one in told:
                    count.update(one.categories[name])
                values[name] = tuple(sorted(value for value, often in count.items() if often >= least))
                known = count.total()
            else:
                each = [one.numbers[name] for one in told if one.numbers[name].count]
                known = sum(one.count for one in each)
                mean = math.fsum(one.count * one.mean for one in each) / max(known, 1)
                squares = math.fsum(one.squares + one.count * (one.mean - mean) ** 2 for one in each)
                means[name], deviations[name] = mean, math.sqrt(squares / max(known, 1))
            if rows - known >= least:
                flagged.add(name)
        return cls(dict(kinds), means, deviations, values, frozenset(flagged))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each of the d inputs is: "age", "age=(missing)", "sex=f", "sex=(other)"."""
        found: list[str] = []
        for name, kind in self.kinds.items():
            ends = ["", *self._flag(name)] if kind == "number" else [*self.values[name], _OTHER, *self._flag(name)]
            found += [name if not end else f"{name}={end}" for end in ends]
        return tuple(found)

    def _flag(self, name: str) -> list[str]:
        return [_MISSING] if name in self.flagged else []

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
        made: list[npt.NDArray[Any]] = []
        for name, kind in self.kinds.items():
            if name not in table.column_names:
                raise DataError(f"no column {name!r}; the table has {', '.join(table.column_names)}")
            made += self._categories(table, name) if kind == "category" else self._numbers(table, name)
        return np.stack(made, axis=1).astype(np.float32) if made else np.zeros((table.num_rows, 0), np.float32)

    def _numbers(self, table: pa.Table, name: str) -> list[npt.NDArray[Any]]:
        values = numbers(table, name)
        missing = np.isnan(values)
        deviation = self.deviations[name]
        # A column that is constant but for rounding has nothing to say.
        spread = deviation > 1e-9 * max(1.0, abs(self.means[name]))
        z = (values - self.means[name]) / deviation if spread else np.zeros(len(values))
        scaled = np.clip(np.where(missing, 0.0, z), -_FAR, _FAR)
        return [scaled, *([missing] if name in self.flagged else [])]

    def _categories(self, table: pa.Table, name: str) -> list[npt.NDArray[Any]]:
        values, known = texts(table, name), self.values[name]
        missing = np.array([value is None for value in values], dtype=bool)
        number = {value: place for place, value in enumerate(known)}
        place = np.array([number.get(value, len(known)) for value in values], dtype=np.int64)
        each: list[npt.NDArray[Any]] = [(place == at) & ~missing for at in range(len(known) + 1)]
        return [*each, *([missing] if name in self.flagged else [])]
