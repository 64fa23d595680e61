"""Hugging Face datasets, from disk or by name. Needs the package datasets, an optional extra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pydantic import PositiveInt, model_validator

from fedkin.data.dataset import Dataset
from fedkin.data.sources.base import locate
from fedkin.data.sources.folder import as_bytes
from fedkin.data.sources.tables import TableSettings, dataset_beside, dataset_of
from fedkin.errors import DataError, imported, nearest
from fedkin.federation import Scale
from fedkin.federation.arrays import picture
from fedkin.federation.table_columns import Reading
from fedkin.federation.table_encoding import Target
from fedkin.untrusted import error_text

_SPLIT, _WHOSE = "(split)", "(client)"  # names of added columns


class Hub(TableSettings):
    """A Hugging Face dataset: from a folder that `save_to_disk` wrote (path), or by its name on the Hub (hub).

    path: absolute, or below the data root, or else below the current folder. hub, config, revision: the dataset's name,
    its configuration, and its commit or branch. train, test: names of its splits; without the split `test`, and in a
    dataset without splits, samples are held out as with a table. Inputs are the column `image` (bytes, channels first,
    divided by 255; images of different sizes need `size`, to which all are stretched), the column `tokens` (whole
    numbers, cut to `length` and filled up with `padding`), or else all other columns, as with a table.
    `Federation.from_frame` explains the other settings. A name is looked up on the Hub, or read from its cache if
    HF_HUB_OFFLINE is set; no code of a dataset is run.
    """

    source: Literal["hub"] = "hub"
    path: Path | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    train: str = "train"
    test: str | None = None
    image: str | None = None
    size: PositiveInt | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("give path (a folder of save_to_disk) or hub (a name), not both")
        if self.hub is None and (self.config is not None or self.revision is not None):
            raise ValueError("config and revision are of a dataset on the Hub; leave them out with path")
        if self.image is not None and self.tokens is not None:
            raise ValueError("give image or tokens, not both")
        if self.client is None and self.image is None and self.tokens is None:
            raise ValueError("client: name the column that says whose each row is")
        return self

    def load(self, root: Path) -> Dataset:
        """Read the dataset; raises DataError naming it, the column and the row, ConfigError without datasets."""
        where = self._where(root)
        rows, is_test = self._splits(self.opened(root), where)
        self._check_columns(rows.column_names, where)
        if self.image is None and self.tokens is None:
            return dataset_of(*self._with_split(_with_names(rows), {}, is_test), where)
        return self._beside(rows, is_test, where)

    def _beside(self, rows: Any, is_test: npt.NDArray[np.bool_] | None, where: str) -> Dataset:
        """The data set of pictures or token ids, with the other columns that have a role."""
        roles = {self.target, self.client, self.group, self.person, self.time, self.split}
        table = _with_names(rows.select_columns([name for name in rows.column_names if name in roles]))
        classes = getattr(rows.features[self.target], "names", ())
        numeric = pa.types.is_floating(table.schema.field(self.target).type)
        kind = self.kind or ("regression" if numeric else "classification")
        if self.client is None:
            # A share of each class is held out; numbers are one class.
            labels = pc.fill_null(table.column(self.target).cast(pa.string()), "(unknown)")
            strata = pa.array(["(all)"] * len(table)) if kind == "regression" else labels
            table = table.append_column(_WHOSE, strata)
        changes = {"client": self.client or _WHOSE, "kind": kind, "leave_out": (), "categories": ()}
        table, reading = self._with_split(table, changes, is_test)
        target = Target(kind, tuple(classes)) if len(classes) > 1 and kind != "regression" else None
        if self.image is None:
            x, scale = self.ids(rows.with_format("arrow")[:].column(self.tokens).to_pylist(), where), None
        else:
            x, scale = self._pictures(rows, where), Scale()
        dataset = dataset_beside(x, table, reading, where, target, scale)
        if self.client is not None:
            return dataset
        return replace(dataset, train=replace(dataset.train, client=None), test=replace(dataset.test, client=None))

    def _check_columns(self, columns: list[str], where: str) -> None:
        """Raise DataError if the column of a role is missing, or a column has a name that is added."""
        for role in ("target", "client", "group", "image", "tokens"):
            name = getattr(self, role)
            if name is not None and name not in columns:
                raise DataError(f"{where}: data.{role}: no column {name!r}; {nearest(name, columns)}")
        if odd := {_SPLIT, _WHOSE} & set(columns):
            raise DataError(f"{where}: a column is called {odd.pop()!r}; rename it")

    def _where(self, root: Path) -> str:
        """The folder, or the name on the Hub."""
        return str(locate(root, self.path)) if self.path is not None else str(self.hub)

    def opened(self, root: Path) -> Any:
        """A Dataset or DatasetDict; raises DataError, ConfigError without datasets."""
        datasets = imported("datasets", "data.source = 'hub'", "hub")
        try:
            if self.path is not None:
                return datasets.load_from_disk(self._where(root))
            return datasets.load_dataset(self.hub, self.config, revision=self.revision)
        except Exception as error:  # errors of files, of the network, of the Hub
            what = "a folder that save_to_disk wrote" if self.path is not None else "the name of a dataset on the Hub"
            reason = f"{type(error).__name__}: {error_text(error)}"
            raise DataError(f"{self._where(root)}: cannot be opened ({reason}); expected {what}") from None

    def _splits(self, opened: Any, where: str) -> tuple[Any, npt.NDArray[np.bool_] | None]:
        """(all samples, [n] True for test samples; None without a test split)."""
        import datasets

        if not isinstance(opened, Mapping):
            return opened, None
        for role, name in (("train", self.train), ("test", self.test)):
            if name is not None and name not in opened:
                raise DataError(f"{where}: data.{role}: no split {name!r}; {nearest(name, list(opened))}")
        other = self.test or ("test" if "test" in opened and self.train != "test" else None)
        if other is None:
            return opened[self.train], None
        both = [opened[self.train], opened[other]]
        if both[0].features != both[1].features:
            raise DataError(f"{where}: the splits {self.train!r} and {other!r} have unlike columns; expected the same")
        test = np.arange(sum(map(len, both))) >= len(both[0])
        return datasets.concatenate_datasets(both), test

    def _with_split(
        self, table: pa.Table, changes: dict[str, Any], is_test: npt.NDArray[np.bool_] | None
    ) -> tuple[pa.Table, Reading]:
        """(the table, the roles of its columns), with an added split column if the dataset has a test split."""
        if is_test is not None and self.split is None:
            table = table.append_column(_SPLIT, pa.array(np.where(is_test, "test", "train")))
            changes = {**changes, "split": _SPLIT}
        return table, self.model_copy(update=changes)

    def _pictures(self, rows: Any, where: str) -> torch.Tensor:
        """[n, 1 or 3, height, width] bytes."""
        pictures = np.empty(0, np.uint8)
        for row in range(len(rows)):
            location = f"{where}: row {row}: {self.image!r}"
            try:
                image = rows[row][self.image]
                if hasattr(image, "convert"):
                    image = as_bytes(image)
            except Exception as error:  # on a damaged image the decoders raise many kinds of exceptions
                raise DataError(f"{location} cannot be read ({error_text(error)})") from None
            if not hasattr(image, "convert"):
                how = "cast the column to datasets.Image()"
                raise DataError(f"{location}: expected a picture, got {type(image).__name__}; {how}")
            pixels = picture(image if self.size is None else image.resize((self.size, self.size), 2))
            if not row:
                pictures = np.empty((len(rows), *pixels.shape), np.uint8)
            if pixels.shape != pictures.shape[1:]:
                shapes = f"{list(pixels.shape)}, those before have {list(pictures.shape[1:])} [channels, height, width]"
                raise DataError(f"{where}: row {row}: a picture of {shapes}; set data.size, or convert them")
            pictures[row] = pixels
        return torch.from_numpy(pictures)


def _with_names(rows: Any) -> pa.Table:
    """The columns as a table, with the names of classes in place of their numbers."""
    table: pa.Table = rows.with_format("arrow")[:]
    for column, name in enumerate(table.column_names):
        feature = rows.features[name]
        if hasattr(feature, "int2str"):
            numbers = table.column(name).to_pylist()
            names = [None if number is None or number < 0 else feature.int2str(number) for number in numbers]
            table = table.set_column(column, name, pa.array(names, pa.string()))
    return table
