"""Means of parameters over clients, by client id."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedkin.codec import Params
from fedkin.errors import MethodError

__all__ = ["weighted_mean"]


def weighted_mean(params: Mapping[str, Params], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return sum_k weights[k] params[k] / sum_k weights[k], tensor by tensor.

    Clients are summed in the order of their ids, so that the order of their answers changes no bit.
    Integer tensors (counters) take the largest value. Raises MethodError if the weights sum to zero.

    >>> mean = weighted_mean({"a": {"w": torch.ones(1)}, "b": {"w": torch.zeros(1)}}, {"a": 3, "b": 1})
    >>> mean["w"]
    tensor([0.7500])
    """
    if not (isinstance(params, Mapping) and isinstance(weights, Mapping)):
        raise MethodError("weighted_mean: expected {id: params} and {id: weight}, with the same ids")
    ids = sorted(params)
    total = float(sum(weights[id] for id in ids))
    if not total > 0:
        raise MethodError(f"a weighted mean over {len(ids)} clients with weights that sum to {total:g}")
    mean: dict[str, Tensor] = {}
    for name, first in params[ids[0]].items():
        if not first.is_floating_point():
            mean[name] = torch.stack([params[id][name] for id in ids]).amax(0)
            continue
        mean[name] = torch.zeros_like(first)
        for id in ids:
            mean[name].add_(params[id][name], alpha=weights[id] / total)
    return mean
