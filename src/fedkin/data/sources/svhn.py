"""SVHN: house numbers in MATLAB files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import missing
from fedkin.data.sources.base import Source, check_labels, locate
from fedkin.errors import DataError
from fedkin.federation import Scale, Task
from fedkin.untrusted import Refused, most, said


class Svhn(Source):
    """SVHN: 73,257 / 26,032 digits cut out of images of house numbers, 32x32 colour (Netzer et al., 2011).

    Below the data root: SVHN/{train,test}_32x32.mat (and extra_32x32.mat, whose 531,131 digits `extra` adds to the
    training split); `path` names their folder instead. A zero is 10 in the files and 0
    here. x [N, 3, 32, 32] uint8; 10 classes.
    """

    source: Literal["svhn"] = "svhn"
    path: Path | None = None
    extra: bool = False

    def load(self, root: Path) -> Dataset:
        """Read the files; raises DataError naming the file and what was expected."""
        folder = root / "SVHN" if self.path is None else locate(root, self.path)
        train, test = (_read(folder / f"{name}_32x32.mat") for name in ("train", "test"))
        if self.extra:
            extra = _read(folder / "extra_32x32.mat")
            train = Part(torch.cat([train.x, extra.x]), torch.cat([train.y, extra.y]))
        scale = Scale((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
        return Dataset("svhn", train, test, Task(10, (3, 32, 32)), scale)


def _read(path: Path) -> Part:
    from scipy.io import loadmat, whosmat

    if not path.is_file():
        raise DataError(
            f"{path}: no such file; expected SVHN's train_32x32.mat and test_32x32.mat in this folder{missing(path)}"
        )
    expected = "expected SVHN's cropped digits: a MATLAB 5 file with X [32, 32, 3, N] bytes and y [N, 1]"
    try:
        for name, shape, _ in whosmat(str(path)):
            if name in ("X", "y") and math.prod(shape) > most(path.stat().st_size):
                raise Refused(f"{name} has shape {shape}, too much for a file of its size")
        held: dict[str, Any] = loadmat(str(path), variable_names=["X", "y"])
    # With a damaged file the reader raises many kinds of exceptions.
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({said(error)}); {expected}") from None
    if not {"X", "y"} <= held.keys():
        raise DataError(f"{path}: no {' and no '.join(sorted({'X', 'y'} - held.keys()))} in it; {expected}")
    images, labels = np.asarray(held["X"]), np.asarray(held["y"]).reshape(-1)
    count = images.shape[3] if images.ndim == 4 else 0
    if images.shape != (32, 32, 3, count) or images.dtype != np.uint8 or not count:
        raise DataError(f"{path}: X is {list(images.shape)} {images.dtype}; {expected}")
    if labels.size != count or labels.dtype.kind not in "uif":
        raise DataError(f"{path}: y is [{labels.size}] {labels.dtype}, one for each of {count} images; {expected}")
    check_labels(labels, range(1, 11), path)
    x = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return Part(torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64) % 10))
