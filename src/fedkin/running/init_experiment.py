"""A first experiment for your own data: tables, an archive of arrays, a folder of images, a saved dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
import torch

from fedkin.data.dataset import Dataset
from fedkin.data.guess import is_saved, is_standard_scale, of_arrays, of_images, of_saved
from fedkin.data.inspection import Finding, Inspection, without
from fedkin.data.inspection import inspect as inspected
from fedkin.data.sources.folder import ENDINGS
from fedkin.data.sources.tables import Csv, Parquet, TableSource
from fedkin.errors import ConfigError, DataError, first_few
from fedkin.federation import Federation
from fedkin.federation.table_columns import Reading
from fedkin.running.experiment import Experiment
from fedkin.settings import parse
from fedkin.untrusted import escaped

Kind = Literal["csv", "parquet", "npz", "folder", "hub"]

# Convolutional nets need images with at least this many pixels on each side.
_LEAST = 8
# For data without clients: the largest number of clients, and the least number of samples of each.
_CLIENTS, _SAMPLES = 10, 20
_FOLDERS = (
    'Each folder is a client. For domains that several share: data.folders = "domains", scenario.name = "domains".'
)
# Settings that only CSV files have.
_CSV = ("decimal", "thousands", "missing", "dates")
_SCALED = "mean and std are those of all clients' training samples."


# What the user says: target, client, time, group, person, kind, leave_out, and the settings of CSV files.
DataOptions = Mapping[str, Any]


def check_allowed(given: DataOptions, names: Collection[str], instead: str) -> None:
    """Raise ConfigError if any other option than these was given."""
    for name in given:
        if name not in names:
            raise ConfigError(f"--{name.replace('_', '-')}: not for these data; {instead}")


@dataclass(frozen=True)
class FirstExperiment:
    """A first experiment. table: as in an experiment file; federation: its clients, if they had to be made."""

    table: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    federation: Federation | None = None

    @property
    def text(self) -> str:
        """The experiment file."""
        head = [
            "# A first experiment, written by fedkin init. The rate is a guess: `fedkin tune` finds a better one.",
            *(f"# {escaped(finding.sentence)}" for finding in self.findings),
            *(f"# {note}" for note in self.notes),
        ]
        return "\n".join(head) + "\n" + tomli_w.dumps(self.table)


def kind_of(data: Path) -> Kind:
    """The name of the source that reads this path; raises ConfigError if there is none."""
    names = [path.name for path in data.iterdir()] if data.is_dir() else [data.name]
    if is_saved(data):
        return "hub"
    if any(name.lower().endswith(Csv.endings) for name in names):
        return "csv"
    if any(name.lower().endswith(Parquet.endings) for name in names):
        return "parquet"
    if not data.is_dir() and data.suffix == ".npz":
        return "npz"
    if _holds_images(data, "*/*/*"):
        return "folder"
    raise _no_source(data)


def _no_source(data: Path) -> ConfigError:
    """Return the error for a path that no source reads."""
    if _holds_images(data, "*") or _holds_images(data, "*/*"):
        return ConfigError(f"{data}: its images do not say whose they are; put them in folders CLIENT/CLASS/, one for "
                           "each client")  # fmt: skip
    expected = ", ".join((*Csv.endings, *Parquet.endings))
    return ConfigError(
        f"{data}: {'' if data.exists() else 'no such file or folder; '}expected a file, or a folder of files, that "
        f"ends with {expected}; a .npz file; a folder of images CLIENT/CLASS/*.png; or a dataset that save_to_disk "
        "wrote"
    )


def _holds_images(data: Path, pattern: str) -> bool:
    return data.is_dir() and any(path.suffix.lower() in ENDINGS for path in data.glob(pattern))


def first_experiment(data: Path, given: DataOptions) -> FirstExperiment:
    """Return a first experiment on these data, ready to run.

    Raises ConfigError for options that do not fit the data or are missing, and DataError for data that cannot be read.
    """
    kind = kind_of(data)
    if kind in ("csv", "parquet"):
        return _of_table(data, given)
    notes: Sequence[str] = ()
    path = data.absolute()
    if kind == "npz":
        check_allowed(
            given, ("kind",), "a .npz file says this in its arrays x, y and, if you have them, client, group and split"
        )
        settings, dataset = of_arrays(path, given.get("kind"))
        notes = [_SCALED] if "mean" in settings else []
    elif kind == "folder":
        check_allowed(given, (), "a folder of images is CLIENT/CLASS/*.png, and needs nothing else")
        settings, dataset = of_images(path)
        notes = [_FOLDERS]
    else:
        known = ("target", "client", "group", "person", "kind", "leave_out")
        check_allowed(given, known, "a saved dataset has splits of its own")
        settings, dataset = of_saved(path, dict(given))
    return _of_dataset(_name_of(data), settings, dataset, notes)


def _name_of(data: Path) -> str:
    return data.absolute().name.split(".")[0] or "first"


def _table(
    name: str, data: Mapping[str, Any], scenario: Mapping[str, Any], model: Mapping[str, Any], size: int
) -> dict[str, Any]:
    """The table of an experiment. size: number of samples of a typical client."""
    return {
        "name": name, "data": {name: value for name, value in data.items() if value is not None},
        "scenario": dict(scenario), "model": dict(model),
        "training": {"rounds": 40, "local_steps": 5, "batch_size": min(32, max(4, size)), "lr": 0.1},
        "method": {"name": "kin"},
    }  # fmt: skip


# -- tables --------------------------------------------------------------------------------------------------------


def table_source(data: Path, given: DataOptions) -> TableSource:
    """The source that reads this table."""
    kind = kind_of(data)
    if kind == "parquet":
        check_allowed(given, given.keys() - set(_CSV), "a Parquet file has numbers and dates of its own")
    settings = {"target": "", **given, "path": str(data.absolute())}
    return parse(Parquet if kind == "parquet" else Csv, settings, "data")


def inspected_table(source: TableSource, data: Path) -> tuple[Reading, Inspection]:
    """Return (the roles of the columns, an inspection of the table)."""
    table, reading = source.table(Path())
    return reading, inspected(table, reading, str(data))


def _of_table(data: Path, given: DataOptions) -> FirstExperiment:
    source = table_source(data, given)
    if "target" not in given:
        columns = source.rows(Path())[0].column_names
        raise ConfigError(f"--target: name the column to predict; {data} has {first_few(columns, 40)}")
    whole, inspection = inspected_table(source, data)
    coded = [name for finding in inspection.findings if finding.kind == "codes" for name in finding.about]
    code_findings = [
        Finding("codes", f"column {name!r} is in categories, since its numbers have leading zeros: if it is a number, "
                "take it out of there", (name,)) for name in coded
    ]  # fmt: skip
    if coded:
        source = source.model_copy(update={"categories": tuple(coded)})
        whole, inspection = inspected_table(source, data)
    reading = without(whole, inspection)
    settings = {
        "source": source.source, "path": str(data.absolute()), "target": reading.target, "client": source.client,
        "time": reading.time, "group": reading.group, "person": reading.person,
        "kind": inspection.encoded.target.kind, "leave_out": list(reading.leave_out) or None,
        "categories": coded or None,
        **{name: value for name, value in given.items() if name in _CSV},
    }  # fmt: skip
    sizes = sorted(one.train for one in inspection.clients)
    table = _table(
        _name_of(data), settings, {"name": "natural"}, {"name": "mlp", "hidden": [32]}, sizes[len(sizes) // 2]
    )
    return FirstExperiment(table, (*inspection.findings, *code_findings))


# -- other data ----------------------------------------------------------------------------------------------------


def _of_dataset(name: str, settings: Mapping[str, Any], dataset: Dataset, notes: Sequence[str]) -> FirstExperiment:
    """The experiment with a scenario and a net that fit the data set; makes clients and net once, as a check."""
    owner, count = dataset.train.client, len(dataset.train)
    if owner is not None:
        scenario: dict[str, Any] = {"name": "natural"}
        sizes = np.sort(np.unique(owner, return_counts=True)[1])
        size = int(sizes[len(sizes) // 2])
    elif not len(dataset.test):
        raise DataError(
            f"{settings['path']}: no test samples; mark some, or leave the split out, so that a fifth is drawn"
        )
    else:
        clients = max(1, min(_CLIENTS, count // _SAMPLES, len(dataset.test)))
        scenario, size = {"name": "iid", "clients": clients}, count // clients
        notes = (
            *notes,
            f"The data do not say whose they are: they are dealt at random to {clients} client{'s' * (clients != 1)}.",
        )
    table = _table(name, settings, scenario, _model(dataset), size)
    experiment = Experiment.of(table)
    federation = experiment.scenario.federation(dataset, experiment.run.seed)
    experiment.setup(federation)
    return FirstExperiment(table, tuple(_scale_findings(dataset)), tuple(notes), federation)


def _model(dataset: Dataset) -> dict[str, Any]:
    """A small net that takes these inputs."""
    shape = tuple(dataset.train.x.shape[1:])
    if dataset.train.x.dtype == torch.int64 and dataset.scale is None:
        return {"name": "text-mean"}
    if len(shape) == 3 and shape[0] <= 4 and min(shape[1:]) >= _LEAST and dataset.task.labels:
        return {"name": "small-plain"}
    return {"name": "mlp", "hidden": [32]}


def _scale_findings(dataset: Dataset) -> list[Finding]:
    """Find regression targets whose scale does not fit a rate of .1; targets of a table are standardised already."""
    if dataset.task.kind != "regression" or dataset.target is not None:
        return []
    y = dataset.train.y.double()
    deviation, mean = torch.std_mean(y, 0, correction=0)
    if is_standard_scale(mean, deviation):
        return []
    size = f"targets have means up to {mean.abs().max():.3g} and deviations up to {deviation.max():.3g}"
    return [Finding("scale", f"{size}: subtract the mean and divide by the deviation, or training may diverge")]
