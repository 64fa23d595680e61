"""FedSR's loss, written out for a stack of clients (`fedkin.learning.ends`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.learning.augment import StackDraws
from fedkin.learning.ends import CrossEntropyEnd, End, Given, shares
from fedkin.learning.layers import Now, Sink

__all__ = ["GaussianEnd"]

_MEAN, _RAW = "reference.mean", "reference.raw"


class GaussianEnd(End):
    """The end of a net with the loss `SimpleRepresentation`; the rows are means and raw deviations [K, b, 2 d].

    With z = m + s e, s = softplus(r) + least, and a reference N(m', s'^2) of the sample's class, a sample's gradients
    are that of l2r |z|^2 (or |z|) by z, and with the factor cmi (m - m') / s'^2 by m, s / s'^2 - 1 / s by s, and
    (1 - (s^2 + (m - m')^2) / s'^2) / s' by s'.
    """

    names = (_MEAN, _RAW)

    def __init__(self, loss: Any, least: float, given: Given) -> None:
        super().__init__(given)
        self.loss, self.least, self.shares = loss, least, shares(given.batches)
        self.entropy = CrossEntropyEnd(given)

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        self.mean, self.raw = stack[_MEAN][:active], stack[_RAW][:active]

    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        active, width = z.shape[:2]
        y, share = (t[:active, step, :width] for t in (self.batches.labels, self.shares))
        mean, raw = z.chunk(2, dim=2)
        sd = F.softplus(raw) + self.least
        noise = StackDraws(now.generators, now.counts).normal(mean.flatten(0, 1)).view(mean.shape)
        drawn = torch.addcmul(mean, sd, noise)
        below = self.entropy.slope(step, drawn, x, now, sink, True)
        size, by = self._size(drawn)
        below = torch.addcmul(below, by, share[:, :, None], value=self.loss.l2r)
        apart, by_mean, by_sd = self._divergence(y, share, mean, sd, sink)
        self.totals[:active] += ((self.loss.l2r * size + self.loss.cmi * apart) * share).sum(1).double()
        by_raw = torch.ops.aten.softplus_backward((below * noise).add_(by_sd), raw, 1, 20)
        return torch.cat([below.add_(by_mean), by_raw], 2)

    def _size(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the size of each feature [K, b], and its gradient."""
        if self.loss.norm == "squared":
            return drawn.square().sum(2), 2 * drawn
        size = torch.linalg.vector_norm(drawn, dim=2)
        return size, torch.where(size[:, :, None] > 0, drawn / size[:, :, None], 0.0)

    def _divergence(
        self, y: Tensor, share: Tensor, mean: Tensor, sd: Tensor, sink: Sink
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return each sample's divergence to its class [K, b], and the gradients by mean and deviation."""
        width = mean.shape[2]
        where = y[:, :, None].expand(-1, -1, width)
        spread = F.softplus(self.raw) + self.least
        other = spread.gather(1, where)
        away = mean - self.mean.gather(1, where)
        least = other.square().reciprocal_()
        ratio = torch.addcmul(sd.square(), away, away).mul_(least)
        apart = ((other / sd).log_() + ratio / 2 - 0.5).sum(2)
        part = (self.loss.cmi * share)[:, :, None]
        by_mean = away.mul_(least).mul_(part)
        by_sd = (sd * least).sub_(sd.reciprocal()).mul_(part)
        by_other = ratio.neg_().add_(1).div_(other).mul_(part)
        own = torch.zeros_like(self.mean).scatter_add_(1, where, by_mean).neg_()
        raw = torch.zeros_like(self.raw).scatter_add_(1, where, by_other)
        raw = torch.ops.aten.softplus_backward(raw, self.raw, 1, 20)
        sink.whole(_MEAN, self.mean, own)
        sink.whole(_RAW, self.raw, raw)
        return apart, by_mean, by_sd

    def finish(self) -> None:
        self.entropy.finish()
