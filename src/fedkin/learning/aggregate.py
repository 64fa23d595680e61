"""Means of parameters over clients, by client id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkin.codec import Params
from fedkin.errors import MethodError

__all__ = ["AveragedReplies", "Mean", "RunningMean", "weighted_mean"]


class RunningMean:
    """The weighted mean (sum_k w_k x_k) / (sum_k w_k), tensor by tensor, of terms that are added one after another.

    Add the terms in the order of the client ids: the order decides the last bits. The mean of one term is that term,
    bit for bit. Tensors of 16 bits are summed in float32. Integer tensors (counters) take the largest value.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._names: list[str] = []
        self._only: Params | None = None
        self._dtypes: dict[str, torch.dtype] = {}
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}

    def add(self, params: Params, weight: float) -> None:
        """Add a term; its tensors are not needed once there is another one."""
        floats = {name: _widened(tensor) for name, tensor in params.items() if tensor.is_floating_point()}
        self._only = None if self._names else params
        if not self._names:
            self._names = list(params)
            self._dtypes = {name: params[name].dtype for name in floats}
            self._sums = {name: torch.zeros_like(tensor) for name, tensor in floats.items()}
            self._largest = {name: tensor for name, tensor in params.items() if name not in floats}
        self.total += weight
        if floats:
            # One call for all tensors is faster than one for each.
            torch._foreach_add_(list(self._sums.values()), [floats[name] for name in self._sums], alpha=weight)
        for name, largest in self._largest.items():
            self._largest[name] = torch.maximum(largest, params[name])

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of the terms so far; raises MethodError if their weights sum to zero."""
        if not self.total > 0:
            raise MethodError(f"a weighted mean with weights that sum to {self.total:g}")
        if self._only is not None:
            return dict(self._only)
        sums = torch._foreach_div(list(self._sums.values()), self.total) if self._sums else []
        means = {
            name: tensor.to(self._dtypes[name]) for name, tensor in zip(self._sums, sums, strict=True)
        } | self._largest
        return {name: means[name] for name in self._names}


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def weighted_mean(params: Mapping[str, Params], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return (sum_k weights[k] params[k]) / (sum_k weights[k]), tensor by tensor.

    Clients are summed in the order of their ids, so that the order of their answers changes no bit.
    Integer tensors (counters) take the largest value. Raises MethodError if the weights sum to zero.

    >>> mean = weighted_mean({"a": {"w": torch.ones(1)}, "b": {"w": torch.zeros(1)}}, {"a": 3, "b": 1})
    >>> mean["w"]
    tensor([0.7500])
    """
    if not (isinstance(params, Mapping) and isinstance(weights, Mapping)):
        raise MethodError("weighted_mean: expected {id: params} and {id: weight}, with the same ids")
    running = RunningMean()
    for id in sorted(params):
        running.add(params[id], weights[id])
    if not running.total > 0:
        raise MethodError(f"a weighted mean over {len(params)} clients with weights that sum to {running.total:g}")
    return running.mean()


@dataclass(frozen=True)
class Mean:
    """What a server needs of one field of all replies: their weighted mean, and nothing else of it.

    field: parameters by name. weight: the field with the weight of a reply; None weighs all alike.
    """

    field: str = "params"
    weight: str | None = "n"

    def weigh(self, reply: Mapping[str, Any]) -> float:
        """Return the weight of a reply."""
        return 1.0 if self.weight is None else float(reply[self.weight])

    def of(self, replies: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the mean over the answer to an Ask with this mean, at least one reply; or over any replies in full."""
        if isinstance(replies, AveragedReplies):
            return replies.of(self)
        params = {id: reply[self.field] for id, reply in replies.items()}
        return weighted_mean(params, {id: self.weigh(reply) for id, reply in replies.items()})


class AveragedReplies(Mapping[str, Any]):
    """The answer to an Ask with a mean: replies by client id without the averaged field, and the mean of that field.

    mean: what the server asked for. running: the terms of all replies.
    """

    def __init__(self, mean: Mean, replies: Mapping[str, Any], running: RunningMean) -> None:
        self.mean, self._replies, self._running = mean, replies, running

    def __getitem__(self, id: str) -> Any:
        return self._replies[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def of(self, mean: Mean) -> dict[str, Tensor]:
        """Return the mean of all replies; raises MethodError if another one is meant, or if there is no reply."""
        if mean != self.mean:
            raise MethodError(f"{mean!r}.of(answer): the answer is to Ask(..., mean={self.mean!r}): write one for both")
        return self._running.mean() if self._replies else weighted_mean({}, {})
