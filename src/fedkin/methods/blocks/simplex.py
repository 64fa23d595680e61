"""Distributions over clients, and figures of them for the records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["entropy", "figure", "filled", "tensors_by_id"]

Array = npt.NDArray[np.float64]


def filled(known: Mapping[str, Tensor], ids: Sequence[str]) -> Array:
    """A distribution over `ids` from one over `known`: each new id has 1 / K; the others share the rest as before.

    >>> filled({"a": torch.tensor(0.25), "b": torch.tensor(0.75)}, ["a", "b", "c", "d"]).tolist()
    [0.125, 0.375, 0.25, 0.25]
    """
    values = np.array([float(known.get(id, math.nan)) for id in ids])
    new = np.isnan(values)
    old = values[~new].sum()
    if len(known) == len(ids) and not new.any():
        return values
    if not old > 0:
        return np.full(len(ids), 1 / len(ids))
    values[~new] *= (1 - new.mean()) / old
    values[new] = 1 / len(ids)
    return values


def entropy(p: Array) -> float:
    """-sum p ln p, in nats: ln K when uniform, 0 when one-hot.

    >>> entropy(np.array([1.0, 0.0]))
    0.0
    """
    return abs(float(-(p[p > 0] * np.log(p[p > 0])).sum()))


def figure(value: float) -> float:
    """A figure for the records, without the last digits, which depend on the order of a sum."""
    return float(f"{value:.9g}")


def tensors_by_id(ids: Sequence[str], values: Array) -> dict[str, Tensor]:
    """{id: 0-d float64 tensor} of these values [K], for a state."""
    return dict(zip(ids, torch.from_numpy(np.asarray(values, dtype=np.float64)).clone().unbind(), strict=True))
