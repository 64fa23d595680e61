"""Adversarial clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedkin.engines import LocalEngine
from fedkin.engines.adversaries import Attack
from fedkin.errors import ConfigError
from fedkin.flow import Fitted
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.median import Median
from support import small_federation, small_setup

START = {"w": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3)}
UPDATE = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 4.0]])
FITTED = Fitted({"w": START["w"] + UPDATE, "count": torch.tensor(4)}, {}, 0.1, 5, 40)


def handed_on(spec: str, seed: int = 0) -> torch.Tensor:
    attack = Attack.parse(spec)
    assert attack is not None
    made = attack(FITTED, START, np.random.default_rng(seed))
    assert made.params["count"] == 4
    assert (made.steps, made.samples) == (FITTED.steps, FITTED.samples)
    return made.params["w"] - START["w"]


def test_what_each_attack_makes_of_an_update() -> None:
    torch.testing.assert_close(handed_on("sign-flip:0.2"), -UPDATE)
    torch.testing.assert_close(handed_on("scale:0.2:3"), 3 * UPDATE)
    shuffled = handed_on("shuffle:0.2")
    torch.testing.assert_close(shuffled.flatten().sort()[0], UPDATE.flatten().sort()[0])
    assert not torch.equal(shuffled, UPDATE)
    noise = handed_on("noise:0.2:2") - UPDATE
    torch.testing.assert_close(noise.norm(), 2 * UPDATE.norm())
    torch.testing.assert_close(FITTED.params["w"], START["w"] + UPDATE)


@pytest.mark.parametrize(("share", "count"), [(0.1, 2), (0.3, 6), (0.001, 1), (0.999, 19)])
def test_how_many_there_are(share: float, count: int) -> None:
    attack = Attack("noise", share, 1.0)
    ids = [f"c{k}" for k in range(20)]
    assert len(attack.clients(ids, 0)) == count
    assert attack.clients(ids, 0) == attack.clients(list(reversed(ids)), 0)
    assert attack.clients(ids, 0) != attack.clients(ids, 1) or count in (1, 19)


@pytest.mark.parametrize(
    "spec", ["sign-filp:0.2", "noise", "noise:0", "noise:1", "noise:x", "noise:.1:0", "noise:.1:2:3"]
)
def test_bad_specs_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.adversaries"):
        Attack.parse(spec)


def test_a_sign_flipping_client_enters_fedavg_with_its_opposite() -> None:
    setup = small_setup(FedAvg(weights="equal"))
    honest = LocalEngine(setup)
    honest.round(1)
    each = {}
    for id in setup.federation:
        alone = LocalEngine(replace(setup, clients=setup.federation.reorder([id])))
        alone.round(1)
        each[id] = alone.server.state["params"]["head.weight"]
    engine = LocalEngine(setup.having(adversaries="sign-flip:0.34"))
    engine.round(1)
    assert len(engine.adversaries) == 2
    start = setup.net.initial["head.weight"]
    sent = [2 * start - w if id in engine.adversaries else w for id, w in each.items()]
    torch.testing.assert_close(engine.server.state["params"]["head.weight"], torch.stack(sent).mean(0))
    assert set(engine.evaluate()) == set(setup.federation) - engine.adversaries


def test_the_median_holds_where_the_mean_does_not() -> None:
    federation = small_federation(clients=9)
    one_kind = federation.reorder([id for id, client in federation.items() if client.group == "g0"])
    drift = {}
    for name in ("fedavg", "median"):
        ends = []
        for spec in ("none", "scale:0.2:50"):
            engine = LocalEngine(small_setup(METHODS[name](), one_kind).having(adversaries=spec))
            engine.round(1)
            ends.append(engine.server.state["params"]["head.weight"])
        drift[name] = float((ends[0] - ends[1]).norm())
    assert drift["median"] < drift["fedavg"] / 20


def test_median_of_each_parameter() -> None:
    setup = small_setup(Median())
    engine = LocalEngine(setup)
    engine.round(1)
    each = []
    for id in setup.federation:
        alone = LocalEngine(replace(setup, clients=setup.federation.reorder([id])))
        alone.round(1)
        each.append(alone.server.state["params"]["head.weight"].numpy())
    np.testing.assert_allclose(engine.server.state["params"]["head.weight"].numpy(), np.median(each, axis=0), atol=1e-6)
