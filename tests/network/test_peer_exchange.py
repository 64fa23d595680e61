"""A peer's exchanges: who is waited for and who is not, what may be used again, who is taken in later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import pytest

from fedkin.engines import LocalEngine
from fedkin.engines.results import Undelivered
from fedkin.network.agreement import Agreement, Terms
from fedkin.network.link import Left, Missed
from fedkin.network.messages import encode
from fedkin.network.peer_exchange import Contact, PeerExchange, PeerMessage, PeerOutbox, Progress
from fedkin.network.settings import NetworkSettings
from network.federations import NOWHERE, experiment, kill, simulated
from network.memory import MemoryNetwork
from network.peers import Peers, all_equal, together
from support import Ending, changed

SAME = Agreement(settings="[training]\nlr = 0.1\n")


@contextmanager
def made(
    network: MemoryNetwork, *names: str, folder: Path | None = None, theirs: Agreement = SAME, done: int = 0,
    **settings: Any,
) -> Iterator[list[PeerExchange]]:  # fmt: skip
    """Exchanges of these peers; ann keeps what she has sent in the folder, and the others have `theirs`."""
    chosen = NetworkSettings(**{"clients": len(names), "deadline": 20.0, "grace": 0.1, **settings})
    with ExitStack() as stack:
        kept, exchanges = Path(stack.enter_context(TemporaryDirectory())), list[PeerExchange]()
        for name in names:
            link = stack.enter_context(network.link(name))
            own, place = (SAME, folder or kept / name) if name == "ann" else (theirs, kept / name)
            exchanges.append(PeerExchange(link, list(names), own, chosen, 1 << 20, PeerOutbox(place), done=done))
            stack.callback(exchanges[-1].close)
        yield exchanges


@contextmanager
def two(network: MemoryNetwork, **how: Any) -> Iterator[list[PeerExchange]]:
    """Ann and bob, who know each other."""
    with made(network, "ann", "bob", **how) as (ann, bob):
        with gathering(ann):
            bob.gather()
        yield [ann, bob]


@contextmanager
def gathering(each: PeerExchange) -> Iterator[Thread]:
    """This one waits for the others, and has found them at the end."""
    waiting = Thread(target=each.gather)
    waiting.start()
    yield waiting
    waiting.join(30)
    assert not waiting.is_alive()


def bound(each: PeerExchange, **seconds: float) -> None:
    """Have this one wait for so long from now on."""
    each.settings = each.settings.model_copy(update=seconds)


def message(value: int) -> PeerMessage:
    return PeerMessage(phase="share", message={"value": value})


def told(each: PeerExchange, round: int, other: str, value: int = 0, turn: int = 0) -> Any:
    """What this one hears of the other in the round: its value, or why there is none."""
    heard = each.exchange(round, turn, {other: message(value)})[other]
    if isinstance(heard, Undelivered):
        return ": ".join(heard)
    return heard.message and heard.message["value"]


def test_a_round_waits_for_its_own_messages() -> None:
    with two(MemoryNetwork()) as (ann, bob):
        ann.enter(1)
        ann.link.offer("bob", f"{ann.run}/r1/t0", encode(message(7)))
        bob.enter(1)
        assert told(bob, 1, "ann") == 7
        bob.enter(2)
        bound(bob, deadline=0.5)
        assert told(bob, 2, "ann") == "late: nothing within 0.5 s"


def test_one_that_does_not_answer_is_not_waited_for_and_heard_when_it_is_back(network: MemoryNetwork) -> None:
    with two(network) as (ann, bob):
        bob.enter(1)
        release = network.hold("ann")  # connected, and it says nothing: a stopped process
        for round in (1, 2, 3):
            assert told(bob, round, "ann") == "gone: it does not answer"
        bound(bob, deadline=3600.0, grace=3600.0)
        assert told(bob, 4, "ann") == "gone: it does not answer"
        release()
        ann.enter(31)
        ann.link.offer("bob", f"{ann.run}/r31/t0", encode(message(7)))
        assert told(bob, 31, "ann") == 7
        assert bob.contact == {"ann": Contact.GOOD}


def test_one_whose_connection_is_back_is_tried_at_once(network: MemoryNetwork) -> None:
    with two(network) as (ann, bob):
        network.cut("ann")
        assert told(bob, 1, "ann") == "gone: the connection is lost"
        assert told(bob, 2, "ann") == "gone: not connected"
        network.mend("ann")
        ann.enter(1)
        assert told(bob, 4, "ann") == "late: it is in round 1"
        ann.enter(5)
        ann.link.offer("bob", f"{ann.run}/r5/t0", encode(message(7)))
        assert told(bob, 5, "ann") == 7


@pytest.mark.parametrize("contact", [Contact.GOOD, Contact.GIVEN_UP])
def test_who_is_awaited_is_named_until_it_is_back(contact: Contact, network: MemoryNetwork) -> None:
    with two(network, grace=20.0) as (ann, bob):
        said, asked, waiting, heard = list[str](), Event(), Event(), list[Any]()
        bob.say = lambda line: (said.append(line), waiting.set())  # type: ignore[func-returns-value,assignment]
        known = bob.progress_of
        bob.progress_of = lambda id: (known(id), asked.set())[0]  # type: ignore[func-returns-value,method-assign]
        bob.contact["ann"] = contact
        ann.enter(1)
        exchange = Thread(target=lambda: heard.append(told(bob, 1, "ann")))
        exchange.start()
        assert asked.wait(30)  # it answers, so that it is awaited also if it was given up
        network.cut("ann")
        assert waiting.wait(30)
        network.mend("ann")
        ann.link.offer("bob", f"{ann.run}/r1/t0", encode(message(7)))
        exchange.join(30)
        assert heard == [7]
        assert said == [
            "round 1: ann is not connected: waiting for at most 20 s", "round 1: ann is connected again",
        ]  # fmt: skip


def test_a_message_that_is_offered_is_awaited_although_its_owner_is_in_a_later_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two(MemoryNetwork(), deadline=600.0) as (ann, bob):
        ann.enter(1)
        ann.exchange(1, 0, {"bob": PeerMessage(ended=True)})
        ann.enter(2)
        pull, slow = bob.link.pull, ["busy"] * 4

        def late(owner: str, subject: str, *rest: Any) -> bytes:
            if subject.endswith("r1/t0") and slow:
                slow.pop()
                raise Missed(owner, subject, "a busy machine")
            return pull(owner, subject, *rest)

        monkeypatch.setattr(bob.link, "pull", late)
        bob.enter(1)
        heard = bob.exchange(1, 0, {"ann": message(1)})["ann"]
        assert isinstance(heard, PeerMessage)
        assert heard.ended
        # A turn that it did not offer before it went on is not awaited.
        assert told(bob, 1, "ann", turn=1) == "late: it left round 1 out"


def test_a_stranger_with_other_settings_is_refused_and_harms_nobody() -> None:
    theirs = Agreement(settings="[training]\nlr = 0.2\n")
    with made(MemoryNetwork(), "ann", "bob", theirs=theirs) as (ann, bob):
        said: list[str] = []
        ann.say = said.append
        bob.link.offer("ann", f"{bob.run}/terms", encode(Terms(agreement=theirs)))
        while not said:
            ann.admit()
        assert said == ["bob is refused: training.lr is 0.1 here and 0.2 there (there: at bob)"]
        assert ann.members == set()
        assert ann.link.refused.counts == {"bob": 1}


def test_what_was_offered_is_offered_again_after_a_kill(tmp_path: Path, network: MemoryNetwork) -> None:
    with two(network, folder=tmp_path / "sent") as (ann, bob):
        ann.enter(3)
        bob.link.offer("ann", f"{ann.run}/r3/t0", encode(message(1)))
        assert told(ann, 3, "bob", 7) == 1
    (tmp_path / "sent" / "3-1.offers").write_bytes(b"cut short")
    with two(network, folder=tmp_path / "sent", done=4) as (ann, bob):
        assert bob.progress_of_others() == {"ann": Progress(round=5, waits=True, offered=((3, 0),))}
        ann.enter(4)
        bob.enter(3)
        now = Progress(round=4, waits=False, offered=((3, 0),), counts=("bob",))
        assert bob.progress_of_others() == {"ann": now}
        assert told(bob, 3, "ann") == 7
        bound(ann, deadline=0.001)
        for round in (4, 5, 6):
            told(ann, round, "bob")
        assert bob.progress_of_others()["ann"].first == 4
        kept = sorted(path.name for path in (tmp_path / "sent").iterdir())
        assert kept == [f"{round}-0.offers" for round in (4, 5, 6)]


@contextmanager
def began_without_ann(network: MemoryNetwork) -> Iterator[tuple[PeerExchange, PeerExchange, PeerExchange]]:
    """Ann, who starts again, and bob and cid, who are in round 3 and count on each other; ann cannot see cid yet."""
    with made(network, "ann", "bob", "cid", done=2, deadline=60.0, grace=60.0) as (ann, bob, cid):
        network.cut("ann", "cid")
        for one, other in ((bob, cid), (cid, bob)):
            one.link.offer("ann", f"{one.run}/terms", encode(Terms(agreement=SAME)))
            one.members |= {other.link.me, "ann"}
            one.enter(3)
        yield ann, bob, cid


def looking(each: PeerExchange, times: int) -> Event:
    """Set when this one has asked the others so often where they are."""
    seen, asked, now = Event(), list[int](), each.progress_of_others

    def counting(ids: Any = None) -> dict[str, Progress]:
        asked.append(1)
        if len(asked) > times:
            seen.set()
        return now(ids)

    each.progress_of_others = counting  # type: ignore[method-assign]
    return seen


def test_who_starts_again_waits_for_those_on_whom_others_count_although_it_does_not_see_them_yet() -> None:
    network = MemoryNetwork()
    with began_without_ann(network) as (ann, _, _):
        asked = looking(ann, 2)
        with gathering(ann) as waiting:
            assert asked.wait(30)
            assert waiting.is_alive()
            network.mend("ann", "cid")
        assert ann.members == {"bob", "cid"}


def test_who_starts_again_waits_no_longer_for_one_that_the_others_have_given_up(network: MemoryNetwork) -> None:
    with began_without_ann(network) as (ann, bob, _):
        asked = looking(ann, 2)
        with gathering(ann):
            assert asked.wait(30)
            network.cut("cid")
            bound(bob, grace=0.1)
            assert told(bob, 3, "cid") == "gone: the connection is lost"
        assert ann.members == {"bob"}


def test_who_has_ended_counts_on_nobody() -> None:
    with began_without_ann(MemoryNetwork()) as (ann, bob, cid):
        cid.link.close()
        bob.stop.set()
        bob.end(4)
        with gathering(ann):
            pass
        assert ann.members == {"bob"}


@pytest.mark.slow
def test_peers_that_are_all_killed_at_once_end_equal(tmp_path: Path) -> None:
    plan, heard = experiment("dfedavgm", clients=3, rounds=4, network={"grace": 60.0}), together(3, 2)
    simulated(plan, tmp_path / "here")

    def killed() -> None:
        heard[2]()
        kill()

    with Peers(plan, tmp_path) as there:
        # One is killed before its checkpoint of round 2; the others have gone on to round 3, and are gone too.
        for name in ("c00", "c01"):
            there.start(name, watcher=Ending(2, heard))
        there.start("c02", watcher=Ending(then={2: killed}))
        there.join()
        assert {*there.errors.values()} == {"Killed", "Stop"}
        there.start()
        there.ended_equal()


@pytest.mark.slow
def test_a_new_peer_joins_as_in_a_simulation(tmp_path: Path) -> None:
    plan = experiment("dfedavgm", clients=4, rounds=4, run={"network": "full"}, network={"clients": 3, "grace": 60.0})
    later = changed(plan.federation(NOWHERE), "c03", joins=3)
    simulated(plan, tmp_path / "here", make=lambda setup: LocalEngine(replace(setup, clients=later)))
    with Peers(plan, tmp_path) as there:
        heard = together(3, 2)
        for name in ("c00", "c01", "c02"):
            there.start(name, watcher=Ending(2, heard))
        there.join()
        there.start("c03")
        there.network.opened("c03")
        there.start("c00", "c01", "c02")
        there.ended_equal()
        assert "rounds 1 to 2: left out, since neighbours are further on" in there.said["c03"]


@pytest.mark.slow
def test_an_edge_that_was_dropped_carries_nothing_but_probes(tmp_path: Path) -> None:
    method = {"warmup": 1, "hidden": 9, "graph": {"threshold": 0.9, "probe": 0.3}}
    plan = experiment("mapl", clients=4, rounds=6, method=method, run={"network": "full"})
    here = simulated(plan, tmp_path / "here")
    known = sorted(row for row in here.messages if row[0] > 2)
    dropped = {row[1:3] for row in known if row[3] == "prototypes"} - {row[1:3] for row in known if row[3] == "head"}
    assert dropped
    results = all_equal(plan, tmp_path).results.values()
    assert sorted({row for result in results for row in result.messages if row[0] > 2}) == known
    # Along an edge that carries no model there are at most requests of a few bytes: to stop, and now and then a probe.
    assert max(row[4] for row in known if row[1:3] in dropped) < 100


def test_one_that_reaches_nobody_is_told_what_may_be_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedkin.network.peer_exchange._HINT", 0.0)
    said, stop = list[str](), Event()

    def say(line: str) -> None:
        said.append(line)
        if "reached" in line:
            stop.set()

    with MemoryNetwork().link("ann") as link:
        outbox, settings = PeerOutbox(tmp_path), NetworkSettings(clients=2)
        ann = PeerExchange(link, ["ann", "bob"], SAME, settings, 1 << 20, outbox, say=say, stop=stop)
        with closing(ann), pytest.raises(Left):
            ann.gather()
    assert said[0] == "waiting for bob"
    assert "does no other process use this participant's key?" in said[1]
