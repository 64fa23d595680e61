"""Do no harm: which of two models is better on samples that neither was trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkin.federation import Samples
from fedkin.flow import ClientFlow, Infer, Params
from fedkin.keys import rng
from fedkin.learning.losses import per_sample
from fedkin.tasks import Task
from fedkin.views import ClientView

__all__ = ["better_own", "costs", "held_out"]


def held_out(client: ClientView[Any], share: float, fewest: int) -> tuple[Samples, Samples] | None:
    """(samples to train on, samples held out), the same in every round; None where fewer than `fewest` would be."""
    count = int(share * client.size)
    if not count or count < fewest:
        return None
    order = rng(client.seed, client.id, "held out").permutation(client.size)
    return client.train.take(sorted(order[count:])), client.train.take(sorted(order[:count]))


def better_own(
    client: ClientView[Any], group: Params, own: Params, held: Samples, margin: float
) -> ClientFlow[bool]:  # fmt: skip
    """Whether `own` costs less than `group` on the held-out samples, by more than `margin` standard errors."""
    theirs = yield from Infer(group, "logits", data=held)
    mine = yield from Infer(own, "logits", data=held)
    gain = costs(client.task, theirs, held.labels()) - costs(client.task, mine, held.labels())
    error = float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else 0.0
    return float(gain.mean()) > margin * error


def costs(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """What each sample costs [n]: 1 for a wrong class, else the task's loss."""
    if task.kind == "classification":
        return (outputs.argmax(1) != targets).double()
    return per_sample(task)(outputs.double(), targets).to(torch.float64)
