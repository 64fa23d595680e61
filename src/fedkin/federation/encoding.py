"""Columns of tables as numbers, by an encoding that is made of sums and counts of each client, and of no rows.

Numbers, dates and booleans are standardised; categories become one column each. What is missing, rare or unknown has a
place of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedkin.errors import DataError
from fedkin.federation.columns import Column, codes, is_number, kinds_of, numbers, texts
from fedkin.federation.profiles import Moments, Profile, finite, held_in, profile
from fedkin.untrusted import said

__all__ = ["Column", "Encoding", "Moments", "Profile", "codes", "is_number", "kinds_of", "numbers", "profile", "texts"]

_MISSING, _OTHER = "(missing)", "(other)"


@dataclass(frozen=True)
class Encoding:
    """How rows of a table become inputs [n, d] of a net.

    kinds: the columns, in the order in which they are encoded. means, deviations: of numbers, over the training rows of
    all clients. values: the categories that have a column each. flagged: columns whose missing values have a column.
    """

    # Values beyond this number of standard deviations are clipped: they are typing errors, not what is to be learned.
    FAR: ClassVar[float] = 10.0

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
        held = held_in(text, "an encoding", {"kinds", "means", "deviations", "values", "flagged"})
        try:
            kinds = {name: {"number": "number", "category": "category"}[kind] for name, kind in held["kinds"].items()}
            wanted = [name for name, kind in kinds.items() if kind == "number"]
            means, deviations = ({name: finite(held[part][name], part) for name in wanted}
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

    def spread(self, name: str) -> float:
        """What a number is divided by; 0 for a column that is constant but for rounding: it has nothing to say."""
        deviation = self.deviations[name]
        return deviation if deviation > 1e-9 * max(1.0, abs(self.means[name])) else 0.0

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
        spread = self.spread(name)
        z = (values - self.means[name]) / spread if spread else np.zeros(len(values))
        scaled = np.clip(np.where(missing, 0.0, z), -self.FAR, self.FAR)
        return [scaled, *([missing] if name in self.flagged else [])]

    def _categories(self, table: pa.Table, name: str) -> list[npt.NDArray[Any]]:
        known = self.values[name]
        found, code = codes(table, name)
        missing = code < 0
        number = {value: place for place, value in enumerate(known)}
        place = np.array([*(number.get(value, len(known)) for value in found), len(known)], dtype=np.int64)[code]
        each: list[npt.NDArray[Any]] = [(place == at) & ~missing for at in range(len(known) + 1)]
        return [*each, *([missing] if name in self.flagged else [])]
