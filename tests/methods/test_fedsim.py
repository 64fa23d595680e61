"""FedSim against a plain loop; what travels; unlike bodies."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedkin.engines import LocalEngine, Witness
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedsim import FedSim
from methods.plain_loops import (
    HEAD,
    assert_params,
    combined,
    entropy,
    floats,
    initial,
    logits,
    plain_training,
    sample_shares,
)
from support import small_federation, small_setup


def test_two_rounds_are_those_of_a_plain_loop() -> None:
    setup = small_setup(FedSim())
    engine = LocalEngine(setup)
    ids = sorted(setup.federation)
    models = {id: initial(setup) for id in ids}
    head = {name: initial(setup)[name] for name in HEAD}
    shares = sample_shares(setup.federation)
    for number in (1, 2):
        engine.round(number)
        for id in ids:
            models[id] = plain_training(
                setup, id, number, {**models[id], **head}, lambda params, x, y: entropy(logits(params, x), y)
            )
        head = combined(models, shares, HEAD)
    for id in ids:
        assert_params(engine.model(id), {**models[id], **head})


def test_equal_weights_take_the_plain_mean_and_own_heads_stay_at_home() -> None:
    setup = small_setup(FedSim(weights="equal", predict="own"))
    engine = LocalEngine(setup)
    engine.round(1)
    own = [engine.model(id)["head.weight"] for id in sorted(setup.federation)]
    assert not torch.equal(own[0], own[1])
    torch.testing.assert_close(engine.server.state["head"]["head.weight"], torch.stack(own).mean(0))


def test_one_client_alone_trains_locally() -> None:
    federation = small_federation().reorder([sorted(small_federation())[0]])
    shared, alone = (LocalEngine(small_setup(METHODS[name](), federation)) for name in ("fedsim", "local"))
    (id,) = federation
    for number in (1, 2, 3):
        shared.round(number)
        alone.round(number)
    for name, tensor in alone.model(id).items():
        torch.testing.assert_close(shared.model(id)[name], tensor)


def test_bodies_never_travel_and_floats_are_those_of_the_papers_formula() -> None:
    setup = small_setup(FedSim())
    witness = Witness()
    outcome = LocalEngine(setup, observers=[witness]).round(1)
    assert witness.envelopes
    assert all(set(envelope.message["head"]) == set(HEAD) for envelope in witness.envelopes)
    phi = 7 * 4 + 4
    assert floats(outcome.traffic) == 2 * len(setup.federation) * phi  # 2 M phi a round


def test_a_client_with_one_class_changes_nobodys_body() -> None:
    """Whatever the others do in a first round, a client's trained body is its own."""
    federation = small_federation()
    ids = sorted(federation)
    everyone = LocalEngine(small_setup(FedSim(), federation))
    few = LocalEngine(small_setup(FedSim(), federation.reorder(ids[:2])))
    everyone.round(1)
    few.round(1)
    for id in ids[:2]:
        assert torch.equal(everyone.model(id)["body.1.weight"], few.model(id)["body.1.weight"])
        assert not torch.equal(everyone.model(id)["head.weight"], few.model(id)["head.weight"])


def test_clients_with_unlike_bodies_share_one_head() -> None:
    setup = small_setup(FedSim())
    deep = Net.build(lambda: Mlp(hidden=(9, 7)).build(setup.federation.task), 3)
    deep = Net(deep.module.body, setup.net.module.head)
    nets = {id: deep if place % 2 else setup.net for place, id in enumerate(sorted(setup.federation))}
    engine = LocalEngine(replace(setup, nets=nets))
    for number in (1, 2):
        engine.round(number)
    models = [engine.model(id) for id in sorted(nets)]
    assert {len(params) for params in models} == {4, 6}
    for params in models:
        assert torch.equal(params["head.weight"], engine.server.state["head"]["head.weight"])
    assert all(score.n > 0 for score in engine.evaluate().values())
