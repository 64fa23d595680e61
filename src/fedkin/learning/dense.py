"""Local training of many clients in fully connected nets, without autograd and without stored gradients.

For layers h_l = act(h_{l-1} W_l^T + b_l) and mean cross-entropy, with g_L = (softmax(h_L) - onehot(y)) * mask / count
(with class weights, mask * weight over their sum) and g_{l-1} = (g_l W_l) * [h_{l-1} > 0], a step of SGD is one matrix
product into the weights themselves:

    W_l <- (1 - lr * wd) W_l - lr * g_l^T h_{l-1}        b_l <- (1 - lr * wd) b_l - lr * sum g_l

A proximal term mu / 2 |w - w_0|^2 makes the factor 1 - lr * (wd + mu) and adds lr * mu * w_0.

Clients are stacked [K, out, in]. A stack is small enough for its weights to stay in a core's cache between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.learning.devices import CPU
from fedkin.learning.losses import CrossEntropy, Loss, Proximal
from fedkin.learning.net import Net
from fedkin.learning.stacked import Batches, Member, Optimiser, Plan, results, stack_of
from fedkin.learning.training import Fitted, Training

__all__ = ["Layer", "fit_dense", "layers_of"]

# Bytes of weights in one stack: more would not stay in the cache between steps, fewer need too many calls
# (measured for 784-200-10: 1 client at a time 69 ms a round, 3 at a time 59 ms, 9 at a time 56 ms).
_CACHE = 6 << 20
_BLOCK = 64  # number of steps whose outputs are stored before their losses are computed
_threshold_backward = torch.ops.aten.threshold_backward.default


class Layer(NamedTuple):
    """The names of a Linear's parameters, and whether a ReLU follows."""

    weight: str
    bias: str | None
    relu: bool


def layers_of(net: Net, loss: Loss) -> list[Layer] | None:
    """Return the layers of the net, first to last, or None if this module cannot train this net with this loss."""
    body = net.module.body
    parts = list(body.named_children()) if type(body) is nn.Sequential else [("", body)]
    plain = type(_inner(loss)) is CrossEntropy and len(net.trainable) == len(net.initial)
    if not plain or type(net.module.head) is not nn.Linear or type(parts[0][1]) is not nn.Flatten:
        return None
    layers: list[Layer] = []
    for name, part in [*parts[1:], ("head", net.module.head)]:
        if type(part) is nn.Linear:
            place = name if part is net.module.head else f"body.{name}"
            layers.append(Layer(f"{place}.weight", None if part.bias is None else f"{place}.bias", False))
        elif type(part) is nn.ReLU and layers:
            layers[-1] = layers[-1]._replace(relu=True)
        else:
            return None
    # A stack has only the weights that train.
    whole = sum(1 if layer.bias is None else 2 for layer in layers) == len(net.trainable)
    return layers if whole and (parts[0][1].start_dim, parts[0][1].end_dim) == (1, -1) else None


def _inner(loss: Loss) -> Loss:
    return loss.loss if type(loss) is Proximal else loss


def fit_dense(
    net: Net, loss: Loss, layers: Sequence[Layer], training: Training, members: Sequence[Member],
    device: torch.device = CPU,
) -> list[Fitted]:  # fmt: skip
    """Train all members, whose samples are on `device`; each result equals `sgd.fit` of that member up to rounding."""
    pull = loss.weight if isinstance(loss, Proximal) else None
    size = sum(t.numel() * t.element_size() for t in net.initial.values())
    width = max(1, _CACHE // size if pull is None else _CACHE // (2 * size)) if device == CPU else len(members)
    # Clients of similar size are in one stack, so that there is less padding.
    order = sorted(range(len(members)), key=lambda k: -len(members[k].samples))
    fitted: dict[int, Fitted] = {}
    with torch.no_grad():
        for start in range(0, len(order), width):
            part = order[start : start + width]
            made = _chunk(net, pull, layers, training, [members[k] for k in part], device)
            fitted.update(zip(part, made, strict=True))
    return [fitted[k] for k in range(len(members))]


def _chunk(
    net: Net, pull: float | None, layers: Sequence[Layer], training: Training, members: Sequence[Member],
    device: torch.device,
) -> list[Fitted]:  # fmt: skip
    """Train the members of one stack."""
    plan = Plan(training, members)
    ordered = [members[k] for k in plan.order]
    stack = stack_of(net, ordered, device)
    batches = Batches(net, ordered, plan, device, reuse=True)
    # Momentum, Adam and clipping need the gradient itself; plain SGD adds it directly to the weights.
    plain = training.optimiser == "sgd" and not training.momentum and training.clip is None
    optimiser = None if plain else Optimiser(training, stack)
    centre = None if pull is None else _Centre(pull, stack, ordered)
    keep = 1 - training.lr * (training.weight_decay + (pull or 0.0))
    totals = torch.zeros(len(members), dtype=torch.float64, device=device)
    parts: list[_Part] = []
    for start in range(0, plan.steps[0], _BLOCK):
        losses = _CrossEntropies(batches, slice(start, start + _BLOCK), stack[layers[-1].weight].shape[1])
        for step in range(start, min(start + _BLOCK, plan.steps[0])):
            x = batches.inputs(step).flatten(2)
            if not parts or len(x) < len(parts[0].weight):
                parts = [_part(layer, stack, len(x)) for layer in layers]
            outputs, target, share = losses.at(step - start, *x.shape[:2])
            inside = _forward(parts, x, outputs)
            # The gradient of the loss with respect to the outputs, [K, b, classes].
            slope = torch.addcmul(target, torch.softmax(outputs, 1), share).transpose(1, 2)
            if centre is not None:
                totals[: len(x)] += centre.values(len(x))
            if optimiser is None:
                _descend(parts, inside, slope, training.lr, keep)
                if centre is not None:
                    centre.draw(training.lr, len(x))
            else:
                grads = _gradients(layers, parts, inside, slope)
                if centre is not None:
                    centre.add_to(grads)
                optimiser.step([grads[name] for name in stack], len(x))
        totals += losses.values()
    return results(plan, stack, [m.carry for m in members], totals)


class _Centre:
    """The proximal term weight / 2 |w - w_0|^2 of the stacked parameters w of the first `active` members."""

    def __init__(self, weight: float, stack: dict[str, Tensor], members: Sequence[Member]) -> None:
        self.weight, self.stack = weight, stack
        self.start = {name: torch.stack([m.extras["start"][name] for m in members]).to(t) for name, t in stack.items()}

    def values(self, active: int) -> Tensor:
        """Return the term of each member: [active]."""
        away = (t[:active] - self.start[name][:active] for name, t in self.stack.items())
        return sum((gap.flatten(1).square_().sum(1).double() for gap in away), torch.tensor(0.0)) * (self.weight / 2)

    def draw(self, lr: float, active: int) -> None:
        """Take the part of the term's step that the factor on w does not contain."""
        for name, t in self.stack.items():
            t[:active].add_(self.start[name][:active], alpha=lr * self.weight)

    def add_to(self, grads: dict[str, Tensor]) -> None:
        """Add the gradient of the term to the gradient of the loss."""
        for name, grad in grads.items():
            own = slice(len(grad))
            grad.add_(self.stack[name][own] - self.start[name][own], alpha=self.weight)


class _Part(NamedTuple):
    """A layer of the members that still train: weight [K, out, in], its transpose, bias [K, 1, out]."""

    weight: Tensor
    turned: Tensor
    bias: Tensor | None
    relu: bool


def _part(layer: Layer, stack: dict[str, Tensor], active: int) -> _Part:
    weight = stack[layer.weight][:active]
    bias = None if layer.bias is None else stack[layer.bias][:active, None]
    return _Part(weight, weight.transpose(1, 2), bias, layer.relu)


class _CrossEntropies:
    """Mean cross-entropy -sum share * log softmax(outputs)[y] over a block of steps, where share = mask / sum of mask.

    Outputs are stored and their losses computed together: in small nets the calls of a step cost more than its
    arithmetic. The layout is [K, classes, b]: a softmax across rows is many times as fast as one along short rows.
    """

    def __init__(self, batches: Batches, steps: slice, classes: int) -> None:
        masks = batches.masks if batches.weights is None else batches.masks * batches.weights
        y, mask = (t[:, steps].transpose(0, 1)[:, :, None] for t in (batches.labels, masks))
        total = mask.sum(3, keepdim=True)
        # A member that has finished has no more samples, so its share is 0.
        self.share = mask / total.where(total > 0, 1.0)
        self.target = self.share.new_zeros(*y.shape[:2], classes, y.shape[3]).scatter_(2, y, -self.share)
        self.outputs = torch.zeros_like(self.target)

        self.steps = list(zip(self.outputs.unbind(0), self.target.unbind(0), self.share.unbind(0), strict=True))

    def at(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (memory for the outputs of this step, target, share), each [K, classes or 1, b]."""
        parts = self.steps[step]
        if parts[0].shape[::2] == (active, width):
            return parts
        outputs, target, share = (part[:active, :, :width] for part in parts)
        return outputs, target, share

    def values(self) -> Tensor:
        """Return the sum of the losses of each member: [K]."""
        return F.log_softmax(self.outputs, 2).mul_(self.target).sum((2, 3)).double().sum(0)


def _forward(parts: Sequence[_Part], x: Tensor, space: Tensor) -> list[Tensor]:
    """Return the inputs of each layer, [K, b, width] each; write the outputs into `space`."""
    inside = [x]
    for part in parts[:-1]:
        made = torch.bmm(inside[-1], part.turned) if part.bias is None else torch.baddbmm(
            part.bias, inside[-1], part.turned
        )  # fmt: skip
        inside.append(made.relu_() if part.relu else made)
    last, z = parts[-1], inside[-1].transpose(1, 2)
    if last.bias is None:
        torch.bmm(last.weight, z, out=space)
    else:
        torch.baddbmm(last.bias.transpose(1, 2), last.weight, z, out=space)
    return inside


def _back(part: _Part, slope: Tensor, before: Tensor, relu: bool) -> Tensor:
    """Return the gradient with respect to the input of a layer; relu: this input is the output of a ReLU."""
    below = torch.bmm(slope, part.weight)
    return _threshold_backward(below, before, 0) if relu else below


def _descend(parts: Sequence[_Part], inside: list[Tensor], slope: Tensor, lr: float, keep: float) -> None:
    """Take one step of SGD: the matrix product that is the gradient is added to the weights of each layer."""
    ones = slope.new_ones(1, 1, 1).expand(len(slope), 1, slope.shape[1])
    for number in range(len(parts) - 1, -1, -1):
        part, before = parts[number], inside[number]
        below = _back(part, slope, before, parts[number - 1].relu) if number else slope
        part.weight.baddbmm_(slope.transpose(1, 2), before, beta=keep, alpha=-lr)
        if part.bias is not None:
            part.bias.baddbmm_(ones, slope, beta=keep, alpha=-lr)
        slope = below


def _gradients(
    layers: Sequence[Layer], parts: Sequence[_Part], inside: list[Tensor], slope: Tensor
) -> dict[str, Tensor]:
    """Return the stacked gradient of every parameter."""
    grads = {}
    for number in range(len(parts) - 1, -1, -1):
        layer, before = layers[number], inside[number]
        grads[layer.weight] = torch.bmm(slope.transpose(1, 2), before)
        if layer.bias is not None:
            grads[layer.bias] = slope.sum(1)
        if number:
            slope = _back(parts[number], slope, before, parts[number - 1].relu)
    return grads
