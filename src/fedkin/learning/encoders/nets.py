"""Autoencoders as nets: the body is the encoder, inputs -> codes [batch, dims]; the head is the decoder.

`grey` and `colour` are FLT's nets (Jamali-Rad et al., 2022) without batch normalisation, because a client with few
samples cannot estimate its running means. `mlp` and `linear` are the counterparts for vectors and tables.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.keys import key
from fedkin.learning.net import Net

__all__ = ["Kind", "encoder_net", "kind_for"]

Kind = Literal["grey", "colour", "mlp", "linear"]
Shape = tuple[int, ...]
_HIDDEN = 64  # units of the mlp's one hidden layer


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


def _sides(shape: Shape, halvings: int) -> list[tuple[int, int]]:
    """Return height and width before the first pooling and after each pooling."""
    return [(shape[1] >> k, shape[2] >> k) for k in range(halvings + 1)]


def _grow(inside: int, outside: int, small: tuple[int, int], large: tuple[int, int]) -> nn.Module:
    """Return a layer that doubles height and width; sides that pooling shortened by one pixel get it back."""
    spare = (large[0] - 2 * small[0], large[1] - 2 * small[1])
    return nn.ConvTranspose2d(inside, outside, 2, stride=2, output_padding=spare)


def _grey(shape: Shape, dims: int) -> tuple[nn.Module, nn.Module]:
    channels = shape[0]
    full, half, quarter = _sides(shape, 2)
    flat = 4 * quarter[0] * quarter[1]
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
    channels = shape[0]
    full, half, quarter, eighth = _sides(shape, 3)
    flat = 32 * eighth[0] * eighth[1]
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
