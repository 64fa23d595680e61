"""All that a module holds, at any depth, as a hash: whether a call of it changed anything."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.learning.standin import Value, Weight

__all__ = ["held"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)  # by identity: what they hold is not looked at


def held(module: nn.Module) -> str:
    """Return a hash of all that the module holds: attributes, also of plain objects, numbers of arrays, counters.

    Not what functions, classes and modules of Python hold (globals, closures), nor the `forward` of an instance.
    """
    digest = blake2b(digest_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some iterators warn when they are asked for their state
        for piece in _pieces(module, {}):
            digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def _pieces(value: Any, seen: dict[int, tuple[int, object]]) -> Iterator[bytes]:
    """Yield what a value is; seen: the number of each object that was met, and the object, so that its id stays."""
    kind = type(value)
    if kind in _PLAIN:
        yield f"{kind.__name__} {value!r}".encode()
        return
    if issubclass(kind, Value | Weight) or isinstance(value, _CODE):
        yield f"{kind.__name__} {id(value)}".encode()
        return
    if id(value) in seen:
        yield f"again {seen[id(value)][0]}".encode()
        return
    seen[id(value)] = len(seen), value
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if isinstance(value, Tensor) and value.layout == torch.strided and value.device.type != "meta":
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
        return
    for part in _inside(value):
        yield from _pieces(part, seen)


def _inside(value: Any) -> Iterator[Any]:
    """Yield the parts of an object."""
    if isinstance(value, nn.Module):
        for name, own in vars(value).items():
            if name != "forward":
                yield from (name, own)
    elif isinstance(value, dict):
        for pair in value.items():
            yield from pair
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    else:
        try:
            yield from _state(value)
        except (TypeError, ValueError, AttributeError):
            yield from (id(value), repr(value))


def _state(value: Any) -> list[Any]:
    """Return what pickle would store of an object."""
    made = value.__reduce_ex__(4)
    if isinstance(made, str):
        return [made]
    return [list(part) if hasattr(part, "__next__") and at > 2 else part for at, part in enumerate(made)]
