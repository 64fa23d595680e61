"""Parameters of several jobs, which are stored once for all nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkin.flow import Params

__all__ = ["Sharing"]

_HEAVY = 100_000  # bytes from which parameters are stored
_KEPT = 4  # so many are remembered
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class _Seen:
    """Values of parameters when they were sent, and a reference to them if they were sent again."""

    values: Params
    reference: Any = None


class Sharing:
    """Large parameters that are sent again are stored once, and named by a reference from then on.

    put: stores a value and returns the reference. A method may change dicts and tensors in place after each job, also
    where torch does not count it (`.data`, `.numpy()`): a reference is used only while all bits are as they were sent.
    """

    def __init__(self, put: Callable[[Params], Any]) -> None:
        self.put = put
        self.seen: dict[tuple[tuple[str, int], ...], _Seen] = {}

    def __call__(self, params: Params) -> Any:
        """The parameters, or a reference to them."""
        if sum(tensor.nbytes for tensor in params.values()) < _HEAVY:
            return params
        # Another tensor may get the id of one that is no more: only its bits then tell.
        key = tuple((name, id(tensor)) for name, tensor in params.items())
        seen = self.seen.pop(key, None)
        if seen is None or not _same(seen.values, params):
            seen = _Seen({name: tensor.detach().clone() for name, tensor in params.items()})
        elif seen.reference is None:
            seen.reference = self.put(params)
        self.seen[key] = seen
        if len(self.seen) > _KEPT:
            del self.seen[next(iter(self.seen))]
        return params if seen.reference is None else seen.reference


def _same(one: Params, other: Params) -> bool:
    """Whether all bits are equal: 0.0 and -0.0 differ, and a nan is equal to itself."""
    return all(
        tensor.dtype == other[name].dtype
        and tensor.shape == other[name].shape
        and torch.equal(_bits(tensor), _bits(other[name]))
        for name, tensor in one.items()
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(_WORDS.get(tensor.itemsize, torch.uint8))
