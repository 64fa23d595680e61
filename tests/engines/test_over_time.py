"""Federations that change: newcomers, drift, clients that never take part; and nets that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from engines.faulty import CASES, Spoiling
from fedkin import codec
from fedkin.engines import LocalEngine, Setup
from fedkin.errors import ConfigError, DataError
from fedkin.federation import AnyRoster, Change, Client, Entry, Federation, Roster
from fedkin.flow import Ask, ClientFlow, Fit, Message, Params, PeerFlow, PeerMethod, ServerFlow, Share, phase
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.views import ClientView, PeerView, ServerView
from support import NET_METHODS, after, by_pattern, changed, play, same, small_federation, small_setup, with_settings

WORKERS = pytest.param("workers", marks=pytest.mark.slow)


FIRST, OTHER, THIRD, *_ = sorted(small_federation())


def with_first(**fields: Any) -> Federation:
    """The small federation with fields of its first client (by id) set anew."""
    return changed(small_federation(), FIRST, **fields)


def drifting() -> tuple[Federation, Client]:
    """One in which the first client has the samples of another one from round 2 on; and that other one."""
    new = small_federation()[OTHER]
    return with_first(changes=(Change(2, new.train, new.test, new.group),)), new


def without_first() -> Federation:
    return small_federation().reorder([id for id in small_federation() if id != FIRST])


@pytest.mark.parametrize("mode", ["one-by-one", "fast", WORKERS])
def test_drift_is_training_on_the_new_samples(mode: str, workers_here: None) -> None:
    """From its round on, a changed client is the client that owns the new samples."""
    federation, new = drifting()
    with closing(LocalEngine(with_settings(small_setup(Local(), federation), mode=mode, workers=1))) as engine:
        play(engine, 1, 2)
        drifted, score = engine.model(FIRST), engine.evaluate()[FIRST]
    plain, _ = after(Local(), 1)
    moved = LocalEngine(small_setup(Local(), with_first(train=new.train, test=new.test)))
    moved.restore(plain.state())
    moved.round(2)
    torch.testing.assert_close(drifted, moved.model(FIRST), rtol=1e-5, atol=1e-6)
    assert (score.n, score.right) == (len(new.test), moved.evaluate()[FIRST].right)


def test_a_newcomer_is_not_there_before_its_round() -> None:
    engine = LocalEngine(small_setup(FedAvg(), with_first(joins=3)))
    for number in (1, 2, 3):
        assert (FIRST in engine.round(number).sampled) == (FIRST in engine.evaluate()) == (number == 3)


def test_data_of_who_has_left_count_no_more() -> None:
    """From then on the federation is the one without this client."""
    engine = LocalEngine(small_setup(FedAvg(), with_first(away=((3, None),))))
    for number in (1, 2):
        assert not engine.round(number).events
    without = LocalEngine(small_setup(FedAvg(), without_first()))
    without.restore({**after(FedAvg(), 2)[0].state(), "clients": {}})
    outcome = engine.round(3)
    assert outcome.events == {"left": (FIRST,)}
    assert outcome.sampled == without.round(3).sampled
    assert FIRST not in engine.evaluate()
    assert same(without.server.state["params"], engine.server.state["params"])


def test_who_comes_back_is_a_newcomer() -> None:
    """Nothing is left of its state, at the server and at itself."""
    engine, outcome = after(Local(), 3, with_first(away=((2, 2),)))
    late, _ = after(Local(), 3, with_first(joins=3))
    assert outcome.events == {"joined": (FIRST,)}
    assert same(late.model(FIRST), engine.model(FIRST))


@pytest.mark.parametrize("method", ["kin", "flt-same", "fedamp"])
def test_a_run_goes_on_bit_for_bit_after_somebody_has_left(method: str) -> None:
    setup = small_setup(METHODS[method](), with_first(joins=2, away=((3, 3),)), rounds=4)
    engine, resumed = LocalEngine(setup), LocalEngine(setup)
    play(engine, 1, 2, 3)
    resumed.restore(codec.decode(codec.encode(engine.state())))
    assert engine.round(4).events == resumed.round(4).events == {"joined": (FIRST,)}
    assert same(engine.models(), resumed.models())


def test_an_unseen_client_never_trains_and_is_scored_with_the_global_model() -> None:
    federation = with_first(seen=False)
    engine, outcome = after(FedAvg(), 1, federation)
    assert FIRST not in outcome.sampled
    assert all(FIRST not in (message.sender, message.receiver) for message in outcome.traffic)
    assert engine.evaluate()[FIRST].n == len(federation[FIRST].test)
    assert engine.model(FIRST) is engine.server.state["params"]
    without, _ = after(FedAvg(), 1, without_first())
    assert same(without.server.state["params"], engine.server.state["params"])


def test_a_drifting_client_that_kept_its_model_is_scored_on_its_new_samples() -> None:
    """In the round of the change nobody is reached: models stay the very objects they were."""
    engine, _ = after(FedAvg(), 1, drifting()[0])
    before = engine.evaluate()
    engine.log.transport = Spoiling(lambda envelope: True)
    engine.round(2)
    now = engine.evaluate()
    assert (now[FIRST].loss, now[FIRST].right) == (now[OTHER].loss, now[OTHER].right)
    assert now[FIRST].loss != before[FIRST].loss
    assert all(now[id] == before[id] for id in now if id != FIRST)


def test_a_second_look_at_unseen_clients_finds_the_same_models() -> None:
    engine, _ = after(Welcoming(), 1, with_first(seen=False))
    assert same(engine.model(FIRST), engine.model(FIRST))


@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_an_unseen_client_without_training_samples_is_scored_all_the_same(name: str) -> None:
    """`unseen_test = "all"` makes such clients."""
    own = small_federation()[FIRST]
    engine = LocalEngine(small_setup(CASES[name], with_first(seen=False, train=own.train.take([]))))
    for number in (1, 2):
        engine.round(number)
        assert engine.evaluate()[FIRST].n == len(own.test)


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
    engine, unlooked = (after(Welcoming(), 1, with_first(seen=False), dropout=0.9, seed=5)[0] for _ in range(2))
    model = engine.model(FIRST)
    engine.evaluate()
    assert not torch.equal(model["head.weight"], engine.server.state["params"]["head.weight"])
    assert FIRST not in engine.states
    assert codec.encode(engine.state()) == codec.encode(unlooked.state())
    assert vars(engine.round(2)) == vars(unlooked.round(2))  # FedAvg makes no graph


OWN = small_federation()[FIRST]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"joins": 0}, "joins in round 0"),
        ({"changes": (Change(2, OWN.train, OWN.test),) * 2}, "ascending rounds"),
        ({"changes": (Change(2, OWN.train.take([]), OWN.test),)}, "no training samples from round 2 on"),
        *(({"away": away}, "and is away in") for away in (
            ((1, 2),), ((4, 3),), ((3, None), (5, 6)), ((5, 6), (3, 4)))),
    ],
)  # fmt: skip
def test_bad_changes_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        with_first(**fields)


def test_a_federation_of_unseen_clients_is_refused(federation: Federation) -> None:
    with pytest.raises(DataError, match="unseen"):
        Federation([replace(c, seen=False) for c in federation.values()], federation.task)


# -- nets -----------------------------------------------------------------------------------------------------------


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
    with closing(LocalEngine(with_settings(setup, mode=mode, workers=2))) as engine:
        engine.round(1)
        for id in setup.federation:
            alone = replace(setup, net=setup.net_of(id), nets=None, clients=setup.federation.reorder([id]))
            plain = LocalEngine(alone)
            plain.round(1)
            torch.testing.assert_close(engine.model(id), plain.model(id), rtol=1e-5, atol=1e-6)


def test_a_method_that_needs_one_model_refuses_several() -> None:
    with pytest.raises(ConfigError, match="needs the same model at every client"):
        LocalEngine(unlike(small_setup(FedAvg())))


def test_modules_that_a_method_adds_leave_body_and_head_their_values() -> None:
    setup = small_setup(METHODS["mapl"]())
    more = setup.equipped().net.initial
    assert len(more) > len(setup.net.initial)
    assert same({name: more[name] for name in setup.net.initial}, dict(setup.net.initial))


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
    return changed(changed(drifting()[0], OTHER, joins=3), THIRD, seen=False)


@pytest.mark.parametrize("round", [0, 1, 2, 3, 9])
@MADE
def test_a_roster_is_that_of_its_round(made: Callable[[Federation], AnyRoster], round: int) -> None:
    federation = moving()
    now = made(federation).at(round)
    here = [id for id in federation if id != OTHER or round >= 3]
    assert list(now) == here
    assert (now.seen, now.unseen) == (tuple(sorted(set(here) - {THIRD})), (THIRD,))
    was = federation[OTHER if round >= 2 else FIRST]
    assert (now[FIRST].size, now[FIRST].group) == (was.size, was.group)
    assert now.planted == {id: was.group if id == FIRST else federation[id].group for id in here}


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
