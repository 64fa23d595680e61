"""A net that labels every pixel.

Ronneberger, Fischer, Brox. U-Net: convolutional networks for biomedical image segmentation. MICCAI 2015.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models.base import Model

__all__ = ["UNet"]


class UNet(Model):
    """A U-Net of `depth` halvings with `width` channels at full size, and twice as many after each halving.

    Convolutions are padded, so that outputs are as large as inputs; in the paper they are smaller. Group normalisation
    follows each convolution, since it has no running statistics to average over clients. Features are
    [batch, width, height, width]; the head is a 1x1 convolution.
    """

    name: Literal["unet"] = "unet"
    width: int = Field(16, ge=1)
    depth: int = Field(3, ge=1)

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head); raises ConfigError unless the sides of the images can be halved `depth` times."""
        if task.kind != "segmentation":
            raise ConfigError(f"model.name: {self.name!r} labels every pixel, and this task is {task.kind}")
        channels, *sides = task.numbers(f"model.name: {self.name!r}")
        if any(side % 2**self.depth for side in sides):
            raise ConfigError(
                f"model.depth: {self.depth} halvings need sides that {2**self.depth} divides, the images are "
                f"{sides[0]} x {sides[1]}"
            )
        return _Body(channels, self.width, self.depth), nn.Conv2d(self.width, task.outputs, 1)


class _Body(nn.Module):
    """The contracting path, the connections across, and the expanding path."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            _twice(inside, outside) for inside, outside in zip([channels, *widths], widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * wide, wide, 2, stride=2) for wide in reversed(widths[:-1]))
        self.up = nn.ModuleList(_twice(2 * wide, wide) for wide in reversed(widths[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        passed = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            passed.append(x)
        for grow, block, across in zip(self.grow, self.up, reversed(passed[:-1]), strict=True):
            x = block(torch.cat([across, grow(x)], dim=1))
        return x


def _twice(inside: int, outside: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with group normalisation and ReLU."""
    layers: list[nn.Module] = []
    for wide in (inside, outside):
        groups = next(groups for groups in (8, 4, 2, 1) if outside % groups == 0)
        layers += [nn.Conv2d(wide, outside, 3, padding=1), nn.GroupNorm(groups, outside), nn.ReLU()]
    return nn.Sequential(*layers)
