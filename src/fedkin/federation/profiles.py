"""What a client tells of its rows, so that all agree on an encoding: sums and counts, and no rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fedkin.errors import DataError
from fedkin.federation.columns import Column, codes, numbers
from fedkin.untrusted import json_of, said, shown

__all__ = ["Moments", "Profile", "finite", "held_in", "profile"]


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
        held = held_in(text, "a profile", {"rows", "numbers", "categories"})
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
            mean, squares = (finite(one[key], f"{where}.{key}") for key in ("mean", "squares"))
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


def held_in(text: str, what: str, names: set[str]) -> dict[str, Any]:
    """The table of a JSON text with these names, of `what`; raises DataError."""
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


def finite(held: Any, where: str) -> float:
    """The number at `where` of a profile; raises DataError if it is none, or not finite."""
    if not isinstance(held, int | float) or isinstance(held, bool) or not math.isfinite(held):
        raise DataError(f"a profile: {where}: expected a finite number, got {shown(repr(held), 40)}")
    return float(held)


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
