"""SFMTL-Graph's local loss: cross-entropy, and the distance of features to the anchors of their classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.learning.losses import Batch, class_means, masked_mean
from fedkin.learning.net import BodyHead

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
