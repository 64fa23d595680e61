"""SFMTL-Graph's local loss: cross-entropy, and the distance of features to the anchors of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.learning.devices import CPU
from fedkin.learning.ends import End, Given
from fedkin.learning.losses import Batch, class_means, masked_mean
from fedkin.learning.net import BodyHead
from fedkin.learning.pulled import PulledEnd

__all__ = ["AnchoredCrossEntropy"]


@dataclass(frozen=True)
class AnchoredCrossEntropy:
    """f_k + weight * g_k: cross-entropy plus the squared distance of each feature to its class anchor, Eq. (5, 6).

    carry: anchors [C, d] and known [C]; a class without an anchor pulls nothing. With a `rate`, each step
    moves the anchors of its classes by `rate` towards their mean feature in the batch (a first anchor is that
    mean itself); without one, the anchors stay.
    """

    weighted: ClassVar[bool] = True

    weight: float
    rate: float | None

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> tuple[Tensor, Tree]:
        anchors, known = carry["anchors"], carry["known"]
        z = model.features(batch.x)
        loss = F.cross_entropy(model.head(z), batch.y, reduction="none")
        distance = (z - anchors[batch.y]).square().sum(1) * known[batch.y]
        value = masked_mean(loss + self.weight * distance, batch)
        if self.rate is None:
            return value, carry
        mean, count = class_means(z.detach(), batch.y, batch.mask, len(anchors))
        here = count > 0
        moved = torch.where(known[:, None], torch.lerp(anchors, mean, self.rate), mean)
        return value, {"anchors": torch.where(here[:, None], moved, anchors), "known": known | here}

    def written_end(self, given: Given) -> End:
        """The loss written out for a stack."""
        return _AnchoredEnd(self, given)


class _AnchoredEnd(PulledEnd):
    """The end of a net with the loss `AnchoredCrossEntropy`."""

    def __init__(self, loss: AnchoredCrossEntropy, given: Given) -> None:
        super().__init__(given, loss.weight, [member.carry for member in given.members], "anchors")
        self.rate, self.masks = loss.rate, given.batches.masks
        self.classes = torch.arange(self.points.shape[1], device=self.points.device)[:, None]

    def moved(self, step: int, z: Tensor, y: Tensor) -> None:
        if self.rate is None:
            return
        active, width = y.shape
        member = (y[:, None] == self.classes).to(z.dtype) * self.masks[:active, step, None, :width]
        count = member.sum(2, keepdim=True)
        mean = torch.bmm(member, z).div_(count.clamp(min=1))
        anchors, known, here = self.points[:active], self.known[:active, :, None], count > 0
        moved = torch.where(known, torch.lerp(anchors, mean, self.rate), mean)
        anchors.copy_(torch.where(here, moved, anchors))
        known |= here

    def carries(self, places: Sequence[int]) -> list[Tree]:
        if self.rate is None:
            return super().carries(places)
        anchors, known = self.points.to(CPU), self.known.to(CPU)
        return [{"anchors": anchors[place].clone(), "known": known[place].clone()} for place in places]
