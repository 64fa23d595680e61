"""The samples of one participant: its own table, archive or folder of images, or what a function of its own returns."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from fedkin.data.sources.folder import Folder
from fedkin.data.sources.npz import opened
from fedkin.data.sources.tables import Csv, Parquet, TableSource, dataset_of, warn
from fedkin.errors import ConfigError, DataError, nearest
from fedkin.federation import Client, Federation, Scale, Task
from fedkin.federation.summaries import ColumnTypes, SharedEncoding, summary_of
from fedkin.federation.table import Reading, name_of_type, numbers, texts
from fedkin.tasks import Kind
from fedkin.untrusted import said, shown

CLASS = "(class)"  # before a class of images, where participants compare the names of columns
TABLES = (".csv", ".csv.gz", ".parquet")

_WHOSE = "(client)"  # a column that no file has: its name is the participant's own


class OwnTable:
    """One participant's table, read as the experiment says; raises DataError and ConfigError.

    name: of the participant. data: a .csv, .csv.gz or .parquet file. source: the experiment's, whose column of clients
    the file may have or not. group: its own. told: all that leaves the participant, so that all encode their tables
    alike.
    """

    def __init__(self, name: str, data: str, source: TableSource, group: str | None = None) -> None:
        self.name, self.data, self.group = name, data, group
        if not data.endswith(TABLES):
            raise ConfigError(f"--data {shown(data, 80)}: this federation learns from tables; expected a .csv, .csv.gz "
                              "or .parquet file")  # fmt: skip
        path = Path(data).absolute()
        if not path.is_file():
            raise DataError(f"{data}: no such file; expected a table .csv, .csv.gz or .parquet")
        own: type[TableSource] = Parquet if path.suffix == ".parquet" else Csv
        same = {"categories", "kind", "leave_out", "person"}
        if isinstance(source, Csv) and own is Csv:
            same |= {"delimiter", "decimal", "thousands", "missing", "dates"}
        table, _ = own(path=path, target=source.target, **source.model_dump(include=same)).rows(Path())
        if source.client in table.column_names:
            table = table.drop_columns([source.client])
        self.table = table.append_column(_WHOSE, pa.array([name] * table.num_rows, pa.string()))
        self.reading = replace(source.reading(_WHOSE), group=None)
        if source.group in table.column_names:
            self.reading = replace(self.reading, leave_out=(*self.reading.leave_out, str(source.group)))
        warn(self.table, self.reading, data)
        self.told = summary_of(self.table, self.reading, data, typed=isinstance(source, Parquet))

    def keep(self, columns: ColumnTypes) -> list[str]:
        """Leave out the columns that are not among these, and return their names; raises DataError for one that lacks.

        Of what is left out nothing leaves.
        """
        if words := self.told.columns.unlike(columns):
            raise DataError(f"{self.data}: {words}; expected the columns of the federation: correct the file, and come "
                            "again")  # fmt: skip
        extra = [name for name in self.told.types if name not in columns.types]
        self.told = self.told.of(columns.types)
        self.reading = replace(self.reading, leave_out=(*self.reading.leave_out, *extra))
        return extra

    def client(self, shared: SharedEncoding) -> tuple[Client, Task]:
        """Return this participant with its samples, encoded as all are, and the task."""
        made = dataset_of(self.table, self.reading, self.data, shared)
        train, test = (made.samples(split, np.arange(len(made.part(split)))) for split in ("train", "test"))
        mark = blake2b(shared.to_json().encode(), digest_size=6).hexdigest()
        columns = [*shared.encoding.names, f"(encoding {mark})"]
        return Client(self.name, train, test, self.group, about={"columns": columns}), made.task


def own_client(
    name: str, data: str, *, target: str | None = None, kind: Kind = "classification", classes: int | None = None,
    group: str | None = None, test_fraction: float = 0.2, seed: int = 0,
) -> tuple[Client, Task]:  # fmt: skip
    """Return one participant with its samples, and their task; raises DataError and ConfigError.

    data: a file, or MODULE:FUNCTION. For a folder of images see `own_images`.
    .csv, .csv.gz, .parquet   numbers in every column, in the order of the columns' names, which are in
                              `Client.about["columns"]`; `target` is the column to learn
    .npz                      arrays x [N, ...] and y [N, ...]
    MODULE:FUNCTION           a function that returns {"x": ..., "y": ...} as arrays
    Each may have "split" [N], "train" or "test"; else `test_fraction` of the samples is held out, drawn by `seed` and
    the name. Bytes are divided by 255; other numbers are used as they are.
    """
    path = Path(data)
    if path.is_dir():
        raise ConfigError(f"--data {shown(data, 80)}: a folder, and the experiment's source reads no images; expected "
                          'data.source = "folder", or a file')  # fmt: skip
    if path.suffix in (".csv", ".gz", ".parquet"):
        held = _table(path, target, kind)
    elif target is not None:
        raise ConfigError(f"--target {target}: this is for a table (.csv, .parquet), and the data are {data}")
    elif path.suffix == ".npz":
        held = opened(path)
    else:
        held = _returned(data)
    x, y = held["x"], held["y"]
    try:
        count = len(y)
        scale = Scale() if getattr(x, "dtype", None) in (np.uint8, torch.uint8) else None
        federation = Federation.from_arrays(
            x, y, [name] * count, group=None if group is None else [group] * count, split=held.get("split"),
            test_fraction=test_fraction, classes=classes, scale=scale, seed=seed, kind=kind,
        )  # fmt: skip
    except (DataError, TypeError) as error:
        raise DataError(f"{data}: {said(error)}") from None
    return replace(federation[name], about={"columns": held.get("columns", [])}), federation.task


def own_images(
    name: str, data: str, source: Folder, *, classes: int | None = None, group: str | None = None
) -> tuple[Client, Task]:  # fmt: skip
    """Return one participant with its images, and their task; raises DataError and ConfigError.

    data: a folder CLASS/*.jpg, read as the experiment's source reads that of a client, so that all read alike. The
    names of the classes are in `Client.about["columns"]`, by which participants compare how they number them.
    classes: how many the experiment says that there are.
    """
    made, named = source.of_one(name, Path(data))
    if classes not in (None, len(named)):
        raise DataError(
            f"{data}: images of {len(named)} classes, and network.classes is {classes}; name all of them in "
            "data.classes"
        )
    train, test = (made.samples(split, np.arange(len(made.part(split)))) for split in ("train", "test"))
    return Client(name, train, test, group, about={"columns": [f"{CLASS} {each}" for each in named]}), made.task


def _table(path: Path, target: str | None, kind: Kind) -> dict[str, Any]:
    """x, y, "columns", and perhaps "split" of a table of numbers."""
    if target is None:
        raise ConfigError(f"--target NAME: which column of {path} is to be learned?")
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a table .csv, .csv.gz or .parquet")
    source = Parquet if path.suffix == ".parquet" else Csv
    table, _ = source(path=path.absolute(), target=target).rows(Path())
    columns = table.column_names
    if len(set(columns)) < len(columns) or not all(columns):
        raise DataError(f"{path}: expected a name for each column, every one differently")
    if target not in columns:
        raise DataError(f"{path}: no column {shown(target, 60)!r}; {nearest(target, columns)}")
    warn(table, Reading(target, "", split="split"), str(path), "if they are codes, the experiment's source must be a "
         "table, with data.categories, or leave them out")  # fmt: skip
    names = sorted(set(columns) - {target, "split"})
    if not names:
        raise DataError(f"{path}: no column but {target!r}; expected columns of numbers to learn from")
    y = _numbers(table, target, path)
    if kind != "regression":
        if (y % 1).any():
            raise DataError(f"{path}: column {target!r}: expected classes as whole numbers from 0, got "
                            f"{y[y % 1 != 0][0]:g}")  # fmt: skip
        y = y.astype(np.int64)
    x = np.stack([_numbers(table, name, path) for name in names], axis=1).astype(np.float32)
    split = {"split": texts(table, "split").astype(np.str_)} if "split" in columns else {}
    return {"x": x, "y": y, "columns": names, **split}


def _numbers(table: pa.Table, name: str, path: Path) -> npt.NDArray[np.float64]:
    kind = table.schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{path}: column {name!r}: expected numbers, got {name_of_type(kind)}; leave it out, or write it as numbers"
        )
    values = numbers(table, name)
    if np.isnan(values).any():
        row = int(np.flatnonzero(np.isnan(values))[0])
        raise DataError(
            f"{path}: column {name!r}: row {row + 1} is empty or no finite number; fill it, or leave the row out"
        )
    return values


def _returned(data: str) -> dict[str, Any]:
    module, colon, function = data.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f"--data {shown(data, 80)}: expected a file (.csv, .parquet, .npz) or MODULE:FUNCTION")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        read: Callable[[], Any] = getattr(importlib.import_module(module), function)
        held = read()
    except Exception as error:  # it is the owner's code
        raise DataError(f"{data}: {type(error).__name__}: {said(error)}") from None
    if not isinstance(held, Mapping) or not {"x", "y"} <= set(held):
        raise DataError(f'{data}: expected a dict with "x" and "y" (and "split"), got {type(held).__name__}')
    return dict(held)
