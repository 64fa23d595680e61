"""CSV files: what is read how, what is said of it, and what is refused because it may mean two things."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from fedkin.data.csv_cells import DETECTED, CsvFormat
from fedkin.data.table_files import code_like, column_notes, read_csv, read_parquet
from fedkin.untrusted import Refused


def read(path: Path, delimiter: str = ",", written: CsvFormat = DETECTED, **columns: Any) -> pa.Table:
    roles = {name: columns.pop(name) for name in ("coded", "untyped") if name in columns}
    rows = max(map(len, columns.values()))
    with (path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["row", *columns])
        writer.writerows([row, *(values[row] for values in columns.values())] for row in range(rows))
    return read_csv(path / "t.csv", written, **roles)


@pytest.mark.parametrize(
    ("values", "delimiter", "expected"),
    [
        (["65,2", "7"], ",", [65.2, 7.0]),
        (["1,234.5", "12"], ",", [1234.5, 12.0]),
        (["1.250,75", "999"], ";", [1250.75, 999.0]),
        (["1'037", "980"], ",", [1037, 980]),
        (["1 037", "980"], ",", [1037, 980]),
        (["1\u202f037,5", "980"], ";", [1037.5, 980.0]),
        (["1.234.567", "980"], ";", [1234567, 980]),
        (["+5", "-3"], ",", [5, -3]),
        (["1.104", "2.25"], ";", [1.104, 2.25]),
        (["1.104", "980"], ",", [1.104, 980.0]),
    ],
)
def test_numbers_that_mean_one_thing_are_read(tmp_path: Path, values: Any, delimiter: str, expected: list[Any]) -> None:
    table = read(tmp_path, delimiter, x=values)
    assert table.column("x").to_pylist() == expected
    # Whatever is not what Python reads is said.
    plain = all(value.lstrip("+-").replace(".", "", 1).isdigit() for value in values)
    assert ("x" in column_notes(table)) is not plain


@pytest.mark.parametrize(
    ("values", "delimiter"),
    [(["1.104", "980"], ";"), (["1,104", "980"], "\t"), (["1,104", "2,305"], ","), (["1.104", "2.305"], "\t"),
     (["1.104", "1980"], "|")],
)  # fmt: skip
def test_numbers_that_may_mean_two_things_are_refused(tmp_path: Path, values: list[str], delimiter: str) -> None:
    mark = values[0][1]
    words = rf"column 'x': '1\{mark}104' in row 1 may be 1.104 or 1104; say which: data.decimal = \"{mark}\""
    with pytest.raises(Refused, match=words):
        read(tmp_path, delimiter, x=values)
    given: list[tuple[dict[str, Any], Any]] = [
        ({"written": CsvFormat(decimal=mark)}, 1.104),
        ({"written": CsvFormat(thousands=mark)}, 1104),
        ({"untyped": ["x"]}, values[0]), ({"coded": ["x"]}, 1.104 if mark == "." else values[0]),
    ]  # fmt: skip
    for how, first in given:
        assert read(tmp_path, delimiter, **how, x=values).column("x")[0].as_py() == first


@pytest.mark.parametrize(
    ("values", "written", "said"),
    [
        (["71", "71.3"], {"decimal": ","}, "'71.3' in row 2 is no number with data.decimal = \",\""),
        (["71", "71,3"], {"decimal": "."}, "'71,3' in row 2 is no number with data.decimal = \".\""),
        (["1'037,5"], {"decimal": ",", "thousands": "."},
         "\"1'037,5\" in row 1 is no number with data.decimal = \",\" and data.thousands = \".\""),
    ],
)  # fmt: skip
def test_numbers_that_the_settings_do_not_allow_are_refused(
    tmp_path: Path, values: list[str], written: dict[str, Any], said: str
) -> None:
    how = "correct it, or name the column in data.categories or data.leave_out"
    with pytest.raises(Refused, match=re.escape(f"column 'x': {said}; {how}")):
        read(tmp_path, ";", CsvFormat(**written), x=values)
    assert read(tmp_path, ";", CsvFormat(**written), x=values, untyped=["x"]).column("x").to_pylist() == values


def test_marks_that_divide_no_thousands_are_refused() -> None:
    for mark in ("5", "_", "-"):
        with pytest.raises(ValidationError, match="thousands"):
            CsvFormat(thousands=mark)
    with pytest.raises(ValidationError, match="decimal and thousands are both ','; expected two marks"):
        CsvFormat(decimal=",", thousands=",")


def test_a_narrow_space_between_thousands_can_be_said(tmp_path: Path) -> None:
    table = read(tmp_path, ";", CsvFormat(thousands="\u202f"), x=["1\u202f037", "980"])
    assert table.column("x").to_pylist() == [1037, 980]


@pytest.mark.parametrize("values", [["$5", "$7"], ["103 mg/dL", "98 mg/dL"], ["1,5", "1.5"]])
def test_numbers_that_are_not_plain_stay_texts_and_it_is_said(tmp_path: Path, values: list[str]) -> None:
    table = read(tmp_path, x=values)
    assert table.column("x").to_pylist() == values
    note = f"numbers such as {values[0]!r} are read as text: write plain numbers, in one way"
    assert column_notes(table)["x"] == note


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["true", "False"], pa.bool_()),
        (["007", "12"], pa.int64()),
        (["12345678901234567890", "1"], pa.string()),
        (["0123 456 789", "0123 456 780"], pa.string()),
        (["5 mg", "7 g"], pa.string()),
        (["2026-01-31", "2026-02-01"], pa.date32()),
        (["31.1.2026", "1.12.2026"], pa.date32()),
        (["03/04/2026", "13/04/2026"], pa.string()),
        (["10:20", "11:30:05"], pa.time32("s")),
        (["2026-01-31 10:00", "2026-02-01 11:30"], pa.timestamp("s")),
        (["2026-01-31T10:00:00Z", "2026-02-01T11:30:00Z"], pa.timestamp("s", "UTC")),
        (["NA", ""], pa.null()),
    ],
)
def test_other_types_are_found(tmp_path: Path, values: list[str], expected: pa.DataType) -> None:
    assert read(tmp_path, x=values).column("x").type == expected


@pytest.mark.parametrize(("dates", "day"), [("D/M/Y", "2026-04-03"), ("M/D/Y", "2026-03-04")])
def test_the_order_of_dates_and_what_is_missing_can_be_said(tmp_path: Path, dates: str, day: str) -> None:
    written = CsvFormat(dates=dates, missing=("-", "unknown"))
    table = read(tmp_path, written=written, x=["03/04/2026", "-"], y=["1", "unknown"], z=["1.5", "-"])
    assert [str(value) for value in table.column("x").to_pylist()] == [day, "None"]
    assert table.column("y").to_pylist() == [1, None]
    assert table.column("z").to_pylist() == [1.5, None]


@pytest.mark.parametrize(("dates", "value"), [("D/M/Y", "31/01/26"), ("M/D/Y", "1/31/026"), ("D.M.Y", "31.1.26")])
def test_a_year_of_fewer_than_four_digits_is_refused(tmp_path: Path, dates: str, value: str) -> None:
    written, values = CsvFormat(dates=dates), [value.replace("26", "2026").replace("020", "20"), value]
    said = f"column 'x': the year of '{value}' in row 2 has fewer than four digits; write four, or name the column in"
    with pytest.raises(Refused, match=re.escape(said)):
        read(tmp_path, written=written, x=values)
    assert read(tmp_path, written=written, x=values, coded=["x"]).column("x").to_pylist() == values


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (["1E2", "100", "2E1", "20"], True), (["1.50", "1.5"], True), (["250.0", "250.00"], True),
        (["038.9", "38.9"], True), (["007", "7", "7.0", "7.25"], True), (["007", "7"], True), (["+5", "5"], True),
        (["1", "true"], True), (["0x10", "0x1F"], True), (["7.0", "7"], False), (["True", "false"], False),
        (["-0.25", "1000000"], False), (["1.5", ""], False),
    ],
)  # fmt: skip
def test_codes_are_numbers_only_if_all_are_spelt_as_numbers_usually_are(
    tmp_path: Path, values: list[str], kept: bool
) -> None:
    column = read(tmp_path, coded=["x"], x=values).column("x")
    assert (column.type == pa.string()) is kept
    assert not kept or column.to_pylist() == values


@pytest.mark.parametrize("values", [["0x10", "0x1F"], ["0XA", "5"], [" 0x10", "7"]])
def test_hexadecimal_texts_are_no_numbers(tmp_path: Path, values: list[str]) -> None:
    assert read(tmp_path, x=values).column("x").to_pylist() == values


def test_numbers_beside_a_few_texts_stay_texts_and_it_is_said(tmp_path: Path) -> None:
    table = read(tmp_path, x=["65", "71", "> 89", "80"])
    assert table.column("x").type == pa.string()
    assert "not a number is '> 89' in row 3: data.missing" in column_notes(table)["x"]


@pytest.mark.parametrize("quotes", [(20,), (20, 50)])
def test_a_quote_that_swallows_rows_is_refused_with_its_row(tmp_path: Path, quotes: tuple[int, ...]) -> None:
    rows = [f"a,{row},{chr(34) + 'see below' if row in quotes else 'ok'}" for row in range(80)]
    (tmp_path / "t.csv").write_text("h,age,note\n" + "\n".join(rows) + "\n")
    with pytest.raises(Refused, match=r"row 21: the cell of 'note' has .* lines, each like a row of the table"):
        read_csv(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text('h,age,note\na,1,"one\ntwo, three\nfour\nfive"\nb,2,x\n')
    assert read_csv(tmp_path / "t.csv").num_rows == 2


@pytest.mark.parametrize("first", ["sep=;\nh;age\n", 'h;"age, years"\n', "h;age, years\n"])
def test_delimiters_of_spreadsheets_are_found(tmp_path: Path, first: str) -> None:
    (tmp_path / "t.csv").write_text(first + "a;1\nb;2\n")
    assert read_csv(tmp_path / "t.csv").column(1).to_pylist() == [1, 2]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("first", ["", "sep=;{}"])
def test_lines_may_end_as_in_any_system(tmp_path: Path, end: str, first: str) -> None:
    lines = ['"a;b";x', "1;007", "2;12", "3;"]
    (tmp_path / "t.csv").write_bytes((first.format(end) + "".join(line + end for line in lines)).encode("utf-8-sig"))
    table = read_csv(tmp_path / "t.csv")
    assert table.to_pydict() == {"a;b": [1, 2, 3], "x": [7, 12, None]}
    assert code_like(table) == {"x": "007"}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_other_delimiters_in_quotes_are_parts_of_cells(tmp_path: Path, delimiter: str) -> None:
    lines = [['"h"', '"age, years"'], ['"a, b|c"', '"1"'], ['"c;\nd"', '"2"']]
    (tmp_path / "t.csv").write_text("".join(delimiter.join(line) + "\n" for line in lines))
    assert read_csv(tmp_path / "t.csv").column_names == ["h", "age, years"]
    assert read_csv(tmp_path / "t.csv").column(1).to_pylist() == [1, 2]


def test_leading_zeros_are_found_beside_a_long_cell(tmp_path: Path) -> None:
    rows = "".join(f"{row:03d},{'x' * 2_500_000}\n" for row in range(2))
    (tmp_path / "long.csv").write_text("code,text\n" + rows)
    table = read_csv(tmp_path / "long.csv")
    assert code_like(table) == {"code": "000"}
    assert table.column("text")[1].as_py() == "x" * 2_500_000


@pytest.mark.parametrize("words", [b"nonsense", b"[1]", b'{"x": 5}', b"\xff"])
def test_what_other_programs_put_in_the_metadata_is_nothing(words: bytes) -> None:
    table = pa.table({"x": [1, 2]})
    assert code_like(table.replace_schema_metadata({b"fedkin.codes": words})) == {}


def test_views_of_texts_are_texts(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"ward": pa.array(["icu", "er"], pa.string_view())}), tmp_path / "t.parquet")
    assert read_parquet(tmp_path / "t.parquet").column("ward").type == pa.string()


def test_times_with_and_without_a_zone_in_one_column_are_refused_with_their_rows(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"'2020-01-02T10:00Z' in row 2 has a time zone, .* in row 1 has none"):
        read(tmp_path, x=["2020-01-01T10:00", "2020-01-02T10:00Z"])
    both = read(tmp_path, x=["2020-01-01T10:00:00+01:00", "2020-01-01T10:00:00Z"]).column("x").to_pylist()
    assert (both[1] - both[0]).total_seconds() == 3600
