"""`training.augment`: views in every method's local training, equal in all modes, and none where it has no effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.learning import CrossEntropy, Net, Training
from fedkin.learning.augment import Augment
from fedkin.learning.models import Mlp
from fedkin.learning.sgd import fit
from support import NET_METHODS, by_pattern

GENTLE = {"crop": 0.8, "flip": 0.5, "jitter": 0, "grey": 0, "blur": 0}
OWN = ["fedclassavg", "mapl", "mapl-plus"]


@pytest.fixture(scope="module")
def digits() -> Federation:
    return fedkin.federate("digits", "rotated-masked", clients=4, seed=0)


def ran(method: str, digits: Federation, mode: str = "one-by-one", **training: Any) -> Any:
    return fedkin.run(
        method, digits, rounds=2, seed=1, model=Mlp(hidden=(8,)),
        training={"local_steps": 3, "lr": 0.1, **training}, settings={"mode": mode},
    )  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    return all(
        torch.equal(one.models[id][name], other.models[id][name]) for id in one.models for name in one.models[id]
    )


def test_it_is_a_plain_loop_over_views(digits: Federation) -> None:
    client, views = next(iter(digits.values())), Augment(**GENTLE)
    training = Training(local_steps=4, batch_size=10, lr=0.2, augment=views)
    net = Net.build(lambda: Mlp(hidden=(7,)).build(digits.task), 1, torch.float64)
    got = fit(net, net.scratch(), net.initial, CrossEntropy(), client.train, training, {}, {}, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    module = net.scratch()
    with torch.no_grad():
        for name, value in {**dict(module.named_parameters())}.items():
            value.copy_(net.initial[name])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        for rows in map(torch.from_numpy, training.batches(len(client.train), rng)):
            x = views(client.train.inputs(rows, torch.float64))
            loss = torch.nn.functional.cross_entropy(module(x), client.train.labels(rows))
            module.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for value in module.parameters():
                    assert value.grad is not None
                    value.sub_(0.2 * value.grad)
    for name, value in module.named_parameters():
        torch.testing.assert_close(got.params[name], value.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", by_pattern(name for name in NET_METHODS if name not in OWN))
def test_every_method_trains_on_views(method: str, digits: Federation) -> None:
    plain, viewed = ran(method, digits), ran(method, digits, augment=GENTLE)
    assert not equal(plain, viewed)
    assert equal(plain, ran(method, digits, augment={"on": False}))
    assert equal(viewed, ran(method, digits, augment=GENTLE))


@pytest.mark.parametrize("mode", ["fast", "workers"])
def test_all_modes_draw_the_same_views(mode: str, digits: Federation) -> None:
    assert equal(ran("fedavg", digits, augment=GENTLE), ran("fedavg", digits, mode, augment=GENTLE))


@pytest.mark.parametrize("method", OWN)
def test_methods_with_views_of_their_own_refuse_it(method: str, digits: Federation) -> None:
    with pytest.raises(ConfigError, match=r"makes views of its own; set method\.augment"):
        ran(method, digits, augment=GENTLE)


def test_inputs_without_views_are_refused() -> None:
    tokens = np.random.default_rng(0).integers(0, 9, (40, 6))
    federation = Federation.from_arrays(tokens, np.arange(40) % 2, client=np.repeat(["a", "b"], 20))
    with pytest.raises(ConfigError, match=r"training\.augment"):
        fedkin.run(
            "local",
            federation,
            rounds=1,
            model=(torch.nn.EmbeddingBag(9, 4), torch.nn.Linear(4, 2)),
            training={"augment": GENTLE},
        )
