"""Layers and optimiser steps of a stack of clients (`stacked.py`): forward and backward passes, written out.

A layer maps the outputs of the layer below, [K, b, d], to [K, b, d']. It hands the gradients of its own parameters to
the step, which is the optimiser: plain SGD updates the parameters at once, all others when the step is finished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.learning.training import Training

_aten = torch.ops.aten


class PaddedBatch(NamedTuple):
    """A batch of each of the K members that still train, padded to the b samples of the longest.

    x, y [K, b, ...]. counts [K]: samples. mask [K, b]: 1 for samples, 0 for padding. even [K, b]: mask / count. share
    [K, b]: of each sample in the mean over its batch. weight [K, b]: of each sample by its class, None if all are 1.
    """

    x: Tensor
    y: Tensor
    counts: Tensor
    mask: Tensor
    even: Tensor
    share: Tensor
    weight: Tensor | None


# -- layers ------------------------------------------------------------------------------------------------------------


class Layer:
    """A layer. `backward` gets the gradient with respect to the output, and returns that with respect to the input.

    It passes the gradients of its own parameters to the step. In padded rows the gradient is 0.
    """

    def __init__(self, name: str, part: Any) -> None:
        self.name, self.part = name, part

    def param(self, step: Step, name: str) -> Tensor | None:
        """Return a parameter or buffer of this layer, [K, ...]; None if it has none of this name."""
        return step.params.get(f"{self.name}.{name}")

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Return the outputs of the layer, and keep what `backward` needs."""
        raise NotImplementedError

    def backward(self, slope: Tensor, step: Step, needed: bool) -> Tensor:
        """needed: whether the gradient with respect to the input is used; if not, return anything."""
        raise NotImplementedError


class Linear(Layer):
    """x W^T + b."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        self.x = x
        weight, bias = step.params[f"{self.name}.weight"], self.param(step, "bias")
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    def turned(self, x: Tensor, step: Step) -> Tensor:
        """Return the transpose of the result of `forward`, [K, out, b]."""
        self.x = x
        weight, bias = step.params[f"{self.name}.weight"], self.param(step, "bias")
        return torch.bmm(weight, x.mT) if bias is None else torch.baddbmm(bias[:, :, None], weight, x.mT)

    def backward(self, slope: Tensor, step: Step, needed: bool) -> Tensor:
        # The update may change the weights, so the gradient with respect to the input comes first.
        below = torch.bmm(slope, step.params[f"{self.name}.weight"]) if needed else slope
        step.product(f"{self.name}.weight", slope.mT, self.x)
        if self.part.bias is not None:
            step.add(f"{self.name}.bias", slope.sum(1))
        return below


class Relu(Layer):
    """max(x, 0)."""

    in_place = False  # whether it may overwrite its input

    def forward(self, x: Tensor, step: Step) -> Tensor:
        self.y = torch.relu_(x) if self.in_place else torch.relu(x)
        return self.y

    def backward(self, slope: Tensor, step: Step, needed: bool) -> Tensor:
        return _aten.threshold_backward(slope, self.y, 0) if needed else slope


class RowByRow(Layer):
    """A layer that treats each row alone, differentiated by autograd: activations, and LayerNorm."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        names = [name for name, _ in self.part.named_parameters()]
        with torch.enable_grad():
            self.x = x.detach().requires_grad_()
            self.leaves = {name: step.params[f"{self.name}.{name}"].detach().requires_grad_() for name in names}
            if isinstance(self.part, nn.LayerNorm):
                normal = F.layer_norm(self.x, self.part.normalized_shape, eps=self.part.eps)
                self.y = _scaled(normal, self.leaves.get("weight"), self.leaves.get("bias"))
            else:
                self.y = self.part(self.x.clone() if getattr(self.part, "inplace", False) else self.x)
        return self.y.detach()

    def backward(self, slope: Tensor, step: Step, needed: bool) -> Tensor:
        below, *grads = torch.autograd.grad(self.y, [self.x, *self.leaves.values()], slope)
        for name, grad in zip(self.leaves, grads, strict=True):
            step.add(f"{self.name}.{name}", grad)
        return below


class Dropout(Layer):
    """Dropout with the draws that torch makes for one client after another, from a generator for each."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        self.mask = torch.zeros_like(x, memory_format=torch.contiguous_format)
        for row, generator, count in zip(self.mask, step.generators, step.batch.counts.tolist(), strict=False):
            row[: int(count)].bernoulli_(1 - self.part.p, generator=generator)
        self.mask.div_(1 - self.part.p)
        return x * self.mask

    def backward(self, slope: Tensor, step: Step, needed: bool) -> Tensor:
        return slope * self.mask if needed else slope


class BatchNorm(Layer):
    """y = n w + b, where each column of n has mean 0 and variance 1 over a client's batch; with running statistics."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        self.even = step.batch.even[:, None]
        mean = torch.bmm(self.even, x)
        away = x - mean
        # After one product, rounding leaves a mean for numbers far from 0, but `backward` needs sums of n that are 0.
        away -= torch.bmm(self.even, away)
        variance = torch.bmm(self.even, away * away)
        if self.part.track_running_stats:
            counts = step.batch.counts[:, None]
            step.params[f"{self.name}.running_mean"].lerp_(mean[:, 0], self.part.momentum)
            unbiased = variance[:, 0] * (counts / (counts - 1))
            step.params[f"{self.name}.running_var"].lerp_(unbiased, self.part.momentum)
            step.params[f"{self.name}.num_batches_tracked"].add_(1)
        self.scale = torch.rsqrt(variance + self.part.eps)
        self.n = away.mul_(self.scale)
        return _scaled(self.n, self.param(step, "weight"), self.param(step, "bias"))

    def backward(self, slope: Tensor, step: Step, needed: bool) -> Tensor:
        # The gradients of bias and weight are sums that the gradient with respect to the input needs too.
        total, along = slope.sum(1, keepdim=True), (slope * self.n).sum(1, keepdim=True)
        weight, below = self.param(step, "weight"), slope
        if needed:
            factor = self.scale if weight is None else self.scale * weight[:, None]
            common = torch.addcmul(total, self.n, along).mul_(self.even.mT)
            below = torch.sub(slope, common, out=common).mul_(factor)
        if weight is not None:
            step.add(f"{self.name}.weight", along[:, 0])
            step.add(f"{self.name}.bias", total[:, 0])
        return below


def _scaled(n: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return n w + b with weight w and bias b [K, d]; either may be None."""
    if weight is None:
        return n
    return n * weight[:, None] if bias is None else torch.addcmul(bias[:, None], n, weight[:, None])


ACTIVATIONS = (nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU)
LAYERS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: Linear, nn.ReLU: Relu, nn.Dropout: Dropout, nn.BatchNorm1d: BatchNorm,
    **dict.fromkeys((nn.LayerNorm, *ACTIVATIONS), RowByRow),
}  # fmt: skip


# -- steps of the optimiser -------------------------------------------------------------------------------------------


class Step:
    """A step of the K members that still train; takes gradients: momentum, Adam and clipping as in torch.optim.

    params: the members' parameters by name, [K, ...]. batch: the step's batches. number: of the step, from 0. mu: the
    weight of a proximal term; start: the parameters to which this term pulls. generators: for dropout, one per member.
    """

    params: dict[str, Tensor]
    batch: PaddedBatch
    number: int

    def __init__(
        self, training: Training, generators: Sequence[torch.Generator], mu: float, start: Mapping[str, Tensor]
    ) -> None:
        self.training, self.generators, self.mu, self.start = training, generators, mu, start
        self.grads: dict[str, Tensor] = {}
        self.first: dict[str, Tensor] = {}  # momentum, or Adam's moments
        self.second: dict[str, Tensor] = {}

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        """Take the gradient left @ right of a weight."""
        self.grads[name] = torch.bmm(left, right)

    def add(self, name: str, grad: Tensor) -> None:
        """Take the gradient of another parameter."""
        self.grads[name] = grad

    def finish(self) -> None:
        """End the step."""
        t, params = self.training, self.params
        for name, start in self.start.items():
            self.grads[name].add_(params[name] - start[: len(params[name])], alpha=self.mu)
        if t.clip is not None:
            norms = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in self.grads.values()])
            scale = (t.clip / (norms.norm(dim=0) + 1e-6)).clamp(max=1.0)
            for grad in self.grads.values():
                grad.mul_(scale.reshape(-1, *[1] * (grad.ndim - 1)))
        for name, grad in self.grads.items():
            param = params[name]
            if t.weight_decay:
                grad = grad.add_(param, alpha=t.weight_decay)
            if t.optimiser == "adam":
                self._adam(name, param, grad)
                continue
            if t.momentum:
                moving = self.first.setdefault(name, torch.zeros_like(param))[: len(param)]
                grad = moving.mul_(t.momentum).add_(grad)
            param.sub_(grad, alpha=t.lr)

    def _adam(self, name: str, param: Tensor, grad: Tensor) -> None:
        (one, two), lr = self.training.betas, self.training.lr
        first = self.first.setdefault(name, torch.zeros_like(param))[: len(param)].lerp_(grad, 1 - one)
        second = self.second.setdefault(name, torch.zeros_like(param))[: len(param)]
        second.mul_(two).addcmul_(grad, grad, value=1 - two)
        count = self.number + 1
        root = second.sqrt().div_(math.sqrt(1 - two**count)).add_(1e-8)
        param.addcdiv_(first, root, value=-lr / (1 - one**count))


class PlainSgd(Step):
    """SGD without momentum, which changes the parameters at once, and stores no gradient."""

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        self.params[name].baddbmm_(left, right, beta=self.keep, alpha=-self.training.lr)

    def add(self, name: str, grad: Tensor) -> None:
        param = self.params[name]
        if self.keep != 1:
            param *= self.keep
        param.sub_(grad, alpha=self.training.lr)

    def finish(self) -> None:
        for name, start in self.start.items():
            param = self.params[name]
            param.add_(start[: len(param)], alpha=self.training.lr * self.mu)

    @property
    def keep(self) -> float:
        """The factor of the parameters in a step."""
        return 1 - self.training.lr * (self.training.weight_decay + self.mu)
