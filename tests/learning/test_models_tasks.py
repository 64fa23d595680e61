"""Nets for other tasks: shapes, initialisation, and that they learn what they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models import MODELS, CnnFedAvg, CnnMnist, Mlp8, UNet
from fedkin.learning.net import Net


def test_eight_layers_by_he() -> None:
    task = Task.regression(6, (6,))
    net = Net.build(lambda: Mlp8().build(task), 0)
    linear = [module for module in net.module.modules() if isinstance(module, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(6, 512), *[(512, 512)] * 6, (512, 6)]
    for layer in linear[:-1]:
        assert float(layer.weight.detach().std()) == pytest.approx((2 / layer.in_features) ** 0.5, rel=0.05)
        assert not layer.bias.any()
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    plain = Net.build(lambda: Mlp8(init="torch").build(task), 0)
    with torch.no_grad():
        spread = [float(one.module.features(x).std(0).mean()) for one in (net, plain)]
    assert spread[0] > 100 * spread[1]


def test_the_head_follows_the_task() -> None:
    for name in ("mlp", "mlp-3", "mlp-8", "linear"):
        body, head = MODELS[name](name=name).build(Task.regression(3, (5,)))
        assert head(body(torch.zeros(2, 5))).shape == (2, 3)


def test_the_cnn_of_fedavg() -> None:
    task = Task(10, (1, 28, 28))
    sizes = [
        [tuple(p.shape) for part in model.build(task) for p in part.parameters()] for model in (CnnFedAvg(), CnnMnist())
    ]
    assert sizes[0] == sizes[1]
    assert sum(np.prod(size) for size in sizes[0]) == 1_663_370  # as in McMahan et al., 2017


@pytest.mark.parametrize(("depth", "sides"), [(1, (6, 10)), (2, (8, 12)), (3, (16, 8))])
def test_the_unet_keeps_the_size(depth: int, sides: tuple[int, int]) -> None:
    task = Task(4, (2, *sides), "segmentation")
    net = Net.build(lambda: UNet(width=3, depth=depth).build(task), 0)
    net.check(task)
    module = net.scratch()
    assert module(torch.zeros(2, 2, *sides)).shape == (2, 4, *sides)
    assert module.features(torch.zeros(2, 2, *sides)).shape == (2, 3, *sides)
    assert not list(module.buffers())


def test_the_unet_uses_both_its_paths() -> None:
    task = Task(2, (1, 8, 8), "segmentation")
    net = Net.build(lambda: UNet(width=4, depth=2).build(task), 0)
    module = net.scratch()
    module(torch.randn(1, 1, 8, 8)).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for n, p in module.named_parameters() if "weight" in n)


def test_the_unet_refuses_what_it_cannot_take() -> None:
    with pytest.raises(ConfigError, match=r"model\.depth: 3 halvings need sides that 8 divides, the images are 8 x 12"):
        UNet().build(Task(2, (1, 8, 12), "segmentation"))
    with pytest.raises(ConfigError, match="labels every pixel, and this task is classification"):
        UNet().build(Task(2, (1, 8, 8)))
