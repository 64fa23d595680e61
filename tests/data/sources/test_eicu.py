"""eICU's tables, made up small: who is in, what the columns are, and that statistics never see tests or the unseen."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.sources.eicu import _HISTORY, _PHYSIOLOGY, EicuDemo, hold_out_people, indicators, standardised
from fedkin.errors import ConfigError, DataError

REGIONS = {"1": "South", "2": "South", "3": "West", "4": ""}
STAYS = range(100, 180)


def write(folder: Path, name: str, rows: list[dict[str, object]], packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[list[object]] = [list(rows[0]), *([row[key] for key in rows[0]] for row in rows)]
    opener = gzip.open if packed else open
    with opener(folder / (f"{name}.csv.gz" if packed else f"{name}.csv"), "wt", newline="") as file:
        csv.writer(file).writerows(lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """80 stays of 60 patients in four hospitals; the last stay has no outcome, the one before no APACHE variables."""
    place = tmp_path / "eicu-demo"
    rng = np.random.default_rng(0)
    write(place, "hospital", [{"hospitalid": id, "region": region} for id, region in REGIONS.items()])
    write(place, "patient", [
        {"patientunitstayid": stay, "hospitalid": 1 + stay % 4, "uniquepid": f"p{stay % 60}", "ethnicity": "a, b",
         "hospitaldischargestatus": "" if stay == 179 else "Expired" if stay % 5 == 0 else "Alive"}
        for stay in STAYS
    ])  # fmt: skip
    for name, columns in (("apacheapsvar", _PHYSIOLOGY), ("apachepredvar", _HISTORY)):
        write(place, name, [
            {"patientunitstayid": stay,
             **{column: -1 if column == "ph" and stay % 2 else round(rng.normal(50, 9), 2) for column in columns},
             **({"diedinhospital": int(stay % 5 == 0)} if name == "apachepredvar" else {})}
            for stay in reversed(STAYS) if stay != 178
        ], packed=True)  # fmt: skip
    path = "admission diagnosis|All Diagnosis|Non-operative|Diagnosis|Cardiovascular|"
    write(place, "admissiondx", [
        {"patientunitstayid": stay, "admitdxpath": path + ("Sepsis, pulmonary" if stay % 2 else "Rare")}
        for stay in [*range(100, 180, 3), 178, 99999]
    ])  # fmt: skip
    write(place, "treatment", [
        {"patientunitstayid": stay, "treatmentoffset": 30 if stay % 2 else 9000,
         "treatmentstring": f"pulmonary|ventilation|{stay}"}
        for stay in STAYS
    ])  # fmt: skip
    return tmp_path


def test_who_is_in_and_what_is_predicted(folder: Path) -> None:
    fed = fedkin.federate("eicu-demo", "natural", data_root=folder)
    assert fed.task.kind == "risk"
    assert sorted(fed) == [f"hospital-{id}" for id in REGIONS]
    assert sum(len(c.train) + len(c.test) for c in fed.values()) == 78
    assert {id: c.group for id, c in fed.items()} == {
        "hospital-1": "South", "hospital-2": "South", "hospital-3": "West", "hospital-4": "unknown"
    }  # fmt: skip
    died = sum(int(part.labels().sum()) for c in fed.values() for part in (c.train, c.test))
    assert died == sum(stay % 5 == 0 for stay in range(100, 178))


def test_columns(folder: Path) -> None:
    data = EicuDemo(min_count=5).load(folder)
    x = data.train.x.numpy()
    # 43 numbers, a flag for ph, one diagnosis each of sepsis and "Rare", one early kind of treatment.
    assert x.shape[1] == 43 + 1 + 2 + 1
    np.testing.assert_allclose(x[:, :43].mean(0), 0, atol=1e-5)
    assert set(np.unique(x[:, 43:])) == {0.0, 1.0}
    flags, ph = x[:, 43], x[:, _PHYSIOLOGY.index("ph")]
    assert np.array_equal(flags == 1, ph == 0)
    spread = x[:, [i for i in range(43) if i != _PHYSIOLOGY.index("ph")]].std(0)
    np.testing.assert_allclose(spread, 1, atol=1e-4)
    assert EicuDemo(min_count=1000).load(folder).train.x.shape[1] == 43


def test_statistics_see_neither_tests_nor_the_unseen_region(folder: Path) -> None:
    data = EicuDemo(unseen=("South",)).load(folder)
    west = data.train.group != "South"
    np.testing.assert_allclose(data.train.x.numpy()[west, :43].mean(0), 0, atol=1e-5)
    assert np.abs(data.train.x.numpy()[~west, :43].mean(0)).max() > 0.05
    fed = fedkin.federate("eicu-demo", "natural", data_root=folder, data={"unseen": ["South"]})
    assert fed.unseen == ("hospital-1", "hospital-2")
    for unseen, says in ((["East"], "no region 'East'"), (["South", "West", "unknown"], "leave at least one region")):
        with pytest.raises(ConfigError, match=says):
            fedkin.federate("eicu-demo", "natural", data_root=folder, data={"unseen": unseen})


def test_nobody_is_in_both_splits(folder: Path) -> None:
    client = np.array(["a"] * 6 + ["b"] * 5)
    person = np.array(["p", "q", "r", "p", "s", "t", "u", "v", "p", "w", "u"])
    for seed in range(10):
        held = hold_out_people(client, person, 0.4, seed)
        assert all(len(set(held[person == one])) == 1 for one in person)
        assert {name: bool((~held[client == name]).any()) for name in "ab"} == {"a": True, "b": True}
        assert held.any()
    assert not hold_out_people(client, person, 0.0, 0).any()


def test_tables_that_are_missing_or_other_ones(folder: Path) -> None:
    place = folder / "eicu-demo"
    (place / "treatment.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"treatment\.csv: cannot be read .*expected columns patientunitstayid"):
        EicuDemo().load(folder)
    (place / "treatment.csv").unlink()
    with pytest.raises(DataError, match=r"treatment\.csv: no such file, nor treatment\.csv\.gz"):
        EicuDemo().load(folder)


def test_standardised_against_numpy() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(3, 2, (30, 4))
    values[::3, 1], values[:, 2] = np.nan, 7.0
    fit = np.arange(30) < 20
    z = standardised(values, fit)
    for column in (0, 1, 3):
        mean, sd = np.nanmean(values[fit, column]), np.nanstd(values[fit, column])
        known = np.isfinite(values[:, column])
        np.testing.assert_allclose(z[known, column], np.clip((values[known, column] - mean) / sd, -10, 10))
        assert np.all(z[~known, column] == 0)
    assert np.all(z[:, 2] == 0)


def test_indicators_count_rows_not_mentions() -> None:
    rows, codes = np.array([0, 0, 0, 1, 2, 2]), np.array([5, 5, 5, 9, 9, 5])
    fit = np.array([True, True, True, False])
    assert indicators(rows, codes, fit, 2).tolist() == [[True, False], [False, True], [True, True], [False, False]]
    assert indicators(rows, codes, fit, 3).shape == (4, 0)
    empty = np.empty(0, np.int64)
    assert indicators(empty, empty, fit, 1).shape == (4, 0)
