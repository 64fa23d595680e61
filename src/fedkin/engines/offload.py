"""Clients' states on disk above a memory limit; tensors stay the same objects, and only their memory moves.

The name of each file is removed once the file is mapped, so that a killed run leaves no files, and the disk space is
free again when the last tensor in the file is gone. Values and strides stay the same, so that no bit changes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from fedkin import codec
from fedkin.engines.executors.mapped import ALIGN, Arena
from fedkin.engines.executors.scratch import Scratch
from fedkin.errors import RunError

__all__ = ["Offload"]

# On systems other than POSIX, the system takes pages back when it needs memory.
_FORGET = getattr(mmap, "MADV_DONTNEED", None)
_libc = ctypes.CDLL(None) if _FORGET is not None else None


class Offload:
    """A store with at most `limit` bytes of clients' tensors in memory; the tensors stored longest ago go to disk.

    A tensor of several clients is stored once. stay: tensors that never move, such as initial parameters.
    """

    def __init__(self, limit: int, stay: Iterable[Tensor] = ()) -> None:
        self.limit, self.bytes, self.made = limit, 0, 0
        self.scratch = Scratch()
        # Tensors are stored with their ids, so that no other tensor can get the same id.
        self.stay = {id(tensor): tensor for tensor in stay}
        self.clients: dict[str, dict[int, Tensor]] = {}
        self.users: Counter[int] = Counter()
        self.resident: dict[int, Tensor] = {}
        self.mapped: dict[int, Arena] = {}
        # Clients with tensors that may be in memory; the one stored longest ago is first.
        self.order: dict[str, None] = {}

    def keep(self, client: str, state: Mapping[str, Any]) -> None:
        """Store a client's new state; raises RunError if the disk is full."""
        # Strides must stay, because a sum over a tensor runs in their order. Tensors with gaps or overlaps do not move.
        tensors = [t for t in codec.tensors_of(state).values() if t.numel() and _extent(t) == t.numel()]
        own = {id(t): t for t in tensors if id(t) not in self.stay}
        for number, tensor in own.items():
            if not self.users[number]:
                self.resident[number] = tensor
                self.bytes += tensor.nbytes
            self.users[number] += 1
        self.drop(client)
        self.clients[client], self.order[client] = own, None
        while self.bytes > self.limit and self.order:
            oldest = next(iter(self.order))
            del self.order[oldest]
            self._move({number: self.resident[number] for number in self.clients[oldest] if number in self.resident})

    def drop(self, client: str) -> None:
        """Forget a client."""
        self.order.pop(client, None)
        for number in self.clients.pop(client, {}):
            self.users[number] -= 1
            if not self.users[number]:
                del self.users[number]
                self.mapped.pop(number, None)
                if number in self.resident:
                    self.bytes -= self.resident.pop(number).nbytes

    def rest(self, tensors: Iterable[Tensor] | None = None) -> None:
        """Release the memory of these tensors (None: all) that are on disk; they are read again when needed."""
        numbers = self.mapped if tensors is None else [id(tensor) for tensor in tensors]
        for arena in {id(arena): arena for n in numbers if (arena := self.mapped.get(n)) is not None}.values():
            _forget(arena)

    @property
    def on_disk(self) -> int:
        """The size of the mapped files in bytes."""
        return sum(arena.size for arena in {id(arena): arena for arena in self.mapped.values()}.values())

    def close(self) -> None:
        """Remove the folder; tensors on disk stay readable as long as they are referenced."""
        self.scratch.close()

    def _move(self, tensors: Mapping[int, Tensor]) -> None:
        """Move these tensors into one mapped file."""
        if not tensors:
            return
        arena, offset = self._arena(sum(_padded(tensor) for tensor in tensors.values())), 0
        for number, tensor in tensors.items():
            part = arena.memory[offset : offset + tensor.nbytes].view(tensor.dtype)
            place = part.as_strided(tensor.shape, tensor.stride())
            place.copy_(tensor.detach())
            # References to the tensor stay valid, since only its memory changes.
            tensor.data = place
            self.mapped[number] = arena
            self.bytes -= self.resident.pop(number).nbytes
            offset += _padded(tensor)
        _forget(arena)

    def _arena(self, size: int) -> Arena:
        self.made += 1
        path = self.scratch.path / f"state-{self.made}"
        try:
            return Arena(path, size, create=True)
        except (OSError, RuntimeError) as error:
            raise RunError(
                f"{path}: no room for a client's state of {size / 2**20:.0f} MB ({error}): raise run.state_limit_mb, "
                "or let the environment variable TMPDIR name a folder on a larger disk"
            ) from None
        finally:
            path.unlink(missing_ok=True)


def _extent(tensor: Tensor) -> int:
    """Return the number of elements in memory from the first to the last of a tensor."""
    return 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _padded(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGN) * ALIGN


def _forget(arena: Arena) -> None:
    """Release the pages of a mapped file, whose contents are in the file."""
    if _libc is not None:
        _libc.madvise(ctypes.c_void_p(arena.memory.data_ptr()), ctypes.c_size_t(arena.size), _FORGET)
