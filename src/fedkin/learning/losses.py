"""Losses: functions of (model, batch, extras, carry), without branches on data, so that they can be stacked.

A batch may be padded: `mask` is 1 for real samples and 0 for padding, and every mean over samples heeds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.learning.net import BodyHead
from fedkin.tasks import Task

__all__ = [
    "Batch", "CrossEntropy", "Loss", "PixelCrossEntropy", "Proximal", "SquaredError", "class_means", "default_loss",
    "masked_mean", "per_sample",
]  # fmt: skip


class Batch(NamedTuple):
    """Samples of one step.

    x: inputs [b, ...], or a dict of them; y: targets [b, ...]; mask: 1 for a sample, 0 for padding [b]; whole: there is
    no padding.
    """

    x: Any
    y: Tensor
    mask: Tensor
    whole: bool = False


class Loss(Protocol):
    """A value to descend, or (value, new carry)."""

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor | tuple[Tensor, Tree]: ...


def masked_mean(values: Tensor, batch: Batch) -> Tensor:
    """Mean of values [b] over the batch's real samples.

    >>> batch = Batch(torch.zeros(2, 1), torch.zeros(2), torch.tensor([1.0, 0.0]))
    >>> masked_mean(torch.tensor([3.0, 9.0]), batch)
    tensor(3.)
    """
    return values.mean() if batch.whole else (values * batch.mask).sum() / batch.mask.sum()


def class_means(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean feature of each class [classes, d], zero where absent, and how many samples each has [classes]."""
    member = (y[:, None] == torch.arange(classes, device=y.device)).to(z.dtype) * mask[:, None]
    count = member.sum(0)
    return member.T @ z / count.clamp(min=1)[:, None], count


@dataclass(frozen=True)
class CrossEntropy:
    """Mean cross-entropy of the batch."""

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        if batch.whole:
            return F.cross_entropy(model(batch.x), batch.y)
        return masked_mean(F.cross_entropy(model(batch.x), batch.y, reduction="none"), batch)


@dataclass(frozen=True)
class Proximal:
    """loss + weight / 2 * |w - w_0|^2 over the trainable parameters, with w_0 = extras["start"] by name."""

    loss: Loss
    weight: float

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        value = self.loss(model, batch, {}, {})
        assert isinstance(value, Tensor)
        for name, w in model.params.items():
            value = value + self.weight / 2 * (w - extras["start"][name]).square().sum()
        return value


@dataclass(frozen=True)
class SquaredError:
    """Squared error of the outputs, summed over a sample's targets, mean over the batch's samples."""

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        return masked_mean(_squared_error(model(batch.x), batch.y), batch)


@dataclass(frozen=True)
class PixelCrossEntropy:
    """Cross-entropy, mean over a sample's pixels, then over the batch's samples."""

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        return masked_mean(_pixel_cross_entropy(model(batch.x), batch.y), batch)


def per_sample(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of each sample, (outputs [b, ...], targets [b, ...]) -> [b], whose mean `default_loss` descends."""
    if task.kind == "regression":
        return _squared_error
    return _pixel_cross_entropy if task.kind == "segmentation" else _cross_entropy


def default_loss(task: Task) -> Loss:
    """What clients descend when a method does not say: cross-entropy where there are classes, else squared error."""
    if task.kind == "regression":
        return SquaredError()
    return PixelCrossEntropy() if task.kind == "segmentation" else CrossEntropy()


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.to(outputs.dtype)).square().sum(1)


def _pixel_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none").mean((1, 2))
