"""Monthly temperatures of 48 states of the USA."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from fedkin.data.dataset import Dataset, Part
from fedkin.data.sources.base import Published, need_file
from fedkin.errors import DataError
from fedkin.federation import Task
from fedkin.untrusted import Refused, arrays_in, error_text

_EAST = "VT NH ME NY MA CT RI PA NJ OH IN MI WV MD DE KY VA TN AL GA NC FL SC MO"
_NORTH = "ND VT NH ME WA MT SD MN WI MI NY MA OR ID WY NE IA IL IN OH PA NJ CT RI"
# Split: its training states, the name of their group, the name of the other states' group.
_SPLITS = {"east-west": (_EAST, "east", "west"), "north-south": (_NORTH, "north", "south")}
_HALF = 6
_MONTHS = 144
Array = npt.NDArray[np.float32]


class Tpt48(Published):
    """TPT-48: monthly mean temperature of 48 states of the USA, 2008 to 2019; predicts six months from the six before.

    Below the data root: TPT-48/tpt48.npz with temp_f [48, 144] (degrees Fahrenheit) and states [48]; `path` names
    another file. Clients are states; a sample is a year: x [6] January to June, y [6] July to December, 12 per state,
    without overlap; the last `test_years` are test samples. Both are (degrees - mean) / sd, with one mean
    and one sd of all months of the training states' training years. split: "east-west" trains on the 24 eastern
    states, "north-south" on the 24 northern ones; the other 24, the group "west" or "south", are unseen.

    The metric is the squared error summed over the six months of y. With `test_years = 0` and
    `scenario.unseen_test = "all"`, training states train on all twelve years and unseen ones are tested on all twelve.
    """

    source: Literal["tpt48"] = "tpt48"
    split: Literal["east-west", "north-south"] = "east-west"
    test_years: int = Field(2, ge=0, le=11)

    below = "TPT-48/tpt48.npz"

    def load(self, root: Path) -> Dataset:
        """Read the file; raises DataError naming it and what was expected."""
        path = self.place(root)
        degrees, states = _read(path)
        names, inside, outside = _SPLITS[self.split]
        training = names.split()
        if missing := sorted(set(training) - set(states)):
            raise DataError(f"{path}: states {', '.join(missing)} are not in it; expected the 48 contiguous states")
        seen = np.isin(states, training)
        years = degrees.shape[1] // 12
        train_years = years - self.test_years
        past = degrees[seen, : 12 * train_years].astype(np.float64)
        windows = ((degrees - past.mean()) / past.std()).astype(np.float32).reshape(len(states), years, 12)
        group = np.where(seen, inside, outside)

        def part(chosen: slice) -> Part:
            months = windows[:, chosen].reshape(-1, 12)
            each = len(months) // len(states)
            x, y = (torch.from_numpy(half.copy()) for half in (months[:, :_HALF], months[:, _HALF:]))
            return Part(x, y, np.repeat(states, each), np.repeat(group, each))

        task = Task.regression(_HALF, (_HALF,))
        return Dataset("tpt48", part(slice(train_years)), part(slice(train_years, None)), task, unseen=(outside,))


def _read(path: Path) -> tuple[Array, npt.NDArray[np.str_]]:
    """(temperatures [states, months], states)."""
    expected = "a numpy .npz file with temp_f [48, 144] and states [48]"
    need_file(path, expected)
    try:
        arrays, _ = arrays_in(path, ("temp_f", "states").__contains__)
        degrees, states = arrays["temp_f"], arrays["states"]
    except (OSError, KeyError, Refused) as error:
        raise DataError(f"{path}: cannot be read ({error_text(error)}); expected {expected}") from None
    if degrees.dtype.kind != "f" or degrees.ndim != 2 or degrees.shape[1] != _MONTHS:
        raise DataError(f"{path}: array temp_f is {degrees.dtype} {list(degrees.shape)}; expected {expected}")
    if states.dtype.kind != "U" or states.shape != degrees.shape[:1]:
        raise DataError(f"{path}: array states is {states.dtype} {list(states.shape)}; expected {expected}")
    if not np.isfinite(degrees).all():
        raise DataError(f"{path}: array temp_f holds NaN or infinite values")
    return degrees.astype(np.float32), states
