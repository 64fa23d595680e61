"""Federations that change: newcomers, drift, clients that never take part; and nets that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from engines.faulty import Spoiling
from fedkin import codec
from fedkin.engines import LocalEngine, Setup
from fedkin.errors import ConfigError, DataError
from fedkin.federation import AnyRoster, Change, Entry, Federation, Roster
from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, PeerFlow, PeerMethod, ServerFlow, Share, phase
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.views import ClientView, PeerView, ServerView
from support import NET_METHODS, by_pattern, default_method, play, same, small_federation, small_setup, with_settings

WORKERS = pytest.param("workers", marks=pytest.mark.slow)


def changed(federation: Federation, **fields: Any) -> Federation:
    """The federation with fields of its first client (by id) set anew."""
    first = sorted(federation)[0]
    return Federation(
        [replace(c, **fields) if id == first else c for id, c in federation.items()], federation.task, federation.name
    )


@pytest.mark.parametrize("mode", ["one-by-one", "fast", WORKERS])
def test_drift_is_training_on_the_new_samples(mode: str, workers_here: None) -> None:
    """From its round on, a changed client is the client that owns the new samples."""
    federation = small_federation()
    first, other = sorted(federation)[:2]
    new = federation[other]
    drifting = changed(federation, changes=(Change(2, new.train, new.test, new.group),))
    engine = LocalEngine(with_settings(small_setup(Local(), drifting), mode=mode, workers=1))
    try:
        play(engine, 1, 2)
        drifted, scores = engine.model(first), engine.evaluate()
    finally:
        engine.close()
    plain = LocalEngine(small_setup(Local(), federation))
    plain.round(1)
    after = LocalEngine(small_setup(Local(), changed(federation, train=new.train, test=new.test)))
    after.restore(plain.state())
    after.round(2)
    torch.testing.assert_close(drifted, after.model(first), rtol=1e-5, atol=1e-6)
    assert scores[first].n == len(new.test)
    assert scores[first].right == after.evaluate()[first].right


def test_a_newcomer_is_not_there_before_its_round() -> None:
    federation = changed(small_federation(), joins=3)
    first = sorted(federation)[0]
    engine = LocalEngine(small_setup(FedAvg(), federation))
    assert first not in engine.round(1).sampled
    assert first not in engine.evaluate()
    engine.round(2)
    assert first in engine.round(3).sampled
    assert first in engine.evaluate()


def test_data_of_who_has_left_count_no_more() -> None:
    """From then on the federation is the one without this client."""
    whole = small_federation()
    federation = changed(whole, away=((3, None),))
    first = sorted(federation)[0]
    engine, other = LocalEngine(small_setup(FedAvg(), federation)), LocalEngine(small_setup(FedAvg(), whole))
    for number in (1, 2):
        assert not engine.round(number).events
        other.round(number)
    without = LocalEngine(small_setup(FedAvg(), whole.reorder([id for id in whole if id != first])))
    without.restore({**other.state(), "clients": {}})
    outcome = engine.round(3)
    assert outcome.events == {"left": (first,)}
    assert outcome.sampled == without.round(3).sampled
    assert first not in engine.evaluate()
    assert same(without.server.state["params"], engine.server.state["params"])


def test_who_comes_back_is_a_newcomer() -> None:
    """Nothing is left of its state, at the server and at itself."""
    federation = changed(small_federation(), away=((2, 2),))
    first = sorted(federation)[0]
    engine = LocalEngine(small_setup(Local(), federation))
    late = LocalEngine(small_setup(Local(), changed(small_federation(), joins=3)))
    for number in (1, 2, 3):
        outcome = engine.round(number)
        late.round(number)
    assert outcome.events == {"joined": (first,)}
    assert same(late.model(first), engine.model(first))


@pytest.mark.parametrize("method", ["kin", "flt-same", "fedamp"])
def test_a_run_goes_on_bit_for_bit_after_somebody_has_left(method: str) -> None:
    setup = small_setup(METHODS[method](), changed(small_federation(), joins=2, away=((3, 3),)), rounds=4)
    engine, resumed = LocalEngine(setup), LocalEngine(setup)
    play(engine, 1, 2, 3)
    resumed.restore(codec.decode(codec.encode(engine.state())))
    assert engine.round(4).events == resumed.round(4).events == {"joined": (min(setup.federation),)}
    assert same(engine.models(), resumed.models())


def test_absences_follow_each_other() -> None:
    for wrong in (((1, 2),), ((4, 3),), ((3, None), (5, 6)), ((5, 6), (3, 4))):
        with pytest.raises(DataError, match="and is away in"):
            changed(small_federation(), away=wrong)


def test_an_unseen_client_never_trains_and_is_scored_with_the_global_model() -> None:
    federation = changed(small_federation(), seen=False)
    first = sorted(federation)[0]
    engine = LocalEngine(small_setup(FedAvg(), federation))
    outcome = engine.round(1)
    assert first not in outcome.sampled
    assert all(first not in (message.sender, message.receiver) for message in outcome.traffic)
    assert engine.evaluate()[first].n == len(federation[first].test)
    assert engine.model(first) is engine.server.state["params"]
    without = LocalEngine(small_setup(FedAvg(), federation.reorder([id for id in federation if id != first])))
    without.round(1)
    assert same(without.server.state["params"], engine.server.state["params"])


def test_a_drifting_client_that_kept_its_model_is_scored_on_its_new_samples() -> None:
    """In the round of the change nobody is reached: models stay the very objects they were."""
    federation = small_federation()
    first, other = sorted(federation)[:2]
    new = federation[other]
    engine = LocalEngine(
        small_setup(FedAvg(), changed(federation, changes=(Change(2, new.train, new.test, new.group),)))
    )
    engine.round(1)
    before = engine.evaluate()
    engine.log.transport = Spoiling(lambda envelope: True)
    engine.round(2)
    after = engine.evaluate()
    assert (after[first].loss, after[first].right) == (after[other].loss, after[other].right)
    assert after[first].loss != before[first].loss
    assert all(after[id] == before[id] for id in federation if id != first)


def test_a_second_look_at_unseen_clients_finds_the_same_models() -> None:
    federation = changed(small_federation(), seen=False)
    first = sorted(federation)[0]
    engine = LocalEngine(small_setup(Welcoming(), federation))
    engine.round(1)
    one, other = engine.model(first), engine.model(first)
    assert same(one, other)


@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_an_unseen_client_without_training_samples_is_scored_all_the_same(name: str) -> None:
    """`unseen_test = "all"` makes such clients."""
    federation = small_federation()
    first = sorted(federation)[0]
    bare = changed(federation, seen=False, train=federation[first].train.take([]))
    engine = LocalEngine(small_setup(default_method(name), bare))
    for number in (1, 2):
        engine.round(number)
        assert engine.evaluate()[first].n == len(federation[first].test)


class Welcoming(FedAvg):
    """FedAvg whose newcomers train once on what the server has, and tell the server so."""

    @phase
    def tune(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message["params"])
        client.state["own"] = fitted.params
        return Message(n=client.size)

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        replies = yield from Ask("tune", {id: Message(params=server.state["params"]) for id in ids})
        server.state["welcomed"] = sorted(replies)
        return {id: Message() for id in ids}

    def use(self, client: ClientView, message: Message) -> Params:
        params: Params = message["params"] if len(message) else client.state["own"]
        return params


def test_a_welcome_leaves_no_trace() -> None:
    federation = changed(small_federation(), seen=False)
    first = sorted(federation)[0]
    setup = small_setup(Welcoming(), federation, dropout=0.9, seed=5)
    engine, unlooked = LocalEngine(setup), LocalEngine(setup)
    for runner in (engine, unlooked):
        runner.round(1)
    model = engine.model(first)
    engine.evaluate()
    assert not torch.equal(model["head.weight"], engine.server.state["params"]["head.weight"])
    assert first not in engine.states
    assert codec.encode(engine.state()) == codec.encode(unlooked.state())
    assert vars(engine.round(2)) == vars(unlooked.round(2))  # FedAvg makes no graph


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"joins": 0}, "joins in round 0"),
        ({"changes": "twice"}, "ascending rounds"),
        ({"changes": "empty"}, "no training samples from round 2 on"),
    ],
)
def test_bad_changes_are_refused(fields: dict[str, Any], said: str) -> None:
    federation = small_federation()
    own = federation[sorted(federation)[0]]
    empty = own.train.take([])
    made = {"twice": (Change(2, own.train, own.test),) * 2, "empty": (Change(2, empty, own.test),)}
    fields = {name: made.get(value, value) for name, value in fields.items()}
    with pytest.raises(DataError, match=said):
        changed(federation, **fields)


def test_a_federation_of_unseen_clients_is_refused() -> None:
    federation = small_federation()
    with pytest.raises(DataError, match="unseen"):
        Federation([replace(c, seen=False) for c in federation.values()], federation.task)


# -- nets -----------------------------------------------------------------------------------------------------------


class Probing(Local):
    """Local training that also fits and runs another net, on other samples."""

    other: ClassVar[Net]

    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        few = client.train.take(list(range(8)))
        fitted = yield from Fit(self.other.initial, net=self.other, data=few)
        logits = yield from Infer(fitted.params, net=self.other, data=few)
        own = yield from Fit(client.state["params"])
        client.state["params"] = own.params
        client.state["logits"] = logits
        return Message(n=client.size)


@pytest.mark.parametrize("other", ["fast", WORKERS])
def test_another_net_and_other_samples_give_the_same_in_every_mode(other: str, workers_here: None) -> None:
    federation = small_federation()
    Probing.other = Net.build(lambda: Mlp(hidden=(3, 6)).build(federation.task), 5)
    said: dict[str, dict[str, Tensor]] = {}
    for mode in ("one-by-one", other):
        engine = LocalEngine(with_settings(small_setup(Probing(), federation), mode=mode, workers=1))
        try:
            engine.round(1)
            said[mode] = {id: engine.states[id]["logits"] for id in federation}
        finally:
            engine.close()
    assert {logits.shape for logits in said["one-by-one"].values()} == {(8, 4)}
    if other == "workers":
        assert same(said["one-by-one"], said[other])
    else:
        torch.testing.assert_close(said["one-by-one"], said[other], rtol=1e-4, atol=1e-5)


def unlike(setup: Setup) -> Setup:
    """Every second client gets a wider body; all heads are equal."""
    task = setup.federation.task
    wide = Net.build(lambda: Mlp(hidden=(9, 7)).build(task), 3)
    wide = Net(wide.module.body, setup.net.module.head)
    nets = {id: wide if place % 2 else setup.net for place, id in enumerate(sorted(setup.federation))}
    return replace(setup, nets=nets)


class Bodies(Local):
    unlike_models: ClassVar[bool] = True


@pytest.mark.parametrize("mode", ["one-by-one", "fast", WORKERS])
def test_unlike_nets_train_as_they_would_alone(mode: str, workers_here: None) -> None:
    setup = unlike(small_setup(Bodies()))
    engine = LocalEngine(with_settings(setup, mode=mode, workers=2))
    try:
        engine.round(1)
        for id in setup.federation:
            alone = replace(setup, net=setup.net_of(id), nets=None, clients=setup.federation.reorder([id]))
            plain = LocalEngine(alone)
            plain.round(1)
            torch.testing.assert_close(engine.model(id), plain.model(id), rtol=1e-5, atol=1e-6)
    finally:
        engine.close()


def test_a_method_that_needs_one_model_refuses_several() -> None:
    with pytest.raises(ConfigError, match="needs the same model at every client"):
        LocalEngine(unlike(small_setup(FedAvg())))


class Projected(Local):
    def equip(self, net: Net, task: Any, key: int) -> Net:
        return net.extended(lambda: {"projection": nn.Linear(7, 3)}, key)

    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(client.state["params"], small_projections)
        client.state["params"] = fitted.params
        return Message(n=client.size)


def small_projections(model: Any, batch: Any, extras: Any, carry: Any) -> Tensor:
    z = model.projection(model.features(batch.x)).square().sum(1)
    loss: Tensor = (z * batch.mask).sum() / batch.mask.sum() + model.params["projection.bias"].square().sum()
    return loss


def test_extra_modules_are_trained_and_body_and_head_keep_their_values() -> None:
    setup = small_setup(Projected())
    models = {}
    for mode in ("one-by-one", "fast"):
        engine = LocalEngine(with_settings(setup, mode=mode))
        assert torch.equal(engine.setup.net.initial["head.weight"], setup.net.initial["head.weight"])
        engine.round(1)
        models[mode] = {id: engine.model(id) for id in setup.federation}
        for model in models[mode].values():
            assert not torch.equal(model["projection.weight"], engine.setup.net.initial["projection.weight"])
    torch.testing.assert_close(models["fast"], models["one-by-one"], rtol=1e-4, atol=1e-5)


# -- peers on a network ---------------------------------------------------------------------------------------------


class Greeting(PeerMethod):
    """Peers that count who greets them."""

    name: ClassVar[str] = "greeting"

    def round(self, peer: PeerView) -> PeerFlow[None]:
        inbox = yield from Share(Message(hello=torch.ones(1)))
        peer.state["from"] = sorted(inbox)

    def use(self, peer: PeerView) -> Params:
        return peer.initial


def test_messages_travel_only_along_the_network() -> None:
    engine = LocalEngine(with_settings(small_setup(Greeting()), network="ring"))
    outcome = engine.round(1)
    assert len(outcome.traffic) == 2 * len(engine.setup.federation)
    assert all(len(state["from"]) == 2 for state in engine.states.values())
    alone = LocalEngine(with_settings(small_setup(Greeting()), network="none"))
    assert not alone.round(1).traffic


# -- the clients of a round, with their samples or without -----------------------------------------------------------


def without_samples(federation: Federation) -> Roster[Entry]:
    entries = {}
    for id, client in federation.items():
        later = tuple((change.round, len(change.train), change.group) for change in client.changes)
        entries[id] = Entry(client.seen, client.joins, client.size, client.group, later, client.away)
    return Roster(entries, federation.task)


MADE = pytest.mark.parametrize("made", [lambda federation: federation, without_samples], ids=["samples", "none"])


def moving() -> Federation:
    still = small_federation()
    first, second, third, *_ = sorted(still)
    other = still[second]
    clients = [
        replace(client, changes=(Change(2, other.train, other.test, other.group),)) if id == first
        else replace(client, joins=3) if id == second
        else replace(client, seen=False) if id == third
        else client
        for id, client in still.items()
    ]  # fmt: skip
    return Federation(clients, still.task)


@pytest.mark.parametrize("round", [0, 1, 2, 3, 9])
@MADE
def test_a_roster_is_that_of_its_round(made: Callable[[Federation], AnyRoster], round: int) -> None:
    federation = moving()
    first, second, third, *_ = sorted(federation)
    now = made(federation).at(round)
    here = [id for id in federation if id != second or round >= 3]
    assert list(now) == here
    assert (now.seen, now.unseen) == (tuple(sorted(set(here) - {third})), (third,))
    was = federation[second if round >= 2 else first]
    assert (now[first].size, now[first].group) == (was.size, was.group)
    assert now.planted == {id: was.group if id == first else federation[id].group for id in here}


@MADE
def test_one_that_stands_still_is_itself_in_every_round(made: Callable[[Federation], AnyRoster]) -> None:
    roster = made(small_federation())
    assert roster.at(1) is roster.at(7) is roster


@MADE
def test_nobody_there_is_an_error(made: Callable[[Federation], AnyRoster]) -> None:
    still = small_federation()
    late = Federation([replace(client, joins=4) for client in still.values()], still.task)
    with pytest.raises(DataError, match="round 2: no client is there"):
        made(late).at(2)
