"""A client's training loss, found without training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedkin.errors import MethodError
from fedkin.flow import ClientFlow, Infer, Params
from fedkin.learning.losses import Batch, per_sample
from fedkin.learning.net import BodyHead
from fedkin.tasks import Task

__all__ = ["SampleLosses", "training_loss"]


@dataclass(frozen=True)
class SampleLosses:
    """For Infer: the task's loss of each sample [b]."""

    task: Task

    def __call__(self, model: BodyHead, batch: Batch) -> Tensor:
        return per_sample(self.task)(model(batch.x), batch.y)


def training_loss(task: Task, params: Params) -> ClientFlow[Tensor]:
    """At a client: the mean loss of `params` on its training samples, a 0-d float64 tensor."""
    values = yield from Infer(params, SampleLosses(task))
    mean = values.double().mean()
    if not math.isfinite(mean):
        raise MethodError(f"the new model's training loss is {float(mean)}; lower training.lr or set training.clip")
    return mean
