"""The layers of fully connected nets, written out for a stack of clients: forward, and backward without autograd.

A layer gets and gives [K, b, d], for the K members that still train and batches padded to b samples. `backward` takes
the gradient of the loss with respect to what the layer gave, hands the gradient of its own parameters to a `Sink`, and
returns the gradient with respect to what it got. In padded rows the gradient is 0, so the rows themselves may be
anything that is finite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "BatchNorm",
    "Columns",
    "Dropout",
    "Layer",
    "LayerNorm",
    "Linear",
    "Now",
    "Sink",
]

_aten = torch.ops.aten


@dataclass
class Now:
    """What layers need to know of a step. share [K, b]: 1 / count for the samples of a batch, 0 for padding.

    counts [K]: the number of samples in each batch, as a list and (whole) as a tensor. generators: one a member.
    """

    share: Tensor
    counts: Sequence[int]
    whole: Tensor
    generators: Sequence[torch.Generator]


class Sink(Protocol):
    """What takes the gradients of the stacked parameters: it adds them to the parameters at once, or keeps them."""

    def product(self, name: str, weight: Tensor, left: Tensor, right: Tensor) -> None:
        """The gradient of weight [K, out, in] is left^T right, of left [K, b, out] and right [K, b, in]."""

    def total(self, name: str, bias: Tensor, rows: Tensor) -> None:
        """The gradient of bias [K, 1, out] is the sum of rows [K, b, out] over the batch."""

    def more(self, name: str, param: Tensor, grad: Tensor) -> None:
        """The gradient of param [K, ...], which was handed over before, has grad [K, ...] in it too."""

    def whole(self, name: str, param: Tensor, grad: Tensor) -> None:
        """The gradient of param [K, ...] is grad [K, ...]."""


class Layer:
    """A layer without parameters that passes its input on; `names`: those of its parameters in the stack."""

    names: tuple[str, ...] = ()
    # Whether what it gives is kept by nothing else, so that the next layer may overwrite it.
    fresh: ClassVar[bool] = False

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        """Take the parameters of the first `active` members."""

    def forward(self, x: Tensor, now: Now) -> Tensor:
        """Return what the layer gives for x."""
        return x

    def backward(self, slope: Tensor, sink: Sink, needed: bool) -> Tensor:
        """Return the gradient with respect to the input; anything if it is not needed."""
        return slope


class Linear(Layer):
    """y = x W^T + b."""

    fresh = True

    def __init__(self, name: str, module: nn.Linear) -> None:
        self.weight_name = f"{name}.weight"
        self.bias_name = None if module.bias is None else f"{name}.bias"
        self.names = tuple(filter(None, (self.weight_name, self.bias_name)))
        self.bias: Tensor | None = None

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        self.weight = stack[self.weight_name][:active]
        self.turned = self.weight.transpose(1, 2)
        self.bias = None if self.bias_name is None else stack[self.bias_name][:active, None]

    def forward(self, x: Tensor, now: Now) -> Tensor:
        self.x = x
        return torch.bmm(x, self.turned) if self.bias is None else torch.baddbmm(self.bias, x, self.turned)

    def forward_into(self, x: Tensor, space: Tensor) -> None:
        """Do `forward`, and write y^T into space [K, out, b]."""
        self.x, turned = x, x.transpose(1, 2)
        if self.bias is None:
            torch.bmm(self.weight, turned, out=space)
        else:
            torch.baddbmm(self.bias.transpose(1, 2), self.weight, turned, out=space)

    def backward(self, slope: Tensor, sink: Sink, needed: bool) -> Tensor:
        # The sink may change the weights, so the input's gradient comes first.
        below = torch.bmm(slope, self.weight) if needed else slope
        sink.product(self.weight_name, self.weight, slope, self.x)
        if self.bias_name is not None and self.bias is not None:
            sink.total(self.bias_name, self.bias, slope)
        return below


def _relu(module: nn.ReLU) -> _Pair:
    return torch.relu, torch.relu_, lambda slope, x, y: _aten.threshold_backward(slope, y, 0)


def _leaky(module: nn.LeakyReLU) -> _Pair:
    rate = module.negative_slope
    return (
        lambda x: _aten.leaky_relu(x, rate), lambda x: _aten.leaky_relu_(x, rate),
        lambda slope, x, y: _aten.leaky_relu_backward(slope, y, rate, True),
    )  # fmt: skip


def _tanh(module: nn.Tanh) -> _Pair:
    return torch.tanh, torch.tanh_, lambda slope, x, y: _aten.tanh_backward(slope, y)


def _sigmoid(module: nn.Sigmoid) -> _Pair:
    return torch.sigmoid, torch.sigmoid_, lambda slope, x, y: _aten.sigmoid_backward(slope, y)


def _gelu(module: nn.GELU) -> _Pair:
    kind = module.approximate
    return (
        lambda x: _aten.gelu(x, approximate=kind), None,
        lambda slope, x, y: _aten.gelu_backward(slope, x, approximate=kind),
    )  # fmt: skip


def _silu(module: nn.SiLU) -> _Pair:
    return _aten.silu, None, lambda slope, x, y: _aten.silu_backward(slope, x)


# What an activation gives, the same in place (None: its gradient needs the input), and its gradient of (slope, x, y).
_Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None, Callable[[Tensor, Tensor, Tensor], Tensor]]
ACTIVATIONS: dict[type[nn.Module], Callable[[Any], _Pair]] = {
    nn.ReLU: _relu, nn.LeakyReLU: _leaky, nn.Tanh: _tanh, nn.Sigmoid: _sigmoid, nn.GELU: _gelu, nn.SiLU: _silu,
}  # fmt: skip


class Activation(Layer):
    """An elementwise function; `alone`: nothing else keeps its input."""

    def __init__(self, module: nn.Module, alone: bool) -> None:
        plain, inside, self.slope = ACTIVATIONS[type(module)](module)
        self.made = inside if alone and inside is not None else plain

    def forward(self, x: Tensor, now: Now) -> Tensor:
        self.x, self.y = x, self.made(x)
        return self.y

    def backward(self, slope: Tensor, sink: Sink, needed: bool) -> Tensor:
        return self.slope(slope, self.x, self.y) if needed else slope


class Dropout(Layer):
    """Dropout with the draws that `torch.nn.functional.dropout` makes for one client after another."""

    def __init__(self, module: nn.Dropout) -> None:
        self.rate = module.p

    def forward(self, x: Tensor, now: Now) -> Tensor:
        self.kept = torch.empty_like(x, memory_format=torch.contiguous_format)
        for own, generator, count in zip(self.kept.unbind(0), now.generators, now.counts, strict=False):
            own[:count].bernoulli_(1 - self.rate, generator=generator)
            own[count:].zero_()
        self.kept.div_(1 - self.rate)
        return x * self.kept

    def backward(self, slope: Tensor, sink: Sink, needed: bool) -> Tensor:
        return slope * self.kept if needed else slope


class _Norm(Layer, ABC):
    """A normalisation, and its scale w and shift b, if it has them: y = n w + b."""

    def __init__(self, weight_name: str | None, bias_name: str | None, eps: float) -> None:
        self.weight_name, self.bias_name, self.eps = weight_name, bias_name, eps
        self.names = tuple(filter(None, (weight_name, bias_name)))

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        self.weight = None if self.weight_name is None else stack[self.weight_name][:active, None]
        self.bias = None if self.bias_name is None else stack[self.bias_name][:active, None]

    def forward(self, x: Tensor, now: Now) -> Tensor:
        self.n = n = self.normal(x, now)
        if self.weight is None:
            return n
        return n * self.weight if self.bias is None else torch.addcmul(self.bias, n, self.weight)

    @abstractmethod
    def normal(self, x: Tensor, now: Now) -> Tensor:
        """Return the normalised x."""


def _named(name: str, module: nn.LayerNorm | nn.BatchNorm1d) -> tuple[str | None, str | None, float]:
    """Return the names of scale and shift, and what is added to the variance."""
    weight, bias = (
        None if part is None else f"{name}.{kind}" for kind, part in (("weight", module.weight), ("bias", module.bias))
    )
    return weight, bias, module.eps


class LayerNorm(_Norm):
    """Each sample has mean 0 and variance 1."""

    def __init__(self, name: str, module: nn.LayerNorm) -> None:
        super().__init__(*_named(name, module))

    def normal(self, x: Tensor, now: Now) -> Tensor:
        n, self.mean, self.scale = _aten.native_layer_norm(x, [x.shape[2]], None, None, self.eps)
        self.x = x
        return n  # type: ignore[no-any-return]

    def backward(self, slope: Tensor, sink: Sink, needed: bool) -> Tensor:
        inner = slope
        if self.weight_name is not None and self.weight is not None:
            inner = slope * self.weight if needed else slope
            sink.total(self.weight_name, self.weight, slope * self.n)
        if self.bias_name is not None and self.bias is not None:
            sink.total(self.bias_name, self.bias, slope)
        if not needed:
            return inner
        wanted, width = [True, False, False], [self.x.shape[2]]
        found = _aten.native_layer_norm_backward(inner, self.x, width, self.mean, self.scale, None, None, wanted)
        return found[0]  # type: ignore[no-any-return]


class Columns(_Norm):
    """Each column of a client's batch has mean 0 and variance 1."""

    def normal(self, x: Tensor, now: Now) -> Tensor:
        share = now.share[:, None]
        away = x - (mean := torch.bmm(share, x))
        # One product rounds the mean of numbers far from 0, and `backward` counts on sums of n that are 0.
        away.sub_(torch.bmm(share, away))
        variance = torch.bmm(share, away * away)
        self.heed(mean, variance, now)
        self.scale, self.share = torch.rsqrt(variance + self.eps), now.share[:, :, None]
        return away.mul_(self.scale)

    def heed(self, mean: Tensor, variance: Tensor, now: Now) -> None:
        """Take note of a batch's statistics."""

    def backward(self, slope: Tensor, sink: Sink, needed: bool) -> Tensor:
        # The gradients of shift and scale are the sums that the gradient below them needs too.
        total, along = slope.sum(1, keepdim=True), (slope * self.n).sum(1, keepdim=True)
        below = slope
        if needed:
            factor = self.scale if self.weight is None else self.scale * self.weight
            common = torch.addcmul(total, self.n, along).mul_(self.share)
            below = torch.sub(slope, common, out=common).mul_(factor)
        if self.weight_name is not None and self.weight is not None:
            sink.whole(self.weight_name, self.weight[:, 0], along[:, 0])
        if self.bias_name is not None and self.bias is not None:
            sink.whole(self.bias_name, self.bias[:, 0], total[:, 0])
        return below


class BatchNorm(Columns):
    """BatchNorm1d, with its running statistics."""

    def __init__(self, name: str, module: nn.BatchNorm1d) -> None:
        super().__init__(*_named(name, module))
        self.module, self.place = module, name
        self.running: list[Tensor] = []

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        super().bind(stack, active)
        if self.module.track_running_stats:
            names = ("running_mean", "running_var", "num_batches_tracked")
            self.running = [stack[f"{self.place}.{name}"][:active] for name in names]

    def heed(self, mean: Tensor, variance: Tensor, now: Now) -> None:
        if self.running:
            assert self.module.momentum is not None
            self.running[0].lerp_(mean[:, 0], self.module.momentum)
            unbiased = (now.whole / (now.whole - 1))[:, None]
            self.running[1].lerp_(variance[:, 0] * unbiased, self.module.momentum)
            self.running[2].add_(1)
