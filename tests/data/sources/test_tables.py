"""Sources of tables: one file or a folder of them, CSV or Parquet, and what is wrong with them."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedkin.data import federate
from fedkin.errors import DataError
from fedkin.federation import Federation


def rows(count: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame({
        "site": np.repeat(["ann", "bob", "cy"], count // 3), "age": np.where(rng.random(count) < 0.2, np.nan, 40.5),
        "unit": rng.choice(["icu", "er", "a, \"b\"\nc"], count), "x": rng.normal(size=count),
        "day": pd.date_range("2020-01-01", periods=count).date, "died": rng.integers(0, 2, count),
    })  # fmt: skip


def read(source: str, path: Path, **options: Any) -> Federation:
    settings = {"path": str(path), "target": "died", **options}
    return federate(source, "natural", data=settings, data_root=path.parent)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    whole = rows()
    whole.to_csv(tmp_path / "all.csv", index=False)
    whole.to_parquet(tmp_path / "all.parquet", index=False)
    (tmp_path / "all.csv.gz").write_bytes(gzip.compress((tmp_path / "all.csv").read_bytes()))
    for kind in ("csv", "parquet"):
        (tmp_path / kind).mkdir()
        for site, own in whole.groupby("site"):
            getattr(own.drop(columns="site"), f"to_{kind}")(tmp_path / kind / f"{site}.{kind}", index=False)
    return tmp_path


def test_all_ways_give_the_federation_of_the_frame(written: Path) -> None:
    frame = Federation.from_frame(rows(), target="died", client="site", time="day")
    for delimiter in (";", "\t", "|"):
        rows().to_csv(written / f"{ord(delimiter)}.csv", index=False, sep=delimiter)
    found = [
        *(read("csv", written / f"{ord(mark)}.csv", client="site", time="day") for mark in (";", "\t", "|")),
        read("csv", written / "124.csv", client="site", time="day", delimiter="|"),
        read("csv", written / "all.csv", client="site", time="day"),
        read("csv", written / "all.csv.gz", client="site", time="day"),
        read("parquet", written / "all.parquet", client="site", time="day"),
        read("csv", written / "csv", time="day"),
        read("parquet", written / "parquet", time="day"),
    ]
    for federation in found:
        assert federation.fingerprint() == frame.fingerprint()
        assert federation.encoding == frame.encoding
        assert federation.target == frame.target
    assert found[0].encoding is not None
    assert 'unit=a, "b"\nc' in found[0].encoding.names


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("missing.csv", None, {}, "missing.csv: no such file or folder; expected .csv"),
        ("one.csv", "a,died\n1,0\n", {}, "data.client: expected the name of the column that says whose"),
        ("one.csv", "a,died,s\n1,0,x\n2,1,x\n", {"client": "site"}, "one.csv: client: no column 'site'"),
        ("one.csv", "a,b\n1\n", {"client": "b"}, "one.csv: cannot be read as a table"),
        ("one.csv", "", {"client": "b"}, "one.csv: cannot be read as a table"),
        ("one.csv", "a,a,died\n1,2,0\n", {"client": "a"}, "two columns are called 'a'"),
        ("one.csv", "died,s\n0,x\n1,x\n", {"client": "s"}, "no column is left for the inputs"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, text: str | None, options: dict[str, Any], said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said):
        read("csv", tmp_path / name, **options)


def test_a_row_is_counted_in_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "east.csv").write_text("a,died\n1,0\n2,1\n3,1\n")
    (tmp_path / "north.csv").write_text("a,died\n007,0\n2,\n3,1\n")
    row = r"'died' is unknown in 1 rows, the first, of client 'north', is row 2 of north\.csv, counted from 1 below"
    with pytest.raises(DataError, match=row):
        read("csv", tmp_path)
    with pytest.raises(DataError, match=r"is row 2 of north\.csv, counted from 1"):
        read("csv", tmp_path / "north.csv", client="a")


def _latin(text: str) -> bytes:
    return text.encode("latin-1")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a,died,s\n1,0,x\n".encode("utf-16"), "UTF-16.*save it as UTF-8"),
        ("a,died,s\n1,0,x\n".encode("utf-16-be"), "UTF-16.*save it as UTF-8"),
        ("a,died,s\n1,0,x\n".encode("utf-32"), "UTF-32.*save it as UTF-8"),
        (_latin("größe,died,s\n1,0,x\n2,1,y\n"), "line 1: .*gr.*not UTF-8.*Latin-1.*save it as UTF-8"),
        (_latin("a,died,s\n1,0,x\n2,1,Köln\n"), "line 3: .*not UTF-8.*Latin-1.*save it as UTF-8"),
        (b"a,died,s\n1,0,x\n2,1\0\0,y\n", "line 3 has a NUL byte: the file is damaged"),
    ],
)
def test_another_encoding_is_named(tmp_path: Path, data: bytes, said: str, packed: bool) -> None:
    path = tmp_path / ("one.csv.gz" if packed else "one.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=said):
        read("csv", path, client="s")


def test_a_packed_file_that_is_cut_short_is_refused(written: Path) -> None:
    whole = (written / "all.csv.gz").read_bytes()
    for length in (3, 12, 40, len(whole) - 9):
        (written / "cut.csv.gz").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut.csv.gz: cannot be read as a table"):
            read("csv", written / "cut.csv.gz", client="site")
    (written / "cut.csv.gz").write_bytes(whole[:30] + b"\xff" * 40)
    with pytest.raises(DataError, match=r"cut.csv.gz: cannot be read as a table"):
        read("csv", written / "cut.csv.gz", client="site")


def test_files_of_a_folder_must_go_together(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.csv or \.csv\.gz in it"):
        read("csv", tmp_path)
    (tmp_path / "a.csv").write_text("x,died\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text("x,dead\n1,0\n2,1\n")
    with pytest.raises(DataError, match=r"csv: no column died, which the other files have, and a column dead"):
        read("csv", tmp_path)
    (tmp_path / "c.csv").write_text("x,died\n1,0\n2,1\n")
    with pytest.raises(DataError, match=r"b.csv: no column died, which the other files have, and a column dead"):
        read("csv", tmp_path)
    (tmp_path / "c.csv").unlink()
    (tmp_path / "b.csv").write_text("x,died\nhigh,0\nlow,1\n")
    with pytest.raises(DataError, match=r"values of different kinds in two files \(x: b.csv has texts, a.csv has num"):
        read("csv", tmp_path)
    (tmp_path / "b.csv").write_text("x,died\n3,0\n4,1\n-,1\n")
    with pytest.raises(DataError, match=r'b.csv is read as text.* number is \'-\' in row 3: data.missing = \["-"\]'):
        read("csv", tmp_path)
    (tmp_path / "b.csv").write_text("x,died\n1.5,0\n,1\n")
    assert sorted(read("csv", tmp_path, least=1)) == ["a", "b"]


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("2026-01-02", "5", "a.csv has dates, b.csv has numbers: write one kind in all"),
        ("2026-01-02", "soon", "b.csv has texts, a.csv has dates: write one kind in all"),
        ("true", "2026-01-02", "a.csv has true and false, b.csv has dates: write one kind in all"),
        ("2024-01-02T10:00:00Z", "2024-01-02 10:00:00", r"a.csv has timestamp.s, tz=UTC., b.csv has timestamp.s.: wri"),
    ],
)
def test_kinds_that_do_not_go_together_are_named(tmp_path: Path, first: str, second: str, told: str) -> None:
    for name, value in (("a", first), ("b", second)):
        (tmp_path / f"{name}.csv").write_text(f"id,x,when,died\n{value},1,{value},0\n{value},2,{value},1\n")
    with pytest.raises(DataError, match="when: " + told):
        read("csv", tmp_path, leave_out=["id"])
    left = read("csv", tmp_path, leave_out=["id", "when"], least=1)
    assert left.encoding is not None
    assert list(left.encoding.kinds) == ["x"]


def test_a_column_called_file_is_not_taken_for_the_clients(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("file,died\n1,0\n2,1\n")
    with pytest.raises(DataError, match="a column is called 'file'"):
        read("csv", tmp_path)


@pytest.mark.slow
def test_numbers_that_begin_late_in_a_column_do_not_end_the_reading(tmp_path: Path) -> None:
    lines = ["x,died,s", *("1,0,a" for _ in range(200_000)), "text,1,a"]
    (tmp_path / "late.csv").write_text("\n".join(lines))
    federation = read("csv", tmp_path / "late.csv", client="s")
    assert federation.encoding is not None
    assert federation.encoding.names == ("x=1", "x=(other)")


# Two hospitals whose numbers differ in their zeros alone.
_PADDED = "site,x,died\n" + "".join(f"{site},{row}.5,{row % 2}\n" for site in ("01", "1") for row in range(10))


def test_ids_of_clients_in_csv_stay_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text(_PADDED)
    (tmp_path / "one.csv.gz").write_bytes(gzip.compress(_PADDED.encode()))
    (tmp_path / "semi.csv").write_text(_PADDED.replace(",", ";").replace(".", ","))
    (tmp_path / "spaces.csv").write_text(_PADDED.replace("\n01", "\n 01").replace("\n1", "\n  1"))
    for name in ("one.csv", "one.csv.gz", "semi.csv", "spaces.csv"):
        found = read("csv", tmp_path / name, client="site")
        assert {id: len(client.train) + len(client.test) for id, client in found.items()} == {"01": 10, "1": 10}
        assert found.encoding is not None
        assert found.encoding.names == ("x",)
    text = pd.read_csv(tmp_path / "one.csv", dtype={"site": str})
    frame = Federation.from_frame(text, target="died", client="site")
    assert read("csv", tmp_path / "one.csv", client="site").fingerprint() == frame.fingerprint()


def test_categories_with_leading_zeros_stay_as_they_are_written(tmp_path: Path) -> None:
    lines = [f"{'ab'[row % 2]},{code},{row % 7},{row}.5,{row % 3:02d}" for code in ("007", "7") for row in range(24)]
    whole = "site,code,ward,x,died\n" + "\n".join(lines) + "\n"
    (tmp_path / "one.csv").write_text(whole)
    given: dict[str, Any] = {"client": "site", "categories": ["code", "ward"], "least": 1, "kind": "classification"}
    found = read("csv", tmp_path / "one.csv", **given)
    assert found.encoding is not None
    assert found.target is not None
    wards = [f"ward={ward}" for ward in (*range(7), "(other)")]
    assert found.encoding.names == ("code=007", "code=7", "code=(other)", *wards, "x")
    assert found.target.classes == ("00", "01", "02")
    text = pd.read_csv(tmp_path / "one.csv", dtype={"code": str, "died": str})
    frame = Federation.from_frame(text, target="died", **given)
    assert found.fingerprint() == frame.fingerprint()
    (tmp_path / "each").mkdir()
    for code in ("007", "7"):
        own = text[text["code"] == code].drop(columns="site")
        own.to_csv(tmp_path / "each" / f"h{code}.csv", index=False)
    apart = read("csv", tmp_path / "each", **{**given, "client": None})
    assert apart.encoding is not None
    assert apart.encoding.names[:2] == ("code=007", "code=7")


@pytest.mark.parametrize("codes", [("038.9", "38.9", "250.0", "250.00"), ("007", "7", "7.0", "7.25"), ("1.50", "1.5")])
def test_codes_with_decimals_stay_as_they_are_written(tmp_path: Path, codes: tuple[str, ...]) -> None:
    lines = [f"{'ab'[row % 2]},{code},{row % 7}.25,{row % 3}" for code in codes for row in range(24)]
    (tmp_path / "one.csv").write_text("\n".join(["site,code,x,died", *lines]) + "\n")
    found = read("csv", tmp_path / "one.csv", client="site", categories=["code", "x"], least=1)
    assert found.encoding is not None
    kept = [name for name in found.encoding.names if name.startswith("code=")]
    assert kept == [*(f"code={code}" for code in sorted(codes)), "code=(other)"]
    # Numbers that nobody wrote in two ways are those that they were.
    assert "x=0.25" in found.encoding.names


def test_numbers_with_gaps_and_those_that_pandas_writes_are_the_categories_of_the_frame(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"site": list("ab"), "code": [1.0, 2.0, None, 12.0], "x": range(40), "died": [0, 1]}
    frame = pd.DataFrame({name: [*values] * (40 // len(values)) for name, values in columns.items()})
    frame.to_csv(tmp_path / "one.csv", index=False)  # writes 1.0, 2.0 and 12.0
    given: dict[str, Any] = {"client": "site", "categories": ["code"], "least": 1}
    whole = Federation.from_frame(frame, target="died", **given)
    assert whole.encoding is not None
    assert "code=12" in whole.encoding.names
    assert read("csv", tmp_path / "one.csv", **given).fingerprint() == whole.fingerprint()


def test_ids_of_clients_in_parquet_stay_as_they_are_stored(tmp_path: Path) -> None:
    text = pd.read_csv(io.StringIO(_PADDED), dtype={"site": str})
    text.to_parquet(tmp_path / "text.parquet")
    text.astype({"site": "category"}).to_parquet(tmp_path / "coded.parquet")
    for name in ("text.parquet", "coded.parquet"):
        assert sorted(read("parquet", tmp_path / name, client="site")) == ["01", "1"]
    text.assign(site=[7] * 10 + [12] * 10).to_parquet(tmp_path / "whole.parquet")
    assert sorted(read("parquet", tmp_path / "whole.parquet", client="site")) == ["12", "7"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_of_clients_are_the_names_of_files_as_they_are(tmp_path: Path, kind: str) -> None:
    text = pd.read_csv(io.StringIO(_PADDED), dtype={"site": str})
    for site, own in text.groupby("site"):
        getattr(own.drop(columns="site"), f"to_{kind}")(tmp_path / f"{site}.{kind}", index=False)
    assert {path.name for path in tmp_path.iterdir()} == {f"01.{kind}", f"1.{kind}"}
    assert sorted(read(kind, tmp_path)) == ["01", "1"]


@pytest.mark.parametrize("value", ["{row}.5", "2026-01-0{row}"])
def test_a_column_of_measures_or_dates_is_still_no_column_of_clients(tmp_path: Path, value: str) -> None:
    lines = [f"{value.format(row=row)},{row},{row % 2}" for row in range(1, 9)]
    (tmp_path / "one.csv").write_text("\n".join(["when,x,died", *lines]) + "\n")
    with pytest.raises(DataError, match="'when': expected texts or whole numbers"):
        read("csv", tmp_path / "one.csv", client="when")


_CODED = "site,ward,hour,age,zip,died\n" + "".join(
    f"{'ab'[row % 2]},{row % 4:03d},{row % 24},{20 + row},{row % 3},{row % 2}\n" for row in range(40)
)


@pytest.mark.parametrize("name", ["one.csv", "one.csv.gz", "semi.csv", "folder"])
def test_whole_numbers_with_leading_zeros_are_said_to_be_read_as_numbers(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one.csv").write_text(_CODED)
    (tmp_path / "one.csv.gz").write_bytes(gzip.compress(_CODED.encode()))
    (tmp_path / "semi.csv").write_text(_CODED.replace(",", ";"))
    (tmp_path / "folder").mkdir()
    # Only the second file shows that these are codes.
    for file, zeros in (("a", ""), ("b", "00")):
        lines = [f"{zeros}{row},{row},{row % 2}" for row in range(9)]
        (tmp_path / "folder" / f"{file}.csv").write_text("\n".join(["ward,age,died", *lines]) + "\n")
    client = {} if name == "folder" else {"client": "site"}
    found = read("csv", tmp_path / name, **client)
    assert found.encoding is not None
    assert found.encoding.kinds["ward"] == "number"
    (said,) = caplog.messages
    assert said == (
        f"{tmp_path / name}: whole numbers with leading zeros are read as numbers: ward (000); if they are codes, name "
        "them in data.categories"
    )
    read("csv", tmp_path / name, **client)
    assert caplog.messages == [said, said]  # once for each load


@pytest.mark.parametrize("more", [{"categories": ["ward"]}, {"leave_out": ["ward"]}, {"target": "ward"}])
def test_nothing_is_said_of_codes_that_are_no_numbers(
    more: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one.csv").write_text(_CODED)
    read("csv", tmp_path / "one.csv", client="site", least=1, **more)
    assert caplog.messages == []


def test_a_text_column_without_an_input_for_any_value_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = rows().assign(paid=[f"({1000 + row // 2}.5)" for row in range(90)])
    whole.to_csv(tmp_path / "t.csv", index=False)
    read("csv", tmp_path / "t.csv", client="site")
    what = "column 'paid' has 45 texts, such as '(1000.5)', and none is in 10 training rows: all share one input"
    how = "write numbers plainly, or texts in fewer categories, or leave the column out"
    assert caplog.messages == [f"{tmp_path / 't.csv'}: {what}; {how}"]
    caplog.clear()
    read("csv", tmp_path / "t.csv", client="site", leave_out=["paid"])
    assert caplog.messages == []


@pytest.mark.parametrize("options", [{}, {"time": "day"}, {"test_fraction": 0}, {"split": "part"}])
def test_clients_without_test_rows_are_named(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = rows().assign(patient=[row // 30 if row < 60 else row for row in range(90)], part="train")
    whole.to_csv(tmp_path / "t.csv", index=False)
    federation = read("csv", tmp_path / "t.csv", client="site", person="patient", **options)
    assert not federation["ann"].test
    split = "test_fraction" in options or "split" in options
    how = "a client needs two rows, or two persons if data.person names them"
    assert caplog.messages == [f"{tmp_path / 't.csv'}: 2 of 3 clients have no test rows: ann, bob; {how}"][split:]


def test_what_a_folder_leaves_out_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, rows in (("a.csv", 9), ("b.2020.csv", 9), ("c.csv", 0), ("d.CSV", 9), ("e.txt", 9)):
        (tmp_path / name).write_text("age,died\n" + "".join(f"{row}.5,{row % 2}\n" for row in range(rows)))
    (tmp_path / "more").mkdir()
    assert sorted(read("csv", tmp_path)) == ["a", "b.2020", "d"]
    assert caplog.messages == [
        f"{tmp_path}: 3 of 6 entries are left out: c.csv (no rows), e.txt (another ending), more (a folder)"
    ]
    (tmp_path / "a.CSV.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    with pytest.raises(DataError, match="another file has this name but for its ending; each is a client"):
        read("csv", tmp_path)


def test_files_may_differ_in_decimal_signs_and_in_columns_that_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "north.csv").write_text("x;died\n" + "".join(f"{row},5;{row % 2}\n" for row in range(20)))
    (tmp_path / "south.csv").write_text("x,died,note\n" + "".join(f"{row}.5,{row % 2},a\n" for row in range(20)))
    found = read("csv", tmp_path, leave_out=["note"], test_fraction=0.0)
    north, south = (found[site].train.inputs(slice(None)) for site in ("north", "south"))
    assert torch.equal(north, south)
    assert caplog.messages == [f"{tmp_path}: column 'x': '0,5' is read as 0.5 (north.csv)"]
