"""Clients' states on disk above a limit of memory: tensors stay the objects they are, what lies behind them moves.

Each file loses its name once it is mapped, so that a run that is killed leaves nothing behind, and its room comes back
when the last tensor in it is gone. Values and strides stay, so that no result changes a bit.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin import codec
from fedkin.engines.executors.mapped import ALIGN, Arena, temporary
from fedkin.errors import RunError

__all__ = ["Offload"]

# Elsewhere than on POSIX the system takes pages back when it needs them.
_FORGET = getattr(mmap, "MADV_DONTNEED", None)
_libc = ctypes.CDLL(None) if _FORGET is not None else None


class Offload:
    """Holds at most `limit` bytes of clients' tensors in memory; those of clients kept longest ago go to disk.

    A tensor that several clients hold is stored once. stay: tensors that never move, such as initial parameters.
    """

    def __init__(self, limit: int, stay: Iterable[Tensor] = ()) -> None:
        self.limit, self.bytes, self.made = limit, 0, 0
        self.folder = temporary()
        # Tensors are held beside their ids, so that no other can come to have the same.
        self.stay = {id(tensor): tensor for tensor in stay}
        self.clients: dict[str, dict[int, Tensor]] = {}
        self.users: Counter[int] = Counter()
        self.resident: dict[int, Tensor] = {}
        self.mapped: dict[int, Arena] = {}
        # Clients with tensors that may be in memory, the one kept longest ago first.
        self.order: dict[str, None] = {}

    def keep(self, client: str, state: Mapping[str, Any]) -> None:
        """Take note of a client's new state; raises RunError when there is no room on the disk."""
        # Strides must stay, for a sum over a tensor runs in their order: what has gaps or overlaps is not moved.
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
        """Let the memory of these tensors (None: of all) that lie on disk go; they are read again when needed."""
        numbers = self.mapped if tensors is None else [id(tensor) for tensor in tensors]
        for arena in {id(arena): arena for n in numbers if (arena := self.mapped.get(n)) is not None}.values():
            _forget(arena)

    @property
    def on_disk(self) -> int:
        """Bytes of the mapped files."""
        return sum(arena.size for arena in {id(arena): arena for arena in self.mapped.values()}.values())

    def close(self) -> None:
        """Give the folder back; what lies on disk stays readable for as long as anybody holds it."""
        self.folder.cleanup()

    def _move(self, tensors: Mapping[int, Tensor]) -> None:
        """Lay these tensors into one mapped file."""
        if not tensors:
            return
        arena, offset = self._arena(sum(_padded(tensor) for tensor in tensors.values())), 0
        for number, tensor in tensors.items():
            part = arena.memory[offset : offset + tensor.nbytes].view(tensor.dtype)
            place = part.as_strided(tensor.shape, tensor.stride())
            place.copy_(tensor.detach())
            # Whoever holds the tensor holds it still: only its memory is another.
            tensor.data = place
            self.mapped[number] = arena
            self.bytes -= self.resident.pop(number).nbytes
            offset += _padded(tensor)
        _forget(arena)

    def _arena(self, size: int) -> Arena:
        self.made += 1
        path = Path(self.folder.name) / f"state-{self.made}"
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
    """How many elements lie from a tensor's first to its last."""
    return 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _padded(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGN) * ALIGN


def _forget(arena: Arena) -> None:
    """Let the pages of a mapped file leave this process; their contents are the file's."""
    if _libc is not None:
        _libc.madvise(ctypes.c_void_p(arena.memory.data_ptr()), ctypes.c_size_t(arena.size), _FORGET)
