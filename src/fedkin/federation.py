"""A federation: clients with ids, their samples, and their planted groups when these are known."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.errors import DataError
from fedkin.tasks import Kind, Task

__all__ = ["Change", "Client", "Federation", "Samples", "Scale", "Task", "constant"]


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
    """These numbers as a tensor. Made once, for a card waits whenever numbers are sent to it; nobody may change it."""
    return torch.tensor(values, dtype=dtype).to(device)


@dataclass(frozen=True)
class Samples:
    """Samples of one client: `rows` of arrays that several clients may share.

    x: [N, ...] uint8 or float; y: [N, ...] targets as the task has them, int64 class labels [N] for most;
    rows: int64 indices into both (None: all); scale: turns stored values into inputs (None: x is used as it is).
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
    """One client: its id, its own training and test samples, its planted group if one is known.

    seen: whether it takes part at all; an unseen client never trains, and is only evaluated.
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
        """The client as it starts, and every change of it."""
        return (self, *self.changes)

    def at(self, round: int) -> Client:
        """The client with the samples that it has in this round; itself when nothing has changed."""
        past = [change for change in self.changes if change.round <= round]
        if not past:
            return self
        return replace(self, train=past[-1].train, test=past[-1].test, group=past[-1].group)

    @property
    def size(self) -> int:
        """Number of training samples, n_k."""
        return len(self.train)


class Federation(Mapping[str, Client]):
    """Clients by id, for one task.

    Raises DataError, naming the client, for an id that is empty or used twice, a client without training
    samples, inputs of another shape than the task's, labels outside 0..classes-1, or values not finite.

    >>> import numpy as np
    >>> x, y = np.zeros((6, 4), np.float32), np.array([0, 1, 0, 1, 0, 1])
    >>> fed = Federation.from_arrays(x, y, client=["a", "a", "a", "b", "b", "b"], test_fraction=0.34)
    >>> {id: client.size for id, client in fed.items()}
    {'a': 2, 'b': 2}
    """

    def __init__(self, clients: Sequence[Client], task: Task, name: str = "federation") -> None:
        self._clients: dict[str, Client] = {}
        self.task, self.name = task, name
        for client in clients:
            _check_id(client.id)
            if client.id in self._clients:
                raise DataError(f"two clients have the id {client.id!r}: ids must differ")
            if client.id == "server":
                raise DataError("no client may be called 'server': records use that name for the server")
            if client.size == 0 and client.seen:
                raise DataError(f"client {client.id!r} has no training samples: leave it out")
            self._clients[client.id] = client
        if not self._clients:
            raise DataError("a federation needs at least one client")
        checked: set[tuple[int, int]] = set()
        for client in self._clients.values():
            _check_changes(client)
            for now in client.phases:
                for part, samples in (("training", now.train), ("test", now.test)):
                    _check_samples(client.id, part, samples, task, checked)
        if not any(client.seen for client in self._clients.values()):
            raise DataError("no client takes part: all of them are unseen")

    def __getitem__(self, id: str) -> Client:
        return self._clients[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        task = f"{self.task.classes} classes" if self.task.labels else f"{self.task.kind} of {self.task.outputs}"
        return f"Federation({self.name!r}, {len(self)} clients, {task})"

    @property
    def seen(self) -> tuple[str, ...]:
        """Ids of the clients that take part, sorted."""
        return tuple(sorted(id for id, client in self.items() if client.seen))

    @property
    def unseen(self) -> tuple[str, ...]:
        """Ids of the clients that are only evaluated, sorted."""
        return tuple(sorted(id for id, client in self.items() if not client.seen))

    def at(self, round: int) -> Federation:
        """The federation as it is in this round: who has joined, with which samples; itself when nothing changes."""
        if all(client.joins <= 1 and not client.changes for client in self.values()):
            return self
        here = [client.at(round) for client in self.values() if client.joins <= max(round, 1) or not client.seen]
        if not any(client.seen for client in here):
            raise DataError(f"no client has joined by round {round}")
        now = copy(self)
        now._clients = {client.id: client for client in here}
        return now

    @property
    def planted(self) -> dict[str, str] | None:
        """The planted group of every client, or None when any client's is unknown."""
        groups = {id: client.group for id, client in self.items() if client.group is not None}
        return groups if len(groups) == len(self) else None

    @property
    def sizes(self) -> dict[str, int]:
        """Training samples per client."""
        return {id: client.size for id, client in self.items()}

    def fingerprint(self) -> str:
        """A hash of every client's id, group, samples and scale: equal for equal federations in any order."""
        digest = blake2b(digest_size=16)
        # Clients of a group often share one test set: it is read once.
        known: dict[int, bytes] = {}
        for id, client in sorted(self.items()):
            if not client.seen or client.joins != 1:
                digest.update(repr((client.seen, client.joins)).encode())
            for now in client.phases:
                when = (now.round,) if isinstance(now, Change) else ()
                digest.update(repr((*when, id, now.group)).encode())
                for samples in (now.train, now.test):
                    if builtins.id(samples) not in known:
                        known[builtins.id(samples)] = _hash(samples)
                    digest.update(known[builtins.id(samples)])
        return digest.hexdigest()

    def relabel(self, names: Mapping[str, str]) -> Self:
        """The same federation under other ids; ids that `names` leaves out stay."""
        clients = [replace(client, id=names.get(id, id)) for id, client in self.items()]
        return type(self)(clients, self.task, self.name)

    def reorder(self, ids: Sequence[str]) -> Self:
        """The same clients in another order; a subset is allowed."""
        return type(self)([self[id] for id in ids], self.task, self.name)

    @classmethod
    def from_arrays(
        cls,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        client: Sequence[str | int] | npt.NDArray[Any],
        *,
        group: Sequence[str | int] | npt.NDArray[Any] | None = None,
        split: Sequence[str] | npt.NDArray[Any] | None = None,
        test_fraction: float = 0.2,
        classes: int | None = None,
        scale: Scale | None = None,
        seed: int = 0,
        name: str = "arrays",
        kind: Kind = "classification",
    ) -> Self:
        """A federation from one row per sample.

        x: [N, ...] numbers; y: [N] labels 0..classes-1, or targets as this `kind` of task has them; client: [N] id of
        each sample's client; group: [N] planted group of its client (one per client); split: [N] "train" or "test", or
        None to hold out `test_fraction` of each client's samples, drawn with a key of (seed, client id).
        """
        from fedkin.data.arrays import federation_from_arrays

        return federation_from_arrays(cls, x, y, client, group, split, test_fraction, classes, scale, seed, name, kind)


def _hash(samples: Samples) -> bytes:
    """Of what the samples hold, not of how they are stored."""
    digest = blake2b(repr(samples.scale).encode(), digest_size=16)
    for values in (samples.x.numpy(), samples.y.numpy()):
        # numpy: torch's threads cost more than so little work, and far more on a busy machine.
        held = values if samples.rows is None else values[samples.rows.numpy()]
        digest.update(repr((held.dtype.str, held.shape)).encode())
        digest.update(np.ascontiguousarray(held).tobytes())
    return digest.digest()


def _check_id(id: str) -> None:
    if not isinstance(id, str) or not id or id != id.strip() or not id.isprintable():
        raise DataError(f"a client id must be printable text without spaces around it, got {id!r}")


def _check_changes(client: Client) -> None:
    if client.joins < 1:
        raise DataError(f"client {client.id!r} joins in round {client.joins}; rounds are numbered from 1")
    rounds = [change.round for change in client.changes]
    if rounds != sorted(set(rounds)) or (rounds and rounds[0] < 1):
        raise DataError(f"client {client.id!r} changes in rounds {rounds}; expected ascending rounds from 1")
    for change in client.changes:
        if len(change.train) == 0 and client.seen:
            raise DataError(f"client {client.id!r} has no training samples from round {change.round} on")


def _check_samples(id: str, part: str, samples: Samples, task: Task, checked: set[tuple[int, int]]) -> None:
    shape = tuple(samples.x.shape[1:])
    if shape != task.shape:
        raise DataError(f"client {id!r}: {part} inputs have shape {shape}, the task's is {task.shape}")
    if samples.scale is not None:
        channels = task.shape[0] if len(task.shape) > 1 else 1
        samples.scale.check(channels, f"client {id!r}: the scale of {part} inputs")
    if samples.rows is not None and samples.rows.dtype != torch.int64:
        raise DataError(f"client {id!r}: {part} rows must be int64, got {samples.rows.dtype}")
    if samples.rows is not None and len(samples.rows):
        low, high = int(samples.rows.min()), int(samples.rows.max())
        if low < 0 or high >= len(samples.y):
            raise DataError(f"client {id!r}: {part} rows {low}..{high} are outside 0..{len(samples.y) - 1}")
    _check_targets(f"client {id!r}: {part}", samples.labels(), task)
    # Clients usually share one array: looking for NaN in it once is enough.
    stored = (samples.x.data_ptr(), samples.x.numel())
    if samples.x.is_floating_point() and stored not in checked:
        checked.add(stored)
        if not bool(torch.isfinite(samples.x).all()):
            raise DataError(f"client {id!r}: {part} inputs hold NaN or infinite values")


def _check_targets(where: str, targets: Tensor, task: Task) -> None:
    shape = tuple(targets.shape[1:])
    if shape != task.target_shape:
        raise DataError(f"{where} targets have shape {shape}, those of a {task.kind} task {task.target_shape}")
    if task.kind == "regression":
        if not targets.is_floating_point() or not bool(torch.isfinite(targets).all()):
            raise DataError(f"{where} targets must be finite numbers of a floating type, got {targets.dtype}")
        return
    if targets.dtype != torch.int64:
        raise DataError(f"{where} labels must be int64, got {targets.dtype}")
    if len(targets) and (int(targets.min()) < 0 or int(targets.max()) >= task.classes):
        raise DataError(
            f"{where} labels run from {int(targets.min())} to {int(targets.max())}, expected 0 to {task.classes - 1}"
        )
