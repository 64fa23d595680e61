"""The encoding of tables: equal to one of all rows in one place, made of sums and counts of each client alone."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import DataError
from fedkin.federation.table_encoding import Encoding, Profile, profile
from fedkin.federation.table_values import kinds_of, numbers


def table(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    age = np.where(rng.random(rows) < 0.2, np.nan, rng.normal(60, 15, rows))
    ward = rng.choice(["icu", "er", "ward 3", "rare"], rows, p=[0.5, 0.3, 0.19, 0.01])
    seen = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D")
    frame = {"age": age, "ward": ward, "seen": seen, "male": rng.random(rows) < 0.5, "n": rng.integers(0, 9, rows)}
    return pa.Table.from_pandas(pd.DataFrame(frame), preserve_index=False)


def cut(whole: pa.Table, clients: int, seed: int) -> list[pa.Table]:
    owner = np.random.default_rng(seed).integers(0, clients, whole.num_rows)
    return [whole.filter(pa.array(owner == number)) for number in range(clients)]


def test_it_is_that_of_all_rows_in_one_place() -> None:
    whole = table(500, 0)
    kinds = kinds_of(whole)
    encoding = Encoding.of([profile(part, kinds) for part in cut(whole, 7, 1)], kinds)
    assert encoding.names == (
        "age", "age=(missing)", "ward=er", "ward=icu", "ward=ward 3", "ward=(other)", "seen", "male", "n",
    )  # fmt: skip
    made = pd.DataFrame(encoding(whole), columns=encoding.names)
    frame = whole.to_pandas()
    days = (frame["seen"] - pd.Timestamp("1970-01-01")).dt.days
    for name, values in {"age": frame["age"], "male": frame["male"].astype(float), "seen": days}.items():
        expected = ((values - values.mean()) / values.std(ddof=0)).fillna(0.0)
        np.testing.assert_allclose(made[name], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(made["age=(missing)"], frame["age"].isna())
    for ward in ("er", "icu", "ward 3"):
        np.testing.assert_array_equal(made[f"ward={ward}"], frame["ward"] == ward)
    np.testing.assert_array_equal(made["ward=(other)"], frame["ward"] == "rare")


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(0, 2**16), st.randoms(use_true_random=False))
def test_neither_the_order_of_clients_nor_how_rows_are_dealt_matters(clients: int, seed: int, order: Any) -> None:
    """What clients tell, as text, gives the encoding of all rows in one place; merging in two steps changes nothing."""
    whole = table(60, seed)
    kinds = kinds_of(whole)
    told = [profile(part, kinds) for part in cut(whole, clients, seed)]
    assert [Profile.from_json(each.to_json()) for each in told] == told
    direct = profile(whole, kinds)
    for one in (Profile.merged(told), Profile.merged([Profile.merged(told[:2]), *told[2:]])):
        assert (one.rows, one.categories) == (direct.rows, direct.categories)
        for name, moments in direct.numbers.items():
            found = one.numbers[name]
            assert found.count == moments.count
            np.testing.assert_allclose([found.mean, found.squares], [moments.mean, moments.squares], rtol=1e-9)
    encoding = Encoding.of(told, kinds, least=3)
    assert Encoding.from_json(encoding.to_json()) == encoding
    np.testing.assert_array_equal(Encoding.from_json(encoding.to_json())(whole), encoding(whole))
    order.shuffle(told)
    assert Encoding.of(told, kinds, least=3) == encoding
    alone = Encoding.of([direct], kinds, least=3)
    assert alone.names == encoding.names
    np.testing.assert_allclose(alone(whole), encoding(whole), rtol=1e-5, atol=1e-5)


def test_what_others_tell_is_checked() -> None:
    whole = table(30, 0)
    text = profile(whole, kinds_of(whole)).to_json()
    for good, bad, where in [
        ('"rows": 30', '"rows": 3', "a profile: column 'age' has 23 values in 3 rows"),
        ('"rows": 30', '"rows": -1', "a profile: rows: Input should be greater than or equal to 0"),
        ('"rows": 30', '"rows": "30"', "a profile: rows: Input should be a valid integer"),
        ('"rows": 30', '"lines": 30', "a profile: rows: Field required"),
        ('"mean": ', '"mean": null, "man": ', "a profile: numbers.age.mean: Input should be a valid number"),
        ('"mean": ', '"mean": Infinity, "man": ', "a profile: numbers.age.mean: Input should be a finite number"),
        ('"squares": ', '"squares": -', "squares: Input should be greater than or equal to 0"),
        ("{", "[", "cannot be read as JSON"), ('"er": ', '"er": 1', "column 'ward' has .* values in 30 rows"),
    ]:  # fmt: skip
        assert good in text
        with pytest.raises(DataError, match=where):
            Profile.from_json(text.replace(good, bad))
    with pytest.raises(DataError, match=r"an encoding: kinds\.a: Input should be"):
        Encoding.from_json('{"kinds": {"a": "date"}, "means": {}, "deviations": {}, "values": {}, "flagged": []}')


def test_what_is_unknown_at_test_time_has_a_place_of_its_own() -> None:
    kinds = kinds_of(pa.table({"x": [1.0], "c": ["a"]}))
    fit = pa.table({"x": [1.0, 3.0, None, None], "c": ["a", "a", "b", None]})
    encoding = Encoding.of([profile(fit, kinds)], kinds, least=2)
    assert encoding.names == ("x", "x=(missing)", "c=a", "c=(other)")
    new = pa.table({"x": [2.0, None, 1e9, float("inf")], "c": ["a", "never seen", None, "b"]})
    assert encoding(new).tolist() == [[0, 0, 1, 0], [0, 1, 0, 1], [10, 0, 0, 0], [0, 1, 0, 1]]


@pytest.mark.parametrize(
    ("values", "days"),
    [
        (pa.array([dt.date(1970, 1, 3), None]), 2),
        (pa.array([dt.datetime(1970, 1, 1, 12), None], pa.timestamp("ns")), 0.5),
        (pa.array([dt.datetime(1970, 1, 1, 12), None], pa.timestamp("s", tz="UTC")), 0.5),
        (pa.array([dt.timedelta(hours=6), None]), 0.25),
        (pa.array([dt.time(18), None]), 0.75),
        (pa.array([True, None]), 1),
        (pa.array([7, None], pa.uint8()), 7),
        (pa.array([7, None]).dictionary_encode(), 7),
        (pa.array(["1.50", None]).cast(pa.decimal128(5, 2)), 1.5),
    ],
)
def test_dates_are_days_and_everything_else_numbers(values: Any, days: float) -> None:
    whole = pa.table({"v": values})
    assert kinds_of(whole) == {"v": "number"}
    np.testing.assert_allclose(numbers(whole, "v"), [days, np.nan])
