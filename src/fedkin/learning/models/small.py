"""Four small convolution nets of different architectures with one feature width, for mixed federations on CPUs.

All of them take images with sides of at least 8 pixels and any number of channels, and end in Linear `width` and ReLU.
They have neither dropout nor running statistics, so that clients with the same net can be stacked. Almost all of their
arithmetic is at a quarter of the height and the width.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models.base import Model

__all__ = ["SmallPlain", "SmallResidual", "SmallSeparable", "SmallWide"]

_GRID = 4  # features are pooled to at most 4 x 4 places before the last Linear


class _Small(Model):
    """The features [b, channels, h, w] of `stem`, pooled to 4 x 4, Linear `width`, ReLU | Linear classes."""

    width: int = Field(64, ge=1)

    @abstractmethod
    def stem(self, channels: int) -> nn.Module:
        """Return the module from inputs [b, channels, h, w] to maps of about a quarter of the height and width."""

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        shape = task.numbers(f"model.name: {self.name!r}")
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise ConfigError(
                f"model.name: {self.name!r} needs images [channels, height, width] of at least 8 pixels a side, the "
                f"task's inputs have shape {shape}"
            )
        stem = nn.Sequential(self.stem(shape[0]), Pool(_GRID), nn.Flatten())
        with torch.no_grad():
            made = stem(torch.zeros(1, *shape)).shape[1]
        return nn.Sequential(*stem, nn.Linear(made, self.width), nn.ReLU()), nn.Linear(self.width, task.classes)


class SmallPlain(_Small):
    """A 5x5 convolution (16) and a 3x3 convolution (32), both of stride 2, each with ReLU."""

    name: Literal["small-plain"] = "small-plain"

    def stem(self, channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        )  # fmt: skip


class SmallResidual(_Small):
    """A 3x3 convolution (16), then two residual blocks (32 channels) with group normalisation."""

    name: Literal["small-residual"] = "small-residual"

    def stem(self, channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 16), nn.ReLU(),
            Residual(16, 32, 2), Residual(32, 32, 1),
        )  # fmt: skip


class SmallSeparable(_Small):
    """A 3x3 convolution (24), then three depthwise 3x3 and pointwise pairs (32, 48, 64), group normalisation."""

    name: Literal["small-separable"] = "small-separable"

    def stem(self, channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 24, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 24), nn.ReLU(),
            *_separable(24, 32, 2), *_separable(32, 48, 1), *_separable(48, 64, 1),
        )  # fmt: skip


class SmallWide(_Small):
    """Patches of 4x4 pixels through one Linear (64), then two pointwise convolutions (64); no patches overlap."""

    name: Literal["small-wide"] = "small-wide"

    def stem(self, channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 64, 4, stride=4), nn.ReLU(),
            nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU(),
        )  # fmt: skip


class Residual(nn.Module):
    """relu(shortcut(x) + f(x)), with two 3x3 convolutions with group normalisation in f.

    The shortcut is a 1x1 convolution where shapes differ.
    """

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.GroupNorm(4, outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.GroupNorm(4, outside),
        )  # fmt: skip
        same = inside == outside and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.f(x))


class Pool(nn.Module):
    """The mean over adjacent windows, at most `grid` x `grid`; windows at the far edges may be smaller."""

    def __init__(self, grid: int) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        size = [-(-side // self.grid) for side in x.shape[-2:]]
        return nn.functional.avg_pool2d(x, size, ceil_mode=True, count_include_pad=False)


def _separable(inside: int, outside: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
        nn.Conv2d(inside, outside, 1, bias=False), nn.GroupNorm(4, outside), nn.ReLU(),
    ]  # fmt: skip
