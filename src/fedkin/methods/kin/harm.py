"""Do no harm: which of two models is better on samples that neither was trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkin.federation import Samples
from fedkin.flow import ClientFlow, Infer, Params
from fedkin.keys import rng
from fedkin.learning.losses import per_sample
from fedkin.methods.kin.state import ClientState
from fedkin.tasks import Task
from fedkin.views import ClientView

__all__ = ["better_of", "costs", "on_trial", "won"]


def on_trial(
    client: ClientView[ClientState], look: int, trials: int, share: float, fewest: int
) -> tuple[Samples, Samples] | None:
    """(samples to train on, samples held out), the same in every trial; None once its trials are over.

    A client has `trials` of them each time that groups were found, at that `look`. They end once its group's model has
    won (`won`), and go on while it keeps its own. It has none if it would hold out fewer than `fewest` samples; it then
    keeps its group's model.
    """
    if client.state.get("look") != look:
        client.state["look"], client.state["tried"] = look, 0
        client.state.pop("keeps", None)
    count = int(share * client.size)
    if count < fewest:
        client.state.pop("keeps", None)
        return None
    if client.state["tried"] >= trials and client.state.get("keeps") != "own":
        return None
    client.state["tried"] += 1
    order = rng(client.seed, client.id, "held out").permutation(client.size)
    return client.train.take(sorted(order[count:])), client.train.take(sorted(order[:count]))


def better_of(
    client: ClientView[Any], group: Params, own: Params, held: Samples, margin: float
) -> ClientFlow[str | None]:  # fmt: skip
    """Which of the two costs less on the held-out samples, "group" or "own", by more than `margin` standard errors.

    None: neither.
    """
    theirs = yield from Infer(group, "logits", data=held)
    mine = yield from Infer(own, "logits", data=held)
    gain = costs(client.task, theirs, held.labels()) - costs(client.task, mine, held.labels())
    error = float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else 0.0
    mean = float(gain.mean())
    return None if abs(mean) <= margin * error else "own" if mean > 0 else "group"


def won(client: ClientView[ClientState], trials: int) -> None:
    """The group's model is the better one: no more trials until groups are found again."""
    client.state["tried"], client.state["keeps"] = trials, "group"


def costs(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """What each sample costs [n]: 1 for a wrong class, else the task's loss."""
    if task.kind == "classification":
        return (outputs.argmax(1) != targets).double()
    return per_sample(task)(outputs.double(), targets).to(torch.float64)
