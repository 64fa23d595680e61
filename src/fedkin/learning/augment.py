"""Random views of a batch of inputs, with one draw per sample and a few tensor operations for the whole batch.

Random numbers come from torch's global generator, which a Fit seeds from its client's key.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from fedkin.errors import ConfigError
from fedkin.federation import Task, constant
from fedkin.settings import Settings, span

# Luma of ITU-R BT.601, and the two chroma axes in whose plane hue is an angle (YIQ).
_TO_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


class Augment(Settings):
    """A random view of each sample of x [n, ...]; images are [n, 1 or 3, height, width], other inputs get noise only.

    Inputs that are not numbers have no such views: `check` refuses them unless `on` is false.

    on: false returns every sample unchanged.
    crop: smallest share of the area that a crop keeps (1: no crop). The ratio of its sides is from 3/4 to 4/3, and it
    is resized to the size of the image. flip: probability of a left-right flip (0 for digits and letters).
    jitter: probability of a colour jitter, by factors up to 1 +- brightness, contrast and saturation, and a rotation of
    the hue by up to +- hue of a circle. grey: probability of a grey view. On grey images, only brightness and contrast
    have an effect. blur: probability of a Gaussian blur with a standard deviation of `sigma` pixels and a kernel of a
    tenth of the side. noise: standard deviation of Gaussian noise on inputs that are not images.
    """

    on: bool = True
    crop: float = Field(0.2, gt=0, le=1, json_schema_extra=span(0.2, 1, log=False))
    flip: float = Field(0.5, ge=0, le=1)
    jitter: float = Field(0.8, ge=0, le=1)
    brightness: float = Field(0.4, ge=0, le=1)
    contrast: float = Field(0.4, ge=0, le=1)
    saturation: float = Field(0.4, ge=0, le=1)
    hue: float = Field(0.1, ge=0, le=0.5)
    grey: float = Field(0.2, ge=0, le=1)
    blur: float = Field(0.5, ge=0, le=1)
    sigma: tuple[float, float] = (0.1, 2.0)
    noise: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma must be two ascending numbers above 0, got {self.sigma}")
        return self

    def check(self, task: Task, where: str = "method.augment") -> None:
        """Raise ConfigError, which names the setting `where`, for inputs that have no views."""
        if self.on:
            task.numbers(where, f"set {where}.on = false")

    def __call__(self, x: Any) -> Any:
        if not self.on:
            return x
        if not isinstance(x, Tensor) or not x.is_floating_point():
            how = "set method.augment.on (or training.augment.on) = false"
            raise ConfigError(f"views are made of images and numbers, and these inputs are codes or a dict: {how}")
        if x.ndim == 4 and x.shape[1] in (1, 3):
            return self._view_of_images(x)
        return torch.randn_like(x).mul_(self.noise).add_(x) if self.noise else x

    def _view_of_images(self, x: Tensor) -> Tensor:
        low, high = (values.reshape(-1, 1, 1, 1) for values in x.flatten(1).aminmax(dim=1))
        if self.crop < 1 or self.flip:
            x = self._cropped(x)
        if self.jitter or (self.grey and x.shape[1] == 3):
            # Values stay in the range of the sample, whatever the scale of the source is.
            x = self._coloured(x, low).clamp(low, high)
        if self.blur:
            x = self._blurred(x)
        return x

    def _cropped(self, x: Tensor) -> Tensor:
        """Return a random window of each image, flipped or not, resized to the size of the image."""
        n, _, height, width = x.shape
        area = _between(_uniform(x), self.crop, 1.0)
        # The ratio is relative to the sides of the image. No ratio may make a side longer than the image's.
        ratio = _between(_uniform(x), math.log(3 / 4), math.log(4 / 3)).exp() * (height / width)
        ratio = torch.minimum(torch.maximum(ratio, area), 1 / area)
        wide, high = (area * ratio).sqrt(), (area / ratio).sqrt()
        mirror = 1 - 2 * (_uniform(x) < self.flip).to(x.dtype)
        left, top = (_between(_uniform(x), -1.0, 1.0) * (1 - side) for side in (wide, high))
        zero = torch.zeros_like(wide)
        rows = torch.stack([wide * mirror, zero, left, zero, high, top], 1)
        grid = F.affine_grid(rows.reshape(n, 2, 3), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)

    def _coloured(self, x: Tensor, black: Tensor) -> Tensor:
        """Change brightness, contrast, saturation, hue and grey of each image by one linear map of its colours.

        black: the value [n, 1, 1, 1] that brightness does not change.
        """
        n, channels = x.shape[:2]
        chosen = _uniform(x) < self.jitter
        brightness, contrast, saturation = (
            torch.where(chosen, _between(_uniform(x), 1 - span, 1 + span), 1.0)
            for span in (self.brightness, self.contrast, self.saturation)
        )
        luma = constant(_TO_YIQ[0], x.dtype, x.device) if channels == 3 else x.new_ones(1)
        mean = x.mean((2, 3)) @ luma  # mean luma of each image
        gain, lift = brightness * contrast, brightness * (1 - contrast) * (mean - black.flatten())
        if channels == 1:
            return (x - black) * gain.reshape(n, 1, 1, 1) + black + lift.reshape(n, 1, 1, 1)
        turn = torch.where(chosen, _between(_uniform(x), -self.hue, self.hue), 0.0) * (2 * math.pi)
        grey = _uniform(x) < self.grey
        chroma = torch.where(grey, 0.0, saturation)
        to, back = _colours(x.dtype, x.device)
        cos, sin, zero = chroma * turn.cos(), chroma * turn.sin(), torch.zeros_like(turn)
        rotated = torch.stack([torch.ones_like(turn), zero, zero, zero, cos, -sin, zero, sin, cos], 1).reshape(n, 3, 3)
        colours = back @ rotated @ to * gain[:, None, None]
        moved = torch.einsum("nij,njhw->nihw", colours, x - black)
        return moved + black + lift.reshape(n, 1, 1, 1)

    def _blurred(self, x: Tensor) -> Tensor:
        """Blur each chosen image with a Gaussian of its own width, first along the height, then along the width."""
        radius = max(1, round(0.1 * min(x.shape[2:])) // 2)
        sigma = _between(_uniform(x), *self.sigma)
        drawn = _uniform(x) < self.blur
        # On a GPU all images are blurred, since the number of chosen ones would have to come back to the CPU first.
        chosen = drawn.nonzero(as_tuple=True)[0] if x.device.type == "cpu" else torch.arange(len(x), device=x.device)
        steps = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
        bell = (-0.5 * (steps / sigma[chosen, None]).square()).exp()
        weight = (bell / bell.sum(1, keepdim=True))[..., None, None, None]
        own = x[chosen]
        for dim, pad in ((2, (0, 0, radius, radius)), (3, (radius, radius, 0, 0))):
            wide, size = F.pad(own, pad, mode="replicate"), x.shape[dim]
            own = sum((wide.narrow(dim, k, size) * weight[:, k] for k in range(2 * radius + 1)), torch.zeros_like(own))
        cpu = x.device.type == "cpu"
        return x.index_copy(0, chosen, own) if cpu else torch.where(drawn.reshape(-1, 1, 1, 1), own, x)


@lru_cache(maxsize=8)
def _colours(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the maps from red, green, blue to luma, chroma and back; cached, since inversion on a GPU would block."""
    to = torch.tensor(_TO_YIQ, dtype=dtype)
    return to.to(device), torch.linalg.inv(to).to(device)


def _uniform(x: Tensor) -> Tensor:
    """Return a number from 0 to 1 for each sample of x [n, ...]."""
    return torch.rand(len(x), dtype=x.dtype, device=x.device)


def _between(drawn: Tensor, low: float, high: float) -> Tensor:
    """Map numbers from 0..1 linearly to low..high."""
    return low + (high - low) * drawn
