"""Clients and their samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.errors import DataError

__all__ = ["Change", "Client", "Samples", "Scale", "constant", "hash_of"]


@dataclass(frozen=True)
class Scale:
    """How stored values become inputs: (value / divide - mean) / std, with mean and std per channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    divide: float = 255.0

    def check(self, channels: int, where: str) -> None:
        """Raise DataError unless mean and std have one value or one per channel, and std and divide are above 0."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise DataError(
                    f"{where}: {name} has {len(values)} values; expected 1, or {channels}, one per channel of x"
                )
        if min(self.std) <= 0 or self.divide <= 0:
            raise DataError(f"{where}: expected std and divide above 0, got {self.std} and {self.divide}")

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean, std = (constant(values, dtype, x.device).reshape(shape) for values in (self.mean, self.std))
        return (x.to(dtype) / self.divide - mean) / std


@lru_cache(maxsize=64)
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """These numbers as a tensor, cached: host-to-GPU copies block. The tensor must not be changed."""
    return torch.tensor(values, dtype=dtype).to(device)


@dataclass(frozen=True)
class Samples:
    """Samples of one client: `rows` of arrays that several clients may share.

    x: [N, ...] uint8 or float; y: [N, ...] targets in the task's form, int64 class labels [N] for most tasks;
    rows: int64 indices into both (None: all); scale: turns stored values into inputs (None: x is used unchanged).
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    scale: Scale | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(f"samples and labels differ in number: {len(self.x)} and {len(self.y)}")

    def __len__(self) -> int:
        return len(self.y) if self.rows is None else len(self.rows)

    def inputs(self, rows: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """The scaled inputs of these rows (positions within this client's samples)."""
        x = self.x[rows] if self.rows is None else self.x[self.rows[rows]]
        return x.to(dtype) if self.scale is None else self.scale(x, dtype)

    def labels(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """The targets of these rows."""
        return self.y[rows] if self.rows is None else self.y[self.rows[rows]]

    def take(self, rows: Sequence[int] | npt.NDArray[np.int64] | Tensor) -> Samples:
        """These rows only, without copying a sample."""
        wanted = torch.as_tensor(rows, dtype=torch.int64)
        return replace(self, rows=wanted if self.rows is None else self.rows[wanted])


@dataclass(frozen=True)
class Change:
    """From this round on, a client has these samples and belongs to this planted group."""

    round: int
    train: Samples
    test: Samples
    group: str | None = None


@dataclass(frozen=True)
class Client:
    """One client: its id, its own training and test samples, and its planted group if known.

    seen: whether it takes part; an unseen client never trains and is only evaluated.
    joins: the first round in which it is there. changes: how its data drift, in the order of rounds.
    """

    id: str
    train: Samples
    test: Samples
    group: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    seen: bool = True
    joins: int = 1
    changes: tuple[Change, ...] = ()

    @property
    def phases(self) -> tuple[Client | Change, ...]:
        """The client at the start, and every change of it."""
        return (self, *self.changes)

    def at(self, round: int) -> Client:
        """The client with its samples of this round; itself if nothing has changed."""
        past = [change for change in self.changes if change.round <= round]
        if not past:
            return self
        return replace(self, train=past[-1].train, test=past[-1].test, group=past[-1].group)

    @property
    def size(self) -> int:
        """Number of training samples, n_k."""
        return len(self.train)


def hash_of(samples: Samples) -> bytes:
    """A hash of the samples' values, independent of how they are stored."""
    digest = blake2b(repr(samples.scale).encode(), digest_size=16)
    for values in (samples.x.numpy(), samples.y.numpy()):
        # numpy: torch's threads cost more than this small work, and far more on a busy machine.
        held = values if samples.rows is None else values[samples.rows.numpy()]
        digest.update(repr((held.dtype.str, held.shape)).encode())
        digest.update(np.ascontiguousarray(held).tobytes())
    return digest.digest()
