"""Memory that processes share: tensors in mapped files.

Files are used instead of /dev/shm, because containers often limit it to 64 MB, and exceeding the limit kills the
process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkin import codec
from fedkin.federation import Change, Client, Samples, Scale

__all__ = ["Arena", "Lent", "Parcel", "Place", "SharedClients", "borrow", "lend", "place"]

ALIGN = 64


class Place(NamedTuple):
    """The place of a tensor in an arena."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


# The leaves of a tree by pointer, in its order: tensors as places in an arena, and small values themselves.
Parcel = dict[str, Any]


class Arena:
    """A mapped file of two processes; the name of the file is removed once both have mapped it."""

    def __init__(self, path: Path, size: int, create: bool) -> None:
        self.path, self.size = path, size
        if create:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        self.memory = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)

    def view(self, place: Place) -> Tensor:
        """Return the tensor at this place, without a copy."""
        count = int(np.prod(place.shape, dtype=np.int64)) * torch.empty((), dtype=place.dtype).element_size()
        return self.memory[place.offset : place.offset + count].view(place.dtype).reshape(place.shape)


def room_for(tree: codec.Tree) -> int:
    """Return the number of bytes that `place` needs for this tree."""
    return sum(-(-t.numel() * t.element_size() // ALIGN) * ALIGN for t in codec.tensors_of(tree).values())


def place(arena: Arena, tree: codec.Tree) -> Parcel | None:
    """Copy the tensors of the tree into the arena; returns None if they do not fit."""
    if room_for(tree) > arena.size:
        return None
    parcel: Parcel = {}
    offset = 0
    for name, leaf in codec.leaves(tree):
        parcel[name] = leaf
        if isinstance(leaf, Tensor):
            where = parcel[name] = Place(offset, leaf.dtype, tuple(leaf.shape))
            arena.view(where).copy_(leaf.detach())
            offset += -(-leaf.numel() * leaf.element_size() // ALIGN) * ALIGN
    return parcel


def take(arena: Arena, parcel: Parcel) -> dict[str, Any]:
    """Return a copy of the tree that `place` copied into the arena."""
    return codec.tree_of(
        {name: arena.view(leaf).clone() if isinstance(leaf, Place) else leaf for name, leaf in parcel.items()}
    )


class Lent(NamedTuple):
    """Samples with the names of their arrays instead of the arrays; those of a dict are in its order."""

    x: str | dict[str, str]
    y: str
    rows: np.ndarray[Any, np.dtype[np.int64]] | None
    scale: Scale | None


class SharedClients(NamedTuple):
    """The samples of a federation for another process, with arrays as mapped files.

    clients: by id, tuples of (first round, training samples, test samples); the first tuple is for round 0.
    """

    arrays: dict[str, tuple[str, torch.dtype, tuple[int, ...]]]
    clients: dict[str, tuple[tuple[int, Lent, Lent], ...]]

    def named(self, samples: Samples) -> Lent | None:
        """Return these samples with the names of their arrays, or None if the arrays are not lent."""
        lent = _lent(samples, _name)
        return lent if all(name in self.arrays for name in (*_named(lent.x), lent.y)) else None


def _name(tensor: Tensor) -> str:
    return f"{tensor.data_ptr():x}-{tensor.dtype}-{tuple(tensor.shape)}-{tensor.stride()}"


def _lent(samples: Samples, name: Callable[[Tensor], str]) -> Lent:
    x = samples.x
    names = name(x) if isinstance(x, Tensor) else {key: name(part) for key, part in x.items()}
    return Lent(names, name(samples.y), None if samples.rows is None else samples.rows.numpy(), samples.scale)


def _named(x: str | dict[str, str]) -> Iterable[str]:
    return (x,) if isinstance(x, str) else x.values()


def lend(federation: Mapping[str, Client], folder: Path) -> SharedClients:
    """Write every array once, also if many clients share it."""
    arrays: dict[str, tuple[str, torch.dtype, tuple[int, ...]]] = {}

    def name(tensor: Tensor) -> str:
        known = _name(tensor)
        if known not in arrays:
            path = folder / f"array-{len(arrays)}"
            if tensor.numel():
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tofile(path)
            arrays[known] = (str(path), tensor.dtype, tuple(tensor.shape))
        return known

    def pack(samples: Samples) -> Lent:
        return _lent(samples, name)

    clients = {
        id: tuple(
            (now.round if isinstance(now, Change) else 0, pack(now.train), pack(now.test)) for now in client.phases
        )
        for id, client in federation.items()
    }
    return SharedClients(arrays, clients)


class Borrowed(Mapping[str, Client]):
    """The clients that `lend` wrote, with mapped arrays."""

    def __init__(self, shared: SharedClients) -> None:
        self.arrays = {}
        for name, (path, dtype, shape) in shared.arrays.items():
            count = int(np.prod(shape, dtype=np.int64))
            self.arrays[name] = (
                torch.from_file(path, shared=False, size=count, dtype=dtype).reshape(shape)
                if count
                else torch.zeros(shape, dtype=dtype)
            )
        self.clients = {}
        for id, phases in shared.clients.items():
            (_, train, test), *later = phases
            changes = tuple(Change(round, self.samples(a), self.samples(b)) for round, a, b in later)
            self.clients[id] = Client(id, self.samples(train), self.samples(test), changes=changes)

    def samples(self, lent: Lent) -> Samples:
        """Return the samples with these names."""
        rows = None if lent.rows is None else torch.from_numpy(lent.rows)
        held = self.arrays
        x = held[lent.x] if isinstance(lent.x, str) else {key: held[name] for key, name in lent.x.items()}
        return Samples(x, held[lent.y], rows, lent.scale)

    def __getitem__(self, id: str) -> Client:
        return self.clients[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


def borrow(shared: SharedClients) -> Borrowed:
    """Return the clients that `lend` wrote."""
    return Borrowed(shared)
