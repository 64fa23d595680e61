"""The cells of a CSV file: each column of texts becomes numbers, dates, truth values or texts.

Ambiguous values are refused; the error names the setting that decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedkin.untrusted import Refused, escaped

DATES = {"D.M.Y": "%d.%m.%Y", "D/M/Y": "%d/%m/%Y", "M/D/Y": "%m/%d/%Y"}

# A whole number with a leading zero, as in codes.
_LEADING = r"^\s*[+-]?0[0-9]"
_WHOLE = r"^[+-]?[0-9]+$"
_CLOCK = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$"
_YEAR_LAST = r"[./][0-9]{4}$"
_DOTTED_DATE = r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}$"
# A currency in front of a number, and a unit behind it.
_UNIT = re.compile(r"^[$€£¥₹]\s?|\s?[A-Za-z%°µμ€$£][^\d\s]*$")
# Thousands separators: all kinds of spaces count as one separator, and so do both apostrophes.
_MARKS = str.maketrans("\u00a0\u2009\u202f\u2019", "   '")
_TIMES = [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC")]
_TIME_OF_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}"
_ZONED = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
_MIXED = 0.5


def _usual_marks(text: str) -> str:
    return text.translate(_MARKS)


class CsvFormat(BaseModel):
    """The format of a CSV file. A setting that is None is detected where this is unambiguous.

    missing: texts that stand for missing values, besides the usual ones.
    """

    model_config = ConfigDict(frozen=True)

    delimiter: str | None = Field(None, min_length=1, max_length=1)
    decimal: Literal[".", ","] | None = None
    thousands: str | None = Field(None, min_length=1, max_length=1)
    missing: tuple[str, ...] = ()
    dates: Literal["D.M.Y", "D/M/Y", "M/D/Y"] | None = None

    @field_validator("thousands")
    @classmethod
    def _a_mark(cls, mark: str | None) -> str | None:
        usual = _usual_marks(mark or ",")
        if usual not in ",.' ":
            raise ValueError(f"expected a comma, a point, an apostrophe or a space; got {mark!r}")
        return mark and usual

    @model_validator(mode="after")
    def _two_marks(self) -> Self:
        if self.thousands is not None and self.decimal == self.thousands:
            raise ValueError(f"decimal and thousands are both {self.decimal!r}; expected two marks")
        return self

    def allows(self, decimal: str, thousands: str) -> bool:
        """Whether numbers may have these marks; `thousands`: "" for numbers without."""
        return self.decimal in (None, decimal) and (not thousands or self.thousands in (None, thousands))


DETECTED = CsvFormat()

# (a column in its type, a note on how it was interpreted; "" if this was obvious)
Typed = tuple[pa.ChunkedArray, str]


# -- types of columns ----------------------------------------------------------------------------------------------


def typed_column(
    cells: pa.ChunkedArray, name: str, csv_format: CsvFormat, delimiter: str, *, as_name: bool, as_code: bool
) -> Typed:
    """Convert a column of texts to the type that fits all its cells; raises Refused for ambiguous cells.

    as_name: it holds names, which stay texts if they are whole numbers. as_code: it holds categories, which stay texts
    unless all their numbers are spelt as usual.
    """
    typed, note = _typed(cells, name, csv_format, delimiter, as_name or as_code)
    if (as_name and _is_whole(typed)) or (as_code and not _is_spelt_as_usual(cells, typed)):
        typed = pc.utf8_trim_whitespace(cells)
    return typed, note


def _typed(column: pa.ChunkedArray, name: str, csv_format: CsvFormat, delimiter: str, plain: bool) -> Typed:
    """Convert a column of texts to its type; plain: it holds names or codes, so no number has a thousands separator."""
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column))]), ""
    if (whole := _whole_numbers(column)) is not None:
        return whole, ""
    texts, floats = column, _cast(column, pa.float64())
    if floats is None:  # trimming takes as long as all other steps, and few columns need it
        texts = pc.replace_substring_regex(pc.utf8_trim_whitespace(column), r"^\+", "")
        if (values := _whole_numbers(texts)) is not None or (values := _cast(texts, pa.bool_())) is not None:
            return values, ""
        if (dates := _dates(texts, name, csv_format.dates, plain)) is not None:
            return dates
        floats = _cast(texts, pa.float64())
    if _all(pc.match_substring_regex(texts, _WHOLE)):
        # Whole numbers beyond 64 bits are names; a float would lose digits.
        large = _cast(pc.replace_substring_regex(texts, r"^\+", ""), pa.int64())
        return column if large is None else large, ""
    if plain:
        return column if floats is None else floats, ""
    if floats is not None and not _may_have_thousands(texts, csv_format):
        return floats, ""
    return _marked_numbers(texts, column, name, csv_format, delimiter)


def _is_whole(typed: pa.ChunkedArray) -> bool:
    """Whether all values are whole numbers, or true and false."""
    if pa.types.is_floating(typed.type):
        return _all(pc.equal(typed, pc.round(typed)))
    return bool(pa.types.is_integer(typed.type) or pa.types.is_boolean(typed.type))


def _is_spelt_as_usual(texts: pa.ChunkedArray, typed: pa.ChunkedArray) -> bool:
    """Whether all texts that became numbers or truth values are their usual spellings, so that no code is lost."""
    texts = pc.utf8_trim_whitespace(texts)
    if pa.types.is_boolean(typed.type):
        texts = pc.utf8_lower(texts)
    elif not (pa.types.is_integer(typed.type) or pa.types.is_floating(typed.type)):
        return True
    # Some programs write 7 as 7.0.
    return _all(pc.equal(pc.replace_substring_regex(texts, r"\.0$", ""), typed.cast(pa.string())))


# Up to three digits, then groups of three digits, each after a point.
_GROUPED = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"


def _may_have_thousands(texts: pa.ChunkedArray, csv_format: CsvFormat) -> bool:
    """Whether the points in these numbers may be marks of thousands."""
    dotted = texts.filter(pc.match_substring(texts, "."))
    return csv_format.decimal == "," or _all(pc.match_substring_regex(dotted, _GROUPED), least=1)


def _all(flags: pa.ChunkedArray, least: int = 0) -> bool:
    """Whether all known flags are true, and the column has at least `least` rows."""
    return len(flags) >= least and bool(pc.all(flags, min_count=0).as_py())


def _cast(texts: pa.ChunkedArray, *kinds: pa.DataType) -> pa.ChunkedArray | None:
    """The texts in the first of these types that all of them can have; None if there is none."""
    for kind in kinds:
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return texts.cast(kind)
    return None


def _whole_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """The decimal whole numbers that the texts are; None if one is none. Arrow also reads hexadecimal ones."""
    numbers = _cast(texts, pa.int64())
    if numbers is None or any(pc.any(pc.match_substring(texts, mark)).as_py() for mark in "xX"):
        return None
    return numbers


def _dates(texts: pa.ChunkedArray, name: str, stated: str | None, plain: bool) -> Typed | None:
    """Dates and times: as 2026-01-31, as 31.1.2026 (no country writes the month first with points), or as stated.

    plain: as for `_typed`. Raises Refused if some times have a zone and others have none, or if a year has fewer than
    four digits.
    """
    if not _all(pc.match_substring_regex(texts, r"^[0-9]{1,4}[-./:]"), least=1):
        return None
    if _all(pc.match_substring_regex(texts, _CLOCK)):
        return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(_TIMES[0]).cast(pa.time32("s")), ""
    if (values := _cast(texts, pa.date32(), *_TIMES)) is not None:
        return values, ""
    if _all(pc.match_substring_regex(texts, _TIME_OF_DAY)):
        zoned = pc.match_substring_regex(texts, _ZONED)
        if pc.any(zoned).as_py() and not _all(zoned):
            rows = [rows_where(each)[0] for each in (zoned, pc.invert(zoned))]
            one, other = (f"{texts[row].as_py()!r} in row {row + 1}" for row in rows)
            where = f"column {escaped(name, 60)!r}: {one} has a time zone, {other} has none"
            raise Refused(f"{where}; write all with a zone, or all without")
    if stated is None and not _all(pc.match_substring_regex(texts, _DOTTED_DATE)):
        return None
    values = pc.strptime(texts, format=DATES[stated or "D.M.Y"], unit="s", error_is_null=True)
    if values.null_count > texts.null_count:
        return None
    if short := rows_where(pc.invert(pc.match_substring_regex(texts, _YEAR_LAST))):
        if plain:
            return None
        where = f"column {escaped(name, 60)!r}: the year of {texts[short[0]].as_py()!r} in row {short[0] + 1}"
        how = "write four, or name the column in data.categories or data.leave_out"
        raise Refused(f"{where} has fewer than four digits; {how}")
    note = "" if stated else f"{texts.drop_null()[0].as_py()!r} is read as day.month.year"
    return values.cast(pa.date32()), note


def code_example(cells: pa.ChunkedArray, typed: pa.ChunkedArray) -> str:
    """The first cell with leading zeros of a column of whole numbers; empty if there is none."""
    if not pa.types.is_integer(typed.type):
        return ""
    rows = rows_where(pc.match_substring_regex(cells, _LEADING))
    return str(cells[rows[0]].as_py().strip()) if rows else ""


def rows_where(flags: pa.ChunkedArray) -> list[int]:
    """The rows, from 0, in which the flag is true."""
    return np.flatnonzero(flags.fill_null(False).to_numpy()).tolist()


# -- numbers as people write them ----------------------------------------------------------------------------------


def is_number_like(text: str) -> bool:
    """Whether a text is a number in some notation: "65,2", "1.104", "1 037", "$5", "103 mg/dL"."""
    number = _usual_marks(_UNIT.sub("", text.strip()))
    return any(pattern.fullmatch(number) for pattern in _PATTERNS.values())


def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    point, mark = re.escape(decimal), re.escape(thousands)
    whole = rf"[0-9]+|[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+" if thousands else "[0-9]+"
    return re.compile(rf"[+-]?(?:(?:{whole})(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")


# {(decimal sign, thousands separator): the pattern of such a number}
_PATTERNS = {
    marks: _pattern(*marks)
    for marks in ((".", ""), (".", ","), (",", ""), (",", "."), (".", "'"), (",", "'"), (".", " "), (",", " "))
}


def _marked_numbers(
    texts: pa.ChunkedArray, column: pa.ChunkedArray, name: str, csv_format: CsvFormat, delimiter: str
) -> Typed:
    """Convert a column of numbers with decimal commas or thousands separators; other columns stay texts.

    Raises Refused if the numbers are ambiguous and no setting decides.
    """
    values = list(map(_usual_marks, texts.drop_null().unique().to_pylist()))
    readings = _readings(values, csv_format)
    if not readings:
        if _readings(values, DETECTED):
            raise Refused(f"column {escaped(name, 60)!r}: {_not_allowed(texts, values, csv_format)}")
        return column, _mixed(texts, values)
    (numbers, *_) = readings.values()
    if len(readings) > 1:
        mark = "," if any("," in value for value in values) else "."
        if mark == "," or delimiter != ",":
            raise Refused(f"column {escaped(name, 60)!r}: {_two_meanings(texts, mark)}")
        numbers = next(numbers for marks, numbers in readings.items() if marks[0] == mark)
    canonical = dict(zip(values, numbers, strict=True))
    changed = next((value for value, number in canonical.items() if number != value), None)
    return _as_numbers(texts, canonical), "" if changed is None else f"{changed!r} is read as {canonical[changed]}"


def _as_numbers(texts: pa.ChunkedArray, canonical: Mapping[str, str]) -> pa.ChunkedArray:
    """Whole numbers if all are, else floats; canonical: {a number as written: the number with a point}."""
    floats = [None if text is None else float(canonical[_usual_marks(text)]) for text in texts.to_pylist()]
    numbers = pa.chunked_array([pa.array(floats, pa.float64())])
    whole = all(number.lstrip("-").isdigit() for number in canonical.values())
    exact = _cast(numbers, pa.int64()) if whole else None
    return numbers if exact is None else exact


def _readings(values: list[str], csv_format: CsvFormat) -> dict[tuple[str, str], list[str]]:
    """The possible numbers of all texts, by (decimal sign, thousands separator); equal readings appear once."""
    readings: dict[tuple[str, str], list[str]] = {}
    for marks, pattern in _PATTERNS.items():
        if csv_format.allows(*marks) and all(map(pattern.fullmatch, values)):
            numbers = [_canonical(value, marks) for value in values]
            if numbers not in readings.values():
                readings[marks] = numbers
    if len(readings) > 1 and csv_format.thousands is not None:
        return {marks: numbers for marks, numbers in readings.items() if marks[1] == csv_format.thousands}
    return readings


def _not_allowed(texts: pa.ChunkedArray, values: list[str], csv_format: CsvFormat) -> str:
    """Error text: the first number that is none with the settings, its row, and the settings."""
    odd = next((value for value in values if not _readings([value], csv_format)), values[0])
    row = next(row for row, text in enumerate(texts.to_pylist()) if text is not None and _usual_marks(text) == odd)
    stated = {"decimal": csv_format.decimal, "thousands": csv_format.thousands}
    which = " and ".join(f'data.{name} = "{mark}"' for name, mark in stated.items() if mark is not None)
    how = "correct it, or name the column in data.categories or data.leave_out"
    return f"{escaped(odd, 40)!r} in row {row + 1} is no number with {which}; {how}"


def _two_meanings(texts: pa.ChunkedArray, mark: str) -> str:
    """Error text: the first number with this mark, its row, and its two possible meanings."""
    row = rows_where(pc.match_substring(texts, mark))[0]
    number = texts[row].as_py()
    meanings = " or ".join(_canonical(number, marks) for marks in ((mark, ""), ("", mark)))
    which = f'data.decimal = "{mark}", or data.thousands = "{mark}"'
    return f"{number!r} in row {row + 1} may be {meanings}; say which: {which}"


def _canonical(number: str, marks: tuple[str, str]) -> str:
    decimal, thousands = marks
    plain = number.replace(thousands, "") if thousands else number
    return (plain.replace(decimal, ".") if decimal else plain).lstrip("+")


def _mixed(texts: pa.ChunkedArray, values: list[str]) -> str:
    """A note that most values of a column are numbers, with the first one that is not; empty if most are not."""
    if sum(map(is_number_like, values)) <= _MIXED * len(values):
        return ""
    odd = next((value for value in values if not is_number_like(value)), None)
    if odd is None:
        return f"numbers such as {escaped(values[0], 40)!r} are read as text: write plain numbers, in one way"
    odd, where = escaped(odd, 40), f"in row {next(iter(rows_where(pc.equal(texts, odd))), 0) + 1}"
    what = f"is read as text, although most of its values are numbers; not a number is {odd!r} {where}"
    return f'{what}: data.missing = ["{odd}"] if nothing is known there'
