"""MAPL's local objective, written out for a stack of peers (`fedkin.learning.ends`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.learning.augment import StackDraws
from fedkin.learning.contrasted import Unit, contrast_bytes, prototype_slopes, supervised_slope, uniformity_slope
from fedkin.learning.contrastive import Projection
from fedkin.learning.ends import CrossEntropyEnd, End, Given, shares
from fedkin.learning.layers import Activation, Columns, Layer, Linear, Now, Sink
from fedkin.learning.written import LossNotWritten, Program

__all__ = ["TwoViewsEnd", "bytes_of_views"]

_XI = "prototypes.weight"


def bytes_of_views(loss: Any, program: Program, rows: int) -> int:
    """Return about the memory that the end needs for a client: the contrast's, and 6 hidden layers'."""
    projection, dtype = program.extra.get("projection"), program.head.weight.dtype
    if type(projection) is not Projection or not (loss.cont or loss.proto):
        return 0
    hidden = 6 * rows * projection.into.out_features * dtype.itemsize
    return hidden + (contrast_bytes(rows, dtype) if loss.cont else 0)


class TwoViewsEnd(End):
    """The end of a net with the loss `TwoViews`; each batch has its samples twice."""

    def __init__(self, loss: Any, given: Given) -> None:
        super().__init__(given)
        self.loss, self.masks = loss, given.batches.masks
        self.shares = shares(given.batches)
        self.entropy = CrossEntropyEnd(given, loss.ce * self.shares)
        projection, xi = given.program.extra.get("projection"), given.program.extra.get("prototypes")
        if type(projection) is not Projection or type(xi) is not nn.Linear or xi.bias is not None:
            raise LossNotWritten("the net's projection or prototypes are not MAPL's own")
        self.projection: list[Layer] = [
            Linear("projection.into", projection.into), Columns("projection.scale", "projection.shift", 1e-5),
            Activation(nn.ReLU(), True), Linear("projection.out", projection.out),
        ] if loss.cont or loss.proto else []  # fmt: skip
        self.names = tuple(name for layer in self.projection for name in layer.names)
        if loss.proto or loss.uni:
            self.names += (_XI,)

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        for layer in self.projection:
            layer.bind(stack, active)
        self.xi = stack[_XI][:active]

    def seen(self, x: Tensor, now: Now) -> Tensor:
        made: Tensor = self.loss.augment(x.flatten(0, 1), StackDraws(now.generators, now.counts))
        return made.view(x.shape)

    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        below = self.entropy.slope(step, z, x, now, sink, needed)
        total = z.new_zeros(len(z))
        xi = torch.zeros_like(self.xi)
        if self.projection:
            p = z
            for layer in self.projection:
                p = layer.forward(p, now)
            own, pull, values = self._contrasts(step, p)
            total, xi = total + values, xi + pull
            for layer in reversed(self.projection):
                own = layer.backward(own, sink, needed or layer is not self.projection[0])
            below = below + own if needed else below
        if self.loss.uni:
            values, slope = uniformity_slope(self.xi, self.loss.spread, self.loss.form)
            total, xi = total + self.loss.uni * values, xi.add_(slope, alpha=self.loss.uni)
        if _XI in self.names:
            sink.whole(_XI, self.xi, xi)
        self.totals[: len(z)] += total.double()
        return below

    def _contrasts(self, step: int, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients by projections [K, n, d] and by prototypes [K, C, d], and the values [K]."""
        active, width = p.shape[:2]
        y, mask, share = (t[:active, step, :width] for t in (self.batches.labels, self.masks, self.shares))
        loss, unit = self.loss, Unit(p)
        own, pull = torch.zeros_like(p), torch.zeros_like(self.xi)
        values = p.new_zeros(active)
        if loss.cont:
            found, slope = supervised_slope(unit.rows, y, mask, loss.temperature, loss.form)
            values, own = values + loss.cont * found, own.add_(slope, alpha=loss.cont)
        if loss.proto:
            found, slope, by = prototype_slopes(unit.rows, y, share, self.xi, loss.temperature, loss.form)
            values, own = values + loss.proto * found, own.add_(slope, alpha=loss.proto)
            pull = by.mul_(loss.proto)
        return unit.back(own), pull, values

    def finish(self) -> None:
        self.entropy.finish()
