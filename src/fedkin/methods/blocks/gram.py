"""Inner products of many long vectors, piece by piece, so that no second copy of them is held in double precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.flow import Params

__all__ = ["blocks", "inner_products", "inner_products_of_params"]

Array = npt.NDArray[np.float64]

_BLOCK = 1 << 18  # numbers held at once in double precision: 2 MB, which stay in the processor's cache


def blocks(vectors: Sequence[Tensor], origin: Tensor | None = None) -> Iterator[tuple[Tensor, slice]]:
    """n vectors [d], minus the origin [d], as double blocks [n, some]; each with the entries that it holds."""
    width = max(1, _BLOCK // len(vectors))
    for start in range(0, len(vectors[0]), width):
        part = slice(start, start + width)
        block = torch.stack([vector[part] for vector in vectors]).double()
        yield (block if origin is None else block - origin[part].double()), part


def inner_products(vectors: Sequence[Tensor], origin: Tensor | None = None) -> Array:
    """Inner products [n, n] of n vectors [d], each minus the origin [d]; exactly symmetric.

    >>> inner_products([torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])]).tolist()
    [[5.0, 2.0], [2.0, 1.0]]
    """
    return _summed((block for block, _ in blocks(vectors, origin)), len(vectors))


def inner_products_of_params(rows: Sequence[Params], names: Iterable[str], origin: Params) -> Array:
    """Inner products [n, n] of n sets of parameters, each minus the origin, over the named tensors."""
    pieces = (
        block for name in names for block, _ in blocks([row[name].flatten() for row in rows], origin[name].flatten())
    )
    return _summed(pieces, len(rows))


def _summed(pieces: Iterable[Tensor], n: int) -> Array:
    total = torch.zeros(n, n, dtype=torch.float64)
    for block in pieces:
        total += block @ block.T
    return np.asarray(((total + total.T) / 2).numpy())
