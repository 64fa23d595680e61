"""The outcomes of a run's last evaluation for each test sample; intervals and paired differences are based on them.

outcomes.parquet has a row per client and test sample, in the order of the client's samples: client, value, label (empty
except for risk tasks), and, if persons are known, the number of the sample's person at this client.
`fedkin.analysis.paired.Outcomes` says what a value is. A run over a network has no such file: information about single
samples never leaves a participant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedkin.analysis.calibration import brier, calibration, probabilities
from fedkin.analysis.intervals import Persons
from fedkin.analysis.paired import Outcomes
from fedkin.engines import Score
from fedkin.errors import RunError
from fedkin.records import reading
from fedkin.records.files import Stamp, write_with
from fedkin.tasks import Kind, Metric

FILE = "outcomes.parquet"
_COLUMNS = pa.schema([("client", pa.string()), ("value", pa.float64()), ("label", pa.int8())])
_PERSON = "person"
_KINDS: Mapping[str, Kind] = {
    "accuracy": "classification", "auc": "risk", "squared_error": "regression", "dice": "segmentation",
}  # fmt: skip


def outcomes_of(
    metric: Metric, scores: Mapping[str, Score], persons: Mapping[str, Persons] | None = None
) -> dict[str, Outcomes]:
    """The outcomes of each client with known single samples, by id, sorted; persons: of clients' test samples."""
    kind, outcomes = _KINDS[metric.name], dict[str, Outcomes]()
    for id, score in sorted(scores.items()):
        if kind == "risk" and len(score.digest) == 2:
            values, labels = (np.array(part, dtype=np.float64) for part in score.digest)
            # The scores or errors of a diverged model mean nothing.
            if np.isfinite(values).all():
                outcomes[id] = Outcomes(kind, values, labels.astype(np.int64))
        elif kind != "risk" and score.outcomes:
            values = np.frombuffer(score.outcomes, "<u1" if kind == "classification" else "<f4").astype(np.float64)
            if np.isfinite(values).all():
                outcomes[id] = Outcomes(kind, values)
    return {id: replace(one, persons=(persons or {}).get(id)) for id, one in outcomes.items()}


def write_outcomes(folder: Path, outcomes: Mapping[str, Outcomes]) -> Stamp | None:
    """Write the file and return its stamp; returns None and writes nothing if no single samples are known."""
    if not outcomes:
        return None
    kind = next(iter(outcomes.values())).kind
    values = np.concatenate([one.values for one in outcomes.values()])
    labels = [one.labels for one in outcomes.values() if one.labels is not None]
    ids = np.repeat(np.arange(len(outcomes), dtype=np.int32), [len(one) for one in outcomes.values()])
    table = pa.table({
        "client": pa.DictionaryArray.from_arrays(ids, pa.array(list(outcomes), pa.string())).cast(pa.string()),
        # Scores keep all digits: rounding could make two scores equal.
        "value": pa.array(values, pa.float64() if kind == "risk" else pa.float32()),
        "label": pa.array(np.concatenate(labels), pa.int8()) if labels else pa.nulls(len(ids), pa.int8()),
    })  # fmt: skip
    if any(one.persons is not None for one in outcomes.values()):
        persons = [[None] * len(one) if one.persons is None else one.persons.tolist() for one in outcomes.values()]
        table = table.append_column(_PERSON, pa.array(chain.from_iterable(persons), pa.int32()))
    return write_with(folder / FILE, lambda partial: pq.write_table(table, partial, compression="zstd"), sync=False)


def read_outcomes(folder: Path, metric: Metric) -> dict[str, Outcomes]:
    """Read the outcomes by client; empty if the run stored none. Raises RunError naming the file."""
    path, kind = folder / FILE, _KINDS[metric.name]
    if not path.exists():
        return {}
    table = reading.table_of(path, _COLUMNS, gaps=["label"])
    ids = np.array(table.column("client").to_pylist(), dtype=object)
    values = table.column("value").to_numpy().astype(np.float64)
    if kind == "risk" and table.column("label").null_count:
        raise RunError(f"{path}: column 'label': a risk task has a label for each sample; {reading.MEND}")
    labels = table.column("label").to_numpy().astype(np.int64) if kind == "risk" else None
    persons = _persons_in(table)
    places: dict[str, list[int]] = {}
    for row, id in enumerate(ids):
        places.setdefault(id, []).append(row)
    try:
        return {
            id: Outcomes(
                kind, values[at], None if labels is None else labels[at],
                None if persons is None or (persons[at] < 0).any() else persons[at],
            ) for id, at in sorted(places.items())
        }  # fmt: skip
    except ValueError as error:
        raise RunError(f"{path}: not the outcomes of a run ({error}); {reading.MEND}") from None


def _persons_in(table: pa.Table) -> Persons | None:
    """[n] the number of each sample's person, -1 if unknown; None without the column."""
    if _PERSON not in table.column_names:
        return None
    return np.asarray(table.column(_PERSON).cast(pa.int64()).fill_null(-1))


def risks_in(outcomes: Iterable[Outcomes]) -> tuple[Any, Any, Persons | None] | None:
    """The risks, labels and persons of all these samples together; None if this is no risk task.

    persons: None if no client's persons are known; a sample of unknown person is its own.
    """
    known = [(one.values, one.labels, one.persons) for one in outcomes if one.labels is not None]
    if not known:
        return None
    values, labels = (np.concatenate(part) for part in list(zip(*known, strict=True))[:2])
    units, start = list[Persons](), 0
    for one, _, persons in known:
        units.append(start + (np.arange(len(one)) if persons is None else persons))
        start = int(units[-1].max(initial=start)) + 1
    several = any(persons is not None for *_, persons in known)
    return probabilities(values), labels, np.concatenate(units) if several else None


def calibration_of(outcomes: Mapping[str, Outcomes]) -> dict[str, float | None]:
    """Calibration of the risks of all clients' models, over the test samples of all clients together.

    brier: the mean squared difference of risk and event; brier_none: the same for a constant risk; slope, with
    slope_low and slope_high, and large: from the logistic regression of the event on the logit of the risk (see
    `fedkin.analysis.calibration`), None if undefined. Empty for other tasks than risk.
    """
    if (pair := risks_in(outcomes.values())) is None:
        return {}
    risks, labels, persons = pair
    fit, share = calibration(risks, labels, persons), float(labels.mean())
    figures: dict[str, float | None] = {"brier": brier(risks, labels), "brier_none": share * (1 - share)}
    low, high = (None, None) if fit is None else fit.slope_interval
    return figures | {
        "slope": None if fit is None else fit.slope, "slope_low": low, "slope_high": high,
        "large": None if fit is None else fit.large,
    }  # fmt: skip
