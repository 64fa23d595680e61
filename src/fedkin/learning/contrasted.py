"""The losses of `learning.contrastive` for a stack of clients, each with its gradient written out.

Every function takes [K, ...] for K clients and returns their values [K] and the gradient of each value; no client's
numbers enter another's. Rows of length 1 are `Unit.rows`, and `Unit.back` leads a gradient from them to the rows that
they were made of.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.learning.contrastive import Form

__all__ = ["Unit", "contrast_bytes", "prototype_slopes", "supervised_slope", "uniformity_slope"]

_LEAST = 1e-12  # the length by which shorter rows are divided, as in F.normalize


class Unit:
    """Rows [K, n, d] at length 1, as F.normalize makes them."""

    def __init__(self, given: Tensor) -> None:
        self.long = torch.linalg.vector_norm(given, dim=2, keepdim=True)
        self.size = self.long.clamp(min=_LEAST)
        self.rows = given / self.size

    def back(self, slope: Tensor) -> Tensor:
        """Return the gradient with respect to the given rows, by that with respect to `rows`."""
        along = (slope * self.rows).sum(2, keepdim=True) * (self.long >= _LEAST)
        return torch.addcmul(slope, self.rows, along, value=-1).div_(self.size)


def contrast_bytes(rows: int, dtype: torch.dtype) -> int:
    """Return about the memory that `supervised_slope` needs for a client: 6 matrices of rows by rows."""
    return 6 * rows * rows * dtype.itemsize


def supervised_slope(unit: Tensor, y: Tensor, mask: Tensor, temperature: float, form: Form) -> tuple[Tensor, Tensor]:
    """`supervised_contrastive` of rows of length 1 [K, n, d], y [K, n], mask [K, n]: (values, gradient by the rows).

    With shares s_qr, the softmax of a row's cosines, and a_qr = 1 / abs(X+(q)) for samples r of q's class, the gradient
    by the cosines is (s - a) / temperature over the number of samples q; with "released" a is the softmax over X+(q).
    """
    least = torch.finfo(unit.dtype).min
    pair = mask[:, :, None] * mask[:, None]
    pair.diagonal(dim1=1, dim2=2).zero_()
    barrier = torch.zeros_like(pair).masked_fill_(pair == 0, least)
    logs = F.log_softmax(torch.baddbmm(barrier, unit, unit.transpose(1, 2), alpha=1 / temperature), 2)
    positive = (y[:, :, None] == y[:, None]).to(unit.dtype).mul_(pair)
    count = positive.sum(2)
    anchor = (count > 0).to(unit.dtype)
    anchor = anchor / anchor.sum(1, keepdim=True).clamp(min=1)
    if form == "released":
        chosen = logs.masked_fill(positive == 0, least)
        gain = chosen.logsumexp(2)
        wanted = (chosen - gain[:, :, None]).exp_()
    else:
        wanted = positive.div_(count.clamp(min=1)[:, :, None])
        gain = (wanted * logs).sum(2)
    slope = logs.exp_().sub_(wanted).mul_((anchor / temperature)[:, :, None])
    both = slope + slope.transpose(1, 2)
    return -(gain * anchor).sum(1), torch.bmm(both, unit)


def prototype_slopes(
    unit: Tensor, y: Tensor, share: Tensor, prototypes: Tensor, temperature: float, form: Form
) -> tuple[Tensor, Tensor, Tensor]:
    """`prototype_loss` of rows of length 1 [K, n, d], y [K, n] and prototypes [K, C, d].

    share [K, n]: what each sample counts. Returns (values, gradient by the rows, gradient by the prototypes).
    """
    side = None if form == "released" else Unit(prototypes)
    by, scale = (prototypes, 1.0) if side is None else (side.rows, 1 / temperature)
    # Classes come first: a softmax along short rows is many times as slow.
    logits = torch.bmm(by, unit.transpose(1, 2)).mul_(scale)
    target = torch.zeros_like(logits).scatter_(1, y[:, None], -share[:, None])
    logs = F.log_softmax(logits, 1)
    values = (logs * target).sum((1, 2))
    slope = torch.addcmul(target, logs.exp_(), share[:, None]).mul_(scale)
    below = torch.bmm(slope, unit)
    return values, torch.bmm(slope.transpose(1, 2), by), below if side is None else side.back(below)


def uniformity_slope(prototypes: Tensor, temperature: float, form: Form) -> tuple[Tensor, Tensor]:
    """`uniformity_loss` of prototypes [K, C, d]: (values, gradient)."""
    classes = prototypes.shape[1]
    if form == "released":
        alike = torch.bmm(prototypes, prototypes.transpose(1, 2)).div_(temperature).exp_()
        alike.diagonal(dim1=1, dim2=2).zero_()
        slope = torch.bmm(alike, prototypes).mul_(2 / (temperature * classes))
        return alike.sum((1, 2)) / classes, slope
    unit = Unit(prototypes)
    others = unit.rows.sum(1, keepdim=True) - unit.rows
    return (unit.rows * others).sum((1, 2)) / classes, unit.back(others.mul_(2 / classes))
