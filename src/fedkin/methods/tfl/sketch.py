"""Count sketch: long vectors as short ones whose inner products are right in expectation (Charikar et al. 2002)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedkin.keys import rng

__all__ = ["sketched"]


def sketched(vectors: Mapping[str, Tensor], size: int, seed: int) -> dict[str, Tensor]:
    """Vectors [d] as vectors [size]: each coordinate, with a random sign, is added to one of `size` numbers.

    Places and signs depend on the seed only, so that vectors of different rounds can be compared.
    """
    length = len(next(iter(vectors.values())))
    draw = rng(seed, "", 0, "sketch")
    place = torch.from_numpy(draw.integers(size, size=length))
    sign = torch.from_numpy(2.0 * draw.integers(2, size=length) - 1)
    return {id: v.new_zeros(size).index_add(0, place, v * sign.to(v.dtype)) for id, v in vectors.items()}
