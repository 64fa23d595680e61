"""Nets for other processes, with their tensors in one mapped file, and the rest pickled.

Pickled tensors would go through /dev/shm with one file descriptor each. In a mapped file, frozen weights, which may be
most of a net, are in memory once for all processes.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from fedkin.learning.net import Net

__all__ = ["PackedNet", "pack", "unpack"]

_ALIGN = 64


class _Place(NamedTuple):
    """The place of a tensor in the file, with its strides, because sums over a tensor run in their order."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_parameter: bool
    trainable: bool


class PackedNet(NamedTuple):
    """A packed net; path, size: the file of its tensors; rest: the pickled net without them."""

    path: str
    size: int
    rest: bytes


def pack(net: Net, path: Path) -> PackedNet:
    """Write the tensors of the net to `path`, and pickle the rest; raises the errors of pickle."""
    rest = BytesIO()
    with path.open("wb") as file:
        pickler = _Pickler(rest, file)
        pickler.dump(net)
        file.write(b"\0")  # an empty file cannot be mapped
        return PackedNet(str(path), file.tell(), rest.getvalue())


def unpack(packed: PackedNet) -> Net:
    """Return the net; its frozen parameters are mapped, and all other tensors are copies."""
    memory = torch.from_file(packed.path, shared=False, size=packed.size, dtype=torch.uint8)
    return cast(Net, _Unpickler(BytesIO(packed.rest), memory).load())


class _Pickler(ForkingPickler):
    def __init__(self, rest: BytesIO, file: Any) -> None:
        super().__init__(rest)
        self.file = file
        # Tensors are stored with their places, so that no other tensor can get the same id.
        self.known: dict[int, tuple[_Place, Tensor]] = {}

    def persistent_id(self, obj: Any) -> _Place | None:
        if type(obj) not in (Tensor, nn.Parameter) or obj.layout != torch.strided or obj.device.type != "cpu":
            return None
        if id(obj) not in self.known:
            self.known[id(obj)] = self._lay(obj), obj
        return self.known[id(obj)][0]

    def _lay(self, tensor: Tensor) -> _Place:
        held = tensor.detach()
        extent = 1 + sum((n - 1) * stride for n, stride in zip(held.shape, held.stride(), strict=True))
        if not held.numel() or extent != held.numel():
            held = held.contiguous()
        offset = -(-self.file.tell() // _ALIGN) * _ALIGN
        self.file.write(b"\0" * (offset - self.file.tell()))
        self.file.write(held.as_strided((held.numel(),), (1,)).view(torch.uint8).numpy().data)
        return _Place(
            offset, held.dtype, tuple(held.shape), held.stride(), isinstance(tensor, nn.Parameter), tensor.requires_grad
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, rest: BytesIO, memory: Tensor) -> None:
        super().__init__(rest)
        self.memory = memory
        self.known: dict[_Place, Tensor] = {}

    def persistent_load(self, pid: _Place) -> Tensor:
        if pid not in self.known:
            self.known[pid] = self._made(pid)
        return self.known[pid]

    def _made(self, place: _Place) -> Tensor:
        count = sum((n - 1) * stride for n, stride in zip(place.shape, place.stride, strict=True)) + 1
        size = (count if 0 not in place.shape else 0) * place.dtype.itemsize
        flat = self.memory[place.offset : place.offset + size].view(place.dtype)
        held = flat.as_strided(place.shape, place.stride)
        if not place.is_parameter or place.trainable:
            # Copying a module copies all memory behind a buffer.
            held = held.clone()
        return nn.Parameter(held, place.trainable) if place.is_parameter else held.requires_grad_(place.trainable)
