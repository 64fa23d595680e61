"""Where arithmetic runs: the processor, or a card on which samples stay once they are there.

States, messages and graphs are on the processor always. A job's parameters go to the device when it begins and come
back when it ends; in between nothing waits for the processor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fedkin.errors import ConfigError
from fedkin.federation import Samples

__all__ = ["CPU", "Resident", "checked", "device_of", "drawn", "moved", "opened"]

CPU = torch.device("cpu")
_NAME = re.compile(r"cpu|cuda(:\d+)?")


def checked(name: str) -> str:
    """`name`, if it can name a device; raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"no {name!r}; expected 'cpu', 'cuda', or 'cuda:1' for the second card")
    return name


def opened(name: str) -> torch.device:
    """The device of that name, set to give the same bits each time and float32 its full precision.

    Raises ConfigError where there is no such card.
    """
    device = torch.device(name)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        there = f"torch {torch.__version__} sees {count} of them here" if count else (
            f"torch {torch.__version__} sees no card here (a build for processors only, no driver, or no card)"
        )  # fmt: skip
        raise ConfigError(f"run.device: {name!r}, but {there}; set run.device = 'cpu'")
    # Read when the first product of matrices runs; without it cuBLAS may sum in another order each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return device


def device_of(module: nn.Module) -> torch.device:
    """Where a module's parameters are."""
    return next(module.parameters()).device


def moved(tree: Any, device: torch.device) -> Any:
    """A tree with all its tensors on the device; those that are there already are the same objects."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, Mapping):
        return {name: moved(item, device) for name, item in tree.items()}
    return tree


def drawn(batches: Sequence[npt.NDArray[np.int64]], device: torch.device) -> Sequence[Tensor]:
    """The rows of each step on the device, which get there in one piece."""
    if not batches:
        return []
    return torch.split(torch.from_numpy(np.concatenate(batches)).to(device), [len(rows) for rows in batches])


class Resident:
    """Samples on a device. An array goes there once, however many clients index it, and stays while it is in use.

    limit: bytes that may stay (None: half of the card's free memory, no limit elsewhere); of what is above, a job
    gets its own rows, which leave with it.
    """

    def __init__(self, device: torch.device = CPU, limit: int | None = None) -> None:
        self.device, self.limit = device, limit
        if limit is None and device.type == "cuda":
            self.limit = torch.cuda.mem_get_info(device)[0] // 2
        self.held: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()

    def __call__(self, samples: Samples) -> Samples:
        """The same samples on the device."""
        if self.device == CPU:
            return samples
        rows = samples.rows
        if self._room(samples.x, samples.y):
            return replace(
                samples, x=self._put(samples.x), y=self._put(samples.y), rows=None if rows is None else self._put(rows)
            )
        x, y = (t if rows is None else t[rows] for t in (samples.x, samples.y))
        return replace(samples, x=x.to(self.device), y=y.to(self.device), rows=None)

    def _room(self, *arrays: Tensor) -> bool:
        new = sum(array.nbytes for array in arrays if array not in self.held)
        return not new or self.limit is None or new + sum(t.nbytes for t in self.held.values()) <= self.limit

    def _put(self, array: Tensor) -> Tensor:
        if array not in self.held:
            self.held[array] = array.to(self.device)
        return self.held[array]
