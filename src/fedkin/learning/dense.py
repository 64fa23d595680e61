"""Many clients' local work in fully connected nets, written out: no autograd, and no gradient kept.

For layers h_l = act(h_{l-1} W_l^T + b_l) and mean cross-entropy, with g_L = (softmax(h_L) - onehot(y)) * mask / count
and g_{l-1} = (g_l W_l) * [h_{l-1} > 0], a step of SGD is one matrix product into the weights themselves:

    W_l <- (1 - lr * wd) W_l - lr * g_l^T h_{l-1}        b_l <- (1 - lr * wd) b_l - lr * sum g_l

Clients are stacked [K, out, in], so few at a time that their weights stay in a core's cache from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.flow import Fitted
from fedkin.learning.losses import CrossEntropy, Loss
from fedkin.learning.net import Net
from fedkin.learning.stacked import Batches, Member, Optimiser, Plan, results
from fedkin.learning.training import Training

__all__ = ["Layer", "fit_dense", "layers_of"]

# Bytes of weights trained side by side: a core's second-level cache (benchmarks/simulation.py --chunks).
_CACHE = 2 << 20


class Layer(NamedTuple):
    """A Linear: names of its parameters, and whether a ReLU follows."""

    weight: str
    bias: str | None
    relu: bool


def layers_of(net: Net, loss: Loss) -> list[Layer] | None:
    """The net's layers, first to last, when net and loss are of the kind written out here; else None."""
    body = net.module.body
    parts = list(body.named_children()) if type(body) is nn.Sequential else [("", body)]
    plain = type(loss) is CrossEntropy and len(net.trainable) == len(net.initial)
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
    return layers if (parts[0][1].start_dim, parts[0][1].end_dim) == (1, -1) else None


def fit_dense(net: Net, layers: Sequence[Layer], training: Training, members: Sequence[Member]) -> list[Fitted]:
    """Train all members; each result equals `sgd.fit` of that member up to rounding."""
    size = sum(t.numel() * t.element_size() for t in net.initial.values())
    width = max(1, _CACHE // size)
    fitted: list[Fitted] = []
    with torch.no_grad():
        for start in range(0, len(members), width):
            fitted += _chunk(net, layers, training, members[start : start + width])
    return fitted


def _chunk(net: Net, layers: Sequence[Layer], training: Training, members: Sequence[Member]) -> list[Fitted]:
    """Members that are trained side by side."""
    plan = Plan(training, members)
    ordered = [members[k] for k in plan.order]
    stack = {name: torch.stack([m.params[name] for m in ordered]).to(net.dtype) for name in net.initial}
    batches = Batches(net, [m.samples for m in ordered], plan, reuse=True)
    # Momentum, Adam and clipping need the gradient itself; plain descent goes straight into the weights.
    plain = training.optimiser == "sgd" and not training.momentum and training.clip is None
    optimiser = None if plain else Optimiser(training, stack)
    totals = torch.zeros(len(members), dtype=torch.float64)
    for step in range(plan.steps[0]):
        active = plan.active(step)
        x, y, mask = batches.at(step)
        params = {name: tensor[:active] for name, tensor in stack.items()}
        outputs = _forward(layers, params, x.flatten(2))
        value, slope = _cross_entropy(outputs[-1], y, mask)
        totals[:active] += value
        if optimiser is None:
            _descend(layers, params, outputs, slope, training.lr, 1 - training.lr * training.weight_decay)
        else:
            grads = _gradients(layers, params, outputs, slope)
            optimiser.step([grads[name] for name in stack], active)
    return results(plan, stack, [m.carry for m in members], totals)


def _forward(layers: Sequence[Layer], params: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """What goes into each layer, and the outputs: [K, b, width] each."""
    outputs = [x]
    for layer in layers:
        weight = params[layer.weight].transpose(1, 2)
        if layer.bias is None:
            out = torch.bmm(outputs[-1], weight)
        else:
            out = torch.baddbmm(params[layer.bias][:, None], outputs[-1], weight)
        outputs.append(out.relu_() if layer.relu else out)
    return outputs


def _cross_entropy(outputs: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's mean loss [K], and its slope at the outputs [K, b, classes]; the mask's padding counts nothing."""
    logs = F.log_softmax(outputs, dim=2)
    share = mask / mask.sum(1, keepdim=True)
    value = -(logs.gather(2, y[:, :, None])[:, :, 0] * share).sum(1)
    slope = logs.exp_().mul_(share[:, :, None])
    return value, slope.scatter_add_(2, y[:, :, None], -share[:, :, None])


def _back(weight: Tensor, slope: Tensor, inside: Tensor, relu: bool) -> Tensor:
    """The slope at a layer's input."""
    out = torch.bmm(slope, weight)
    return torch.ops.aten.threshold_backward(out, inside, 0) if relu else out


def _descend(
    layers: Sequence[Layer], params: dict[str, Tensor], outputs: list[Tensor], slope: Tensor, lr: float, keep: float
) -> None:
    """One step of SGD, each layer's weights renewed by the product that is their gradient."""
    for number in range(len(layers) - 1, -1, -1):
        layer, inside = layers[number], outputs[number]
        weight = params[layer.weight]
        below = _back(weight, slope, inside, layers[number - 1].relu) if number else slope
        weight.baddbmm_(slope.transpose(1, 2), inside, beta=keep, alpha=-lr)
        if layer.bias is not None:
            bias = params[layer.bias]
            (bias if keep == 1 else bias.mul_(keep)).sub_(slope.sum(1), alpha=lr)
        slope = below


def _gradients(
    layers: Sequence[Layer], params: dict[str, Tensor], outputs: list[Tensor], slope: Tensor
) -> dict[str, Tensor]:
    """The gradient of every parameter, stacked."""
    grads = {}
    for number in range(len(layers) - 1, -1, -1):
        layer, inside = layers[number], outputs[number]
        grads[layer.weight] = torch.bmm(slope.transpose(1, 2), inside)
        if layer.bias is not None:
            grads[layer.bias] = slope.sum(1)
        if number:
            slope = _back(params[layer.weight], slope, inside, layers[number - 1].relu)
    return grads
