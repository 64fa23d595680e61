"""What must hold for every method: one table, all methods through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.codec import tensors_of
from fedkin.engines import LocalEngine, LoopbackEngine, Setup, Witness
from fedkin.engines.base import SERVER
from fedkin.engines.roster import Roster
from fedkin.engines.server_side import ServerSide
from fedkin.errors import MethodError
from fedkin.flow import Message, PeerMethod, ServerMethod
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.views import ServerView
from support import Losing, cases, small_federation, small_setup

# Settings that make a method's graph, groups and mixing matter within three rounds of a tiny federation.
CASES: dict[str, ServerMethod | PeerMethod] = {
    **{name: method() for name, method in METHODS.items()},
    "fedavg-equal": FedAvg(weights="equal"),
    "sfmtl-strong": SfmtlGraph(lam=0.4, anchor_weight=0.01),
    "sfmtl-mean": SfmtlGraph(lam=0.4, anchor_weight=0.01, anchors="mean"),
    **cases(),
}
SERVER_CASES = {name: method for name, method in CASES.items() if isinstance(method, ServerMethod)}

every_method = pytest.mark.parametrize("name", CASES)
every_server_method = pytest.mark.parametrize("name", SERVER_CASES)


def models(engine: LocalEngine, rounds: int = 3) -> dict[str, dict[str, Tensor]]:
    """Every client's model after some rounds."""
    for number in range(1, rounds + 1):
        engine.round(number)
    return {id: dict(engine.model(id)) for id in sorted(engine.setup.federation)}


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for id in one:
        for name in one[id]:
            assert torch.equal(one[id][name], other[id][name]), f"{id} {name} differs"


def assert_close(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for id in one:
        for name in one[id]:
            torch.testing.assert_close(one[id][name], other[id][name], rtol=tolerance, atol=tolerance)


@every_method
def test_training_changes_models(name: str) -> None:
    setup = small_setup(CASES[name])
    trained = models(LocalEngine(setup))
    for params in trained.values():
        assert not torch.equal(params["body.1.weight"], setup.net.initial["body.1.weight"])


@every_method
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_loopback_equals_local(name: str, dtype: torch.dtype, tolerance: float) -> None:
    setup = small_setup(CASES[name], dtype=dtype, per_round=4)
    local, loopback = LocalEngine(setup), LoopbackEngine(setup)
    assert_close(models(local), models(loopback), tolerance)
    one, other = local.evaluate(), loopback.evaluate()
    assert {id: score.right for id, score in one.items()} == {id: score.right for id, score in other.items()}


@every_method
def test_loopback_counts_the_same_messages(name: str) -> None:
    setup = small_setup(CASES[name])
    local = LocalEngine(setup).round(1)
    loopback = LoopbackEngine(setup).round(1)
    assert sorted(local.traffic) == sorted(loopback.traffic)


@every_method
def test_same_seed_same_bits(name: str) -> None:
    setup = small_setup(CASES[name], per_round=0.5)
    assert_same_bits(models(LocalEngine(setup)), models(LocalEngine(setup)))


@every_method
def test_another_seed_other_bits(name: str) -> None:
    one = models(LocalEngine(small_setup(CASES[name], seed=0)))
    other = models(LocalEngine(small_setup(CASES[name], seed=1)))
    assert any(not torch.equal(one[id]["body.1.weight"], other[id]["body.1.weight"]) for id in one)


@every_method
def test_order_of_clients_changes_no_bit(name: str) -> None:
    federation = small_federation()
    turned = federation.reorder(list(reversed(list(federation))))
    one = models(LocalEngine(small_setup(CASES[name], federation, per_round=4)))
    assert_same_bits(one, models(LocalEngine(small_setup(CASES[name], turned, per_round=4))))


@every_method
def test_zero_rate_leaves_every_model_as_it_was(name: str) -> None:
    engine = LocalEngine(small_setup(CASES[name], lr=0.0))
    if name == "ifca-same":
        engine.round(1)  # which draws the models of all clusters, once their number is known
    before = {id: dict(engine.model(id)) for id in engine.setup.federation}
    for id, params in models(engine).items():
        for key, tensor in params.items():
            # FedProto predicts by prototypes, which stand in for the head.
            if not (name == "fedproto" and key.startswith("head.")):
                torch.testing.assert_close(tensor, before[id][key], rtol=0, atol=1e-6)


@every_method
def test_a_method_survives_lost_messages(name: str) -> None:
    engine = LocalEngine(small_setup(CASES[name], dropout=0.5, seed=3))
    for params in models(engine, rounds=6).values():
        assert all(bool(torch.isfinite(tensor).all()) for tensor in params.values())


@every_server_method
def test_no_answer_at_all_leaves_the_server_as_it_was(name: str) -> None:
    losing = Losing()
    engine = LocalEngine(small_setup(CASES[name]), transport=losing)
    engine.round(1)
    before = {pointer: tensor.clone() for pointer, tensor in tensors_of(engine.state()).items()}
    losing.lose = lambda envelope: envelope.sender == SERVER
    engine.round(2)
    after = tensors_of(engine.state())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[pointer], after[pointer]) for pointer in before)


@every_server_method
def test_a_dropped_client_is_a_client_that_was_not_sampled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = small_federation()
    dropped = sorted(federation)[2]
    # All is lost but what is asked before the draw.
    losing = Losing(lambda envelope: envelope.receiver == dropped and envelope.phase != "size")
    lossy = LocalEngine(small_setup(CASES[name], federation), transport=losing)
    one = models(lossy, rounds=2)
    monkeypatch.setattr(
        type(CASES[name]), "sample", lambda self, server: [id for id in server.clients if id != dropped]
    )
    assert_same_bits(one, models(LocalEngine(small_setup(CASES[name], federation)), rounds=2))


@every_server_method
def test_relabelling_clients_relabels_what_the_server_makes(name: str) -> None:
    """The server's round, fed with the same replies under other names, makes the same under these names."""
    setup = small_setup(CASES[name]).equipped()
    ids = sorted(setup.federation)
    names = {id: f"new-{len(ids) - place:02d}" for place, id in enumerate(ids)}
    witness = Witness()
    engine = LocalEngine(setup, observers=[witness])
    engine.round(1)
    sent, server = replay(setup, [replies for _, _, replies in witness.asks], names)
    assert len(sent) == len(witness.asks) > 0
    for (_, ask, _), renamed in zip(witness.asks, sent, strict=True):
        assert {names[id] for id in ask.messages} == set(renamed)
        for id, message in ask.messages.items():
            close_trees(message, renamed[names[id]])
    close_trees(engine.server.state, server.state, names)


@every_method
def test_state_travels_through_bytes(name: str) -> None:
    """A runner restored from its state goes on bit for bit."""
    from fedkin import codec

    setup = small_setup(CASES[name], per_round=3)
    engine = LocalEngine(setup)
    engine.round(1)
    fresh = LocalEngine(setup)
    fresh.restore(codec.decode(codec.encode(engine.state())))
    for number in (2, 3):
        engine.round(number)
        fresh.round(number)
    ids = sorted(setup.federation)
    assert_same_bits({id: dict(engine.model(id)) for id in ids}, {id: dict(fresh.model(id)) for id in ids})


@pytest.mark.parametrize("name", ["local", "fedavg", "sfmtl-graph"])
def test_one_client_alone_is_plain_sgd(name: str) -> None:
    method = SfmtlGraph(lam=0.0) if name == "sfmtl-graph" else METHODS[name]()
    federation = small_federation().reorder([sorted(small_federation())[0]])
    setup = small_setup(method, federation, momentum=0.5, weight_decay=0.01, clip=0.7)
    (params,) = models(LocalEngine(setup)).values()
    plain = plain_sgd(setup, rounds=3)
    for key, tensor in plain.items():
        torch.testing.assert_close(params[key], tensor, rtol=1e-6, atol=1e-6)


def plain_sgd(setup: Setup, rounds: int) -> dict[str, Tensor]:
    """What a person would write for one client: model, loss, backward, step."""
    from fedkin.keys import rng

    (client,) = setup.federation.values()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4))
    names = ["body.1.weight", "body.1.bias", "head.weight", "head.bias"]
    with torch.no_grad():
        for parameter, name in zip(model.parameters(), names, strict=True):
            parameter.copy_(setup.net.initial[name])
    for number in range(1, rounds + 1):
        draw = rng(setup.seed, client.id, number, "train.fit0")
        draw.integers(2**63)
        optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5, weight_decay=0.01)
        for rows in setup.training.batches(client.size, draw):
            loss = torch.nn.functional.cross_entropy(model(client.train.x[rows]), client.train.y[rows])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)
            optimiser.step()
    return dict(zip(names, (parameter.detach() for parameter in model.parameters()), strict=True))


def replay(
    setup: Setup, replies: Sequence[Mapping[str, Message]], names: Mapping[str, str]
) -> tuple[list[dict[str, Message]], ServerView[Any]]:
    """Drive the server's round by hand with renamed replies, given in another order."""
    federation = setup.federation.relabel(dict(names))
    side = ServerSide(replace(setup, federation=federation).plan, Roster.of(federation))
    side.turn_to(1)
    flow, sent, answer = side.round(), [], None
    for reply in [*replies, None]:
        try:
            ask = flow.send(answer)
        except StopIteration:
            break
        sent.append(dict(ask.messages))
        assert reply is not None
        answer = {names[id]: message for id, message in reversed(list(reply.items()))}
    return sent, side.view


def close_trees(one: Any, other: Any, names: dict[str, str] | None = None) -> None:
    """Equal trees up to rounding; keys that are client ids are translated."""
    names = names or {}
    if isinstance(one, Tensor):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    elif isinstance(one, (dict, Message)):
        assert {names.get(key, key) for key in one} == set(other)
        for key in one:
            close_trees(one[key], other[names.get(key, key)], names)
    else:
        assert one == other


def test_errors_name_the_client_and_the_phase() -> None:
    setup = small_setup(Local(), lr=1e30)
    with pytest.raises(MethodError, match=r"round \d, client 'site-.', phase 'train': the training loss became"):
        models(LocalEngine(setup), rounds=3)


@every_method
def test_counted_bytes_are_those_of_the_messages(name: str) -> None:
    witness = Witness()
    engine = LocalEngine(small_setup(CASES[name]), observers=[witness])
    counted = [message.bytes for number in (1, 2) for message in engine.round(number).traffic]
    sent = [len(envelope.message.to_bytes()) for envelope in witness.envelopes]
    assert sorted(counted) == sorted(size for size in sent if size)
