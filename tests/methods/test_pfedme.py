"""pFedMe against a plain loop, its proximal points, and the client that never took part."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedkin
from fedkin.engines import Setup
from fedkin.learning import Net, Training
from fedkin.methods.pfedme import PFedMe
from methods.plain_loops import cross_entropy
from support import Watched, newcomers, same, small_federation, small_setup, stored


def test_personal_and_global_are_two_models_of_one_run() -> None:
    personal, shared = (Watched(small_setup(PFedMe(evaluate=which))).rounds(1) for which in ("personal", "global"))
    assert same(personal.server.state["params"], shared.server.state["params"])
    ids = sorted(personal.federation)
    assert all(shared.model(id) is shared.server.state["params"] for id in ids)
    heads = [personal.model(id)["head.weight"] for id in ids]
    assert all(not torch.equal(heads[0], head) for head in heads[1:])


def test_a_client_that_has_not_trained_uses_the_global_model() -> None:
    engine = Watched(small_setup(PFedMe(), clients_per_round=2))
    sampled = engine.round(1).sampled
    for id in engine.federation:
        assert (engine.model(id) is engine.server.state["params"]) == (id not in sampled)


def test_a_newcomer_starts_from_the_global_model_and_steps_away_from_it() -> None:
    federation = small_federation()
    new = sorted(federation)[1]
    losses = []
    for steps in (0, 30):
        engine = Watched(small_setup(PFedMe(lam=1.0, welcome_steps=steps), newcomers(federation, [new])))
        for number in (1, 2):
            assert new not in engine.round(number).sampled
        before = dict(engine.server.state["params"])
        model = engine.model(new)
        assert same(model, before) == (steps == 0)
        assert same(engine.server.state["params"], before)
        client = federation[new]
        losses.append(float(cross_entropy(dict(model), stored(client.train), client.train.y)))
    assert losses[1] < losses[0]
    assert np.isfinite(losses).all()


def test_running_statistics_are_averaged_and_never_extrapolated() -> None:
    """With beta = 2 a variance would fall below 0, where clients' scales differ."""
    scale = np.repeat([0.01, 0.1, 1.0, 8.0], 20)[:, None]
    x = (np.random.default_rng(0).normal(size=(80, 3)) * scale).astype("f4")
    federation = fedkin.Federation.from_arrays(x, (x[:, 0] > 0).astype(int), client=np.repeat(list("abcd"), 20))
    net = Net(nn.BatchNorm1d(3), nn.Linear(3, 2))
    engine = Watched(Setup(PFedMe(beta=2.0, evaluate="global"), federation, net, Training(lr=0.1, local_steps=8), 0))
    for number in range(1, 4):
        engine.round(number)
        assert float(engine.server.state["params"]["body.running_var"].min()) > 0
