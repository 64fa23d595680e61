"""What looks wrong with a table is said, and nothing of one that is in order; and whether targets are skewed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from fedkin.data.guess import choose_columns
from fedkin.data.inspection import Inspection, inspect, of_classes, of_numbers, without
from fedkin.federation.table_columns import Reading
from fedkin.federation.table_values import as_table
from support import present

READING = Reading(target="died", client="site", time="day")


def rows(count: int = 1200, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, count)
    return pd.DataFrame({
        "site": rng.choice(["a", "b", "c"], count), "day": pd.date_range("2020-01-01", periods=count, freq="h"),
        "age": age, "ward": rng.choice(["icu", "er"], count), "beds": rng.integers(1, 9, count),
        "died": (rng.random(count) < 1 / (1 + np.exp((60 - age) / 5))).astype(int),
    })  # fmt: skip


@pytest.fixture
def frame() -> pd.DataFrame:
    return rows()


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
def test_columns_that_look_wrong_are_named(frame: pd.DataFrame, column: str, values: Any, kind: str) -> None:
    frame[column] = values(frame)
    assert kinds(looked(frame))[kind] == (column,)


@pytest.mark.parametrize("values", [
    [f"{row}.5" if row % 9 else f"\u2212{row}.5" for row in range(1200)],
    [f"{row - 600}" if row % 9 else f"> {row}" for row in range(1200)],
    [f"{1 + row % 28}.{1 + row % 12}.24 {row}" for row in range(1200)],
    [f"2024-02-{1 + row % 30:02d} {row % 24:02d}:{row % 60:02d}:{row // 24:02d}" for row in range(1200)],
])  # fmt: skip
def test_measurements_that_are_read_as_text_are_no_numbers_of_rows(values: list[str]) -> None:
    (finding,) = [one for one in looked(rows().assign(odd=values)).findings if "odd" in one.about]
    assert len(set(values)) == 1200
    assert finding.kind == "text"


@pytest.mark.parametrize(("scale", "found"), [(2, []), (0, ["id"])])
def test_decimals_from_a_data_base_are_measurements(scale: int, found: list[str]) -> None:
    cost = pa.array(np.random.default_rng(0).permutation(1200)).cast(pa.decimal128(21, scale))
    table = as_table(rows()).append_column("cost", cost)
    assert [one.kind for one in inspect(table, READING).findings if one.about == ("cost",)] == found


def test_numbers_of_rows_are_found_with_a_few_letters_among_them(frame: pd.DataFrame) -> None:
    frame["odd"] = [f"A{row}" if row % 10 == 0 else f"{100 + row}" for row in range(len(frame))]
    found = looked(frame)
    assert kinds(found)["id"] == kinds(found)["text"] == ("odd",)


@pytest.mark.parametrize("form", ["({:.3f})", "\u2212{:.3f}", "{:.3f}-", "12,34,{:.0f}", "ward {:.3f}"])
def test_a_text_column_without_an_input_for_any_value_is_named(frame: pd.DataFrame, form: str) -> None:
    frame["odd"] = [form.format(age % 1 * 1e5 // 1 if "," in form else age) for age in np.tile(frame["age"][:600], 2)]
    (finding,) = looked(frame).findings
    assert (finding.kind, finding.about) == ("text", ("odd",))
    assert "and none is in 10 training rows: all share one input" in finding.text
    (finding,) = looked(frame.assign(odd=np.arange(1200)).astype({"odd": str})).findings  # named once
    assert finding.kind == "id"


def test_a_column_that_the_rows_are_sorted_by_is_named_unless_it_is_the_time(frame: pd.DataFrame) -> None:
    frame["admitted"] = frame.groupby("site").cumcount() // 2 + np.random.default_rng(1).normal(0, 5, len(frame))
    assert kinds(looked(frame))["order"] == ("admitted",)
    assert "order" not in kinds(looked(frame.sample(frac=1, random_state=0)))
    reading = Reading(target="died", client="site", time="admitted", leave_out=("day",))
    assert "order" not in kinds(looked(frame, reading))


@pytest.mark.parametrize("value", [7.5, 3, True, "x", pd.Timestamp("2024-01-01")])
def test_a_constant_with_gaps_is_named_with_its_value(frame: pd.DataFrame, value: Any) -> None:
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


def test_people_in_two_tables_are_counted(frame: pd.DataFrame) -> None:
    twice = frame.iloc[:7].assign(site=lambda some: some["site"].map({"a": "b", "b": "c", "c": "a"}))
    again = frame.iloc[-5:].assign(day=pd.Timestamp("2000-01-01"))
    for more, said in (
        (twice, "14 rows have an equal row at another client"), (again, "5 test rows have an equal row in training"),
    ):  # fmt: skip
        assert any(one.text.startswith(said) for one in looked(pd.concat([frame, more])).findings)


def test_clients_with_few_events_are_named(frame: pd.DataFrame) -> None:
    frame.loc[(frame["site"] == "b") & (frame.index > 900), "died"] = 0
    assert kinds(looked(frame))["few"] == ("b",)
    few = pd.concat([frame[frame["site"] != "c"], frame[frame["site"] == "c"].iloc[:40]])
    numbers = Reading(target="age", client="site", time="day")
    assert kinds(looked(few, numbers))["few"] == ("c",)


def test_clients_that_change_are_named(frame: pd.DataFrame) -> None:
    late = (frame["site"] == "c") & (frame.index > 700)
    frame.loc[late, "age"] += 15
    assert kinds(looked(frame)) == {"drift": ("c",)}


def test_ids_and_constants_are_left_out(frame: pd.DataFrame) -> None:
    frame["row"], frame["country"] = np.arange(len(frame)), "AT"
    reading = without(READING, looked(frame))
    assert set(reading.leave_out) == {"row", "country"}
    assert looked(frame, reading).findings == ()


@pytest.mark.slow
def test_no_client_is_said_to_change_that_does_not() -> None:
    assert not any("drift" in kinds(looked(rows(600, seed))) for seed in range(20))


def test_what_differs_between_clients_is_named(frame: pd.DataFrame) -> None:
    at_b = frame["site"] == "b"
    frame["ft4"] = np.random.default_rng(1).gamma(9, 1.7, len(frame)) * np.where(at_b, 0.0777, 1)
    frame["sex"] = np.where(at_b, "female", "F")
    frame.loc[~at_b & (frame.index % 2 == 0), "sex"] = "M"
    found = looked(frame)
    assert kinds(found)["codings"] == ("sex",)
    text = [one.text for one in found.findings if one.kind == "units"]
    assert text == ["column 'ft4' is 0.0787 times as large at b as elsewhere: in another unit?"]


def test_codes_for_what_is_missing_are_named(frame: pd.DataFrame) -> None:
    frame.loc[frame.index % 50 == 0, "age"] = -999.0
    (finding,) = [one for one in looked(frame).findings if one.kind == "sentinel"]
    assert "column 'age' is -999 in 24 rows" in finding.text


def test_names_that_differ_in_case_or_spaces_are_named(frame: pd.DataFrame) -> None:
    frame["ward"] = np.where(frame.index % 3 == 0, "Icu ", frame["ward"])
    frame["died"] = np.where(frame["died"] == 1, np.where(frame.index % 2, "yes", "Yes"), "no")
    texts = [one.text for one in looked(frame).findings if one.kind == "spelling"]
    assert texts[0].startswith("classes of the target differ only in case or spaces: 'Yes' and 'yes'")
    assert texts[1].startswith("values of column 'ward' differ only in case or spaces: 'Icu ' and 'icu'")


@pytest.mark.parametrize(
    ("of_site", "words"),
    [
        ({"yes": "yess"}, "only a has class 'yess' ({} rows), and it has no 'yes': a typo?"),
        ({"yes": "yes", "row": "transfered"}, "only a has class 'transfered' (1 row): a typo?"),
        ({"yes": "yes"}, ""),
    ],
)
def test_a_class_that_one_client_alone_has_is_named(frame: pd.DataFrame, of_site: dict[str, str], words: str) -> None:
    frame["died"] = np.where(frame["died"], "yes", "no")
    mine = frame["site"] == "a"
    frame.loc[mine, "died"] = frame.loc[mine, "died"].replace("yes", of_site["yes"])
    frame.loc[frame.index[mine][:1], "died"] = of_site.get("row", "no")
    found = [finding.text for finding in looked(frame).findings if finding.kind == "class"]
    assert found == ([words.format((frame["died"] == "yess").sum())] if words else [])


def test_a_class_is_no_typo_where_the_others_have_only_one(frame: pd.DataFrame) -> None:
    frame["died"] = np.where(frame["site"] == "a", frame["died"], 0)
    assert "class" not in kinds(looked(frame))


def test_persons_on_both_sides_are_named_until_they_are_kept_together() -> None:
    frame = rows().sort_values("site", ignore_index=True)
    frame["patient"] = 5000 + np.arange(len(frame)) // 3
    assert kinds(looked(frame, Reading(target="died", client="site")))["person"] == ("patient",)
    kept = Reading(target="died", client="site", person="patient")
    assert "person" not in kinds(looked(frame, kept))


# -- skew of targets: scipy's tests, their level, and effects between 0 and 1 --------------------------------------


def test_p_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    counts = {f"c{k}": rng.multinomial(80 + 30 * k, [0.5, 0.3, 0.2]) for k in range(5)}
    assert present(of_classes(counts)).p == pytest.approx(
        stats.chi2_contingency(list(counts.values()), correction=False).pvalue
    )
    values = {id: rng.normal(size=20 + 5 * k) for k, id in enumerate(counts)}
    assert present(of_numbers(values)).p == pytest.approx(stats.kruskal(*values.values()).pvalue)


@pytest.mark.slow
def test_one_distribution_is_rarely_called_skewed_also_with_rare_classes() -> None:
    rng = np.random.default_rng(1)
    said = wrong = 0
    for _ in range(200):
        found = present(of_classes({f"c{k}": rng.multinomial(40, [0.9, 0.08, 0.02]) for k in range(6)}))
        said += found.p < 0.05
        wrong += found.matters
    assert said <= stats.binom.ppf(0.999, 200, 0.05)
    assert wrong <= 2


def test_effects_are_those_of_the_extremes() -> None:
    apart = present(of_classes({"a": [500, 0], "b": [0, 500]}))
    alike = present(of_classes({"a": [50, 50], "b": [500, 500]}))
    assert apart.effect > 0.99
    assert (alike.effect, alike.p) == (0.0, 1.0)
    shifted = present(of_numbers({"a": np.arange(100.0), "b": np.arange(100.0) + 1000, "c": np.arange(100.0)}))
    assert shifted.matters
    assert shifted.apart[0] == "b"


def test_what_cannot_be_compared_is_none() -> None:
    for classes in ({"a": [3, 4]}, {"a": [3, 0], "b": [5, 0]}, {"a": [3, 2], "b": [0, 0]}):
        assert of_classes(classes) is None
    for numbers in ({"a": [1.0, 2.0], "b": []}, {"a": [1.0, 1.0], "b": [1.0]}):
        assert of_numbers(numbers) is None


# -- settings that are guessed from the data -----------------------------------------------------------------------


def test_the_target_is_never_the_tokens_too() -> None:
    assert choose_columns({"input_ids": "ids", "one": "ids", "two": "ids"}, "input_ids") == ("input_ids", None, None)
