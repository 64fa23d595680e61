"""A link over a network that can only call: what every link promises, and federations over it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from fedkin.network.calls import AnsweringLink, CallingLink, Mailbox
from fedkin.network.link import LinkError, Missed, Refused
from network.called import CalledNetwork

WAIT = 60.0


@pytest.fixture
def network() -> CalledNetwork:
    return CalledNetwork()


def test_offers_come_both_ways_and_may_be_pulled_again(network: CalledNetwork) -> None:
    with network.link("ann") as ann, network.link("server") as server, ThreadPoolExecutor(1) as pool:
        order = pool.submit(ann.pull, "server", "r/0/order", WAIT)
        server.offer("ann", "r/0/order", b"train")
        assert order.result(WAIT) == b"train"
        ann.offer("server", "r/0/answer", b"trained")
        assert [server.pull("ann", "r/0/answer", WAIT) for _ in range(2)] == [b"trained", b"trained"]
        assert server.present() == {"ann"}
        assert ann.present() == {"server"}
        again = pool.submit(ann.pull, "server", "r/1/order", WAIT)
        server.withdraw("r/0", "ann")
        server.offer("ann", "r/1/order", b"more")
        assert again.result(WAIT) == b"more"
        with pytest.raises(Missed, match=r"^server: r/0/order: not offered within 0 s$"):
            ann.pull("server", "r/0/order", 0)
        assert ann.bytes_in == {"server": 9}
        assert server.bytes_in == {"ann": 14}


def test_who_waits_is_called_only_when_there_is_something_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.network.calls._SETTLED", WAIT)
    network = CalledNetwork(beat=3600.0, hold=WAIT)
    with network.link("ann") as ann, network.link("server") as server, ThreadPoolExecutor(1) as pool:
        order = pool.submit(ann.pull, "server", "0/order", WAIT)
        for number in range(3):
            server.offer("ann", f"{number}/order", b"x")
            assert order.result(WAIT) == b"x"
            ann.offer("server", f"{number}/answer", b"y")
            order = pool.submit(ann.pull, "server", f"{number + 1}/order", WAIT)
            assert server.pull("ann", f"{number}/answer", WAIT) == b"y"
        # One call for each order; the first may have come before there was one.
        assert network.calls["ann"] in (3, 4)
        ann.close()
        with pytest.raises(LinkError, match="closed"):
            order.result(WAIT)


def test_an_answer_that_is_lost_comes_with_the_next(network: CalledNetwork) -> None:
    with network.link("ann") as ann, network.link("server") as server:
        network.lost.add("ann")
        ann.offer("server", "hello", b"one")
        assert server.pull("ann", "hello", WAIT) == b"one"
    assert "ann: the answer was lost" in network.said


@pytest.mark.slow
def test_who_begins_anew_is_told_everything_and_has_offered_nothing(network: CalledNetwork) -> None:
    with network.link("server") as server:
        with network.link("ann") as ann:
            ann.offer("server", "hello", b"one")
            server.offer("ann", "terms", b"these")
            assert ann.pull("server", "terms", WAIT) == b"these"
            assert server.pull("ann", "hello", WAIT) == b"one"
        with network.link("ann") as ann:
            assert ann.pull("server", "terms", WAIT) == b"these"
            ann.offer("server", "again", b"two")
            assert server.pull("ann", "again", WAIT) == b"two"
            with pytest.raises(Missed):
                server.pull("ann", "hello", 0)
            server.close()
            with network.link("server") as other:
                with pytest.raises(Missed):
                    ann.pull("server", "epoch", 0)
                other.offer("ann", "epoch", b"2")
                assert ann.pull("server", "epoch", WAIT) == b"2"
                with pytest.raises(Missed):
                    ann.pull("server", "terms", 0)


def test_who_is_not_reached_is_not_present_until_it_is_back(network: CalledNetwork) -> None:
    with network.link("server") as link:
        server = cast(CallingLink, link)
        with network.link("ann") as ann:
            ann.offer("server", "hello", b"1")
            server.pull("ann", "hello", WAIT)
        with server.state:
            assert server.state.wait_for(lambda: "ann" not in server.here, WAIT)
        with pytest.raises(Missed, match="not reached"):
            server.pull("ann", "r/0/answer", 0)
        with network.link("ann"), server.state:
            assert server.state.wait_for(lambda: "ann" in server.here, WAIT)


def test_a_letter_of_another_name_is_refused(network: CalledNetwork) -> None:
    with network.link("server") as link:
        server = cast(CallingLink, link)
        network.known.add("ann")
        network.ends["ann"] = AnsweringLink("bob")
        with server.state:
            wrong = "where 'server' writes to 'bob'"
            assert server.state.wait_for(lambda: any(wrong in line for line in network.said), WAIT)
        assert server.present() == frozenset()


def test_a_letter_that_was_overtaken_changes_nothing() -> None:
    here, there = Mailbox("server", "ann"), Mailbox("ann", "server")
    here.put("a", b"1")
    old = here.letter()
    here.put("b", b"2")
    there.read(here.letter())
    there.read(old)
    assert there.theirs == {"a": b"1", "b": b"2"}


def test_names_subjects_sizes_and_a_closed_link_are_refused(network: CalledNetwork) -> None:
    with network.link("ann") as ann, network.link("server") as server:
        for link, to, subject in ((server, "a/b", "r"), (server, "server", "r"), (ann, "server", "R*")):
            with pytest.raises(Refused):
                link.offer(to, subject, b"x")
        ann.offer("server", "large", b"12345")
        with pytest.raises(Refused, match="5 bytes; at most 4 are taken"):
            server.pull("ann", "large", WAIT, most=4)
        assert server.refused.counts == {"ann": 1}
        ann.close()
        with pytest.raises(LinkError, match="closed"):
            ann.offer("server", "r", b"x")
