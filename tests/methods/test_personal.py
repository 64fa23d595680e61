"""What a client adds to a shared model for its class shares or its shift, and takes out again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning.net import Net
from fedkin.methods.blocks.personal import first_layer, has_place, own_view, shared_view
from fedkin.methods.local import Local
from fedkin.views import ClientView
from support import small_setup


def federation(clients: int = 2) -> Federation:
    rng = np.random.default_rng(0)
    made = []
    for k in range(clients):
        x = torch.from_numpy(rng.normal(size=(60, 5)).astype(np.float32))
        samples = Samples(x, torch.from_numpy(rng.integers(0, 4, 60)))
        made.append(Client(f"c{k}", samples, samples))
    return Federation(made, Task(4, (5,)))


def assert_equal(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_shares_are_the_identity_where_classes_are_as_frequent() -> None:
    fed = federation()
    even = replace(fed["c0"], train=replace(fed["c0"].train, y=torch.arange(60) % 4))
    view = view_of(even, fed)
    assert_equal(dict(own_view(view, view.initial, "shares")), dict(view.initial))
    uneven = view_of(fed["c1"], fed)
    there = own_view(uneven, uneven.initial, "shares")
    assert not torch.equal(there["head.bias"], uneven.initial["head.bias"])
    torch.testing.assert_close(dict(shared_view(uneven, there, "shares")), dict(uneven.initial))


def view_of(one: Client, fed: Federation, net: Net | None = None) -> ClientView[Any]:
    setup = small_setup(Local(), fed)
    return ClientView(0, 1, net or setup.net, fed.task, setup.training, {}, one.id, one.train)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_offsets_are_inputs_less_the_clients_mean(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(20, 2, 4, 4)).astype(np.float32) + 3)
    # A convolution takes off one number of each channel.
    m = x.mean(0) if kind == "linear" else x.mean((0, 2, 3))[:, None, None]
    fed = Federation(
        [Client("a", Samples(x, torch.arange(20) % 3), Samples(x, torch.arange(20) % 3))], Task(3, (2, 4, 4))
    )
    layers = [nn.Flatten(), nn.Linear(32, 6)] if kind == "linear" else [nn.Conv2d(2, 5, 3), nn.Flatten()]
    net = Net(nn.Sequential(*layers, nn.ReLU()), nn.Linear(6 if kind == "linear" else 20, 3))
    view = view_of(fed["a"], fed, net)
    there = own_view(view, net.initial, "offsets")

    def outputs(params: Any, x: Tensor) -> Tensor:
        module = net.scratch()
        module.load_state_dict(dict(params))
        return module(x)  # type: ignore[no-any-return]

    torch.testing.assert_close(outputs(there, x), outputs(net.initial, x - m), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(shared_view(view, there, "offsets")), dict(net.initial), rtol=1e-5, atol=1e-5)


def test_a_first_layer_without_bias_has_no_place_for_offsets() -> None:
    task = Task(3, (5,))
    net = Net(nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU()), nn.Linear(6, 3))
    assert first_layer(net, task) is None
    assert not has_place(net, task, "offsets")
    assert has_place(net, task, "shares")
    assert not has_place(net, Task.regression(3, (5,)), "shares")
