"""Autoencoders, which compress samples without labels: nets, training objective, and pretraining.

The body of a net is the encoder, inputs -> codes [batch, dims]; the head is the decoder. `grey` and `colour` are FLT's
nets (Jamali-Rad et al., 2022) without batch normalisation, because a client with few samples cannot estimate its
running means. `mlp` and `linear` are the counterparts for vectors and tables.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.codec import Params, Tree
from fedkin.errors import ConfigError
from fedkin.federation import Samples, Scale, constant
from fedkin.federation.samples import hash_of
from fedkin.keys import key, rng
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.sgd import fit
from fedkin.learning.training import Training

if TYPE_CHECKING:
    from fedkin.data.dataset import Dataset

__all__ = [
    "Encode", "Kind", "Reconstruction", "View", "chosen", "encoder_net", "kind_for",
    "moments", "pixels", "pretrained", "standardised",
]  # fmt: skip

Kind = Literal["grey", "colour", "mlp", "linear"]
Shape = tuple[int, ...]
_HIDDEN = 64  # units of the mlp's one hidden layer
_LOG = logging.getLogger("fedkin")


# -- inputs and objective ---------------------------------------------------------------------------------------------


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


# -- nets -------------------------------------------------------------------------------------------------------------


def kind_for(shape: Shape) -> Kind:
    """Return the kind for inputs of this shape: colour for three channels, grey for other images, else mlp.

    >>> kind_for((3, 32, 32)), kind_for((1, 28, 28)), kind_for((30,))
    ('colour', 'grey', 'mlp')
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    return "colour" if shape[0] == 3 and min(shape[1:]) >= 8 else "grey"


@lru_cache(maxsize=16)
def encoder_net(kind: Kind, shape: Shape, dims: int, seed: int = 0) -> Net:
    """Return the autoencoder of this kind, in single precision, initialised from `seed`.

    Calls with equal arguments return the same object.

    grey: conv3 (pad 1) C-16, pool, 16-4, pool, Linear `dims`; colour: conv3 C-16, pool, residual 16-32, pool,
    residual 32-32, pool (512 values for a 32x32 image), Linear `dims`. Both have a mirrored decoder that ends in a
    sigmoid. mlp: Linear 64, ReLU, Linear `dims`, and a mirrored decoder. linear: one Linear in each direction, which
    starts as an orthonormal projection. Raises ConfigError for inputs that the kind cannot take.
    """
    if kind in ("grey", "colour"):
        halvings = 2 if kind == "grey" else 3
        if len(shape) != 3 or min(shape[1:]) < 2**halvings:
            raise ConfigError(
                f"method.encoder.kind: {kind!r} needs images [channels, height, width] of at least "
                f"{2**halvings} pixels a side, the inputs have shape {shape}; take 'mlp' or 'linear'"
            )
    make = {"grey": _grey, "colour": _colour, "mlp": _mlp, "linear": _linear}[kind]
    return Net.build(lambda: make(shape, dims), key(seed, "encoder", kind))


def _grow(inside: int, outside: int, small: tuple[int, ...], large: tuple[int, ...]) -> nn.Module:
    """Return a layer that doubles height and width; sides that pooling shortened by one pixel get it back."""
    padding = large[0] - 2 * small[0], large[1] - 2 * small[1]
    return nn.ConvTranspose2d(inside, outside, 2, stride=2, output_padding=padding)


def _grey(shape: Shape, dims: int) -> tuple[nn.Module, nn.Module]:
    channels, full = shape[0], shape[1:]
    half, quarter = (tuple(side >> k for side in full) for k in (1, 2))
    flat = 4 * math.prod(quarter)
    body = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, dims),
    )  # fmt: skip
    head = nn.Sequential(
        nn.Linear(dims, flat), nn.ReLU(), nn.Unflatten(1, (4, *quarter)),
        _grow(4, 16, quarter, half), nn.ReLU(), _grow(16, channels, half, full), nn.Sigmoid(),
    )  # fmt: skip
    return body, head


class _Residual(nn.Module):
    """ReLU(conv(ReLU(conv(x))) + x), where a 1x1 convolution brings x to the new number of channels."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, padding=1)
        self.two = nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.two(torch.relu(self.one(x))) + self.skip(x))


def _colour(shape: Shape, dims: int) -> tuple[nn.Module, nn.Module]:
    channels, full = shape[0], shape[1:]
    half, quarter, eighth = (tuple(side >> k for side in full) for k in (1, 2, 3))
    flat = 32 * math.prod(eighth)
    body = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        _Residual(16, 32), nn.MaxPool2d(2), _Residual(32, 32), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, dims),
    )  # fmt: skip
    head = nn.Sequential(
        nn.Linear(dims, flat), nn.ReLU(), nn.Unflatten(1, (32, *eighth)),
        _grow(32, 32, eighth, quarter), _Residual(32, 32), _grow(32, 16, quarter, half), _Residual(16, 16),
        _grow(16, channels, half, full), nn.Sigmoid(),
    )  # fmt: skip
    return body, head


def _mlp(shape: Shape, dims: int) -> tuple[nn.Module, nn.Module]:
    width = math.prod(shape)
    body = nn.Sequential(nn.Flatten(), nn.Linear(width, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, dims))
    head = nn.Sequential(nn.Linear(dims, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, width), nn.Unflatten(1, shape))
    return body, head


def _linear(shape: Shape, dims: int) -> tuple[nn.Module, nn.Module]:
    width = math.prod(shape)
    encoder, decoder = nn.Linear(width, dims), nn.Linear(dims, width)
    with torch.no_grad():
        nn.init.orthogonal_(encoder.weight)
        decoder.weight.copy_(encoder.weight.T)
        encoder.bias.zero_()
        decoder.bias.zero_()
    return nn.Sequential(nn.Flatten(), encoder), nn.Sequential(decoder, nn.Unflatten(1, shape))


# -- pretraining on a data set that the server owns -------------------------------------------------------------------


def chosen(dataset: Dataset, classes: Sequence[int] | None, limit: int | None, seed: int) -> Samples:
    """Return training samples of these classes (None: all), at most `limit` of them, drawn with a key of `seed`.

    Raises ConfigError for a class that the data set does not have.
    """
    labels = dataset.train.y.numpy()
    rows = np.arange(len(labels))
    if classes is not None:
        missing = sorted(set(classes) - set(np.unique(labels).tolist()))
        if missing:
            raise ConfigError(f"method.encoder.classes: {dataset.name} has no training samples of classes {missing}")
        rows = rows[np.isin(labels, list(classes))]
    if limit is not None and limit < len(rows):
        rows = np.sort(rng(seed, "encoder", "samples").permutation(rows)[:limit])
    return dataset.samples("train", rows)


def moments(samples: Samples) -> tuple[float, Tensor, Tensor]:
    """Return (count, sum, sum of squares) of the inputs per feature (entry of a sample's first axis), in float64."""
    x = samples.inputs(slice(None), torch.float64)
    x = x.flatten(2).transpose(1, 2).flatten(0, 1) if x.ndim > 2 else x
    return float(len(x)), x.sum(0), x.square().sum(0)


def pretrained(
    net: Net, samples: Samples, training: Training, seed: int, view: View | None = None, title: str = ""
) -> Params:
    """Train `net` to reconstruct `samples`; results are cached within this process.

    view: the view of the inputs that the net sees; None: their brightness in [0, 1].
    """
    view = pixels(samples.scale) if view is None else view
    about = net.fingerprint(), training.model_dump_json(), seed, view, hash_of(samples)
    if about not in _PRETRAINED:
        _LOG.info("%s: %d steps", title or "pretraining the encoder", training.steps(len(samples)))
        draw = rng(seed, "encoder", "pretraining")
        fitted = fit(net, net.scratch(), net.initial, Reconstruction(view), samples, training, {}, {}, draw)
        _PRETRAINED[about] = fitted.params
    return _PRETRAINED[about]


_PRETRAINED: dict[Hashable, Params] = {}  # the key has everything that determines the result
