"""Clients and their samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.errors import DataError
from fedkin.federation.inputs import CODES, Inputs, check_parts, map_arrays, parts, shape_of


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
                expected = f"expected 1, or {channels}, one per channel of x"
                raise DataError(f"{where}: {name} has {len(values)} values; {expected}")
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

    x: [N, ...], or a dict of such arrays, as the net takes them: floats and uint8 become inputs of the net's type;
    int32 and int64 (token ids, category codes) stay whole numbers; booleans in a dict (masks) become 0 and 1 in int64.
    y: [N, ...] targets in the task's form, int64 class labels [N] for most tasks; rows: int64 indices into both (None:
    all); scale: turns stored values into inputs (None: x is used unchanged); in a dict it applies to uint8 arrays only.
    person: int64 [N], equal for samples of one person (None: the samples are independent). time: float64 [N], ascending
    with time (None: unknown).
    """

    x: Inputs
    y: Tensor
    rows: Tensor | None = None
    scale: Scale | None = None
    person: Tensor | None = None
    time: Tensor | None = None

    def __post_init__(self) -> None:
        check_parts(self.x, len(self.y))

    def __repr__(self) -> str:
        return f"Samples({len(self)} of shape {shape_of(self.x)})"

    def __len__(self) -> int:
        # len() of a tensor takes several times as long.
        return self.y.shape[0] if self.rows is None else self.rows.shape[0]

    def inputs(self, rows: Tensor | slice, dtype: torch.dtype = torch.float32) -> Any:
        """The scaled inputs of these rows (positions within this client's samples): a tensor, or a dict of them."""
        where = rows if self.rows is None else self.rows[rows]
        x = self.x[where] if isinstance(self.x, Tensor) else {name: part[where] for name, part in self.x.items()}
        return prepared(x, self.scale, dtype)

    def labels(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """The targets of these rows."""
        return self.y[rows] if self.rows is None else self.y[self.rows[rows]]

    def units(self) -> npt.NDArray[np.int64]:
        """[n] the number, from 0, of each sample's person; of each sample, if none are known."""
        if self.person is None:
            return np.arange(len(self))
        person = self.person if self.rows is None else self.person[self.rows]
        return np.unique(person.numpy(), return_inverse=True)[1].reshape(-1)

    def times(self) -> npt.NDArray[np.float64] | None:
        """[n] the time of each sample: of a person's samples, that of the latest. None if times are unknown."""
        if self.time is None:
            return None
        unit = self.units()
        latest = np.full(int(unit.max(initial=-1)) + 1, -np.inf)
        np.maximum.at(latest, unit, (self.time if self.rows is None else self.time[self.rows]).numpy())
        return latest[unit]

    def one_per_person(self) -> Samples:
        """The first sample of each person, for tests that need independent samples; all samples if none are known."""
        if self.person is None:
            return self
        return self.take(np.sort(np.unique(self.units(), return_index=True)[1]))

    def take(self, rows: Sequence[int] | npt.NDArray[np.int64] | Tensor) -> Samples:
        """These rows only, without copying a sample."""
        wanted = torch.as_tensor(rows, dtype=torch.int64)
        return replace(self, rows=wanted if self.rows is None else self.rows[wanted])

    def own(self) -> Samples:
        """The same samples in arrays without other samples, to send to another process."""
        rows = self.rows
        if rows is None:
            return self
        person, time = (None if each is None else each[rows] for each in (self.person, self.time))
        return Samples(map_arrays(lambda part: part[rows], self.x), self.y[rows], None, self.scale, person, time)


def prepared(x: Inputs, scale: Scale | None, dtype: torch.dtype) -> Any:
    """Convert stored values to the inputs of a net: a tensor, or a dict of tensors."""
    if isinstance(x, Tensor):
        if scale is not None:
            return scale(x, dtype)
        return x if x.dtype in CODES else x.to(dtype)
    return {
        name: part.long() if part.dtype == torch.bool
        else prepared(part, scale if part.dtype == torch.uint8 else None, dtype)
        for name, part in x.items()
    }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """From this round on, a client has these samples and belongs to this planted group."""

    round: int
    train: Samples
    test: Samples
    group: str | None = None


# (first round, last round); last round None: the client has left for good.
Absence = tuple[int, int | None]


def is_here(joins: int, away: Iterable[Absence], round: int) -> bool:
    """Whether a client is present in this round (see `Client`).

    >>> [is_here(2, [(4, 5), (7, None)], round) for round in range(1, 9)]
    [False, True, True, False, False, True, False, False]
    """
    absent = any(first <= round and (last is None or round <= last) for first, last in away)
    return joins <= max(round, 1) and not absent


@dataclass(frozen=True)
class Client:
    """One client: its id, its own training and test samples, and its planted group if known.

    seen: whether it takes part; an unseen client never trains and is only evaluated.
    joins: the first round in which it is present. away: (first, last) round of each absence, during which its data are
    not used; last round None: it has left for good. After an absence it returns like a newcomer, without earlier state.
    changes: how its data drift, in the order of rounds.
    """

    id: str
    train: Samples
    test: Samples
    group: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    seen: bool = True
    joins: int = 1
    changes: tuple[Change, ...] = ()
    away: tuple[Absence, ...] = ()

    @property
    def phases(self) -> tuple[Client | Change, ...]:
        """The client at the start, and each of its changes."""
        return (self, *self.changes)

    @property
    def still(self) -> bool:
        """Whether the client is present in all rounds, with the same samples."""
        return self.joins <= 1 and not self.changes and not self.away

    def here(self, round: int) -> bool:
        """Whether the client is present in this round."""
        return is_here(self.joins, self.away, round)

    def at(self, round: int) -> Client:
        """The client with its samples of this round; self if nothing has changed."""
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
    if not isinstance(samples.x, Tensor):
        digest.update(repr(sorted(samples.x)).encode())
    for array in (*(part for _, part in sorted(parts(samples.x).items())), samples.y):
        values = array.numpy()
        # numpy: torch's threads cost more than this small work, and far more on a busy machine.
        held = values if samples.rows is None else values[samples.rows.numpy()]
        digest.update(repr((held.dtype.str, held.shape)).encode())
        digest.update(np.ascontiguousarray(held).tobytes())
    return digest.digest()
