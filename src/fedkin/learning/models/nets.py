"""Named nets: settings that build (body, head) for a task, with PyTorch's initialisation.

Convolution nets pool before ReLU, which gives the same bits for a quarter of the work: the maximum of ReLUs is the ReLU
of the maximum. Only the deep nets of `vision` have running statistics, which are averaged over clients.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.settings import Settings


class Model(Settings):
    """Settings of a net, which `name` identifies."""

    name: str

    @abstractmethod
    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        """Return (body, head) for the task; raises ConfigError if the net cannot take its inputs."""

    def image_shape(self, task: Task, least: int = 1) -> tuple[int, int, int]:
        """Return (channels, height, width) of the task's images; raises ConfigError for sides below `least` pixels."""
        shape = task.numbers(f"model.name: {self.name!r}")
        if len(shape) != 3 or min(shape[1:]) < least:
            needs = f"needs images [channels, height, width] of at least {least} pixels a side"
            raise ConfigError(f"model.name: {self.name!r} {needs}, the task's inputs have shape {shape}")
        channels, height, width = shape
        return channels, height, width


# -- fully connected --------------------------------------------------------------------------------------------------


class Linear(Model):
    """Multinomial logistic regression: the body only flattens, and the head is one Linear."""

    name: Literal["linear"] = "linear"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        return nn.Flatten(), nn.Linear(math.prod(task.numbers(f"model.name: {self.name!r}")), task.outputs)


class Mlp(Model):
    """Flatten, then one Linear and ReLU per entry of `hidden`; the last hidden layer is the feature."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[PositiveInt, ...] = Field((200,), min_length=1)

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        widths = [math.prod(task.numbers(f"model.name: {self.name!r}")), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inside, outside in pairwise(widths):
            layers += [nn.Linear(inside, outside), nn.ReLU()]
        return nn.Sequential(*layers), nn.Linear(widths[-1], task.outputs)


class Mlp3(Mlp):
    """Three fully connected layers, TFL's net for eICU; the paper does not give their widths."""

    name: Literal["mlp-3"] = "mlp-3"  # type: ignore[assignment]
    hidden: tuple[PositiveInt, ...] = Field((64, 32), min_length=1)


class Mlp8(Mlp):
    """Eight fully connected layers with 512 hidden units, TFL's net for TPT-48.

    init: "he" draws the body's weights from N(0, 2 / inputs), with zero biases (He et al., 2015). With PyTorch's own
    initialisation, a net of this depth gives nearly the same output for all inputs. The head keeps PyTorch's own: with
    "he", its outputs are so large at the start that the first steps diverge. "torch" is PyTorch's own everywhere.
    """

    name: Literal["mlp-8"] = "mlp-8"  # type: ignore[assignment]
    hidden: tuple[PositiveInt, ...] = Field((512,) * 7, min_length=1)
    init: Literal["he", "torch"] = "he"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        body, head = super().build(task)
        if self.init == "he":
            for module in body.modules():
                if isinstance(module, nn.Linear):
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                    nn.init.zeros_(module.bias)
        return body, head


# -- convolutions; the feature is the ReLU before the last Linear -----------------------------------------------------


class CnnMnist(Model):
    """Two 5x5 convolutions (32, 64 channels) with ReLU and 2x2 max pooling, Linear `features`, ReLU | head."""

    kernel: ClassVar[int] = 5
    widths: ClassVar[tuple[int, ...]] = (32, 64)

    name: Literal["cnn-mnist"] = "cnn-mnist"
    features: int = Field(512, ge=1)

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        smaller = 2 ** len(self.widths)
        channels, height, width = self.image_shape(task, smaller)
        layers: list[nn.Module] = []
        for inside, outside in pairwise((channels, *self.widths)):
            layers += [nn.Conv2d(inside, outside, self.kernel, padding=self.kernel // 2), nn.MaxPool2d(2), nn.ReLU()]
        flat = self.widths[-1] * (height // smaller) * (width // smaller)
        body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, self.features), nn.ReLU())
        return body, nn.Linear(self.features, task.outputs)


class CnnCifar(CnnMnist):
    """Three 3x3 convolutions (32, 64, 128) with ReLU and 2x2 max pooling, Linear `features`, ReLU | head."""

    kernel: ClassVar[int] = 3
    widths: ClassVar[tuple[int, ...]] = (32, 64, 128)

    name: Literal["cnn-cifar"] = "cnn-cifar"  # type: ignore[assignment]


class CnnFedAvg(CnnMnist):
    """FedAvg's net for any images: two 5x5 convolutions (32, 64 channels) and Linear 512, as in CnnMnist."""

    name: Literal["cnn-fedavg"] = "cnn-fedavg"  # type: ignore[assignment]


class LeafCnn(CnnMnist):
    """LEAF's net for FEMNIST: CnnMnist with 2048 features, 6.6 M parameters for 28x28 images of 62 classes."""

    name: Literal["leaf-cnn"] = "leaf-cnn"  # type: ignore[assignment]
    features: int = Field(2048, ge=1)


class LeNet(Model):
    """LeNet-5 with ReLU: two 5x5 convolutions (6, 16) with 2x2 max pooling, Linear 120, Linear 84 | head."""

    name: Literal["lenet"] = "lenet"

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        channels, height, width = self.image_shape(task, 16)
        # Each convolution without padding shortens the sides by 4 pixels, and each pooling halves them.
        pixels = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        body = nn.Sequential(
            nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * pixels, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        )  # fmt: skip
        return body, nn.Linear(84, task.outputs)


# -- four small convolution nets of different architectures with one feature width, for mixed federations -------------


class _Small(Model):
    """The maps [b, channels, h, w] of `stem`, pooled to at most 4 x 4, Linear `width`, ReLU | Linear classes.

    Almost all of the arithmetic is at a quarter of the height and the width.
    """

    width: int = Field(64, ge=1)

    @abstractmethod
    def stem(self, channels: int) -> nn.Module:
        """Return the module from inputs [b, channels, h, w] to maps of about a quarter of the height and width."""

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        shape = self.image_shape(task, 8)
        stem = nn.Sequential(self.stem(shape[0]), _Pool(), nn.Flatten())
        with torch.no_grad():
            flat = stem(torch.zeros(1, *shape)).shape[1]
        return nn.Sequential(*stem, nn.Linear(flat, self.width), nn.ReLU()), nn.Linear(self.width, task.classes)


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
            _Residual(16, 32, 2), _Residual(32, 32, 1),
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


class _Residual(nn.Module):
    """relu(shortcut(x) + f(x)), where the shortcut is a 1x1 convolution if shapes differ."""

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


class _Pool(nn.Module):
    """The mean over adjacent windows, at most 4 x 4; windows at the far edges may be smaller."""

    def forward(self, x: Tensor) -> Tensor:
        size = [-(-side // 4) for side in x.shape[-2:]]
        return nn.functional.avg_pool2d(x, size, ceil_mode=True, count_include_pad=False)


def _separable(inside: int, outside: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
        nn.Conv2d(inside, outside, 1, bias=False), nn.GroupNorm(4, outside), nn.ReLU(),
    ]  # fmt: skip


# -- a label for every pixel ------------------------------------------------------------------------------------------


class UNet(Model):
    """A U-Net of `depth` halvings with `width` channels at full size, and twice as many after each halving.

    Ronneberger, Fischer, Brox. U-Net: convolutional networks for biomedical image segmentation. MICCAI 2015.
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
            needs = f"{self.depth} halvings need sides that {2**self.depth} divides"
            raise ConfigError(f"model.depth: {needs}, the images are {sides[0]} x {sides[1]}")
        return _UNetBody(channels, self.width, self.depth), nn.Conv2d(self.width, task.outputs, 1)


class _UNetBody(nn.Module):
    """The contracting path, the connections across, and the expanding path."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(_two_convolutions(*pair) for pair in pairwise([channels, *widths]))
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * wide, wide, 2, stride=2) for wide in reversed(widths[:-1]))
        self.up = nn.ModuleList(_two_convolutions(2 * wide, wide) for wide in reversed(widths[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            maps.append(x)
        for grow, block, across in zip(self.grow, self.up, reversed(maps[:-1]), strict=True):
            x = block(torch.cat([across, grow(x)], dim=1))
        return x


def _two_convolutions(inside: int, outside: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with group normalisation and ReLU."""
    layers: list[nn.Module] = []
    for wide in (inside, outside):
        groups = math.gcd(outside, 8)
        layers += [nn.Conv2d(wide, outside, 3, padding=1), nn.GroupNorm(groups, outside), nn.ReLU()]
    return nn.Sequential(*layers)


# -- texts as padded token ids ----------------------------------------------------------------------------------------


class TextMean(Model):
    """Texts as token ids [length], in any order: the mean of the words' vectors, Linear `width`, ReLU | head.

    words: the number of vectors; larger ids share them, by their remainder. width: of a vector, and of the feature.
    padding: the id that fills texts up, which is ignored. Inputs are one array of whole numbers, or a dict with
    `input_ids` and perhaps `attention_mask`.
    """

    name: Literal["text-mean"] = "text-mean"
    words: int = Field(32_768, ge=2)
    width: int = Field(32, ge=1)
    padding: int = 0

    def build(self, task: Task) -> tuple[nn.Module, nn.Module]:
        shapes = dict(task.shapes)
        known = {"x"} if "x" in shapes else {"input_ids", "attention_mask"}
        texts = all(name in known and name in task.codes and len(shape) == 1 for name, shape in shapes.items())
        if not texts or not ({"x", "input_ids"} & shapes.keys()):
            inputs = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ConfigError(
                f"model.name: {self.name!r} needs token ids [length] as whole numbers (or a dict of input_ids and "
                f"attention_mask), the task's inputs are {inputs}{'' if task.codes else ' of numbers'}"
            )
        vectors = _MeanOfWords(self.words, self.width, self.padding)
        body = nn.Sequential(vectors, nn.Linear(self.width, self.width), nn.ReLU())
        return body, nn.Linear(self.width, task.outputs)


class _MeanOfWords(nn.Module):
    """Maps token ids [n, length] to the mean [n, width] of their vectors; padding is left out.

    From a dict it takes `input_ids`, and `attention_mask` if present. A text of padding alone becomes 0.
    """

    def __init__(self, words: int, width: int, padding: int) -> None:
        super().__init__()
        self.words, self.padding = words, padding
        self.vectors = nn.Embedding(words, width)

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        ids = x if isinstance(x, Tensor) else x["input_ids"]
        mask = ids != self.padding
        if not isinstance(x, Tensor) and "attention_mask" in x:
            mask = x["attention_mask"] != 0
        weight = mask.unsqueeze(-1).to(self.vectors.weight.dtype)
        vectors: Tensor = self.vectors(torch.remainder(ids, self.words)) * weight
        return vectors.sum(-2) / weight.sum(-2).clamp_min(1.0)
