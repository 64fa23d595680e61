"""Given groups: FedAvg inside them, local training outside, and both for who keeps its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedkin.errors import ConfigError
from fedkin.learning.net import Net, body_of, head_of
from fedkin.learning.sgd import infer
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.given import Given
from fedkin.methods.local import Local
from support import after, begun, same, small_federation, small_setup

IDS = sorted(small_federation())


def models(method: Any, federation: Any = None, rounds: int = 3, **training: Any) -> Any:
    return after(method, rounds, federation, **training)[0].models()


def test_who_keeps_its_own_model_still_trains_the_group_s() -> None:
    groups = {"a": tuple(IDS)}
    kept = models(Given(groups=groups, keep_own=(IDS[0],)))
    assert all(same(kept[id], models(FedAvg())[id]) for id in IDS[1:])
    assert not same(kept[IDS[0]], kept[IDS[1]])


def test_models_of_one_client_have_a_rate_of_their_own() -> None:
    kept = models(Given(groups={"a": tuple(IDS[:3])}, own_lr=0.02))
    assert same(kept[IDS[5]], models(Local(), lr=0.02)[IDS[5]])
    assert same(kept[IDS[0]], models(Given(groups={"a": tuple(IDS[:3])}))[IDS[0]])


def test_heads_of_clients_own_are_pulled_to_the_shared_one_and_change_no_training() -> None:
    groups = {"a": tuple(IDS[:4])}
    shared = models(Given(groups=groups))
    pulled = models(Given(groups=groups, pull_weights=0.5, pull_bias=2.0))
    assert same(pulled[IDS[5]], shared[IDS[5]])
    setup = small_setup(Given())
    for id in IDS[:4]:
        assert {name for name in shared[id] if not torch.equal(pulled[id][name], shared[id][name])} == {
            "head.weight", "head.bias",
        }  # fmt: skip
        x, y = (setup.federation[id].train.inputs(slice(None)), setup.federation[id].train.labels())
        features = infer(setup.net, setup.net.scratch(), shared[id], "features", setup.federation[id].train).double()
        weight, bias = (pulled[id][name].double().requires_grad_() for name in ("head.weight", "head.bias"))
        loss = torch.nn.functional.cross_entropy(features @ weight.T + bias, y, reduction="sum")
        loss = loss + 0.25 * (weight - shared[id]["head.weight"]).square().sum()
        loss = loss + 1.0 * (bias - shared[id]["head.bias"]).square().sum()
        gradients = torch.autograd.grad(loss, [weight, bias])
        assert max(float(one.abs().max()) for one in gradients) < 0.02 * len(x)


def test_bodies_of_clients_own_are_trained_under_the_shared_head_and_change_no_training() -> None:
    groups = {"a": tuple(IDS[:4])}
    shared, pulled = models(Given(groups=groups)), models(Given(groups=groups, pull_weights=0.5, pull_bias=0.5))
    bodies = models(Given(groups=groups, own_body=True))
    both = models(Given(groups=groups, own_body=True, pull_weights=0.5, pull_bias=0.5))
    assert same(bodies[IDS[5]], shared[IDS[5]])
    for id in IDS[:4]:
        assert same(head_of(bodies[id]), head_of(shared[id]))
        assert not same(body_of(bodies[id]), body_of(shared[id]))
        assert same(body_of(both[id]), body_of(bodies[id]))
        assert not same(head_of(both[id]), head_of(pulled[id]))
    assert not same(body_of(bodies[IDS[0]]), body_of(bodies[IDS[1]]))


def test_a_net_without_a_body_has_none_of_its_own() -> None:
    groups = {"a": tuple(IDS)}
    net = Net(nn.Flatten(), nn.Linear(5, 4))
    shared, bodies = (
        begun(replace(small_setup(Given(groups=groups, own_body=own)), net=net)).model(IDS[0]) for own in (False, True)
    )
    assert same(shared, bodies)


def test_neighbours_are_averaged_in_one_direction() -> None:
    found = models(Given(near={IDS[0]: (IDS[1],), IDS[1]: ()}), rounds=1)
    local = models(Local(), rounds=1)
    n = small_federation().sizes
    for name, tensor in found[IDS[0]].items():
        mean = (n[IDS[0]] * local[IDS[0]][name] + n[IDS[1]] * local[IDS[1]][name]) / (n[IDS[0]] + n[IDS[1]])
        torch.testing.assert_close(tensor, mean)
    assert same(found[IDS[1]], local[IDS[1]])


def test_an_id_of_nobody_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"method.groups: no client 'site-Q'"):
        Given(groups={"a": (IDS[0], "site-Q")}).check(small_federation())
