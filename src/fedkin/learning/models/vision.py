"""torchvision's nets for images of any size: MAPL's four bodies, and ResNet50 for folders of photographs.

Images are not resized. Each net ends in Linear `width` and ReLU, and no weights are pretrained. torchvision is an
extra: pip install 'fedkin[torchvision]'.
"""

from __future__ import annotations

import functools
import sys
import warnings
from abc import abstractmethod
from importlib import import_module
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models.nets import Model
from fedkin.untrusted import error_text


class _Vision(Model):
    """A torchvision net, its first convolution fitted to the task's channels, Linear `width`, ReLU | Linear classes."""

    least: ClassVar[int] = 8  # pixels a side

    width: int = Field(512, ge=1)

    @abstractmethod
    def net(self, models: Any, channels: int, side: int) -> Any:
        """Return the net with `width` outputs; side: the shorter side of the images."""

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        channels, *sides = self.image_shape(task, self.least)
        net = _with_batch_norms(self.net(torchvision_models(), channels, min(sides)))
        return nn.Sequential(net, nn.ReLU()), nn.Linear(self.width, task.classes)


class ResNet18(_Vision):
    """ResNet18 (He et al., 2016): 11.4 M parameters with 512 features, batch normalisation."""

    name: Literal["resnet18"] = "resnet18"

    def net(self, models: Any, channels: int, side: int) -> Any:
        net = getattr(models, self.name)(weights=None, num_classes=self.width)
        net.conv1 = _for_channels(net.conv1, channels)
        return net


class ResNet50(ResNet18):
    """ResNet50 (He et al., 2016): 24.6 M parameters with 512 features, batch normalisation."""

    name: Literal["resnet50"] = "resnet50"  # type: ignore[assignment]


class ShuffleNetV2(_Vision):
    """ShuffleNetV2 x1.0 (Ma et al., 2018): 1.8 M parameters with 512 features, batch normalisation."""

    name: Literal["shufflenet-v2"] = "shufflenet-v2"

    def net(self, models: Any, channels: int, side: int) -> Any:
        net = models.shufflenet_v2_x1_0(weights=None, num_classes=self.width)
        net.conv1[0] = _for_channels(net.conv1[0], channels)
        return net


class GoogLeNet(_Vision):
    """GoogLeNet (Szegedy et al., 2015) with batch normalisation, 6.1 M parameters with 512 features.

    It has no auxiliary classifiers: here their feature maps would have one pixel, and MAPL takes no loss from them, so
    that they would only add to the messages.
    """

    least: ClassVar[int] = 15

    name: Literal["googlenet"] = "googlenet"

    def net(self, models: Any, channels: int, side: int) -> Any:
        net = models.GoogLeNet(num_classes=self.width, aux_logits=False, init_weights=True)
        net.conv1.conv = _for_channels(net.conv1.conv, channels)
        return net


class AlexNet(_Vision):
    """AlexNet (Krizhevsky, 2014), 59 M parameters with 512 features, dropout .5 between its Linear layers.

    The net was made for sides of 224 pixels. Below 63 pixels, the maps after its first convolution would be too small
    for pooling: there the convolution has stride 1 instead of 4, and poolings are padded by one.
    """

    name: Literal["alexnet"] = "alexnet"

    def net(self, models: Any, channels: int, side: int) -> Any:
        net = models.alexnet(weights=None, num_classes=self.width)
        layers = net.features
        layers[0] = _for_channels(layers[0], channels, stride=1 if side < 63 else None)
        for index, layer in enumerate(layers if side < 63 else ()):
            if isinstance(layer, nn.MaxPool2d):
                layers[index] = nn.MaxPool2d(3, 2, padding=1)
        return net


def _for_channels(convolution: Any, channels: int, stride: int | None = None) -> Any:
    """Return a new convolution like this one, for another number of input channels."""
    if channels == convolution.in_channels and stride is None:
        return convolution
    return nn.Conv2d(
        channels, convolution.out_channels, convolution.kernel_size, stride or convolution.stride,
        convolution.padding, bias=convolution.bias is not None,
    )  # fmt: skip


class BatchNormOfOne(nn.BatchNorm2d):
    """Batch normalisation that accepts a batch with one value per channel (one sample, one pixel).

    Such a batch has no variance, and torch refuses it. Here the running statistics normalise it, and stay unchanged.
    Any other batch is normalised as in torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


def _with_batch_norms(net: nn.Module) -> nn.Module:
    """Let every BatchNorm2d in the net accept a batch of one value per channel."""
    for module in net.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = BatchNormOfOne
    return net


@functools.cache
def torchvision_models() -> Any:
    """Return torchvision.models; raises ConfigError if torchvision is not installed.

    A torchvision built for CUDA cannot load its compiled operators if torch has no CUDA, and its import then fails at
    the first operator that it describes. Nets need none of these operators, so they are declared here without a body.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision warns that it cannot decode images, which is not needed here
        try:
            try:
                return import_module("torchvision.models")
            except RuntimeError as error:
                if "torchvision::" not in str(error):
                    raise
                for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                    del sys.modules[name]
                _declare_operators()
                return import_module("torchvision.models")
        except ImportError as error:
            raise ConfigError(
                f"model.name: this net is torchvision's, which cannot be imported ({error_text(error)}); "
                "pip install 'fedkin[torchvision]', or choose one of small-plain, small-residual, small-separable, "
                "small-wide"
            ) from None


@functools.cache
def _declare_operators() -> torch.library.Library:
    """Declare torchvision's box operators to torch; the declaration ends with the library object."""
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    return library
