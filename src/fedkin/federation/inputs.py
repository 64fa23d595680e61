"""The inputs of nets: one array with a row per sample, or a dict of such arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedkin.errors import DataError

Inputs: TypeAlias = Tensor | Mapping[Any, Tensor]
# Types of whole numbers that stay unchanged: token ids and category codes, which a net looks up in an embedding.
CODES = (torch.int32, torch.int64)


def parts(x: Inputs) -> dict[str, Tensor]:
    """The arrays by name; one alone is called "x".

    >>> list(parts(torch.zeros(3, 2))), list(parts({"ids": torch.zeros(3, 2), "mask": torch.ones(3, 2)}))
    (['x'], ['ids', 'mask'])
    """
    return {"x": x} if isinstance(x, Tensor) else dict(x)


def map_arrays(change: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same structure with every array changed."""
    return change(x) if isinstance(x, Tensor) else {name: change(part) for name, part in x.items()}


def concatenated(several: Sequence[Inputs]) -> Inputs:
    """Concatenate inputs of the same structure along their rows."""
    first = several[0]
    if isinstance(first, Tensor):
        return torch.cat([x for x in several if isinstance(x, Tensor)])
    return {name: torch.cat([parts(x)[name] for x in several]) for name in first}


def shape_of(x: Inputs) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
    """The shape of one sample, in the form of `Task.shape`."""
    return tuple(x.shape[1:]) if isinstance(x, Tensor) else {name: tuple(t.shape[1:]) for name, t in x.items()}


def codes_in(x: Inputs, scaled: bool) -> tuple[str, ...]:
    """Names of the arrays of codes, in the form of `Task.codes`. With a scale, whole numbers are quantities."""
    alone = isinstance(x, Tensor)
    kept = CODES if alone else (*CODES, torch.bool)
    return tuple(name for name, part in parts(x).items() if part.dtype in kept and not (alone and scaled))


def check_parts(x: Inputs, count: int) -> None:
    """Raise DataError unless every array has this many rows."""
    if isinstance(x, Tensor):
        if len(x) != count:
            raise DataError(f"samples and labels differ in number: {len(x)} and {count}")
        return
    if not x:
        raise DataError("x: a dict without a single array; expected at least one")
    for name, part in x.items():
        if not isinstance(name, str) or not isinstance(part, Tensor) or not part.ndim:
            raise DataError(f"x[{name!r}]: expected a name and a tensor [N, ...], got {type(part).__name__}")
        if len(part) != count:
            raise DataError(f"x[{name!r}] and labels differ in number: {len(part)} and {count}")
