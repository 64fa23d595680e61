"""The inputs of an encoder, its training objective, and its codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.federation import Scale, constant
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.net import BodyHead

__all__ = ["Encode", "Reconstruction", "View", "pixels", "standardised"]


@dataclass(frozen=True)
class View:
    """The map x * times + plus, with one number each, or one per channel or feature (a sample's first axis).

    >>> View(times=(2.0,), plus=(1.0,))(torch.tensor([[1.0, 3.0]]))
    tensor([[3., 7.]])
    """

    times: tuple[float, ...] = (1.0,)
    plus: tuple[float, ...] = (0.0,)

    def __call__(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.ndim - 2)
        times, plus = (constant(values, x.dtype, x.device) for values in (self.times, self.plus))
        return x * times.reshape(shape) + plus.reshape(shape)


def pixels(scale: Scale | None) -> View:
    """Return the view from a model's inputs back to brightness in [0, 1], as they were before `scale`.

    >>> pixels(Scale((0.5,), (0.25,)))(torch.tensor([[-2.0, 2.0]]))
    tensor([[0., 1.]])
    """
    return View() if scale is None else View(scale.std, scale.mean)


def standardised(count: float, total: Tensor, squares: Tensor) -> View:
    """Return the view (x - mean) / standard deviation per feature, from sums over `count` samples.

    A constant feature becomes 0.

    >>> x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    >>> standardised(2, x.sum(0), x.square().sum(0))(x)
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    mean = total.double() / count
    variance = squares.double() / count - mean.square()
    # The variance of a constant is not exactly 0 after cancellation.
    varies = variance > 1e-12 * squares.double() / count
    spread = torch.where(varies, variance.clamp(min=0).sqrt(), torch.inf)
    return View(tuple((1 / spread).tolist()), tuple((-mean / spread).tolist()))


@dataclass(frozen=True)
class Reconstruction:
    """The mean squared error between view(x) and its reconstruction, over values and samples."""

    weighted: ClassVar[bool] = False

    view: View

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        x = self.view(batch.x)
        error = F.mse_loss(model.head(model.features(x)), x, reduction="none")
        return masked_mean(error.flatten(1).mean(1), batch)


@dataclass(frozen=True)
class Encode:
    """The codes [batch, dims] of view(x), for Infer."""

    view: View

    def __call__(self, model: Any, batch: Batch) -> Tensor:
        codes: Tensor = model.features(self.view(batch.x))
        return codes
