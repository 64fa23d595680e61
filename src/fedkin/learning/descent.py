"""The step of local training: parameters are updated by their gradients, which then are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedkin.learning.devices import CPU, device_of
from fedkin.learning.losses import CrossEntropy, Loss, PixelCrossEntropy, SquaredError
from fedkin.learning.net import BodyHead
from fedkin.learning.training import Training
from fedkin.learning.written import altered

__all__ = ["descent", "direct"]

# Weights of a layer from which its gradient is not stored: fewer stay in a core's cache between gradient and step.
_LARGE = 1 << 18


def descent(training: Training, leaves: Sequence[Tensor]) -> Callable[[], None]:
    """Return the function that updates the parameters by their gradients, and clears the gradients.

    SGD without momentum does not use torch.optim, whose bookkeeping costs more than the step of a small net.
    """
    optimiser = None if _plain(training) else training.build(leaves)
    for leaf in leaves:
        leaf.grad = None  # an earlier fit that failed may have left a gradient

    @torch.no_grad()
    def descend() -> None:
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(leaves, training.clip)
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()
            return
        for leaf in leaves:
            if leaf.grad is not None:
                if training.weight_decay:
                    leaf.grad.add_(leaf, alpha=training.weight_decay)
                leaf.add_(leaf.grad, alpha=-training.lr)
                leaf.grad = None

    return descend


@contextmanager
def direct(module: BodyHead, loss: Loss, training: Training) -> Iterator[None]:
    """Within, the backward pass of large Linear layers takes their step itself, w <- (1 - lr decay) w - lr g.

    The product that is the gradient is added to the weights, and never stored. This needs plain SGD, one pass through
    the net for each step, a layer that is used once, in an nn.Sequential or alone, and no other parts than torch's and
    fedkin's, since a part of a user's own may hold a layer's weights where nobody sees it; else it does nothing. With
    bf16 the operands of that product are rounded, as by autocast, and the product is not.
    """
    able = _plain(training) and training.clip is None and type(loss) in (CrossEntropy, SquaredError, PixelCrossEntropy)
    able = able and device_of(module) == CPU
    large = _large(module) if able else []
    keep = 1 - training.lr * training.weight_decay
    half = module.computing.precision == "bf16"
    try:
        for layer in large:
            # Of one memory: pages of new memory in every step take longer than the rounding.
            room = torch.empty_like(layer.weight, dtype=torch.bfloat16) if half else None
            step = _Step(layer, training.lr, keep, room)
            layer.forward = partial(_Stepping.apply, step, layer.weight)  # type: ignore[method-assign]
        yield
    finally:
        for layer in large:
            vars(layer).pop("forward", None)


def _plain(training: Training) -> bool:
    return training.optimiser == "sgd" and not training.momentum


def _large(module: BodyHead) -> list[nn.Linear]:
    """Return the layers of which `direct` takes the step."""
    if any(not type(part).__module__.startswith(("torch.", "fedkin.")) for part in module.modules()):
        return []
    found = [layer for part in (module.body, module.head) for layer in _linears(part)]
    used = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    return [
        layer for layer in found
        if layer.weight.numel() >= _LARGE and layer.weight.requires_grad and not altered(layer)
        and all(used[id(p)] == 1 for p in layer.parameters())
    ]  # fmt: skip


def _linears(part: nn.Module) -> Iterator[nn.Linear]:
    if type(part) is nn.Linear:
        yield part
    elif type(part) is nn.Sequential and not altered(part):
        for child in part._modules.values():
            if child is not None:
                yield from _linears(child)


class _Step(NamedTuple):
    """What a layer's step needs; rounded: memory for its weights in bfloat16, or None."""

    layer: nn.Linear
    lr: float
    keep: float
    rounded: Tensor | None


class _Stepping(torch.autograd.Function):
    """x W' + b, whose backward pass takes the step of W and b; under autocast all three are rounded to bfloat16."""

    @staticmethod
    def forward(ctx: Any, step: _Step, weight: Tensor, x: Tensor) -> Tensor:
        ctx.step, ctx.given, ctx.half = step, x.dtype, torch.is_autocast_enabled("cpu")
        bias: Tensor | None = step.layer.bias
        if ctx.half:
            assert step.rounded is not None
            x, weight = x.bfloat16(), step.rounded.copy_(weight)
            bias = None if bias is None else bias.bfloat16()
        ctx.save_for_backward(x)
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor | None]:
        (x,), (layer, lr, keep, rounded) = ctx.saved_tensors, ctx.step
        slope, own = grads[0].flatten(0, -2), layer.weight.dtype
        with torch.no_grad():
            below = (
                (grads[0] @ (rounded if ctx.half else layer.weight)).to(ctx.given) if ctx.needs_input_grad[2] else None
            )
            slope, x = slope.to(own), x.flatten(0, -2).to(own)
            layer.weight.addmm_(slope.t(), x, beta=keep, alpha=-lr)
            if layer.bias is not None and layer.bias.requires_grad:
                layer.bias.mul_(keep).add_(slope.sum(0), alpha=-lr)
        return None, None, below
