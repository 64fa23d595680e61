"""A stand-in for a GPU: a torch device with its own tensors, whose arithmetic is done on the CPU.

Like a GPU, it refuses an operation on tensors of two devices, unless the tensor on the CPU is a single number. It uses
torch's hooks for backends written in Python, so that the code that runs here is the code that runs on a GPU, except for
the kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "lazy"  # a device that torch knows but has no kernels for, with backward passes in the same thread
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}


class OnGpu(Tensor):
    """A tensor on the GPU; `inner` has its numbers."""

    inner: Any  # a Tensor; the name is a method of torch's too

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGpu:
        out = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        out.inner = inner
        return out

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].inner = args[1].inner
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})

    def tolist(self) -> Any:
        raise AssertionError("torch has no tolist for tensors of this kind: bring it to the CPU first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _done(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """A mode that also sees operations that only name the GPU, such as those that make tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.transfers: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.transfers.update(_transfer(func, args, kwargs or {}))
        return _done(func, args, kwargs or {})


@contextmanager
def gpu() -> Iterator[Counter[str]]:
    """Make a GPU while this context is open; yields the numbers of tensors copied there ("up") and back ("down")."""
    mode = _Mode()
    with mode:
        yield mode.transfers


def _transfer(func: Any, args: Any, kwargs: Any) -> list[str]:
    """Return the copies of an operation; a count of non-zero numbers also has to come back from the GPU."""
    first = isinstance(args[0], OnGpu) if args else False
    if func in _READS or func is torch.ops.aten.nonzero.default:
        return ["down"] if first else []
    if func is torch.ops.aten.index.Tensor and any(isinstance(t, Tensor) and t.dtype == torch.bool for t in args[1]):
        return ["down"] if first else []
    if func is torch.ops.aten.copy_.default:
        return [] if first == isinstance(args[1], OnGpu) else ["up" if first else "down"]
    if func is not torch.ops.aten._to_copy.default or kwargs.get("device") is None:
        return []
    there = _named(kwargs)
    return [] if there == first else ["up" if there else "down"]


def _named(kwargs: Any) -> bool:
    return torch.device(kwargs["device"]).type == NAME


def _done(func: Any, args: Any, kwargs: Any) -> Any:
    flat = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    held = [t for t in flat if isinstance(t, OnGpu)]
    if held and func not in _COPIES and any(t.ndim for t in flat if not isinstance(t, OnGpu)):
        raise RuntimeError(f"{func}: tensors on the GPU and on the CPU")
    named = kwargs.get("device") is not None
    there = (_named(kwargs) if named else bool(held)) and func not in _READS
    plain, options = pytree.tree_map(lambda t: t.inner if isinstance(t, OnGpu) else t, (args, dict(kwargs)))
    result = func(*plain, **({**options, "device": "cpu"} if named else options))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    known = {id(t.inner): t for t in held}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or not there:
            return value
        return known[id(value)] if id(value) in known else OnGpu(value)

    return pytree.tree_map(wrapped, result)
