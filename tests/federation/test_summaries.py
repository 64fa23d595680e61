"""Participants that never show a row agree on the encoding of a simulation over the same tables, bit for bit."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fedkin.data.dataset import Dataset, Split
from fedkin.data.own import OwnTable
from fedkin.data.sources.tables import Csv, Parquet
from fedkin.errors import DataError
from fedkin.federation import Samples
from fedkin.federation.summaries import SharedEncoding, TableSummary, agree, summary_of, unlike_targets
from fedkin.federation.table_columns import Reading
from fedkin.federation.table_values import as_table
from stays import HOSPITALS, written
from support import present

CASES: dict[str, dict[str, Any]] = {
    "risk": {"target": "died"},
    "event": {"target": "died", "positive": "no", "categories": ["smoker"], "least": 3},
    "numbers": {"target": "days", "leave_out": ["died"], "time": "admitted"},
    "classes": {"target": "ward", "test_fraction": 0.3, "seed": 5},
}


def agreed_as_in_a_simulation(own: dict[str, OwnTable], whole: Dataset, reading: Reading) -> SharedEncoding:
    """What participants agree on, which is what a simulation has, as are their samples."""
    told = {name: TableSummary.from_json(each.summary.to_json()) for name, each in own.items()}
    assert told == {name: each.summary for name, each in own.items()}
    agreed = agree(told, reading)
    assert SharedEncoding.from_json(agreed.to_json()) == agreed
    assert agreed.encoding == whole.encoding
    assert agreed.target == whole.target
    for name, each in own.items():
        client, task = each.client(agreed)
        assert task == whole.task
        parts: dict[Split, Samples] = {"train": client.train, "test": client.test}
        for split, mine in parts.items():
            there = whole.samples(split, np.flatnonzero(present(whole.part(split).client) == name))
            assert torch.equal(mine.inputs(slice(None)), there.inputs(slice(None)))
            assert torch.equal(mine.labels(), there.labels())
    return agreed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", [1, -1])
def test_what_all_agree_on_is_what_a_simulation_has(case: str, order: int, tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    if case == "classes":  # a target has no missing values
        for path in folder.glob("*.csv"):
            frame = pd.read_csv(path)
            frame.dropna(subset="ward").to_csv(path, index=False)
    source = Csv(path=Path("elsewhere.csv"), **CASES[case])
    own = {name: OwnTable(name, str(folder / f"{name}.csv"), source) for name in HOSPITALS[::order]}
    agreed_as_in_a_simulation(own, Csv(path=folder, **CASES[case]).load(Path()), source)


def test_a_column_of_clients_and_a_group_in_the_file_are_no_inputs(tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": ["x"] * 30, "region": ["r"] * 30, "age": np.arange(30), "ill": [0, 1] * 15})
    frame.to_csv(tmp_path / "ann.csv", index=False)
    source = Csv(path=Path("all.csv"), target="ill", client="who", group="region")
    own = OwnTable("ann", str(tmp_path / "ann.csv"), source)
    assert list(own.summary.types) == ["age"]
    client, _ = own.client(agree({"ann": own.summary}, own.reading))
    assert (client.id, client.size, len(client.test)) == ("ann", 24, 6)


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_codes_and_classes_with_leading_zeros_are_those_of_a_simulation(
    order: str, suffix: str, tmp_path: Path
) -> None:
    # One site has zeros in front, the other has none: there the same columns are read as numbers.
    codes = {"a": ("007", "7"), "b": ("12", "13")}
    classes = {"a": ("01", "02"), "b": ("9", "12")}
    for site in "ab":
        lines = [f"{codes[site][row % 2]},{row}.5,{classes[site][row % 2]}" for row in range(20)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["code,x,y", *lines]) + "\n")
    given: dict[str, Any] = {"target": "y", "categories": ["code"], "kind": "classification", "least": 1}
    whole = Csv(path=tmp_path, **given).load(Path())
    if suffix == ".parquet":  # one that stores its numbers as numbers
        pd.read_csv(tmp_path / "b.csv").to_parquet(tmp_path / "b.parquet", index=False)
    source = Csv(path=Path("elsewhere.csv"), **given)
    own = {site: OwnTable(site, str(tmp_path / f"{site}{suffix if site == 'b' else '.csv'}"), source) for site in order}
    agreed = agreed_as_in_a_simulation(own, whole, source)
    assert {"code=007", "code=7", "code=12", "code=13"} < set(agreed.encoding.names)
    assert agreed.target.classes == ("01", "02", "12", "9")


def test_classes_that_are_numbers_everywhere_keep_the_order_of_numbers() -> None:
    both = {site: told(kind="classification", x=[1, 2], y=[9, 12]) for site in "ab"}
    assert agree(both, Reading(target="y", client="who", kind="classification")).target.classes == ("9", "12")


def told(kind: str | None = None, **columns: Any) -> TableSummary:
    table = as_table({"who": ["a"] * len(columns["y"]), **columns})
    return summary_of(table, Reading(target="y", client="who", kind=kind, test_fraction=0), "rows")


def test_nothing_is_told_of_a_target_that_is_not_needed() -> None:
    many = told(x=[1, 2, 3], y=[0.5, 1.5, 2.5])
    assert many.values is None  # each value of a number may be one person's
    assert many.moments is not None
    few = told(kind="classification", x=[1, 2, 3], y=[0, 1, 1])
    assert (few.values, few.moments) == (("0", "1"), None)
    assert "count" not in " ".join(line for line in few.words() if "target" in line)
    # From the mean of two or three values would follow how often each occurs.
    undeclared = told(x=[1, 2, 3], y=[0, 1, 1])
    assert (undeclared.values, undeclared.moments) == (("0", "1"), None)
    reading = Reading(target="y", client="who")
    assert undeclared.columns(reading).target == "number"
    assert few.columns(reading.model_copy(update={"kind": "risk"})).target == "text"


def test_whether_numbers_are_classes_must_be_said_where_participants_tell_otherwise() -> None:
    both = {"ann": told(x=[1, 2, 3], y=[0, 1, 1]), "bob": told(x=[1, 2, 3], y=[0.5, 1.5, 2.5])}
    words = "target 'y': ann has few different values, .* say data.kind = 'regression' or 'classification'"
    with pytest.raises(DataError, match=words):
        agree(both, Reading(target="y", client="who"))


def test_numbers_that_follow_from_their_sums_are_named_before_they_leave() -> None:
    lines = told(rare=[None, 7.5, None], two=[1, None, 2], all=[1, 2, 3], none=[None] * 3, y=[0, 1, 1]).words()
    assert lines[2:4] == [
        "rare is filled in 1 row: its value itself leaves", "two is filled in 2 rows: their values themselves leave"
    ]  # fmt: skip
    assert not any("themselves" in line or "itself" in line for line in lines[4:])
    assert (
        "the target is filled in 2 rows: their values themselves leave"
        in told(x=[1, 2], y=[0.5, 1.5], kind="regression").words()
    )


def test_rare_categories_are_shown_before_they_leave() -> None:
    lines = told(ward=["icu", "icu", "rare"], y=[0, 1, 1]).words()
    assert lines[1] == "how often ward has each of its 2 values (rare ones may identify people: 'rare' 1, 'icu' 2)"
    assert "the values of the target, without their numbers: 0, 1" in lines
    assert lines[-1] == "the names of its columns, and what each holds: ward (text), the target (number)"


REFUSED: dict[str, tuple[TableSummary, TableSummary, str]] = {
    "column": (told(x=[1, 2], y=[0, 1]), told(z=[1, 2], y=[0, 1]), "b: it has no column 'x', which most have"),
    "type": (told(x=[1, 2], y=[0, 1]), told(x=["p", "q"], y=[0, 1]), "b: its column 'x' holds texts, and at most"),
    "target": (told(x=[1, 2], y=[0, 1]), told(x=[1, 2], y=["no", "yes"]), "b: its target holds texts, and at most"),
    "spelling": (
        told(x=[1, 2], y=["no", "yes"]), told(x=[1, 2], y=["NO", "yes "]), "b: its target has 'NO' and 'yes ', which",
    ),
    "one class": (told(x=[1, 2], y=[0, 0]), told(x=[1, 2], y=[0, 0]), "target 'y' is '0' in every row"),
    "no spread": (
        told(kind="regression", x=[1, 2], y=[3.0, 3.0]), told(kind="regression", x=[1, 2], y=[3.0, 3.0]),
        "target 'y' is 3 in every training row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_tables_that_do_not_fit_are_refused_by_name(case: str) -> None:
    one, other, words = REFUSED[case]
    kind: Any = "regression" if case == "no spread" else None
    with pytest.raises(DataError, match=words):
        agree({"a": one, "b": other}, Reading(target="y", client="who", kind=kind))


def told_of_targets(**values: list[str]) -> dict[str, TableSummary]:
    return {id: told(x=range(len(each)), y=each) for id, each in values.items()}


def test_who_writes_classes_otherwise_than_most_is_named() -> None:
    reading, risk = Reading(target="y", client="who"), Reading(target="y", client="who", kind="risk")
    wards = told_of_targets(a=["ICU", "ER"], b=["icu", "er"], c=["icu", "er"], d=["burns"])
    assert unlike_targets(wards, reading) == {"a": "its target has 'ER' and 'ICU', which most write 'er' and 'icu'"}
    yes = told_of_targets(a=["NO", "YES"], b=["no", "yes"], c=["no"], d=["no", "yes", "unknown"])
    assert unlike_targets(yes, risk) == {
        "a": "its target has 'NO' and 'YES', which most write 'no' and 'yes'",
        "d": "its target has 'unknown', and a risk has two values, here 'no' and 'yes'",
    }


def test_classes_that_one_participant_tells_apart_are_two() -> None:
    letters = told_of_targets(a=["a", "A"], b=["a"], c=["A"])
    assert unlike_targets(letters, Reading(target="y", client="who")) == {}


@pytest.mark.parametrize("change", ["{}", "[", '"x"', "types", "target", "values", "rows", "moments"])
def test_what_is_told_and_not_readable_is_refused(change: str) -> None:
    tree = json.loads(told(x=[1, 2], y=[0, 1]).to_json())
    wrong = {"types": [["x", "picture"]], "target": 3, "values": 7, "rows": None, "moments": {"count": "many"}}
    text = change
    if change == "rows":
        tree["profile"]["rows"] = -1
        text = json.dumps(tree)
    elif change in wrong:
        text = json.dumps({**tree, change: wrong[change]})
    with pytest.raises(DataError):
        TableSummary.from_json(text)


def test_a_participant_hears_of_its_own_codes_before_anything_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ann.csv"
    path.write_text("ward,age,y\n" + "".join(f"{row % 3:02d},{row},{row % 2}\n" for row in range(20)))
    own = OwnTable("ann", str(path), Csv(path=tmp_path, target="y"))
    (caution,) = caplog.messages
    assert caution == (
        f"{path}: whole numbers with leading zeros are read as numbers: ward (00); if they are codes, name them in "
        "data.categories"
    )
    assert "ward" in " ".join(own.summary.words())


def test_categories_of_unlike_types_in_parquet_files_are_refused_as_in_a_simulation(tmp_path: Path) -> None:
    for site, code in (("a", ["07", "8"]), ("b", [7, 8]), ("c", [7.0, None])):
        frame = pd.DataFrame({"code": code * 10, "x": np.arange(20.0), "y": [0, 1] * 10})
        frame.to_parquet(tmp_path / f"{site}.parquet", index=False)
    given: dict[str, Any] = {"target": "y", "categories": ["code"], "kind": "risk", "least": 1}
    with pytest.raises(DataError, match="different kinds in two files"):
        Parquet(path=tmp_path, **given).load(Path())
    source = Parquet(path=tmp_path, **given)
    own = {site: OwnTable(site, str(tmp_path / f"{site}.parquet"), source) for site in "abc"}
    told = {site: TableSummary.from_json(each.summary.to_json()) for site, each in own.items()}
    with pytest.raises(DataError, match="a: its column 'code' holds texts, and at most others numbers; expected"):
        agree(told, source)
    (tmp_path / "a.parquet").unlink()
    whole = Parquet(path=tmp_path, **given).load(Path())
    agreed = agree({site: told[site] for site in "bc"}, source)
    assert agreed.encoding == whole.encoding
    assert agreed.encoding.names[:3] == ("code=7", "code=8", "code=(other)")


@pytest.mark.parametrize(
    ("values", "more", "words"),
    [
        ([f"{n},5" for n in range(30)], {}, "these texts are numbers, such as '0,5'"),
        (["7", "8", "9"] * 10, {}, "these texts are numbers"),
        (["7", "8", "9"] * 10, {"categories": ("code",)}, ""),
        ([f"patient {n}" for n in range(30)], {}, "30 different texts in 30 rows would tell of single people"),
        ([f"patient {n}" for n in range(30)], {"categories": ("code",)}, "30 different texts in 30 rows"),
        (["er", "icu"] * 15, {}, ""),
    ],
)
def test_texts_that_are_numbers_or_nearly_all_different_are_not_told_one_by_one(
    values: list[str], more: dict[str, Any], words: str
) -> None:
    table = pa.table({"who": ["ann"] * 30, "y": [0, 1] * 15, "code": values})
    with nullcontext() if not words else pytest.raises(DataError, match=f"^rows: column 'code': {words}"):
        told = summary_of(table, Reading(target="y", client="who", test_fraction=0, **more), "rows")
        assert sum(told.profile.categories["code"].values()) == 30
