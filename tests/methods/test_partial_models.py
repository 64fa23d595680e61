"""Methods that share a part of the model: what travels, what FedBN keeps, unlike bodies, and FedClassAvg's loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.federation import Task
from fedkin.flow import ClientFlow, Message, phase
from fedkin.learning import Batch
from fedkin.learning.augment import Augment
from fedkin.learning.models import Mlp, SmallPlain
from fedkin.learning.net import Net
from fedkin.methods.fedbn import FedBN
from fedkin.methods.fedclassavg import ContrastedViews, FedClassAvg
from fedkin.methods.fedper import FedPer
from fedkin.views import ClientView
from methods.plain_loops import BODY, HEAD, floats
from support import after, named, play, same, small_federation, small_setup


@pytest.mark.parametrize(
    ("name", "names"),
    [("fedper", BODY), ("fedrep", BODY), ("fedbn", (*BODY, *HEAD)), ("fedsim", HEAD), ("fedclassavg", HEAD)],
)
def test_only_what_is_shared_travels(name: str, names: tuple[str, ...]) -> None:
    setup, witness = small_setup(named(name)), RecordingObserver()
    outcome = LocalEngine(setup, observers=[witness]).round(1)
    assert witness.envelopes
    assert all(set(envelope.message.params) == set(names) for envelope in witness.envelopes)
    # As in the papers' formulas: 2 M phi a round.
    assert floats(outcome.traffic) == 2 * 6 * sum(setup.net.initial[name].numel() for name in names)


class Telling(FedPer):
    """A subclass whose clients send their loss too, which it does not declare."""

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        reply = yield from super().train(client, message)
        return Message(**reply, loss=0.5)


def test_an_override_that_declares_nothing_may_send_more() -> None:
    assert same(after(Telling(), 2)[0].models(), after(FedPer(), 2)[0].models())


@pytest.mark.parametrize("name", ["fedsim", "fedclassavg", "fedproto"])
def test_clients_with_unlike_bodies_train_together(name: str) -> None:
    setup = small_setup(named(name))
    deep = Net.build(lambda: Mlp(hidden=(9, 7)).build(setup.federation.task), 3)
    deep = Net(deep.module.body, setup.net.module.head)
    nets = {id: deep if place % 2 else setup.net for place, id in enumerate(sorted(setup.federation))}
    engine = LocalEngine(replace(setup, nets=nets))
    play(engine, 1, 2)
    for id, net in nets.items():
        assert engine.model(id).keys() == net.initial.keys()
        if name == "fedsim":
            assert torch.equal(engine.model(id)["head.weight"], engine.server.state["params"]["head.weight"])
    assert all(score.n for score in engine.evaluate().values())


def test_fedbn_keeps_normalisation_layers_by_class_whatever_their_name() -> None:
    kinds = (nn.BatchNorm1d(7), nn.LayerNorm(7), nn.GroupNorm(1, 7), nn.RMSNorm(7))
    body = nn.Sequential(nn.Flatten(), nn.Linear(5, 7), *kinds, nn.Linear(7, 7))
    shared = FedBN.sent.names(Net(body, nn.Linear(7, 4)))
    assert set(shared) == {f"{layer}.{name}" for layer in ("body.1", "body.6", "head") for name in ("weight", "bias")}


# -- FedClassAvg ------------------------------------------------------------------------------------------------------


def test_two_views_differ_and_are_drawn_from_the_clients_key() -> None:
    """An image client trains on crops: another augmentation gives another model, the same key the same."""
    task, draw = Task(4, (1, 12, 12)), torch.Generator().manual_seed(0)
    net = Net.build(lambda: SmallPlain(width=7).build(task), 2)
    model = net.scratch()
    batch = Batch(torch.rand(6, 1, 12, 12, generator=draw), torch.tensor([0, 1, 2, 3, 0, 1]), torch.ones(6))
    extras = {"head": {name: net.initial[name] for name in HEAD}}

    def value(augment: Augment, seed: int) -> float:
        torch.manual_seed(seed)
        return float(ContrastedViews(0.1, 0.1, augment)(model, batch, extras, {}).detach())

    assert value(Augment(), 1) == value(Augment(), 1)
    assert value(Augment(), 1) != value(Augment(), 2)
    assert value(Augment(on=False), 1) == value(Augment(on=False), 2)


def test_clients_predict_with_the_heads_they_trained_or_the_shared_one() -> None:
    own, shared = (after(FedClassAvg(predict=predict), 1)[0] for predict in ("own", "shared"))
    ids = sorted(small_federation())
    assert not torch.equal(own.model(ids[0])["head.weight"], own.model(ids[1])["head.weight"])
    assert torch.equal(shared.model(ids[0])["head.weight"], shared.model(ids[1])["head.weight"])
    assert torch.equal(own.model(ids[0])["body.1.weight"], shared.model(ids[0])["body.1.weight"])
