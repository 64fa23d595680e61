"""A stand-in for a card: tensors of a device of its own, whose arithmetic is done on the processor.

Like a card it refuses an operation on tensors of two devices, unless the processor's is a single number. It is a
torch device by torch's own hooks for backends written in Python, so that what runs here is what runs on a card, but
for the kernels.
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

NAME = "lazy"  # a device that torch knows, has no kernels for here, and runs backward passes of in the same thread
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}


class OnCard(Tensor):
    """A tensor of the card; `inner` holds its numbers."""

    inner: Any  # a Tensor; the name is a method of torch's too

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnCard:
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
        raise AssertionError("torch has no tolist for tensors of this kind: bring it to the processor first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _done(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Hears of operations that only name the card, as those that make tensors do."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.transfers: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.transfers.update(_transfer(func, args, kwargs or {}))
        return _done(func, args, kwargs or {})


@contextmanager
def card() -> Iterator[Counter[str]]:
    """While this is open there is a device "card"; gives how often tensors went there ("up") and back ("down")."""
    mode = _Mode()
    with mode:
        yield mode.transfers


def _transfer(func: Any, args: Any, kwargs: Any) -> list[str]:
    """What crosses; how many numbers are not zero is asked of the card, too."""
    first = isinstance(args[0], OnCard) if args else False
    if func in _READS or func is torch.ops.aten.nonzero.default:
        return ["down"] if first else []
    if func is torch.ops.aten.index.Tensor and any(isinstance(t, Tensor) and t.dtype == torch.bool for t in args[1]):
        return ["down"] if first else []
    if func is torch.ops.aten.copy_.default:
        return [] if first == isinstance(args[1], OnCard) else ["up" if first else "down"]
    if func is not torch.ops.aten._to_copy.default or kwargs.get("device") is None:
        return []
    there = _named(kwargs)
    return [] if there == first else ["up" if there else "down"]


def _named(kwargs: Any) -> bool:
    return torch.device(kwargs["device"]).type == NAME


def _done(func: Any, args: Any, kwargs: Any) -> Any:
    flat = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    held = [t for t in flat if isinstance(t, OnCard)]
    if held and func not in _COPIES and any(t.ndim for t in flat if not isinstance(t, OnCard)):
        raise RuntimeError(f"{func}: tensors on the card and on the processor")
    named = kwargs.get("device") is not None
    there = (_named(kwargs) if named else bool(held)) and func not in _READS
    plain, options = pytree.tree_map(lambda t: t.inner if isinstance(t, OnCard) else t, (args, dict(kwargs)))
    result = func(*plain, **({**options, "device": "cpu"} if named else options))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    known = {id(t.inner): t for t in held}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or not there:
            return value
        return known[id(value)] if id(value) in known else OnCard(value)

    return pytree.tree_map(wrapped, result)
