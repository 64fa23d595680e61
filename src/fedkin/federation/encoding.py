"""Columns of tables as numbers, by an encoding that is made of sums and counts of each client, and of no rows.

Numbers, dates and booleans are standardised; categories become one column each. What is missing, rare or unknown has a
place of its own.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedkin.errors import DataError
from fedkin.untrusted import json_of, said, shown

__all__ = ["Column", "Encoding", "Moments", "Profile", "codes", "is_number", "kinds_of", "numbers", "profile", "texts"]

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

    @classmethod
    def merged(cls, profiles: Iterable[Profile]) -> Profile:
        """The profile of all rows of these profiles, which are of the same columns; their order does not matter.

        Raises DataError if they are not.

        >>> kinds = {"age": "number"}
        >>> parts = [profile(pa.table({"age": ages}), kinds) for ages in ([50, 70], [90])]
        >>> Profile.merged(parts) == profile(pa.table({"age": [50, 70, 90]}), kinds)
        True
        """
        told = list(profiles)
        if not told:
            raise DataError("profiles: expected at least one, got none")
        for one in told:
            if (one.numbers.keys(), one.categories.keys()) != (told[0].numbers.keys(), told[0].categories.keys()):
                odd = sorted({*one.numbers, *one.categories} ^ {*told[0].numbers, *told[0].categories})
                what = f"{odd[0]!r} is in one only" if odd else "a column is a number in one and a category in another"
                raise DataError(f"profiles: expected the same columns in all; {what}")
        moments = {name: _joined([one.numbers[name] for one in told]) for name in told[0].numbers}
        counts = {name: _summed([one.categories[name] for one in told]) for name in told[0].categories}
        return cls(sum(one.rows for one in told), moments, counts)

    def to_json(self) -> str:
        """The profile as JSON text: all that leaves a client, to be read before it does."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True, default=dict)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The profile that `to_json` wrote, with the same bits; raises DataError for any other text."""
        held = _held(text, "a profile", {"rows", "numbers", "categories"})
        rows = _count(held["rows"], "rows")
        moments, counts = {}, {}
        for name, one in _table(held["numbers"], "numbers").items():
            where = f"numbers.{name}"
            one = _table(one, where)
            if one.keys() != {"count", "mean", "squares"}:
                raise DataError(
                    f"a profile: {where}: expected count, mean and squares, got {', '.join(one) or 'nothing'}"
                )
            known = _count(one["count"], f"{where}.count", rows)
            mean, squares = (_finite(one[key], f"{where}.{key}") for key in ("mean", "squares"))
            if squares < 0:
                raise DataError(f"a profile: {where}.squares: expected at least 0, got {squares}")
            moments[name] = Moments(known, mean, squares)
        for name, one in _table(held["categories"], "categories").items():
            where = f"categories.{name}"
            counts[name] = {value: _count(often, where, rows) for value, often in _table(one, where).items()}
            _count(sum(counts[name].values()), where, rows)
        return cls(rows, moments, counts)


def _joined(each: Sequence[Moments]) -> Moments:
    """The moments of all values: the mean of means, and the squares about it (Chan, Golub and LeVeque, 1983)."""
    known = sum(one.count for one in each)
    mean = math.fsum(one.count * one.mean for one in each) / max(known, 1)
    squares = math.fsum(one.squares + one.count * (one.mean - mean) ** 2 for one in each if one.count)
    return Moments(known, mean, squares)


def _summed(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    count: Counter[str] = Counter()
    for one in each:
        count.update(one)
    return dict(sorted(count.items()))


def _held(text: str, what: str, names: set[str]) -> dict[str, Any]:
    try:
        held = json_of(text)
    except ValueError as error:
        raise DataError(f"{what}: cannot be read as JSON ({said(error)})") from None
    if not isinstance(held, dict) or held.keys() != names:
        raise DataError(f"{what}: expected a table of {', '.join(sorted(names))}")
    return held


def _table(held: Any, where: str) -> dict[str, Any]:
    if not isinstance(held, dict):
        raise DataError(f"a profile: {where}: expected a table, got {type(held).__name__}")
    return held


def _count(held: Any, where: str, most: int | None = None) -> int:
    if not isinstance(held, int) or isinstance(held, bool) or held < 0 or (most is not None and held > most):
        limit = "" if most is None else f" and at most {most}, the number of rows"
        raise DataError(
            f"a profile: {where}: expected a whole number of at least 0{limit}, got {shown(repr(held), 40)}"
        )
    return held


def _finite(held: Any, where: str) -> float:
    if not isinstance(held, int | float) or isinstance(held, bool) or not math.isfinite(held):
        raise DataError(f"a profile: {where}: expected a finite number, got {shown(repr(held), 40)}")
    return float(held)


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
    return np.array(_texts(table, name).to_pylist(), dtype=object)


def codes(table: pa.Table, name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """(a column's different texts, sorted; [n] the place of each row's text among them, -1 where nothing is known)."""
    made = _texts(table, name).dictionary_encode()
    found = np.array([str(value) for value in made.dictionary.to_pylist()], dtype=object)
    order = np.argsort(found, kind="stable")
    place = np.empty(len(found) + 1, np.int64)
    place[order], place[-1] = np.arange(len(found)), -1
    return list(found[order]), place[made.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)]


def _texts(table: pa.Table, name: str) -> Any:
    values = table.column(name).combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type) and pc.all(pc.equal(values, pc.round(values)), min_count=0).as_py():
        # Whole numbers with gaps are read as floats: 3.0 is the category 3.
        values = values.cast(pa.int64(), safe=False)
    if not _is_text(values.type):
        values = values.cast(pa.string())
    return values


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
            found, place = codes(table, name)
            counts[name] = dict(zip(found, np.bincount(place[place >= 0], minlength=len(found)).tolist(), strict=True))
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
        whole = Profile.merged(profiles)
        means, deviations, values, flagged = {}, {}, {}, set()
        for name, kind in kinds.items():
            if kind == "category":
                count = whole.categories[name]
                values[name] = tuple(sorted(value for value, often in count.items() if often >= least))
                known = sum(count.values())
            else:
                known, mean, squares = (getattr(whole.numbers[name], part) for part in ("count", "mean", "squares"))
                means[name], deviations[name] = mean, math.sqrt(squares / max(known, 1))
            if whole.rows - known >= least:
                flagged.add(name)
        return cls(dict(kinds), means, deviations, values, frozenset(flagged))

    def to_json(self) -> str:
        """The encoding as JSON text, for every participant and for a model's later use."""
        return json.dumps({**asdict(self), "flagged": sorted(self.flagged)}, ensure_ascii=False, sort_keys=False)

    @classmethod
    def from_json(cls, text: str) -> Encoding:
        """The encoding that `to_json` wrote, with the same bits; raises DataError for any other text."""
        held = _held(text, "an encoding", {"kinds", "means", "deviations", "values", "flagged"})
        try:
            kinds = {name: {"number": "number", "category": "category"}[kind] for name, kind in held["kinds"].items()}
            wanted = [name for name, kind in kinds.items() if kind == "number"]
            means, deviations = ({name: _finite(held[part][name], part) for name in wanted}
                                 for part in ("means", "deviations"))  # fmt: skip
            values = {name: tuple(map(str, held["values"][name])) for name, kind in kinds.items() if kind == "category"}
            flagged = frozenset(name for name in kinds if name in held["flagged"])
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError(f"an encoding: cannot be read ({said(error)}); expected what to_json wrote") from None
        return cls(kinds, means, deviations, values, flagged)  # type: ignore[arg-type]

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
        known = self.values[name]
        found, code = codes(table, name)
        missing = code < 0
        number = {value: place for place, value in enumerate(known)}
        place = np.array([*(number.get(value, len(known)) for value in found), len(known)], dtype=np.int64)[code]
        each: list[npt.NDArray[Any]] = [(place == at) & ~missing for at in range(len(known) + 1)]
        return [*each, *([missing] if name in self.flagged else [])]
