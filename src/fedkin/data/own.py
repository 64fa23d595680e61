"""The samples of one participant: from its own table, archive or folder of images, or from its own function."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fedkin.data.csv_cells import CsvFormat
from fedkin.data.dataset import SPLITS, Dataset
from fedkin.data.sources.folder import Folder
from fedkin.data.sources.npz import read_arrays
from fedkin.data.sources.tables import Csv, Parquet, TableSource, dataset_of, warn
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Client, Federation, Scale, Task
from fedkin.federation.summaries import ColumnTypes, SharedEncoding, summary_of
from fedkin.federation.table_columns import Reading
from fedkin.tasks import Kind
from fedkin.untrusted import error_text, escaped

CLASS = "(class)"  # prefix of a class of images in the list of names that participants compare
TABLES = (".csv", ".csv.gz", ".parquet")

_SETTLED = 2.0  # seconds after a change before a file is read: somebody may still be writing it
_WHOSE = "(client)"  # an added column that holds the participant's name in every row


class OwnTable:
    """One participant's table, read with the experiment's settings; raises DataError and ConfigError.

    name: of the participant. data: a .csv, .csv.gz or .parquet file. source: of the experiment; the file may lack its
    column of clients. group: of the participant. summary: of the table. Only this summary leaves the
    participant; the summaries of all participants give the common encoding.
    """

    def __init__(self, name: str, data: str, source: TableSource, group: str | None = None) -> None:
        self.name, self.data, self.group = name, data, group
        if not data.endswith(TABLES):
            expected = "expected a .csv, .csv.gz or .parquet file"
            raise ConfigError(f"--data {escaped(data, 80)}: this federation learns from tables; {expected}")
        path = Path(data).absolute()
        if not path.is_file():
            raise DataError(f"{data}: no such file; expected a table .csv, .csv.gz or .parquet")
        own: type[TableSource] = Parquet if path.suffix == ".parquet" else Csv
        same = {"categories", "kind", "leave_out", "person"}
        if isinstance(source, Csv) and own is Csv:
            same |= set(CsvFormat.model_fields)
        table, _ = own(path=path, target=source.target, **source.model_dump(include=same)).rows(Path())
        if source.client in table.column_names:
            table = table.drop_columns([source.client])
        self.table = table.append_column(_WHOSE, pa.array([name] * table.num_rows, pa.string()))
        left_out = (*source.leave_out, source.group) if source.group in table.column_names else source.leave_out
        self.reading: Reading = source.model_copy(update={"client": _WHOSE, "group": None, "leave_out": left_out})
        warn(self.table, self.reading, data)
        self.summary = summary_of(self.table, self.reading, data, typed=isinstance(source, Parquet))

    @property
    def columns(self) -> ColumnTypes:
        """The types of the columns."""
        return self.summary.columns(self.reading)

    def keep(self, columns: ColumnTypes) -> list[str]:
        """Leave out other columns and return their names; raises DataError if one of `columns` is missing or differs.

        The summary then says nothing about the columns that are left out.
        """
        if words := self.columns.unlike(columns):
            raise DataError(f"{self.data}: {words}; expected the columns of the federation: correct the file, and come "
                            "again")  # fmt: skip
        extra = [name for name in self.summary.types if name not in columns.types]
        self.summary = self.summary.of(columns.types)
        self.reading = self.reading.model_copy(update={"leave_out": (*self.reading.leave_out, *extra)})
        return extra

    def client(self, shared: SharedEncoding) -> tuple[Client, Task]:
        """Return this participant with its samples in the common encoding, and the task."""
        dataset = dataset_of(self.table, self.reading, self.data, shared)
        mark = blake2b(shared.to_json().encode(), digest_size=6).hexdigest()
        return _client_with_all(self.name, dataset, self.group, [*shared.encoding.names, f"(encoding {mark})"])


# A participant's data: encoded samples and their task, or a table that still needs the common encoding.
OwnSamples = tuple[Client, Task] | OwnTable


class FileWatch:
    """Reads a participant's file again after each change. read: the function that reads it; raises DataError."""

    def __init__(self, path: Path, read: Callable[[], OwnSamples]) -> None:
        self.path, self.read = path, read
        self._known = self._now()

    def changed(self) -> OwnSamples | None:
        """Return the file's samples once after each change; None if it has not changed or is still being written."""
        now = self._now()
        if now in (None, self._known) or now[0] + _SETTLED > time.time():
            return None
        self._known = now
        return self.read()

    def _now(self) -> tuple[float, int] | None:
        try:
            about = self.path.stat()
        except FileNotFoundError:  # it is being replaced
            return None
        return about.st_mtime, about.st_size


def own_client(
    name: str, data: str, *, kind: Kind = "classification", classes: int | None = None, group: str | None = None,
    test_fraction: float = 0.2, seed: int = 0, changes: bool = False,
) -> tuple[Client, Task]:  # fmt: skip
    """Return one participant with its samples, and their task; raises DataError and ConfigError.

    data: a .npz file with arrays x [N, ...] and y [N, ...], or MODULE:FUNCTION, which returns {"x": ..., "y": ...}.
    Both may contain "split" [N], "train" or "test"; else `test_fraction` of the samples is held out, drawn by `seed`
    and the name. Bytes are divided by 255; other numbers are used unchanged. changes: whether the samples may change
    later; then "split" is required.
    """
    path = Path(data)
    if path.is_dir() or data.endswith(TABLES):
        kind_of_data, source = ("a folder", "folder") if path.is_dir() else ("a table", "csv")
        raise ConfigError(
            f"--data {escaped(data, 80)}: {kind_of_data}, and the experiment's source reads none; expected "
            f'data.source = "{source}" in the experiment, or a .npz file'
        )
    arrays = read_arrays(path) if path.suffix == ".npz" else _call_function(data)
    x, y = arrays["x"], arrays["y"]
    if changes and "split" not in arrays:
        raise DataError(f'{data}: no "split", which network.reread needs: where test samples are drawn anew, some of '
                        "them would have been trained on")  # fmt: skip
    try:
        count = len(y)
        scale = Scale() if getattr(x, "dtype", None) in (np.uint8, torch.uint8) else None
        federation = Federation.from_arrays(
            x, y, [name] * count, group=None if group is None else [group] * count, split=arrays.get("split"),
            test_fraction=test_fraction, classes=classes, scale=scale, seed=seed, kind=kind,
        )  # fmt: skip
    except (DataError, TypeError) as error:
        raise DataError(f"{data}: {error_text(error)}") from None
    return replace(federation[name], about={"columns": []}), federation.task


def own_images(
    name: str, data: str, source: Folder, *, classes: int | None = None, group: str | None = None
) -> tuple[Client, Task]:  # fmt: skip
    """Return one participant with its images, and their task; raises DataError and ConfigError.

    data: a folder CLASS/*.jpg, read with the settings of the experiment's source, as by all participants.
    `Client.about["columns"]` lists the names of the classes, so that participants can compare how they number them.
    classes: their number, if the experiment states it.
    """
    dataset, named = source.of_one(name, Path(data))
    if classes not in (None, len(named)):
        differ = f"images of {len(named)} classes, and network.classes is {classes}"
        raise DataError(f"{data}: {differ}; name all of them in data.classes")
    return _client_with_all(name, dataset, group, [f"{CLASS} {each}" for each in named])


def _client_with_all(name: str, dataset: Dataset, group: str | None, columns: list[str]) -> tuple[Client, Task]:
    """A client with all samples of a data set; columns: the names that participants compare."""
    train, test = (dataset.samples(split, np.arange(len(dataset.part(split)))) for split in SPLITS)
    return Client(name, train, test, group, about={"columns": columns}), dataset.task


def _call_function(data: str) -> dict[str, Any]:
    module, colon, function = data.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f"--data {escaped(data, 80)}: expected a .npz file or MODULE:FUNCTION")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        read: Callable[[], Any] = getattr(importlib.import_module(module), function)
        returned = read()
    except Exception as error:  # it is the owner's code
        raise DataError(f"{data}: {type(error).__name__}: {error_text(error)}") from None
    if not isinstance(returned, Mapping) or not {"x", "y"} <= set(returned):
        raise DataError(f'{data}: expected a dict with "x" and "y" (and "split"), got {type(returned).__name__}')
    return dict(returned)
