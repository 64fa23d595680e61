"""FedProto against plain loops: class means, owners only, the pull, and prediction by the nearest prototype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.engines.results import SERVER
from fedkin.errors import MethodError
from fedkin.flow import Message
from fedkin.learning import Batch, BodyHead
from fedkin.methods.fedproto import FedProto, PrototypeRegularised, mean_prototypes, nearest_prototype_head
from methods.plain_loops import (
    BODY,
    Plain,
    assert_params,
    classes_federation,
    entropy,
    features,
    floats,
    initial,
    logits,
    plain_training,
)
from support import after, small_setup, stored

OWNED = [(0, 1, 2), (1, 2), (1, 4), (4,)]
FEDERATION = classes_federation(OWNED, [6, 9, 10, 12])


def plain_rounds(setup: Any, rounds: int, lam: float) -> tuple[dict[str, Plain], dict[int, Tensor]]:
    """(models, prototype by class) after some rounds, one sample, class and client after another."""
    ids = sorted(setup.federation)
    models = {id: initial(setup) for id in ids}
    prototypes: dict[int, Tensor] = {}
    for number in range(1, rounds + 1):

        def loss(params: Plain, x: Tensor, y: Tensor, known: dict[int, Tensor] = prototypes) -> Tensor:
            z = features(params, x)
            away = [
                ((z[k] - known[int(c)]) ** 2).mean() if int(c) in known else z.new_zeros(()) for k, c in enumerate(y)
            ]
            return entropy(logits(params, x), y) + lam * torch.stack(away).mean()

        sums: dict[int, Tensor] = {}
        counts: dict[int, int] = {}
        for id in ids:
            models[id] = plain_training(setup, id, number, models[id], loss)
            train = setup.federation[id].train
            for z, c in zip(features(models[id], train.x), train.y.tolist(), strict=True):
                sums[c] = sums.get(c, torch.zeros(7)) + z
                counts[c] = counts.get(c, 0) + 1
        # The mean over owners weighted by their samples of the class is the mean over all samples of the class.
        prototypes = {c: sums[c] / counts[c] for c in sums}
    return models, prototypes


def test_rounds_are_those_of_a_plain_loop() -> None:
    engine, _ = after(FedProto(lam=2.0, predict="head"), 3, FEDERATION)
    models, prototypes = plain_rounds(engine.setup, 3, 2.0)
    for id, params in models.items():
        assert_params(engine.model(id), params, 1e-4)
    assert sorted(prototypes) == [0, 1, 2, 4]
    assert engine.server.state["known"].tolist() == [True, True, True, False, True, False]
    for c, prototype in prototypes.items():
        torch.testing.assert_close(engine.server.state["prototypes"][c], prototype, rtol=1e-4, atol=1e-4)


def test_a_class_is_averaged_over_its_owners_only() -> None:
    replies = {
        "a": Message(prototypes=torch.tensor([[2.0], [4.0]]), classes=[0, 2], counts=[3, 1]),
        "b": Message(prototypes=torch.tensor([[6.0]]), classes=[0], counts=[1]),
    }
    means, known = mean_prototypes(replies, 4, by_samples=True)
    assert means[:, 0].tolist() == [3.0, 0.0, 4.0, 0.0]
    assert known.tolist() == [True, False, True, False]
    equal, _ = mean_prototypes(replies, 4, by_samples=False)
    assert equal[:, 0].tolist() == [4.0, 0.0, 4.0, 0.0]


def test_a_class_that_nobody_of_a_round_owns_keeps_its_prototype(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = after(FedProto(), 1, FEDERATION)
    before = engine.server.state["prototypes"].clone()
    monkeypatch.setattr(FedProto, "sample", lambda self, server: ["client-3"])  # owns class 4 alone
    engine.round(2)
    now = engine.server.state["prototypes"]
    assert torch.equal(before[:3], now[:3])
    assert not torch.equal(before[4], now[4])
    assert engine.server.state["known"].tolist() == [True, True, True, False, True, False]


@given(st.integers(0, 2**32 - 1))
def test_classes_without_a_prototype_pull_nothing(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    model = BodyHead(torch.nn.Linear(3, 5), torch.nn.Linear(5, 4)).double()
    x, y = torch.randn(8, 3, generator=draw).double(), torch.randint(4, (8,), generator=draw)
    known = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    prototypes = torch.randn(4, 5, generator=draw).double()
    other = torch.where(known[:, None] > 0, prototypes, 1e6)
    batch = Batch(x, y, torch.ones(8).double())
    one, two = (
        PrototypeRegularised(0.7)(model, batch, {"prototypes": held, "known": known}, {})
        for held in (prototypes, other)
    )
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    literal = [((model.body(x)[k] - prototypes[c]) ** 2).mean() * known[c] for k, c in enumerate(y)]
    torch.testing.assert_close(one, entropy(model(x), y) + 0.7 * torch.stack(literal).mean())


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 5))
def test_the_nearest_prototype_is_a_linear_head(seed: int, classes: int, width: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(classes, width, generator=draw).double()
    known = torch.rand(classes, generator=draw) < 0.6
    known[int(torch.randint(classes, (1,), generator=draw))] = True
    z = 3 * torch.randn(20, width, generator=draw).double()
    params = {"head.weight": torch.zeros(classes, width).double(), "head.bias": torch.zeros(classes).double()}
    head = nearest_prototype_head(params, prototypes, known)
    said = (z @ head["head.weight"].T + head["head.bias"]).argmax(1)
    distance = torch.cdist(z, prototypes).masked_fill(~known, torch.inf)
    assert torch.equal(said, distance.argmin(1))


def test_prediction_is_by_the_nearest_prototype_of_an_owned_class() -> None:
    engine, _ = after(FedProto(), 3, FEDERATION)
    prototypes = engine.server.state["prototypes"]
    for id, score in engine.evaluate().items():
        client, params = FEDERATION[id], engine.model(id)
        own = sorted(set(client.train.y.tolist()))
        z = features({name: params[name] for name in BODY}, stored(client.test))
        nearest = torch.cdist(z, prototypes[own]).argmin(1)
        assert score.right == int((torch.tensor(own)[nearest] == client.test.y).sum())
    assert all(score.right == score.n for id, score in engine.evaluate().items() if id == "client-3")  # its one class


def test_among_all_classes_a_foreign_one_can_be_nearest() -> None:
    owned, everything = (after(FedProto(among=among), 1, FEDERATION)[0] for among in ("owned", "all"))
    never = owned.model("client-3")["head.bias"]
    assert (never < -1e8).tolist() == [True, True, True, True, False, True]
    assert (everything.model("client-3")["head.bias"] < -1e8).tolist() == [False, False, False, True, False, True]


def test_only_prototypes_of_owned_classes_go_up_and_all_come_down() -> None:
    witness = RecordingObserver()
    engine = LocalEngine(small_setup(FedProto(), FEDERATION), observers=[witness])
    first, second = engine.round(1), engine.round(2)
    up = [envelope.message for envelope in witness.envelopes if envelope.receiver == SERVER]
    assert sorted(tuple(message["classes"]) for message in up[:4]) == sorted(OWNED)
    assert sorted(tuple(message["counts"]) for message in up[:4]) == [(6, 6, 6), (9, 9), (10, 10), (12,)]
    assert all(message["prototypes"].shape == (len(message["classes"]), 7) for message in up)
    assert floats(first.traffic, up=True) == floats(second.traffic, up=True) == 7 * (3 + 2 + 2 + 1)
    assert floats(first.traffic, up=False) == 0
    assert floats(second.traffic, up=False) == 4 * 7 * 4  # four clients, the four classes that somebody owns


def test_a_head_that_is_not_one_linear_cannot_hold_prototypes() -> None:
    params = {"head.0.weight": torch.zeros(4, 7), "head.0.bias": torch.zeros(4)}
    with pytest.raises(MethodError, match=r"needs a head that is one Linear\(7, 4\).*set method.predict = 'head'"):
        nearest_prototype_head(params, torch.zeros(4, 7), torch.ones(4, dtype=torch.bool))
