"""Cross-entropy with features that are pulled to a point of their class, written out for a stack of clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedkin.codec import Tree
from fedkin.learning.ends import CrossEntropyEnd, End, Given, shares
from fedkin.learning.layers import Now, Sink

__all__ = ["PulledEnd"]


class PulledEnd(End):
    """Cross-entropy + weight * known_y |z - point_y|^2, both as means over the batch.

    told: of each member, the points [C, d] by this name, and "known" [C]: a class that is not known pulls nothing.
    mean: the mean over the numbers of a feature in place of their sum.
    """

    def __init__(self, given: Given, weight: float, told: Sequence[Tree], name: str, mean: bool = False) -> None:
        super().__init__(given)
        self.points, self.known = (
            torch.stack([each[part] for each in told]).to(given.totals.device) for part in (name, "known")
        )
        self.weight = weight / self.points.shape[2] if mean else weight
        self.shares = shares(given.batches)
        self.entropy = CrossEntropyEnd(given)

    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        active, width, long = z.shape
        y, share = (t[:active, step, :width] for t in (self.batches.labels, self.shares))
        away = z - self.points[:active].gather(1, y[:, :, None].expand(-1, -1, long))
        share = share * self.known[:active].gather(1, y) * self.weight
        self.totals[:active] += (away.square().sum(2) * share).sum(1).double()
        below = self.entropy.slope(step, z, x, now, sink, needed)
        self.moved(step, z, y)
        return below.addcmul_(away, share[:, :, None], value=2) if needed else below

    def moved(self, step: int, z: Tensor, y: Tensor) -> None:
        """Move the points after a step with features z [K, b, d] and labels y [K, b]."""

    def finish(self) -> None:
        self.entropy.finish()
