"""What is a client's own in a shared model: its class shares in the logits, its mean input in the first layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.flow import Params
from fedkin.learning.net import Net
from fedkin.tasks import Task
from fedkin.views import ClientView


def own_view(client: ClientView[Any], params: Params, verdict: str) -> Params:
    """The shared model as this client uses and trains it."""
    return _shifted(client, params, verdict, 1.0)


def shared_view(client: ClientView[Any], params: Params, verdict: str) -> Params:
    """The inverse of `own_view`: what the client sends."""
    return _shifted(client, params, verdict, -1.0)


def _shifted(client: ClientView[Any], params: Params, verdict: str, sign: float) -> Params:
    if verdict not in ("shares", "offsets") or not client.size or not has_place(client.net, client.task, verdict):
        return params
    if verdict == "shares":
        name = "head.bias"
        shift = log_shares(client.train.labels(), len(params[name]))
    else:
        first = first_layer(client.net, client.task)
        name, weight = f"{first}.bias", params[f"{first}.weight"].double()
        mean = client.train.inputs(slice(None), torch.float64).mean(0)
        # W (x - m) + b: a linear layer takes the whole mean, a convolution that of each channel.
        shift = -(weight @ mean.flatten() if weight.ndim == 2 else weight.flatten(2).sum(2) @ mean.flatten(1).mean(1))
    return {**params, name: (params[name].double() + sign * shift).to(params[name].dtype)}


def has_place(net: Net, task: Task, verdict: str) -> bool:
    """Whether the net has the bias that this verdict's shift is added to."""
    if verdict == "shares":
        bias = net.initial.get("head.bias")
        return task.labels and bias is not None and "head.bias" in net.trainable and bias.ndim == 1
    return verdict != "offsets" or first_layer(net, task) is not None


def log_shares(labels: Tensor, outputs: int) -> Tensor:
    """log((n_c + 1/2) / (n + C/2)) of each class, less their mean: exactly zero where all classes are as frequent.

    >>> log_shares(torch.tensor([0, 1, 2]), 3)
    tensor([0., 0., 0.], dtype=torch.float64)
    >>> log_shares(torch.tensor([0, 0, 0, 0]), 2).diff().exp()
    tensor([0.1111], dtype=torch.float64)
    """
    logs = (torch.bincount(labels, minlength=outputs).double() + 0.5).log()
    return torch.zeros_like(logs) if bool((logs == logs[0]).all()) else logs - logs.mean()


def first_layer(net: Net, task: Task) -> str | None:
    """Name of the layer that reads the inputs, if it is linear or a convolution, and has a bias; else None."""
    name = net.trainable[0].removesuffix(".weight")
    layers: Mapping[str, nn.Module] = dict(net.module.named_modules())
    layer = layers.get(name)
    if not isinstance(layer, nn.Linear | nn.Conv2d) or layer.bias is None:
        return None
    if isinstance(task.shape, Mapping):
        return None
    if isinstance(layer, nn.Conv2d):
        reads = layer.groups == 1 and len(task.shape) == 3 and layer.in_channels == task.shape[0]
    else:
        reads = layer.in_features == math.prod(task.shape)
    return name if reads else None
