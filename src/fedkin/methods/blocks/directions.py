"""Directions in which models were moved by training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedkin.flow import Params

__all__ = ["along", "direction"]


def direction(
    members: Mapping[str, Params], start: Params, names: Sequence[str], lengths: Mapping[str, float]
) -> dict[str, Tensor]:
    """The mean of the members' updates, each scaled to length 1, itself scaled to length 1."""
    total = {name: torch.zeros_like(start[name]) for name in names}
    for id in sorted(members):
        if lengths[id] > 0:
            for name in names:
                total[name] += (members[id][name] - start[name]) / lengths[id]
    length = float(torch.sqrt(sum((t.double().square().sum() for t in total.values()), torch.zeros(()).double())))
    return {name: tensor / length for name, tensor in total.items()} if length > 0 else total


def along(params: Params, start: Params, towards: Params) -> float:
    """The update's inner product with a direction: of two directions of length 1, the larger has the larger cosine."""
    return float(
        sum(((params[name] - start[name]).double() * tensor.double()).sum() for name, tensor in towards.items())
    )
