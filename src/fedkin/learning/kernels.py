"""The first convolutions of a net, computed by compiled kernels (`run.kernels = "numba"`) in place of torch's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.module import _has_any_global_hook

from fedkin.learning.devices import CPU
from fedkin.learning.written import altered

if TYPE_CHECKING:
    from fedkin.learning.convolving import Kernels

__all__ = ["Trunk", "trunk_in"]

_WIDEST = 7
# Channels in times channels out of a convolution; torch is as fast from there on (benchmarks/convolutions.py).
_MOST = 2048
# Sizes of batches whose arrays are kept: a full and a last one, in training and in evaluation.
_KINDS = 4


class _Unit(NamedTuple):
    """A convolution with 2x2 max pooling and ReLU."""

    conv: nn.Conv2d
    size: int
    padding: int

    @property
    def border(self) -> int:
        """Zeros around the gradient of the convolution, from which that of its input is computed."""
        return self.size - 1 - self.padding


def trunk_in(body: nn.Module) -> Trunk | None:
    """Return the part of the body that kernels compute; None if there is none."""
    made = Trunk(body)
    return made if made.units else None


class _Room:
    """Arrays for a number of blocks of images of one shape; see `convolving`."""

    def __init__(self, units: Sequence[_Unit], blocks: int, shape: tuple[int, int], lanes: int) -> None:
        first = units[0]
        rows, columns = shape
        self.x = np.zeros((blocks, first.conv.in_channels, *(n + 2 * first.padding for n in shape), lanes), np.float32)
        self.outs, self.which, self.dys, self.dxs = [], [], [], []
        for unit, after in zip(units, [*(u.padding for u in units[1:]), 0], strict=True):
            channels = unit.conv.out_channels
            self.dxs.append(np.empty((blocks, unit.conv.in_channels, rows, columns, lanes), np.float32))
            rows, wide = rows + 2 * unit.padding - unit.size + 1, columns + 2 * unit.padding - unit.size + 1
            rows, columns = rows // 2, wide // 2
            self.outs.append(np.zeros((blocks, channels, rows + 2 * after, columns + 2 * after, lanes), np.float32))
            self.which.append(np.empty((blocks, channels, rows, columns, lanes), np.int8))
            self.dys.append(np.zeros((blocks, channels, 2 * rows, wide + 2 * unit.border, lanes), np.float32))
        self.g = np.zeros((blocks, channels, rows, columns, lanes), np.float32)


class _Lease:
    """A room that goes back to the free ones when no graph of gradients needs it any more."""

    def __init__(self, room: _Room, free: list[_Room]) -> None:
        self.room, self.free = room, free

    def __del__(self) -> None:
        self.free.append(self.room)


class Trunk:
    """The units at the beginning of a Sequential body: Conv2d, then MaxPool2d(2) and ReLU in either order.

    units: in order; empty if the body does not begin with one. The parameters stay those of the modules. last: whether
    what follows is computed with channels last.
    """

    def __init__(self, body: nn.Module) -> None:
        self.body = body
        self.leaves = leaves = list(_leaves(body))
        self.last = False
        self.units: list[_Unit] = []
        while unit := _unit(leaves[3 * len(self.units) :][:3]):
            self.units.append(unit)
        self.rest = leaves[3 * len(self.units) :]
        self.skipped = [body, *leaves[: 3 * len(self.units)], *(m for m in body.modules() if type(m) is nn.Sequential)]
        self.free: dict[tuple[int, int, int], list[_Room]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "free": {}}

    @property
    def weights(self) -> list[Tensor]:
        """Weight and bias of each convolution that kernels compute."""
        return [tensor for unit in self.units for tensor in (unit.conv.weight, unit.conv.bias)]  # type: ignore[misc]

    def takes(self, x: Any) -> bool:
        """Whether it computes this batch: plain images without gradient, and nobody watches the layers."""
        if type(x) is not Tensor or x.ndim != 4 or not len(x) or x.requires_grad:
            return False
        weights = self.weights
        if not all(t.dtype == torch.float32 and t.device == CPU for t in (x, *weights)):
            return False
        if x.shape[1] != self.units[0].conv.in_channels or torch.is_autocast_enabled("cpu"):
            return False
        if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
            return False
        if torch.compiler.is_compiling() or any(altered(part) for part in self.skipped):
            return False
        if _has_any_global_hook():  # type: ignore[no-untyped-call]
            return False
        now = list(_leaves(self.body))
        if len(now) != len(self.leaves) or any(one is not other for one, other in zip(now, self.leaves, strict=True)):
            return False
        return self._fits(*x.shape[2:])

    def __call__(self, x: Tensor) -> Any:
        """Return what the body gives for x."""
        x = _Computed.apply(self, x, *self.weights)  # type: ignore[no-untyped-call]
        for part in self.rest:
            x = part(x)
        return x

    def _fits(self, rows: int, columns: int) -> bool:
        """Whether something is left of images of this size after each unit."""
        for unit in self.units:
            less = 2 * unit.padding - unit.size + 1
            rows, columns = (rows + less) // 2, (columns + less) // 2
            if min(rows, columns) < 1:
                return False
        return True

    def lease(self, x: Tensor, lanes: int) -> _Lease:
        """Return arrays for this batch."""
        kind = (-(-len(x) // lanes), x.shape[2], x.shape[3])
        free = self.free[kind] = self.free.pop(kind, [])
        while len(self.free) > _KINDS:
            del self.free[next(iter(self.free))]
        return _Lease(free.pop() if free else _Room(self.units, kind[0], (kind[1], kind[2]), lanes), free)

    def kernels(self) -> list[Kernels]:
        """Return the kernels of each unit, which numba compiles when they are first called."""
        from fedkin.learning.convolving import kernels

        return [kernels(unit.conv.in_channels, unit.conv.out_channels, unit.size) for unit in self.units]


class _Computed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, trunk: Trunk, x: Tensor, *weights: Tensor) -> Tensor:
        from fedkin.learning.convolving import LANES, enter, leave

        lease = trunk.lease(x, LANES)
        room, kernels = lease.room, trunk.kernels()
        enter(x.detach().contiguous().numpy(), trunk.units[0].padding, room.x)
        borders = [*(unit.padding for unit in trunk.units[1:]), 0]
        before = room.x
        for place, made in enumerate(kernels):
            w, b = (_array(t) for t in weights[2 * place : 2 * place + 2])
            made.forward(before, w, b, borders[place], room.outs[place], room.which[place])
            before = room.outs[place]
        layout = torch.channels_last if trunk.last else torch.contiguous_format
        out = torch.empty((len(x), *before.shape[1:4]), dtype=x.dtype, device=CPU, memory_format=layout)
        leave(before, out.numpy())
        ctx.save_for_backward(*weights)
        ctx.trunk, ctx.lease, ctx.kernels = trunk, lease, kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from fedkin.learning.convolving import enter

        room, units = ctx.lease.room, ctx.trunk.units
        found: list[Tensor] = [torch.empty(t.shape, dtype=t.dtype, device=CPU) for t in ctx.saved_tensors]
        enter(g.contiguous().numpy(), 0, room.g)
        after = room.g
        for place in reversed(range(len(units))):
            unit, made = units[place], ctx.kernels[place]
            x = room.outs[place - 1] if place else room.x
            dw, db = (t.numpy() for t in found[2 * place : 2 * place + 2])
            made.weights(after, room.which[place], x, unit.border, room.dys[place], dw, db)
            if place:
                made.inputs(room.dys[place], _array(ctx.saved_tensors[2 * place]), unit.padding, room.dxs[place])
                after = room.dxs[place]
        return None, None, *found


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def _leaves(body: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a Sequential in order, those of Sequentials in it included."""
    if type(body) is not nn.Sequential or altered(body):
        yield body
        return
    for part in body:
        yield from _leaves(part)


def _unit(parts: Sequence[nn.Module]) -> _Unit | None:
    """Return the unit that these three layers are."""
    if len(parts) < 3 or any(altered(part) for part in parts):
        return None
    conv, (pool, relu) = parts[0], sorted(parts[1:], key=lambda part: isinstance(part, nn.ReLU))
    if not (type(conv) is nn.Conv2d and type(pool) is nn.MaxPool2d and type(relu) is nn.ReLU and _halves(pool)):
        return None
    size, padding = conv.kernel_size[0], conv.padding[0]
    plain = (
        conv.kernel_size == (size, size) and conv.padding == (padding, padding) and conv.stride == (1, 1)
        and conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros" and conv.bias is not None
        and size <= _WIDEST and conv.in_channels * conv.out_channels <= _MOST
    )  # fmt: skip
    return _Unit(conv, size, int(padding)) if plain and int(padding) < size else None


def _halves(pool: nn.MaxPool2d) -> bool:
    return (
        pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)) and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1)) and not pool.ceil_mode and not pool.return_indices
    )  # fmt: skip
