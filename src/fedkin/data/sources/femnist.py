"""FEMNIST: handwritten digits and letters by writer, in LEAF's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.origins import missing
from fedkin.data.sources.base import Source, locate
from fedkin.errors import DataError
from fedkin.federation import Scale, Task
from fedkin.federation.arrays import check_ids, hold_out
from fedkin.untrusted import said

_CLASSES = 62
_PIXELS = 784
_EXPECTED = "expected LEAF's json: users, num_samples, and user_data with x (rows of 784 numbers) and y for each user"


class Femnist(Source):
    """FEMNIST: digits and letters of about 3,500 writers, 28x28 grey, LEAF's json files (Caldas et al., 2018).

    Below the data root: femnist/train/*.json and femnist/test/*.json, LEAF's own split; or, without these folders,
    femnist/all_data/*.json or femnist/*.json, of which `test_fraction` of every writer's samples is held out, drawn by
    `seed`. `path` names the folder instead. Clients are the writers. x [N, 1, 28, 28] uint8: LEAF's numbers from 0 to
    1 times 255, which restores the original bytes; paper is white, 255. 62 classes: 0-9, A-Z, a-z.
    """

    source: Literal["femnist"] = "femnist"
    path: Path | None = None
    test_fraction: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(0, ge=0)

    def load(self, root: Path) -> Dataset:
        """Read all files; raises DataError naming the file, the user and what was expected."""
        folder = root / "femnist" if self.path is None else locate(root, self.path)
        if not folder.is_dir():
            raise DataError(
                f"{folder}: no such folder; expected LEAF's json files in train and test, or in all_data"
                f"{missing(folder)}"
            )
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            train, test = (_read(folder / name) for name in ("train", "test"))
        else:
            every = _read(folder / "all_data" if (folder / "all_data").is_dir() else folder)
            assert every.client is not None
            held = hold_out(every.client, self.test_fraction, self.seed)
            train, test = (Part(every.x[rows], every.y[rows], every.client[rows]) for rows in (~held, held))
        return Dataset("femnist", train, test, Task(_CLASSES, (1, 28, 28)), Scale())


def _read(folder: Path) -> Part:
    """The samples of all files in a folder, and the writer of each."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise DataError(f"{folder}: no json file there; {_EXPECTED}")
    images, labels, writers = [], [], []
    file_of = dict[str, Path]()
    for path in files:
        try:
            content = json.loads(path.read_bytes())
            users = list(zip(map(str, content["users"]), content["num_samples"], strict=True))
            samples = {str(user): own for user, own in content["user_data"].items()}
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: not as LEAF writes it ({said(error)}); {_EXPECTED}") from None
        check_ids((user for user, _ in users), f"{path}: users")
        for user, count in users:
            if user in file_of:
                raise DataError(f"{path}: user {user!r} is also in {file_of[user].name}; expected each in one file")
            file_of[user] = path
            x, y = _samples(samples.get(user), count, f"{path}: user {user!r}")
            images.append(x)
            labels.append(y)
            writers += [user] * len(y)
    if not writers:
        raise DataError(f"{folder}: no sample in its json files; {_EXPECTED}")
    x = np.concatenate(images).reshape(-1, 1, 28, 28)
    return Part(torch.from_numpy(x), torch.from_numpy(np.concatenate(labels)), np.array(writers))


def _samples(samples: Any, count: Any, where: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """(images [n, 784], labels [n]) of a user."""
    try:
        x = np.asarray(samples["x"], np.float64).reshape(-1, _PIXELS)
        y = np.asarray(samples["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: not as LEAF writes it ({said(error)}); {_EXPECTED}") from None
    if not len(x) == y.size == count:
        raise DataError(f"{where}: {len(x)} images and {y.size} labels, but num_samples says {count}")
    if len(x) and not (x.min() >= 0 and x.max() <= 1):
        raise DataError(f"{where}: pixels from {x.min()} to {x.max()}, expected 0 to 1")
    if len(y) and (y.dtype.kind != "i" or y.min() < 0 or y.max() >= _CLASSES):
        raise DataError(f"{where}: labels {y.min()} to {y.max()}, expected whole numbers 0..{_CLASSES - 1}")
    return np.rint(x * 255).astype(np.uint8), y.reshape(-1).astype(np.int64)
