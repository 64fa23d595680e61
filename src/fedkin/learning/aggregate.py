"""Means of parameters over clients, by client id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkin.codec import Params
from fedkin.errors import MethodError

__all__ = ["Mean", "RunningMean", "Summed", "weighted_mean"]


class RunningMean:
    """A weighted mean whose terms are added one after another; `weighted_mean` adds them in the order of the ids.

    total: the sum of all weights.
    """

    def __init__(self, total: float) -> None:
        self.total = total
        self.made: dict[str, Tensor] = {}
        self.floats: list[str] = []
        self.others: list[str] = []
        self.sums: list[Tensor] = []

    def add(self, params: Params, weight: float) -> None:
        """Add a term; its tensors are not needed after that."""
        if not self.made:
            self.made = {name: torch.zeros_like(t) if t.is_floating_point() else t for name, t in params.items()}
            self.floats = [name for name, tensor in self.made.items() if tensor.is_floating_point()]
            self.others = [name for name in self.made if name not in self.floats]
            self.sums = [self.made[name] for name in self.floats]
        if self.sums:
            # One call for all tensors: each of them is added as by `add_`.
            torch._foreach_add_(self.sums, [params[name] for name in self.floats], alpha=weight / self.total)
        for name in self.others:
            self.made[name] = torch.maximum(self.made[name], params[name])


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
    mean = RunningMean(total)
    for id in ids:
        mean.add(params[id], weights[id])
    return mean.made


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
        if isinstance(replies, Summed):
            return replies.of(self)
        params = {id: reply[self.field] for id, reply in replies.items()}
        return weighted_mean(params, {id: self.weigh(reply) for id, reply in replies.items()})


class Summed(Mapping[str, Any]):
    """The answer to an Ask with a mean: replies by client id, without the field of which only the mean is there.

    asked: the mean. make: returns it, when it is first needed; a runner may have taken it already.
    """

    def __init__(self, asked: Mean, replies: Mapping[str, Any], make: Callable[[], dict[str, Tensor]]) -> None:
        self.asked, self._replies = asked, replies
        self._make: Callable[[], dict[str, Tensor]] | None = make
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, id: str) -> Any:
        return self._replies[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def of(self, mean: Mean) -> dict[str, Tensor]:
        """Return the mean of all replies; raises MethodError if another one is meant, or if there is no reply."""
        if mean != self.asked:
            raise MethodError(
                f"{mean!r}.of(answer): the answer is to Ask(..., mean={self.asked!r}): write one for both"
            )
        if not self._replies:
            return weighted_mean({}, {})
        if self._make is not None:
            self._made, self._make = self._make(), None
        return dict(self._made)
