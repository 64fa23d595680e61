"""The eICU Collaborative Research Database: intensive care in many hospitals of the USA.

Pollard, Johnson, Raffa, Celi, Mark, Badawi. The eICU Collaborative Research Database. Scientific Data, 2018.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pydantic import Field
from scipy import sparse

from fedkin.data.dataset import Dataset, parted
from fedkin.data.fetching import missing
from fedkin.data.sources.base import Source, locate
from fedkin.data.tables import arrays
from fedkin.errors import ConfigError, DataError, nearest
from fedkin.federation import Task
from fedkin.federation.arrays import hold_out
from fedkin.untrusted import most, said, within

Names = npt.NDArray[np.str_]
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Kind = Literal["text", "number", "id"]
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


class _Stays(Source):
    """Stays in intensive care with a known outcome, and what all sources of them share.

    path: the folder of the tables. unseen: regions (Midwest, Northeast, South, West, unknown) whose hospitals are
    unseen; all means, deviations and columns are found without them. min_count: a column is kept if at least this
    number of training stays have it. at_least_hours: shorter stays are left out. test_fraction: of every hospital's
    patients, drawn by `seed`; no patient is in both splits.
    """

    path: Path
    unseen: tuple[str, ...] = ()
    min_count: int = Field(10, ge=1)
    at_least_hours: float = Field(0, ge=0)
    test_fraction: float = Field(0.2, ge=0, lt=1)
    seed: int = Field(0, ge=0)

    def load(self, root: Path) -> Dataset:
        """Read the tables; raises DataError naming the file and what was expected."""
        folder = locate(root, self.path)
        stays = _stays(folder)
        having, records = self._records(folder)
        keep = np.isin(stays["id"], having) & (stays["minutes"] >= 60 * self.at_least_hours)
        stays = {name: values[keep] for name, values in stays.items()}
        if not len(stays["id"]):
            raise DataError(f"{folder}: no stay has a known outcome and what this source needs")
        regions = sorted(set(stays["region"].tolist()))
        for region in self.unseen:
            if region not in regions:
                raise ConfigError(f"data.unseen: no region {region!r}; {nearest(region, regions)}")
        if set(self.unseen) == set(regions):
            raise ConfigError("data.unseen: these are all regions; leave at least one region to train")
        test = hold_out_people(stays["hospital"], stays["person"], self.test_fraction, self.seed)
        x = self._inputs(records, stays, ~test & ~np.isin(stays["region"], self.unseen)).astype(np.float32)
        y = stays["died"].astype(np.int64)

        parts = parted(torch.from_numpy(x), torch.from_numpy(y), test, stays["hospital"], stays["region"])
        return Dataset(self.source, *parts, Task(2, (x.shape[1],), "risk"), unseen=self.unseen)

    @abstractmethod
    def _records(self, folder: Path) -> tuple[Ids, Any]:
        """(the stays that have what this source needs, the other tables that it needs)."""

    @abstractmethod
    def _inputs(self, records: Any, stays: Mapping[str, Any], fit: Flags) -> Floats:
        """[stays, d]: everything found from the rows `fit`."""


class EicuDemo(_Stays):
    """eICU demo: did the patient die in hospital? Uses the first day in intensive care; hospitals are clients.

    The folder (eicu-demo below the data root) holds patient, hospital, apacheapsvar, apachepredvar, admissiondx and
    treatment, each as .csv or .csv.gz; the full database has the same tables. A sample is a stay that has APACHE
    variables: x [d] holds 43 of these, standardised with means and deviations of the training stays (a missing value
    is 0, with a flag column if `min_count` stays lack it), and, as 0 and 1, admission diagnoses and treatments begun
    in the first `hours`. y: 1 if the patient died. Groups are the regions.
    """

    source: Literal["eicu-demo"] = "eicu-demo"
    path: Path = Path("eicu-demo")
    hours: float = Field(24, gt=0)

    def _records(self, folder: Path) -> tuple[Ids, Any]:
        numbers = {
            name: arrays(read_csv(folder, name, {_STAY: "id", **dict.fromkeys(columns, "number")}))
            for name, columns in (("apacheapsvar", _PHYSIOLOGY), ("apachepredvar", _HISTORY))
        }  # fmt: skip
        notes = arrays(read_csv(folder, "admissiondx", {_STAY: "id", "admitdxpath": "text"}))
        given = arrays(
            read_csv(folder, "treatment", {_STAY: "id", "treatmentoffset": "number", "treatmentstring": "text"})
        )
        diagnosis = np.char.startswith(notes["admitdxpath"], "admission diagnosis|All Diagnosis|")
        early = given["treatmentoffset"] <= 60 * self.hours
        last = [path.split("|")[-1] for path in notes["admitdxpath"][diagnosis].tolist()]
        kinds = ["|".join(text.split("|")[:2]) for text in given["treatmentstring"][early].tolist()]
        both = np.intersect1d(numbers["apacheapsvar"][_STAY], numbers["apachepredvar"][_STAY])
        return both, (numbers, ((notes[_STAY][diagnosis], _codes(last)), (given[_STAY][early], _codes(kinds))))

    def _inputs(self, records: Any, stays: Mapping[str, Any], fit: Flags) -> Floats:
        numbers, lists = records
        values = np.concatenate([_of_stays(table, stays) for table in numbers.values()], axis=1)
        had = [_has(ids, codes, stays, fit, self.min_count) for ids, codes in lists]
        return np.concatenate([filled(values, fit, self.min_count), *had], axis=1)


class Eicu(_Stays):
    """Full eICU: did the patient die in hospital? Uses the drugs of the first 48 hours (Huang et al., 2019).

    The database needs credentials; the folder (eicu below the data root) holds its patient, hospital and medication as
    .csv or .csv.gz. A sample is a stay with at least one drug ordered to start in the first `hours`: x [d] is 0 or 1
    for each drug, identified by its `drug` ("name", or "code", the HICL sequence number), that `min_count` training
    stays have; cancelled orders are ignored. y: 1 if the patient died. Hospitals are clients, regions groups.
    """

    source: Literal["eicu"] = "eicu"
    path: Path = Path("eicu")
    hours: float = Field(48, gt=0)
    drug: Literal["name", "code"] = "name"

    def _records(self, folder: Path) -> tuple[Ids, Any]:
        """The stays with drugs, and (stay, drug's code) of every valid order."""
        column = "drugname" if self.drug == "name" else "drughiclseqno"
        table = read_csv(
            folder, "medication",
            {_STAY: "id", "drugstartoffset": "number", "drugordercancelled": "text", column: "text"},
        )  # fmt: skip
        start, name = pc.field("drugstartoffset"), pc.field(column)
        # Orders from before admission are drugs that the patient took elsewhere.
        counts = (start >= 0) & (start <= 60 * self.hours) & name.is_valid()
        cancelled = pc.coalesce(pc.field("drugordercancelled"), pc.scalar("")) == "Yes"
        # There are millions of orders of a few thousand drugs: only the drugs' names become Python texts.
        table = table.filter(counts & ~cancelled)
        drugs = table.column(column).combine_chunks().dictionary_encode()
        same = _codes([text.strip().lower() for text in drugs.dictionary.to_pylist()])
        ids = table.column(_STAY).to_numpy()
        return np.unique(ids), (ids, same[drugs.indices.to_numpy()])

    def _inputs(self, records: Any, stays: Mapping[str, Any], fit: Flags) -> Floats:
        ids, codes = records
        drugs = _has(ids, codes, stays, fit, self.min_count)
        if not drugs.shape[1]:
            raise ConfigError(f"data.min_count: no drug was given in {self.min_count} training stays; set fewer")
        return drugs


_STAY = "patientunitstayid"


def _stays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Stays whose outcome is known: id, person, hospital, region, minutes in intensive care, died."""
    patient = arrays(read_csv(
        folder, "patient",
        {_STAY: "id", "hospitalid": "text", "uniquepid": "text", "unitdischargeoffset": "number",
         "hospitaldischargestatus": "text"},
    ))  # fmt: skip
    hospital = arrays(read_csv(folder, "hospital", {"hospitalid": "text", "region": "text"}))
    region = {id: name or "unknown" for id, name in zip(hospital["hospitalid"], hospital["region"], strict=True)}
    status = patient["hospitaldischargestatus"]
    decided = np.isin(status, ("Alive", "Expired"))
    if not decided.any():
        raise DataError(f"{folder}: patient: no hospitaldischargestatus is Alive or Expired; expected eICU's table")
    stays = {
        "id": patient[_STAY], "person": patient["uniquepid"], "died": status == "Expired",
        "hospital": np.array([f"hospital-{id}" for id in patient["hospitalid"]], dtype=np.str_),
        "region": np.array([region.get(id, "unknown") for id in patient["hospitalid"]], dtype=np.str_),
        "minutes": patient["unitdischargeoffset"],
    }  # fmt: skip
    return {name: values[decided] for name, values in stays.items()}


def _of_stays(table: Mapping[str, npt.NDArray[Any]], stays: Mapping[str, Any]) -> Floats:
    """[stays, columns] of a table with a row for each of these stays; NaN for -1 and for empty cells."""
    row = {int(id): number for number, id in enumerate(table[_STAY])}
    order = [row[int(id)] for id in stays["id"]]
    values = np.stack([table[column] for column in table if column != _STAY], axis=1)[order]
    return np.where(values == -1, np.nan, values)


def _codes(names: list[str]) -> Ids:
    """Names as numbers in their alphabetical order."""
    return np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)[1].astype(np.int64)


def _has(ids: Ids, codes: Ids, stays: Mapping[str, Any], fit: Flags, least: int) -> Floats:
    """Which stays have which codes, from pairs of a stay's id and a code."""
    order = np.argsort(stays["id"])
    place = np.minimum(np.searchsorted(stays["id"][order], ids), len(order) - 1)
    here = stays["id"][order][place] == ids
    return indicators(order[place[here]], codes[here], fit, least)[0].astype(np.float64)


# -- tables and columns --------------------------------------------------------------------------------------------


def read_csv(folder: Path, name: str, columns: Mapping[str, Kind]) -> pa.Table:
    """These columns of folder/name.csv, or of name.csv.gz if only that exists.

    A column is "text", "number" (empty cells are null) or "id" (a whole number in every row). Raises DataError naming
    the file and the column.
    """
    import pyarrow.csv as pc_csv

    path = next((p for p in (folder / f"{name}.csv", folder / f"{name}.csv.gz") if p.is_file()), None)
    if path is None:
        raise DataError(
            f"{folder / name}.csv: no such file, nor {name}.csv.gz; expected a table of that name{missing(folder)}"
        )
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
        raise DataError(f"{path}: cannot be read ({said(error)}); expected columns {', '.join(columns)}") from None
    for column, kind in columns.items():
        if kind == "id" and table.column(column).null_count:
            raise DataError(f"{path}: column {column} is empty in some rows; expected a whole number in each")
    return table


def standardised(values: Floats, fit: Flags) -> Floats:
    """(value - mean) / sd of each column [n, d], with mean and sd of the rows `fit`; NaN becomes 0, the mean.

    A column without spread in these rows becomes 0; values beyond 10 sd are clipped.
    """
    fitted = np.ma.masked_invalid(values[fit])
    mean, sd = (np.ma.filled(statistic, 0.0) for statistic in (fitted.mean(0), fitted.std(0)))
    z = np.divide(values - mean, sd, out=np.zeros_like(values), where=sd > 0)
    clipped: Floats = np.clip(np.nan_to_num(z, nan=0.0), -_FAR, _FAR)
    return clipped


def filled(values: Floats, fit: Flags, least: int) -> Floats:
    """`standardised`, plus a 0/1 column for each column that is missing in at least `least` of the rows `fit`."""
    unknown = ~np.isfinite(values)
    often = unknown[fit].sum(0) >= least
    return np.concatenate([standardised(values, fit), unknown[:, often].astype(np.float64)], axis=1)


def indicators(rows: Ids, codes: Ids, fit: Flags, least: int) -> tuple[Flags, Ids]:
    """(which rows have which code [n, kept], the kept codes, ascending).

    rows, codes: pairs of a row and a code. A code is kept if at least `least` of the rows `fit` [n] have it.

    >>> indicators(np.array([0, 0, 1]), np.array([7, 7, 3]), np.array([True, True]), least=1)[0].tolist()
    [[False, True], [True, False]]
    """
    kept, number = np.unique(codes, return_inverse=True)
    ones = np.ones(len(rows), np.int64)
    table = sparse.coo_array((ones, (rows, number.reshape(-1))), shape=(len(fit), len(kept))).tocsr() > 0
    often = table[fit].sum(0) >= least
    return table[:, np.flatnonzero(often)].toarray(), kept[often]


def hold_out_people(client: npt.NDArray[np.str_], person: npt.NDArray[np.str_], fraction: float, seed: int) -> Flags:
    """Which rows are test rows: all rows of `fraction` of every client's people.

    A person belongs to the client of their first row, so that no person is in both splits. The draw is keyed by
    (seed, client). A client keeps at least one person for training.
    """
    _, first, number = np.unique(person, return_index=True, return_inverse=True)
    return hold_out(client[first], fraction, seed)[number.reshape(-1)]
