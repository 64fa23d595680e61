"""Convolution nets; the feature is the ReLU before the last Linear.

CnnMnist and CnnCifar are the nets of SFMTL-Graph's experiments. LeNet and LeafCnn are common in timings of simulators.
Pooling comes before ReLU, which gives the same bits for a quarter of the work: the maximum of ReLUs is the ReLU of the
maximum.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models.base import Model

__all__ = ["CnnCifar", "CnnFedAvg", "CnnMnist", "LeNet", "LeafCnn"]


def _image(task: Task, name: str, halvings: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of the task's images; raises ConfigError if they are too small."""
    shape = task.numbers(f"model.name: {name!r}")
    if len(shape) != 3 or min(shape[1:]) < 2**halvings:
        raise ConfigError(
            f"model.name: {name!r} needs images [channels, height, width] of at least {2**halvings} pixels a side, "
            f"the task's inputs have shape {shape}"
        )
    channels, height, width = shape
    return channels, height, width


class CnnMnist(Model):
    """Two 5x5 convolutions (32, 64 channels) with ReLU and 2x2 max pooling, Linear `features`, ReLU | head."""

    name: Literal["cnn-mnist"] = "cnn-mnist"
    features: int = Field(512, ge=1)

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        channels, height, width = _image(task, self.name, 2)
        body = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), self.features), nn.ReLU(),
        )  # fmt: skip
        return body, nn.Linear(self.features, task.outputs)


class CnnCifar(Model):
    """Three 3x3 convolutions (32, 64, 128) with ReLU and 2x2 max pooling, Linear `features`, ReLU | head."""

    name: Literal["cnn-cifar"] = "cnn-cifar"
    features: int = Field(512, ge=1)

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        channels, height, width = _image(task, self.name, 3)
        body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(64, 128, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(128 * (height // 8) * (width // 8), self.features), nn.ReLU(),
        )  # fmt: skip
        return body, nn.Linear(self.features, task.outputs)


class CnnFedAvg(CnnMnist):
    """FedAvg's net for any images: two 5x5 convolutions (32, 64 channels) and Linear 512, as in CnnMnist."""

    name: Literal["cnn-fedavg"] = "cnn-fedavg"  # type: ignore[assignment]


class LeNet(Model):
    """LeNet-5 with ReLU: two 5x5 convolutions (6, 16) with 2x2 max pooling, Linear 120, Linear 84 | head."""

    name: Literal["lenet"] = "lenet"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        channels, height, width = _image(task, self.name, 4)
        # Each convolution without padding shortens the sides by 4 pixels, and each pooling halves them.
        pixels = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        body = nn.Sequential(
            nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * pixels, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        )  # fmt: skip
        return body, nn.Linear(84, task.outputs)


class LeafCnn(CnnMnist):
    """LEAF's net for FEMNIST: CnnMnist with 2048 features, 6.6 M parameters for 28x28 images of 62 classes."""

    name: Literal["leaf-cnn"] = "leaf-cnn"  # type: ignore[assignment]
    features: int = Field(2048, ge=1)
