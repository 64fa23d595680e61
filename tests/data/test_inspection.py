"""What looks wrong with a table is said, and nothing is said of a table that is in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.data.inspection import Inspection, inspect, without
from fedkin.federation.table_columns import Reading
from fedkin.federation.table_values import as_table

READING = Reading(target="died", client="site", time="day")


def rows(count: int = 1200, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, count)
    return pd.DataFrame({
        "site": rng.choice(["a", "b", "c"], count), "day": pd.date_range("2020-01-01", periods=count, freq="h"),
        "age": age, "ward": rng.choice(["icu", "er"], count), "beds": rng.integers(1, 9, count),
        "died": (rng.random(count) < 1 / (1 + np.exp((60 - age) / 5))).astype(int),
    })  # fmt: skip


def looked(frame: pd.DataFrame, reading: Reading = READING) -> Inspection:
    return inspect(as_table(frame), reading)


def kinds(found: Inspection) -> dict[str, tuple[str, ...]]:
    return {finding.kind: finding.about for finding in found.findings}


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_said_of_a_table_that_is_in_order(seed: int) -> None:
    found = looked(rows(seed=seed))
    assert found.findings == ()
    assert [one.id for one in found.clients] == ["a", "b", "c"]
    frame = rows(seed=seed)
    for one in found.clients:
        own = frame[frame["site"] == one.id]
        assert one.train + one.test == len(own)
        assert one.test == round(0.2 * len(own))
        assert one.classes == {"0": int((own["died"] == 0).sum()), "1": int((own["died"] == 1).sum())}
        assert one.missing == 0


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("row", lambda frame: np.arange(len(frame)), "id"),
        ("name", lambda frame: [f"person {row}" for row in range(len(frame))], "id"),
        ("country", lambda frame: ["AT"] * len(frame), "constant"),
        ("nothing", lambda frame: [None] * len(frame), "constant"),
        ("years", lambda frame: [f"{age:.0f}" if age < 75 else "> 75" for age in frame["age"]], "text"),
        ("born", lambda frame: [f"{1 + row % 28}.{1 + row % 12}.2024" for row in range(len(frame))], "text"),
        ("seen", lambda frame: [f"2024-02-{1 + row % 30:02d}" for row in range(len(frame))], "text"),
        ("ph", lambda frame: np.where(np.arange(len(frame)) % 3, np.nan, 7.4 + frame["age"] / 1000), "missing"),
        ("left", lambda frame: np.where(frame["died"], "morgue", "home"), "leak"),
        ("score", lambda frame: frame["died"] + 0.1 * np.sin(frame["age"]), "leak"),
        ("code", lambda frame: 10 * frame["died"] + frame["beds"], "leak"),
    ],
)
def test_columns_that_look_wrong_are_named(column: str, values: Any, kind: str) -> None:
    frame = rows()
    frame[column] = values(frame)
    assert kinds(looked(frame))[kind] == (column,)


@pytest.mark.parametrize("values", [
    [f"{row}.5" if row % 9 else f"\u2212{row}.5" for row in range(1200)],
    [f"{1 + row % 28}.{1 + row % 12}.24 {row}" for row in range(1200)],
    [f"2024-02-{1 + row % 30:02d} {row % 24:02d}:{row % 60:02d}:{row // 24:02d}" for row in range(1200)],
])  # fmt: skip
def test_measurements_that_are_read_as_text_are_no_numbers_of_rows(values: list[str]) -> None:
    (finding,) = [one for one in looked(rows().assign(odd=values)).findings if "odd" in one.about]
    assert len(set(values)) == 1200
    assert finding.kind == "text"


@pytest.mark.parametrize("form", ["({:.3f})", "\u2212{:.3f}", "{:.3f}-", "12,34,{:.0f}", "ward {:.3f}"])
def test_a_text_column_without_an_input_for_any_value_is_named(form: str) -> None:
    frame = rows()
    frame["odd"] = [form.format(age % 1 * 1e5 // 1 if "," in form else age) for age in np.tile(frame["age"][:600], 2)]
    (finding,) = looked(frame).findings
    assert (finding.kind, finding.about) == ("text", ("odd",))
    assert "and none is in 10 training rows: all share one input" in finding.text
    (finding,) = looked(frame.assign(odd=np.arange(1200)).astype({"odd": str})).findings  # named once
    assert finding.kind == "id"


def test_a_column_that_the_rows_are_sorted_by_is_named_unless_it_is_the_time() -> None:
    frame = rows()
    frame["admitted"] = frame.groupby("site").cumcount() // 2 + np.random.default_rng(1).normal(0, 5, len(frame))
    assert kinds(looked(frame))["order"] == ("admitted",)
    assert "order" not in kinds(looked(frame.sample(frac=1, random_state=0)))
    reading = Reading(target="died", client="site", time="admitted", leave_out=("day",))
    assert "order" not in kinds(looked(frame, reading))


@pytest.mark.parametrize("value", [7.5, 3, True, "x", pd.Timestamp("2024-01-01")])
def test_a_constant_with_gaps_is_named_with_its_value(value: Any) -> None:
    frame = rows()
    frame["same"] = pd.Series([None if row % 5 == 0 else value for row in range(len(frame))]).convert_dtypes()
    (finding,) = [finding for finding in looked(frame).findings if finding.kind == "constant"]
    shown = {True: "true", "x": "x"}.get(value, str(value))
    assert f"column 'same' is '{shown}" in finding.text


def test_leaks_of_numbers_and_classes_are_found_too() -> None:
    frame = rows().rename(columns={"died": "event"})
    frame["died"] = frame["age"] ** 2 + np.random.default_rng(0).normal(0, 1, len(frame))
    assert kinds(looked(frame))["leak"] == ("age",)
    frame["died"] = pd.qcut(frame["age"], 5, labels=["v", "w", "x", "y", "z"]).astype(str)
    assert kinds(looked(frame))["leak"] == ("age",)


def test_people_in_two_tables_are_counted() -> None:
    frame = rows()
    twice = frame.iloc[:7].assign(site=lambda some: some["site"].map({"a": "b", "b": "c", "c": "a"}))
    found = [one.text for one in looked(pd.concat([frame, twice])).findings]
    assert any(text.startswith("14 rows have an equal row at another client") for text in found)
    again = pd.concat([frame, frame.iloc[-5:].assign(day=pd.Timestamp("2000-01-01"))])
    found = [one.text for one in looked(again).findings]
    assert any(text.startswith("5 test rows have an equal row in training") for text in found)


def test_clients_with_few_events_are_named() -> None:
    frame = rows()
    frame.loc[(frame["site"] == "b") & (frame.index > 900), "died"] = 0
    assert kinds(looked(frame))["few"] == ("b",)
    few = pd.concat([frame[frame["site"] != "c"], frame[frame["site"] == "c"].iloc[:40]])
    numbers = Reading(target="age", client="site", time="day")
    assert kinds(looked(few, numbers))["few"] == ("c",)


def test_clients_that_change_are_named() -> None:
    frame = rows()
    late = (frame["site"] == "c") & (frame.index > 700)
    frame.loc[late, "age"] += 15
    assert kinds(looked(frame)) == {"drift": ("c",)}


def test_ids_and_constants_are_left_out() -> None:
    frame = rows()
    frame["row"], frame["country"] = np.arange(len(frame)), "AT"
    found = looked(frame)
    reading = without(READING, found)
    assert set(reading.leave_out) == {"row", "country"}
    assert looked(frame, reading).findings == ()


@pytest.mark.slow
def test_no_client_is_said_to_change_that_does_not() -> None:
    changed = [looked(rows(600, seed)).findings for seed in range(20)]
    assert not any(finding.kind == "drift" for findings in changed for finding in findings)


def test_what_differs_between_clients_is_named() -> None:
    frame = rows()
    at_b = frame["site"] == "b"
    frame["ft4"] = np.random.default_rng(1).gamma(9, 1.7, len(frame)) * np.where(at_b, 0.0777, 1)
    frame["sex"] = np.where(at_b, "female", "F")
    frame.loc[~at_b & (frame.index % 2 == 0), "sex"] = "M"
    found = kinds(looked(frame))
    assert found["units"] == ("ft4",)
    assert found["codings"] == ("sex",)
    text = [one.text for one in looked(frame).findings if one.kind == "units"]
    assert text == ["column 'ft4' is 0.0787 times as large at b as elsewhere: in another unit?"]


def test_codes_for_what_is_missing_are_named() -> None:
    frame = rows()
    frame.loc[frame.index % 50 == 0, "age"] = -999.0
    (finding,) = [one for one in looked(frame).findings if one.kind == "sentinel"]
    assert "column 'age' is -999 in 24 rows" in finding.text


def test_names_that_differ_in_case_or_spaces_are_named() -> None:
    frame = rows()
    frame["ward"] = np.where(frame.index % 3 == 0, "Icu ", frame["ward"])
    frame["died"] = np.where(frame["died"] == 1, np.where(frame.index % 2, "yes", "Yes"), "no")
    texts = [one.text for one in looked(frame).findings if one.kind == "spelling"]
    assert texts[0].startswith("classes of the target differ only in case or spaces: 'Yes' and 'yes'")
    assert texts[1].startswith("values of column 'ward' differ only in case or spaces: 'Icu ' and 'icu'")


def test_persons_on_both_sides_are_named_until_they_are_kept_together() -> None:
    frame = rows().sort_values("site", ignore_index=True)
    frame["patient"] = 5000 + np.arange(len(frame)) // 3
    reading = Reading(target="died", client="site")
    assert kinds(looked(frame, reading))["person"] == ("patient",)
    kept = Reading(target="died", client="site", person="patient")
    assert "person" not in kinds(looked(frame, kept))
