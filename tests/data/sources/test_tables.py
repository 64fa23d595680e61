"""Sources of tables: one file or a folder of them, CSV or Parquet, and what is wrong with them; token ids."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import torch

import fedkin
from fedkin.data import federate
from fedkin.data.sources.tables import Csv, Parquet
from fedkin.data.table_files import read_csv
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Federation
from fedkin.running.experiment import Experiment
from fedkin.running.networked import settings_of
from fedkin.untrusted import Refused
from support import present


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
    whole = ["59.csv", "9.csv", "124.csv", "all.csv", "all.csv.gz", "all.parquet"]
    found = [
        *(read(name.split(".")[1], written / name, client="site", time="day") for name in whole),
        read("csv", written / "124.csv", client="site", time="day", delimiter="|"),
        *(read(kind, written / kind, time="day") for kind in ("csv", "parquet")),
    ]
    for federation in found:
        assert federation.fingerprint() == frame.fingerprint()
        assert (federation.encoding, federation.target) == (frame.encoding, frame.target)
    assert 'unit=a, "b"\nc' in present(frame.encoding).names


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
    with pytest.raises(DataError, match=r"'died' is unknown in 1 rows, .* of client 'north', is row 2 of north\.csv"):
        read("csv", tmp_path)
    with pytest.raises(DataError, match=r"is row 2 of north\.csv, counted from 1"):
        read("csv", tmp_path / "north.csv", client="a")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a,died,s\n1,0,x\n".encode("utf-16"), "UTF-16.*save it as UTF-8"),
        ("a,died,s\n1,0,x\n".encode("utf-16-be"), "UTF-16.*save it as UTF-8"),
        ("a,died,s\n1,0,x\n".encode("utf-32"), "UTF-32.*save it as UTF-8"),
        ("größe,died,s\n1,0,x\n2,1,y\n".encode("latin-1"), "line 1: .*gr.*not UTF-8.*Latin-1.*save it as UTF-8"),
        ("a,died,s\n1,0,x\n2,1,Köln\n".encode("latin-1"), "line 3: .*not UTF-8.*Latin-1.*save it as UTF-8"),
        (b"a,died,s\n1,0,x\n2,1\0\0,y\n", "line 3 has a NUL byte: the file is damaged"),
    ],
)
def test_another_encoding_is_named(tmp_path: Path, data: bytes, said: str, packed: bool) -> None:
    path = tmp_path / ("one.csv.gz" if packed else "one.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=said):
        read("csv", path, client="s")


@pytest.mark.parametrize(("end", "said"), [
    (b"", ""), (b"\xff", "line 160001: .*not UTF-8"), (b"\xc3", "line 160001: .*not UTF-8"),
    (b"\0", "line 160001 has a NUL"), (b"1\n\xc3\n\0", "line 160002: .*not UTF-8"),
])  # fmt: skip
def test_a_fault_after_many_blocks_is_named(tmp_path: Path, end: bytes, said: str) -> None:
    path = tmp_path / "one.csv"
    data = "größe,id\n".encode() + "größe,s\n".encode() * 159_999 + end
    assert data[(1 << 20) - 1] == 0xC3  # a letter on the border of two blocks
    path.write_bytes(data)
    if said:
        with pytest.raises(Refused, match=said):
            read_csv(path)
    else:
        assert read_csv(path).num_rows == 159_999


def test_files_of_a_folder_must_go_together(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.csv or \.csv\.gz in it"):
        read("csv", tmp_path)
    (tmp_path / "a.csv").write_text("x,died\n1,0\n2,1\n")
    for text, said in (
        ("x,dead\n1,0\n2,1\n", "csv: no column died, which the other files have, and a column dead"),
        ("x,died\nhigh,0\nlow,1\n", r"values of different kinds in two files \(x: b.csv has texts, a.csv has num"),
        ("x,died\n3,0\n4,1\n-,1\n", r'b.csv is read as text.* number is \'-\' in row 3: data.missing = \["-"\]'),
    ):
        (tmp_path / "b.csv").write_text(text)
        with pytest.raises(DataError, match=said):
            read("csv", tmp_path)
    (tmp_path / "b.csv").write_text("x,died\n1.5,0\n,1\n")
    assert sorted(read("csv", tmp_path, least=1)) == ["a", "b"]
    (tmp_path / "c.csv").write_text("x,dead\n1,0\n2,1\n")
    with pytest.raises(DataError, match=r"c.csv: no column died, which the other files have, and a column dead"):
        read("csv", tmp_path)


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
    assert list(present(left.encoding).kinds) == ["x"]


@pytest.mark.parametrize(("first", "second"), [("true", "0"), ("2026-01-02", "5"), ("true", "2026-01-02"), ("7", "A")])
def test_categories_of_different_kinds_are_texts(tmp_path: Path, first: str, second: str) -> None:
    for name, value in (("a", first), ("b", second)):
        (tmp_path / f"{name}.csv").write_text(f"when,died\n{value},0\n{value},1\n")
    found = read("csv", tmp_path, categories=["when"], least=1)
    assert present(found.encoding).names == (*(f"when={each}" for each in sorted((first, second))), "when=(other)")


def test_a_column_called_file_is_not_taken_for_the_clients(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("file,died\n1,0\n2,1\n")
    with pytest.raises(DataError, match="a column is called 'file'"):
        read("csv", tmp_path)


@pytest.mark.slow
def test_numbers_that_begin_late_in_a_column_do_not_end_the_reading(tmp_path: Path) -> None:
    lines = ["x,died,s", *("1,0,a" for _ in range(200_000)), "text,1,a"]
    (tmp_path / "late.csv").write_text("\n".join(lines))
    federation = read("csv", tmp_path / "late.csv", client="s")
    assert present(federation.encoding).names == ("x=1", "x=(other)")


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
        assert present(found.encoding).names == ("x",)
    text = pd.read_csv(tmp_path / "one.csv", dtype={"site": str})
    frame = Federation.from_frame(text, target="died", client="site")
    assert read("csv", tmp_path / "one.csv", client="site").fingerprint() == frame.fingerprint()


def test_categories_with_leading_zeros_stay_as_they_are_written(tmp_path: Path) -> None:
    lines = [f"{'ab'[row % 2]},{code},{row % 7},{row}.5,{row % 3:02d}" for code in ("007", "7") for row in range(24)]
    whole = "site,code,ward,x,died\n" + "\n".join(lines) + "\n"
    (tmp_path / "one.csv").write_text(whole)
    given: dict[str, Any] = {"client": "site", "categories": ["code", "ward"], "least": 1, "kind": "classification"}
    found = read("csv", tmp_path / "one.csv", **given)
    wards = [f"ward={ward}" for ward in (*range(7), "(other)")]
    assert present(found.encoding).names == ("code=007", "code=7", "code=(other)", *wards, "x")
    assert present(found.target).classes == ("00", "01", "02")
    text = pd.read_csv(tmp_path / "one.csv", dtype={"code": str, "died": str})
    frame = Federation.from_frame(text, target="died", **given)
    assert found.fingerprint() == frame.fingerprint()
    (tmp_path / "each").mkdir()
    for code in ("007", "7"):
        own = text[text["code"] == code].drop(columns="site")
        own.to_csv(tmp_path / "each" / f"h{code}.csv", index=False)
    apart = read("csv", tmp_path / "each", **{**given, "client": None})
    assert present(apart.encoding).names[:2] == ("code=007", "code=7")


def test_numbers_with_gaps_and_those_that_pandas_writes_are_the_categories_of_the_frame(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"site": list("ab"), "code": [1.0, 2.0, None, 12.0], "x": range(40), "died": [0, 1]}
    frame = pd.DataFrame({name: [*values] * (40 // len(values)) for name, values in columns.items()})
    frame.to_csv(tmp_path / "one.csv", index=False)  # writes 1.0, 2.0 and 12.0
    given: dict[str, Any] = {"client": "site", "categories": ["code"], "least": 1}
    whole = Federation.from_frame(frame, target="died", **given)
    assert "code=12" in present(whole.encoding).names
    assert read("csv", tmp_path / "one.csv", **given).fingerprint() == whole.fingerprint()


def test_ids_of_clients_in_parquet_stay_as_they_are_stored(tmp_path: Path) -> None:
    text = pd.read_csv(io.StringIO(_PADDED), dtype={"site": str})
    text.to_parquet(tmp_path / "text.parquet")
    text.astype({"site": "category"}).to_parquet(tmp_path / "coded.parquet")
    for name in ("text.parquet", "coded.parquet"):
        assert sorted(read("parquet", tmp_path / name, client="site")) == ["01", "1"]
    text.assign(site=[7] * 10 + [12] * 10).to_parquet(tmp_path / "whole.parquet")
    assert sorted(read("parquet", tmp_path / "whole.parquet", client="site")) == ["12", "7"]


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
    assert present(found.encoding).kinds["ward"] == "number"
    (said,) = caplog.messages
    what = "whole numbers with leading zeros are read as numbers: ward (000)"
    assert said == f"{tmp_path / name}: {what}; if they are codes, name them in data.categories"
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
def test_clients_without_test_rows_are_named(options: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    out = "c.csv (no rows), e.txt (another ending), more (a folder)"
    assert caplog.messages == [f"{tmp_path}: 3 of 6 entries are left out: {out}"]
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


# -- token ids: whole numbers of one length ------------------------------------------------------------------------


IDS = [[5 + row % 3, 7, *[9] * (row % 4)] for row in range(40)]
OTHERS = {"stars": [row % 2 for row in range(40)], "site": [f"s{row % 2}" for row in range(40)]}


def table(folder: Path, kind: str, ids: list[Any] = IDS) -> Any:
    """A source of a table with a column of token ids."""
    path = folder / f"texts.{kind}"
    if kind == "csv":
        texts = [one if isinstance(one, str) else " ".join(map(str, one)) for one in ids]
        pc.write_csv(pa.table({**OTHERS, "ids": texts}), path)
    else:
        pq.write_table(pa.table({**OTHERS, "ids": ids}), path)
    return (Csv if kind == "csv" else Parquet)(path=path, target="stars", client="site", tokens="ids", padding=3)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_are_filled_up_and_cut(tmp_path: Path, kind: str) -> None:
    source = table(tmp_path, kind)
    made = source.load(Path())
    assert made.task.shape == (5,)
    assert made.train.x.dtype == torch.int64
    both = torch.cat([made.train.x, made.test.x]).tolist()
    assert sorted(both) == sorted([*ids, 3, 3, 3][:5] for ids in IDS)
    cut = source.model_copy(update={"length": 2}).load(Path())
    assert {tuple(row) for row in cut.train.x.tolist()} == {(5, 7), (6, 7), (7, 7)}
    assert present(made.target).classes == ("0", "1")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_same_federation_from_both_runs_to_predictions(tmp_path: Path, kind: str) -> None:
    source = table(tmp_path, kind)
    experiment = Experiment.of({
        "name": "t", "data": source.model_dump(mode="json", exclude_none=True), "scenario": {"name": "natural"},
        "model": {"name": "text-mean", "words": 16, "padding": 3}, "training": {"rounds": 1, "lr": 0.1},
        "method": {"name": "fedavg"},
    })  # fmt: skip
    from fedkin.running.loop import run_experiment

    run_experiment(experiment, tmp_path, tmp_path / "run")
    assert fedkin.load(tmp_path / "run").predict(torch.tensor([IDS[3]])).shape == (1,)
    with pytest.raises(ConfigError, match=r"data\.tokens: over a network, token ids come from .*npz"):
        settings_of(experiment)


@pytest.mark.parametrize(
    ("kind", "bad", "why"),
    [("csv", "a review", r"row 4: 'ids': expected a list of whole numbers, got 'a review'; tokenise texts first"),
     ("parquet", [-1], r"row 4: 'ids': expected a list of whole numbers, got \[-1\]"),
     ("parquet", None, r"row 4: 'ids': expected a list of whole numbers, got None"),
     ("csv", f"7 {2**63}", r"row 4: 'ids': expected whole numbers below 2\*\*63, got '7 9223372036854775808'"),
     ("csv", "9" * 5000, r"row 4: 'ids': expected whole numbers below 2\*\*63, got '9999")],
)  # fmt: skip
def test_what_is_no_list_of_ids_is_refused(tmp_path: Path, kind: str, bad: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        table(tmp_path, kind, [*IDS[:4], bad, *IDS[5:]]).load(Path())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_of_one_id_each(tmp_path: Path, kind: str) -> None:
    ids = [3 + row % 5 for row in range(40)]
    source = table(tmp_path, kind)
    one = pa.table({**OTHERS, "ids": ids})
    (pc.write_csv if kind == "csv" else pq.write_table)(one, tmp_path / f"texts.{kind}")
    made = source.load(Path())
    assert sorted(torch.cat([made.train.x, made.test.x]).tolist()) == sorted([id] for id in ids)


@pytest.mark.slow
def test_one_text_that_fills_up_all_others_beyond_the_memory_is_refused() -> None:
    rows = [[1, 2]] * 100_000 + [[1] * 1_000_000]
    source = Csv(path=Path("t.csv"), target="y", tokens="ids")
    with pytest.raises(DataError, match=r"t\.csv: row 100000: 'ids': has 1,000,000 token ids; filling up 100,001 texts"
                                        r" to that takes 800\.0 GB; set data\.length"):  # fmt: skip
        source.ids(rows, "t.csv")
    assert source.model_copy(update={"length": 3}).ids(rows, "t.csv")[-2:].tolist() == [[1, 2, 0], [1, 1, 1]]
