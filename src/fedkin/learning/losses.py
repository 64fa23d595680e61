"""Losses: functions of (model, batch, extras, carry), without branches on data, so that they can be stacked.

A batch may be padded: `mask` is 1 for real samples and 0 for padding, and every mean over samples heeds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.learning.net import BodyHead

__all__ = ["Batch", "CrossEntropy", "Loss", "class_means", "masked_mean"]


class Batch(NamedTuple):
    """x: inputs [b, ...]; y: labels [b]; mask: 1 for a sample, 0 for padding [b]; whole: there is no padding."""

    x: Tensor
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
