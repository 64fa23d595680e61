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
import pyarrow.compute as pc
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate
from fedkin.data.tables import Flags, Floats, arrays, filled, hold_out_people, indicators, read_csv
from fedkin.errors import ConfigError, DataError, nearest
from fedkin.federation import Task

__all__ = ["Eicu", "EicuDemo"]

Names = npt.NDArray[np.str_]
Ids = npt.NDArray[np.int64]

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
        records = self._records(folder)
        keep = np.isin(stays["id"], self._with(records)) & (stays["minutes"] >= 60 * self.at_least_hours)
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

        def part(chosen: Flags) -> Part:
            return Part(
                torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen]), stays["hospital"][chosen],
                stays["region"][chosen],
            )  # fmt: skip

        task = Task(2, (x.shape[1],), "risk")
        return Dataset(self.source, part(~test), part(test), task, unseen=self.unseen)

    @abstractmethod
    def _records(self, folder: Path) -> Any:
        """The other tables that this source needs."""

    @abstractmethod
    def _with(self, records: Any) -> Ids:
        """Stays that have what this source needs."""

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

    def _records(self, folder: Path) -> Any:
        numbers = {
            name: arrays(read_csv(folder, name, {_STAY: "id", **dict.fromkeys(columns, "number")}))
            for name, columns in (("apacheapsvar", _PHYSIOLOGY), ("apachepredvar", _HISTORY))
        }  # fmt: skip
        said = arrays(read_csv(folder, "admissiondx", {_STAY: "id", "admitdxpath": "text"}))
        given = arrays(
            read_csv(folder, "treatment", {_STAY: "id", "treatmentoffset": "number", "treatmentstring": "text"})
        )
        diagnosis = np.char.startswith(said["admitdxpath"], "admission diagnosis|All Diagnosis|")
        early = given["treatmentoffset"] <= 60 * self.hours
        last = [path.split("|")[-1] for path in said["admitdxpath"][diagnosis].tolist()]
        kinds = ["|".join(text.split("|")[:2]) for text in given["treatmentstring"][early].tolist()]
        return numbers, ((said[_STAY][diagnosis], _codes(last)), (given[_STAY][early], _codes(kinds)))

    def _with(self, records: Any) -> Ids:
        first, second = (table[_STAY] for table in records[0].values())
        both: Ids = np.intersect1d(first, second)
        return both

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

    def _records(self, folder: Path) -> Any:
        """(stay, drug's code) of every valid order."""
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
        return table.column(_STAY).to_numpy(), same[drugs.indices.to_numpy()]

    def _with(self, records: Any) -> Ids:
        return np.unique(records[0])

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
    known = np.isin(status, ("Alive", "Expired"))
    if not known.any():
        raise DataError(f"{folder}: patient: no hospitaldischargestatus is Alive or Expired; expected eICU's table")
    stays = {
        "id": patient[_STAY], "person": patient["uniquepid"], "died": status == "Expired",
        "hospital": np.array([f"hospital-{id}" for id in patient["hospitalid"]], dtype=np.str_),
        "region": np.array([region.get(id, "unknown") for id in patient["hospitalid"]], dtype=np.str_),
        "minutes": patient["unitdischargeoffset"],
    }  # fmt: skip
    return {name: values[known] for name, values in stays.items()}


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
