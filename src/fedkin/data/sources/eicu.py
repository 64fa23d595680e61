"""The eICU Collaborative Research Database: intensive care in many hospitals of the USA.

Pollard, Johnson, Raffa, Celi, Mark, Badawi. The eICU Collaborative Research Database. Scientific Data, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate, packed_or_not
from fedkin.errors import ConfigError, DataError, nearest
from fedkin.federation import Task
from fedkin.federation.arrays import Flags, Floats, Ints, Names, hold_out
from fedkin.untrusted import error_text, most, within

# Values beyond this number of standard deviations are clipped: they are typing errors, not signs of illness.
_FAR = 10.0

# Measured on the first day; -1 means "not measured".
_PHYSIOLOGY = (
    "intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds", "urine", "wbc", "temperature",
    "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2", "pco2",
    "bun", "glucose", "bilirubin", "fio2",
)  # fmt: skip
# Known at admission. The same table's columns about the discharge would reveal the outcome.
_HISTORY = (
    "age", "gender", "thrombolytics", "aids", "hepaticfailure", "lymphoma", "metastaticcancer", "leukemia",
    "immunosuppression", "cirrhosis", "electivesurgery", "activetx", "readmit", "ima", "midur", "ventday1",
    "oobventday1", "oobintubday1", "diabetes",
)  # fmt: skip


_STAY = "patientunitstayid"


class EicuDemo(Source):
    """eICU demo: did the patient die in hospital? Uses the first day in intensive care; hospitals are clients.

    The folder (eicu-demo below the data root) holds patient, hospital, apacheapsvar, apachepredvar, admissiondx and
    treatment, each as .csv or .csv.gz; the full database has the same tables. A sample is a stay that has APACHE
    variables: x [d] holds 43 of these, standardised with means and deviations of the training stays (a missing value
    is 0, with a flag column if `min_count` stays lack it), and, as 0 and 1, admission diagnoses and treatments begun
    in the first `hours`, each present in at least `min_count` training stays. y: 1 if the patient died. Groups are the
    regions. unseen: regions (Midwest, Northeast, South, West, unknown) whose hospitals are unseen; all means,
    deviations and columns are computed without them. test_fraction: share of every hospital's patients to hold out,
    drawn by `seed`; no patient is in both splits.
    """

    source: Literal["eicu-demo"] = "eicu-demo"
    path: Path = Path("eicu-demo")
    unseen: tuple[str, ...] = ()
    hours: PositiveFloat = 24
    min_count: PositiveInt = 10
    test_fraction: float = Field(0.2, ge=0, lt=1)
    seed: NonNegativeInt = 0

    def load(self, root: Path) -> Dataset:
        """Read the tables; raises DataError naming the file and what was expected."""
        folder = locate(root, self.path)
        apache = [
            read_csv(folder, name, {_STAY: "id", **dict.fromkeys(columns, "number")})
            for name, columns in (("apacheapsvar", _PHYSIOLOGY), ("apachepredvar", _HISTORY))
        ]
        stays = _stays(folder, np.intersect1d(apache[0][_STAY], apache[1][_STAY]))
        regions = sorted(set(stays["region"].tolist()))
        for region in self.unseen:
            if region not in regions:
                raise ConfigError(f"data.unseen: no region {region!r}; {nearest(region, regions)}")
        if set(self.unseen) == set(regions):
            raise ConfigError("data.unseen: these are all regions; leave at least one region to train")
        held = hold_out_people(stays["hospital"], stays["person"], self.test_fraction, self.seed)
        fit = ~held & ~np.isin(stays["region"], self.unseen)
        values = np.concatenate([_values_of_stays(table, stays["id"]) for table in apache], axis=1)
        flags = [
            _has(ids, names, stays["id"], fit, self.min_count)
            for ids, names in (_diagnoses(folder), _treatments(folder, self.hours))
        ]
        x = np.concatenate([with_missing(values, fit, self.min_count), *flags], axis=1).astype(np.float32)
        y = stays["died"].astype(np.int64)

        train, test = Part(torch.from_numpy(x), torch.from_numpy(y), stays["hospital"], stays["region"]).split(held)
        return Dataset(self.source, train, test, Task(2, (x.shape[1],), "risk"), unseen=self.unseen)


def _stays(folder: Path, ids: Ints) -> dict[str, npt.NDArray[Any]]:
    """The stays in `ids` with a known outcome, as columns: id, person, hospital, region, died."""
    names = dict.fromkeys(("hospitalid", "uniquepid", "hospitaldischargestatus"), "text")
    patient = read_csv(folder, "patient", {_STAY: "id", **names})
    hospital = read_csv(folder, "hospital", {"hospitalid": "text", "region": "text"})
    region = {id: name or "unknown" for id, name in zip(hospital["hospitalid"], hospital["region"], strict=True)}
    status = patient["hospitaldischargestatus"]
    decided = np.isin(status, ("Alive", "Expired"))
    if not decided.any():
        raise DataError(f"{folder}: patient: no hospitaldischargestatus is Alive or Expired; expected eICU's table")
    stays = {
        "id": patient[_STAY], "person": patient["uniquepid"], "died": status == "Expired",
        "hospital": np.array([f"hospital-{id}" for id in patient["hospitalid"]], dtype=np.str_),
        "region": np.array([region.get(id, "unknown") for id in patient["hospitalid"]], dtype=np.str_),
    }  # fmt: skip
    kept = decided & np.isin(patient[_STAY], ids)
    if not kept.any():
        raise DataError(f"{folder}: no stay has a known outcome and APACHE variables")
    return {name: values[kept] for name, values in stays.items()}


def _values_of_stays(table: Mapping[str, npt.NDArray[Any]], stays: Ints) -> Floats:
    """The rows of these stays in a table, as [stays, columns]; NaN for -1 and for empty cells."""
    row = {int(id): number for number, id in enumerate(table[_STAY])}
    values = np.stack([table[column] for column in table if column != _STAY], axis=1)[[row[int(id)] for id in stays]]
    return np.where(values == -1, np.nan, values)


def _diagnoses(folder: Path) -> tuple[Ints, Names]:
    """Pairs of a stay and an admission diagnosis."""
    table = read_csv(folder, "admissiondx", {_STAY: "id", "admitdxpath": "text"})
    rows = np.char.startswith(table["admitdxpath"], "admission diagnosis|All Diagnosis|")
    last = [path.split("|")[-1] for path in table["admitdxpath"][rows].tolist()]
    return table[_STAY][rows], np.array(last, np.str_)


def _treatments(folder: Path, hours: float) -> tuple[Ints, Names]:
    """Pairs of a stay and a kind of treatment that began in these hours."""
    table = read_csv(folder, "treatment", {_STAY: "id", "treatmentoffset": "number", "treatmentstring": "text"})
    early = table["treatmentoffset"] <= 60 * hours
    kinds = ["|".join(text.split("|")[:2]) for text in table["treatmentstring"][early].tolist()]
    return table[_STAY][early], np.array(kinds, np.str_)


def _has(ids: Ints, names: Names, stays: Ints, fit: Flags, least: int) -> Floats:
    """[stays, kept] 1 if a stay has a name, from pairs of a stay and a name; see `indicators`."""
    order = np.argsort(stays)
    row = np.minimum(np.searchsorted(stays[order], ids), len(order) - 1)
    here = stays[order][row] == ids
    return indicators(order[row[here]], names[here], fit, least).astype(np.float64)


# -- tables and columns --------------------------------------------------------------------------------------------


def read_csv(folder: Path, name: str, columns: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    """These columns of folder/name.csv, or of name.csv.gz if only that exists.

    A column is "text" ("" where empty), "number" (float64, NaN where empty) or "id" (a whole number in every row).
    Raises DataError naming the file and the column.
    """
    import pyarrow.csv as pc_csv

    path = packed_or_not(folder / f"{name}.csv", "a table of that name")
    types = {"text": pa.string(), "number": pa.float64(), "id": pa.int64()}
    options = pc_csv.ConvertOptions(
        include_columns=list(columns), column_types={column: types[kind] for column, kind in columns.items()},
        strings_can_be_null=True,
    )  # fmt: skip
    try:
        parsing = pc_csv.ParseOptions(newlines_in_values=True)
        with pc_csv.open_csv(path, convert_options=options, parse_options=parsing) as batches:
            table = pa.Table.from_batches(within(batches, most(path.stat().st_size)), batches.schema)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        expected = f"expected columns {', '.join(columns)}"
        raise DataError(f"{path}: cannot be read ({error_text(error)}); {expected}") from None
    found = {}
    for column, kind in columns.items():
        values = table.column(column)
        if kind == "id" and values.null_count:
            raise DataError(f"{path}: column {column} is empty in some rows; expected a whole number in each")
        text = kind == "text"
        found[column] = np.array(values.fill_null("").to_pylist(), np.str_) if text else values.to_numpy()
    return found


def standardised(values: Floats, fit: Flags) -> Floats:
    """(value - mean) / sd of each column [n, d], with mean and sd of the rows `fit`; NaN becomes 0, the mean.

    A column without spread in these rows becomes 0; values beyond 10 sd are clipped.
    """
    fitted = np.ma.masked_invalid(values[fit])
    mean, sd = (np.ma.filled(statistic, 0.0) for statistic in (fitted.mean(0), fitted.std(0)))
    z = np.divide(values - mean, sd, out=np.zeros_like(values), where=sd > 0)
    clipped: Floats = np.clip(np.nan_to_num(z, nan=0.0), -_FAR, _FAR)
    return clipped


def with_missing(values: Floats, fit: Flags, least: int) -> Floats:
    """`standardised`, plus a 0/1 column for each column that is missing in at least `least` of the rows `fit`."""
    unknown = ~np.isfinite(values)
    often = unknown[fit].sum(0) >= least
    return np.concatenate([standardised(values, fit), unknown[:, often].astype(np.float64)], axis=1)


def indicators(rows: Ints, names: npt.NDArray[Any], fit: Flags, least: int) -> Flags:
    """[n, kept] whether a row has a name, from pairs of a row and a name; the names are sorted.

    A name is kept if at least `least` of the rows `fit` [n] have it.

    >>> indicators(np.array([0, 0, 1]), np.array(["b", "b", "a"]), np.array([True, True]), least=1).tolist()
    [[False, True], [True, False]]
    """
    kept, number = np.unique(names, return_inverse=True)
    table = np.zeros((len(fit), len(kept)), bool)
    table[rows, number] = True
    return table[:, table[fit].sum(0) >= least]


def hold_out_people(client: Names, person: Names, fraction: float, seed: int) -> Flags:
    """Which rows are test rows: all rows of `fraction` of every client's people.

    A person belongs to the client of their first row, so that no person is in both splits. The draw is keyed by
    (seed, client). A client keeps at least one person for training.
    """
    _, first, number = np.unique(person, return_index=True, return_inverse=True)
    return hold_out(client[first], fraction, seed)[number.reshape(-1)]
