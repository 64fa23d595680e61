"""Your own arrays in a numpy archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source, locate, need_file
from fedkin.errors import DataError
from fedkin.federation import Scale, Task
from fedkin.federation.arrays import as_inputs, check_count, hold_out, need_finite, owners, targets_of, which_test
from fedkin.federation.inputs import CODES
from fedkin.untrusted import Refused, arrays_in, error_text, escaped

_NAMES = ("x", "y", "client", "group", "split")


class Npz(Source):
    """Your own arrays, from a numpy .npz file (pickled objects are never loaded).

    x [N, ...] numbers; y [N] whole numbers or texts, or the numbers [N] or [N, targets] of a regression; and, if you
    have them, client [N] (the client of each sample), group [N] (the client's planted group), split [N] ("train" or
    "test").

    path: absolute, or below the data root, or else below the current folder. channels: the position of the channel,
    "first" [N, C, ...] or none in particular (x is used unchanged), "last" [N, H, W, C], "none" [N, H, W].
    classes: their number; labels then must be 0..classes-1. Without it the distinct labels, sorted, become
    0..C-1. kind: "risk" judges two classes by ROC-AUC, not accuracy; the event is the later label. "regression"
    takes numbers unchanged. codes: whole numbers in x are token ids or category codes, and stay whole. Inputs are
    (x / divide - mean) / std; the default of divide is 255 for bytes and 1 otherwise; mean and std have one value,
    or one per channel. Without split, `test_fraction` of every client's samples (of every class, without client) is
    held out, drawn by `seed`.
    """

    source: Literal["npz"] = "npz"
    path: Path
    channels: Literal["first", "last", "none"] = "first"
    classes: int | None = Field(None, ge=2)
    kind: Literal["classification", "risk", "regression"] = "classification"
    codes: bool = False
    divide: PositiveFloat | None = None
    mean: tuple[float, ...] = Field((0.0,), min_length=1)
    std: tuple[PositiveFloat, ...] = Field((1.0,), min_length=1)
    test_fraction: float = Field(0.2, ge=0, lt=1)
    seed: NonNegativeInt = 0

    def load(self, root: Path) -> Dataset:
        """Read the file; raises DataError naming it, the array and what was expected."""
        path = locate(root, self.path)
        arrays = read_arrays(path)
        x = self._inputs(arrays["x"], path)
        client = group = None
        try:
            need_finite(x, "x", None)
            if "client" in arrays:
                client, _, groups = owners(arrays["client"], arrays.get("group"), len(x))
                group = np.array([groups[id] for id in client.tolist()]) if groups else None
            elif "group" in arrays:
                raise DataError("group is there, but no array client; expected both")
            task, y = self._targets(arrays["y"], client, tuple(x.shape))
            if "split" in arrays:
                is_test = which_test(arrays["split"], "split", len(x))
            else:
                each = y.astype(np.str_) if task.labels else np.full(len(x), "all")
                is_test = hold_out(each if client is None else client, self.test_fraction, self.seed)
            if is_test.all():
                raise DataError("split leaves no training sample; expected at least one 'train'")
        except DataError as error:
            raise DataError(f"{path}: array {error}") from None

        train, test = Part(x, torch.from_numpy(y), client, group).split(is_test)
        return Dataset(path.stem, train, test, task, self._scale(x, path))

    def _inputs(self, array: npt.NDArray[Any], path: Path) -> torch.Tensor:
        where = f"{path}: array x"
        form = {"last": "[N, H, W, C]", "none": "[N, H, W]", "first": ""}[self.channels]
        if form and array.ndim != form.count(",") + 1:
            got = f'as channels = "{self.channels}" says, got {list(array.shape)}'
            raise DataError(f"{where}: expected {form}, {got}")
        if self.channels == "last":
            array = np.moveaxis(array, -1, 1)
        elif self.channels == "none":
            array = array[:, None]
        x = as_inputs(array, where, codes=self.codes)
        if self.codes and x.dtype not in CODES:
            raise DataError(f"{where}: expected int32 or int64, as data.codes = true says, got {array.dtype}")
        return x

    def _numbered(self, y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
        """(labels as 0, 1, ..., the number of classes)."""
        if y.dtype.kind not in "buiUS":
            raise DataError(f"y: expected whole numbers or texts, got dtype {y.dtype}")
        values, y = np.unique(y, return_inverse=True)
        if self.kind == "risk" and values.dtype.kind in "US":  # the event is Yes, not no
            y = np.argsort(np.argsort(np.char.lower(values), kind="stable"))[y]
        if len(values) < 2:
            raise DataError(f"y: all labels are {values[0]!s}; expected at least 2 different ones")
        return y, len(values)

    def _targets(
        self, y: npt.NDArray[Any], client: npt.NDArray[np.str_] | None, shape: tuple[int, ...]
    ) -> tuple[Task, npt.NDArray[Any]]:
        """(the task, targets in its form); distinct labels become 0, 1, ... unless their number is set."""
        classes = self.classes
        if self.kind == "regression" and classes is not None:
            raise DataError(f"y: data.classes = {classes}, but a regression has none; leave it out")
        if self.kind != "regression" and classes is None:
            check_count(y, "y", shape[0])
            y, classes = self._numbered(y)
        if self.kind == "risk" and classes != 2:
            raise DataError(f'y: {classes} different labels, and data.kind = "risk" has two; expected 2')
        owner = np.full(shape[0], "(all)") if client is None else client
        return targets_of(y, owner, classes, self.kind, shape[1:])

    def _scale(self, x: torch.Tensor, path: Path) -> Scale | None:
        divide = self.divide or (255.0 if x.dtype == torch.uint8 else 1.0)
        scale = Scale(self.mean, self.std, divide)
        if x.dtype in CODES:
            return None
        scale.check(x.shape[1], f"{path}: [data]")
        return None if scale == Scale(divide=1.0) else scale


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the file that fedkin uses; raises DataError naming the file and the array."""
    need_file(path, "a numpy .npz file with arrays x and y")
    try:
        arrays, names = arrays_in(path, _NAMES.__contains__)
    except (OSError, Refused) as error:
        expected = "expected a numpy .npz file of plain arrays x and y"
        raise DataError(f"{path}: cannot be read ({error_text(error)}); {expected}") from None
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{path}: no array {name}; it holds {escaped(', '.join(names), 100) or 'nothing'}")
    for name in names:
        meant = name.lower().rstrip("s")
        # Other arrays are ignored, but a misspelt name must not be.
        if name not in _NAMES and meant in _NAMES and meant not in names:
            raise DataError(f"{path}: array {name} is not one of {', '.join(_NAMES)}; expected {meant}")
    return arrays
