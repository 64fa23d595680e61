"""`Federation.from_frame`: what the columns are for, the kind of task, the split, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fedkin.errors import DataError
from fedkin.federation import Federation
from fedkin.federation.table_columns import Reading, columns_of
from fedkin.federation.table_encoding import target_of_classes
from fedkin.federation.table_values import as_table
from support import present


def frame(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    return pd.DataFrame({
        "hospital": rng.choice(["north", "south", "west"], rows), "age": age,
        "sex": rng.choice(["f", "m"], rows), "day": rng.permutation(rows),
        "died": (rng.random(rows) < 1 / (1 + np.exp(-(age - 60) / 5))).astype(int), "stay": rng.exponential(5, rows),
    })  # fmt: skip


def made(rows: Any = None, **options: Any) -> Federation:
    rows = frame() if rows is None else rows
    return Federation.from_frame(rows, **{"target": "died", "client": "hospital", **options})


def test_the_order_of_rows_and_names_of_clients_change_no_sample() -> None:
    federation, whole = made(split="time", time="day"), frame()
    other = made(whole.sample(frac=1, random_state=1).replace({"north": "n"}), time="day")
    for id, client in federation.items():
        twin = other["n" if id == "north" else id]
        for mine, its in ((client.train, twin.train), (client.test, twin.test)):
            a, b = (np.sort(one.inputs(slice(None)).numpy(), axis=0) for one in (mine, its))
            np.testing.assert_array_equal(a, b)


def test_only_training_rows_shape_the_inputs() -> None:
    whole = frame()
    federation = made(whole, time="day")
    latest = {id: rows.nlargest(len(federation[id].test), "day").index for id, rows in whole.groupby("hospital")}
    for rows in latest.values():
        whole.loc[rows, "age"] = 1e6
    again = made(whole, time="day")
    assert again.encoding == federation.encoding
    assert all((again[id].test.inputs(slice(None))[:, 0] == 10).all() for id in again)


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        ([0, 1, 1, 0], "risk", ("0", "1")),
        ([True, False, True, False], "risk", ("false", "true")),
        (["yes", "no", "no", "yes"], "risk", ("no", "yes")),
        (["a", "b", "c", "a"], "classification", ("a", "b", "c")),
        ([10, 9, 2, 10], "classification", ("2", "9", "10")),
        ([1.0, 2.0, 3.0, 1.0], "classification", ("1", "2", "3")),
        ([2**53 + 1, 2**53, 2**53 + 3, 2**53 + 2], "classification", tuple(str(2**53 + more) for more in range(4))),
        (["Yes", "no", "no", "Yes"], "risk", ("no", "Yes")),
        (["yes", "YES", "YES", "yes"], "risk", ("YES", "yes")),
        (["a", "B", "c", "a"], "classification", ("B", "a", "c")),
        ([0.5, 1.5, 2.5, 3.0], "regression", ()),
    ],
)
def test_the_kind_of_task_is_found(values: list[Any], kind: str, classes: tuple[str, ...]) -> None:
    rows = {"x": [1.0, 2.0, 3.0, 4.0], "y": values, "site": ["a"] * 4}
    federation = Federation.from_frame(rows, target="y", client="site", test_fraction=0)
    assert federation.task.kind == kind
    assert present(federation.target).classes == classes
    if classes:
        seen = ["false" if v is False else "true" if v is True else f"{v:g}" if isinstance(v, float) else str(v)
                for v in values]  # fmt: skip
        assert federation["a"].train.labels().tolist() == [classes.index(value) for value in seen]
    else:
        expected = (np.array(values) - np.mean(values)) / np.std(values)
        np.testing.assert_allclose(federation["a"].train.labels()[:, 0], expected, rtol=1e-6)


def test_the_order_of_classes_depends_on_no_hash() -> None:
    for values in (["0", "1", "1.5", "1.50", f"1{'0' * 5000}"], [str(more - 10**20) for more in range(5)]):
        for seed in range(5):
            mixed = np.random.default_rng(seed).permutation(values).tolist()
            found = target_of_classes("classification", mixed, False, None, "here")
            assert list(found.classes) == values


def test_the_event_of_a_risk_can_be_named() -> None:
    rows = {"x": [1.0, 2.0], "y": ["alive", "dead"], "site": ["a", "a"]}
    first = Federation.from_frame(rows, target="y", client="site", test_fraction=0, positive="alive")
    assert first["a"].train.labels().tolist() == [1, 0]
    with pytest.raises(DataError, match="positive: no value 'died'; expected 'alive' or 'dead'"):
        Federation.from_frame(rows, target="y", client="site", positive="died")


def test_a_column_can_say_the_split_and_the_groups() -> None:
    whole = frame()
    whole["part"] = np.where(np.arange(len(whole)) % 4 == 0, "test", "train")
    whole["region"] = np.where(whole["hospital"] == "north", "cold", "warm")
    federation = made(whole, split="part", group="region")
    assert sum(len(client.test) for client in federation.values()) == 30
    assert federation.planted == {"north": "cold", "south": "warm", "west": "warm"}
    assert not {"part", "region"} & set(present(federation.encoding).kinds)
    assert federation.relabel({"north": "n"}).encoding is federation.encoding


def test_arrow_dicts_and_categories_are_the_same() -> None:
    whole = frame().astype({"sex": "category"})
    arrow = pa.Table.from_pandas(frame(), preserve_index=False)
    for other in (arrow, {name: frame()[name].tolist() for name in frame()}):
        assert made(other).fingerprint() == made(whole).fingerprint()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "dead"}, "target: no column 'dead'; did you mean 'died'"),
        ({"client": "site"}, "client: no column 'site'"),
        ({"leave_out": ["days"]}, "leave_out: no column 'days'; did you mean 'day'"),
        ({"target": "hospital"}, "target and client are both 'hospital'; expected different columns"),
        ({"time": "died"}, "target and time are both 'died'"),
        ({"person": "hospital"}, "client and person are both 'hospital'"),
        ({"leave_out": ["day", "died"]}, "target and leave_out are both 'died'"),
        ({"categories": ["sex", "died"]}, "target and categories are both 'died'"),
        ({"categories": ["sexes"]}, "categories: no column 'sexes'"),
        ({"split": "time"}, "split 'time' needs the name of the column"),
        (
            {"time": "sex"},
            "'sex': expected a date, a time or a number, got texts such as 'f': if they are dates, data.dates",
        ),
        ({"time": "sex"}, "their order in a CSV file .with a time of day, write 2026-01-31 10:00."),
        ({"split": "sex"}, "column 'sex': expected 'train' or 'test' for every sample, got"),
        ({"kind": "regression", "target": "sex"}, "column 'sex': expected numbers to predict"),
        ({"kind": "risk", "target": "day"}, "has 120 values; a risk has two"),
        ({"leave_out": ["age", "sex", "day", "stay"]}, "no column is left for the inputs"),
        ({"client": "stay"}, "column 'stay': expected texts or whole numbers"),
        ({"kind": "segmentation"}, "kind: Input should be 'classification', 'risk' or 'regression'"),
        ({"test_fraction": 1}, "test_fraction: Input should be less than 1"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        made(**options)


@pytest.mark.parametrize(
    ("column", "said"),
    [("died", "target 'died' is unknown in 2 rows, the first, of client '.*', is row 3; leave"),
     ("hospital", "column 'hospital' is empty in 2 rows, the first is row 3")],
)  # fmt: skip
def test_rows_without_target_or_client_are_counted(column: str, said: str) -> None:
    whole = frame()
    whole[column] = whole[column].astype(object)
    whole.loc[[3, 5], column] = None
    with pytest.raises(DataError, match=said):
        made(whole)


def test_categories_and_views_of_polars_are_texts() -> None:
    # As polars hands them over: dictionaries of string views, and string views.
    sex = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 10), pa.array(["f", "m"], pa.string_view()))
    site = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 15), pa.array(["a", "b"], pa.string_view()))
    died = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1] * 10), pa.array(["no", "yes"], pa.string_view()))
    ward = pa.array(["icu", "er"] * 15, pa.string_view())
    table = pa.table({"sex": sex, "ward": ward, "site": site, "died": died})
    fed = Federation.from_frame(table, target="died", client="site", least=3)
    wards = ("ward=er", "ward=icu", "ward=(other)")
    assert present(fed.encoding).names == ("sex=f", "sex=m", "sex=(other)", "sex=(missing)", *wards)
    assert present(fed.target).classes == ("no", "yes")


@pytest.mark.parametrize("mark", list(",;\t|"))
def test_an_unknown_column_beside_undivided_names_is_answered_with_the_delimiter(mark: str) -> None:
    whole = frame().rename(columns={"age": f"age{mark}bmi"})
    with pytest.raises(DataError, match=r"no column 'bmi'; .*; if 'age.*bmi' is two, say data.delimiter"):
        made(whole, target="bmi")


def test_rows_of_a_person_stay_on_one_side() -> None:
    whole = frame()
    whole["patient"] = np.arange(len(whole)) // 3
    options: list[dict[str, Any]] = [{}, {"time": "day"}]
    for more in options:
        federation = made(whole, person="patient", **more)
        assert "patient" not in present(federation.encoding).kinds
        assert 15 <= sum(len(client.test) for client in federation.values()) <= 33
        columns = columns_of(as_table(whole), Reading(target="died", client="hospital", person="patient", **more))
        pairs = dict[tuple[str, int], bool]()
        for hospital, patient, held in zip(whole["hospital"], whole["patient"], columns.is_test, strict=True):
            assert pairs.setdefault((hospital, patient), held) == held
        # Tuning, advice and kin's trial ask the samples who is a person.
        for id, client in federation.items():
            patients = whole["patient"][(whole["hospital"] == id) & ~columns.is_test].astype(str)
            assert client.train.units().tolist() == np.unique(patients, return_inverse=True)[1].tolist()


def test_a_frame_for_each_client_is_refused_in_a_sentence() -> None:
    with pytest.raises(DataError, match=r"expected a frame .* of all clients, .*; got dict"):
        as_table({"north": frame(), "south": frame()})


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_inputs_do_not_depend_on_units(unit: float) -> None:
    first, other = made(), made(frame().assign(age=lambda rows: rows["age"] * unit))
    for id in first:
        torch.testing.assert_close(first[id].train.inputs(slice(None)), other[id].train.inputs(slice(None)))


@pytest.mark.parametrize("role", ["client", "group", "split"])
@pytest.mark.parametrize("kind", ["period", "interval"])
def test_names_that_are_neither_texts_nor_whole_numbers_are_refused(role: str, kind: str) -> None:
    table = frame()
    day = pd.to_datetime(table["day"], unit="D")
    values = day.dt.to_period("M") if kind == "period" else pd.cut(table["age"], 3)
    with pytest.raises(DataError, match=f"column 'who': expected texts or whole numbers, got .*{kind}"):
        made(table.assign(who=values), **{role: "who"})


def test_a_number_too_large_to_be_one_is_named() -> None:
    whole = frame()
    whole.loc[5, "age"] = np.finfo(float).max
    with pytest.raises(DataError, match=r"client '.*': column 'age': 1\.79769e\+308 is no measurement"):
        made(whole, test_fraction=0)


def test_a_target_too_large_to_be_one_is_named_also_in_a_test_row() -> None:
    whole = frame().assign(part=["test" if row % 5 == 0 else "train" for row in range(120)])
    whole.loc[5, "age"] = 1e140
    with pytest.raises(DataError, match=r"frame: target 'age': 1e\+140 in row 5 is no measurement"):
        Federation.from_frame(whole, target="age", client="hospital", split="part")


@pytest.mark.parametrize("column", ["hospital", "patient"])
def test_names_that_end_in_nul_are_refused(column: str) -> None:
    whole = frame().assign(patient=[f"p{row // 3}" for row in range(120)])
    whole.loc[7, column] = "north\0"
    with pytest.raises(DataError, match=f"column '{column}': .*'north.x00' ends in NUL"):
        made(whole, person="patient")


def test_ids_beyond_the_digits_of_a_float_stay_apart() -> None:
    rows = {"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1], "site": [2**53, 2**53, 2**53 + 1, 2**53 + 1]}
    assert sorted(Federation.from_frame(rows, target="y", client="site")) == [str(2**53), str(2**53 + 1)]


def test_decimals_stored_as_texts_are_refused_and_codes_are_not() -> None:
    frame = pd.DataFrame({"who": ["a", "b"] * 20, "age": [f"{n},5" for n in range(40)], "y": [0, 1] * 20})
    with pytest.raises(DataError, match=r"column .age.: expected numbers or categories, got .*: convert the column"):
        Federation.from_frame(frame, target="y", client="who")
    assert Federation.from_frame(frame, target="y", client="who", categories=["age"], least=1)
    whole = frame.assign(age=[str(n % 3) for n in range(40)])
    assert Federation.from_frame(whole, target="y", client="who")
    mixed = frame.assign(age=["ward 7", *frame["age"][1:]])
    assert Federation.from_frame(mixed, target="y", client="who", least=1)


@pytest.mark.parametrize("values", [["-1", "0", "1"], ["1", "nan", "2"], ["1_1", "2_2", "1"], ["1e2", "3", "4"]])
def test_texts_without_decimals_stay_categories(values: list[str]) -> None:
    frame = pd.DataFrame({"who": ["a", "b"] * 15, "code": values * 10, "y": [0, 1] * 15})
    federation = Federation.from_frame(frame, target="y", client="who", least=1)
    assert present(federation.encoding).kinds["code"] == "category"
