"""The handwritten digits that scikit-learn includes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Source
from fedkin.federation import Scale, Task
from fedkin.federation.arrays import hold_out


class Digits(Source):
    """1,797 handwritten digits, 8x8 grey, embedded in scikit-learn: needs no file.

    x [N, 1, 8, 8] uint8, 0..16; 10 classes. Of every class, `test_fraction` is held out, drawn by `seed`:
    1,438 training and 359 test samples by default, independent of the seed of the run.

    >>> from pathlib import Path
    >>> data = Digits().load(Path("data"))
    >>> len(data.train), len(data.test), data.task.shape
    (1438, 359, (1, 8, 8))
    """

    source: Literal["digits"] = "digits"
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0)

    def load(self, root: Path) -> Dataset:
        """The data set; `root` is not used."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        held = hold_out(y.astype(np.str_), self.test_fraction, self.seed)
        images = torch.from_numpy(x.astype(np.uint8).reshape(-1, 1, 8, 8))
        labels = torch.from_numpy(y.astype(np.int64))
        test = torch.from_numpy(held)
        train, tested = (Part(images[rows], labels[rows]) for rows in (~test, test))
        return Dataset("digits", train, tested, Task(10, (1, 8, 8)), Scale(divide=16.0))
