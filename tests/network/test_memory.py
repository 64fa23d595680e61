"""The network in one process: what every link promises, and its switches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fedkin.errors import RunError
from fedkin.network.link import LinkError, Missed, Refused, is_name, is_subject
from network.memory import MemoryNetwork


def test_an_offer_is_for_one_participant_and_may_be_pulled_again() -> None:
    network = MemoryNetwork()
    with network.link("server") as server, network.link("ann") as ann, network.link("bob") as bob:
        server.offer("ann", "r/0", b"one")
        assert [ann.pull("server", "r/0", 5) for _ in range(2)] == [b"one", b"one"]
        server.offer("ann", "r/0", b"two")
        assert ann.pull("server", "r/0", 5) == b"two"
        with pytest.raises(Missed, match=r"^server: r/0: not offered within 0 s$"):
            bob.pull("server", "r/0", 0)
        assert server.bytes_out == {"ann": 9}
        assert ann.bytes_in == {"server": 9}
        server.withdraw("r/", "bob")
        assert ann.pull("server", "r/0", 5) == b"two"
        server.withdraw("r/")
        with pytest.raises(Missed):
            ann.pull("server", "r/0", 0)


def test_a_pull_waits_for_its_offer() -> None:
    network = MemoryNetwork()
    with ThreadPoolExecutor(1) as pool, network.link("server") as server, network.link("ann") as ann:
        pulled = pool.submit(ann.pull, "server", "r/0", 60)
        assert network.awaited("server", "r/") == ("ann", "r/0")
        assert not pulled.done()
        server.offer("ann", "r/0", b"one")
        assert pulled.result(60) == b"one"


def test_a_pull_goes_on_after_a_cut_a_restart_and_a_delay() -> None:
    network = MemoryNetwork()
    with ThreadPoolExecutor(1) as pool, network.link("ann") as ann:
        network.cut("server", "ann")
        pulled = pool.submit(ann.pull, "server", "r/0", 60)
        network.awaited("server")
        with network.link("server") as first:
            first.offer("ann", "r/0", b"lost")
        with network.link("server") as again:
            again.offer("ann", "r/0", b"kept")
            hold = network.hold("server", "ann", "r/")
            network.mend("server", "ann")
            with pytest.raises(Missed, match="not offered"):
                ann.pull("server", "r/0", 0)
            assert not pulled.done()
            hold.release()
            assert pulled.result(60) == b"kept"


def test_who_is_dropped_is_seen_by_nobody() -> None:
    network = MemoryNetwork()
    with network.link("server") as server, network.link("ann") as ann, network.link("bob") as bob:
        assert server.present() == {"ann", "bob"}
        server.offer("ann", "r", b"x")
        network.drop("ann")
        assert server.present() == bob.present() - {"server"} | {"bob"} == {"bob"}
        assert ann.present() == frozenset()
        with pytest.raises(Missed, match="not reached"):
            ann.pull("server", "r", 0)
        network.back("ann")
        assert ann.pull("server", "r", 0) == b"x"
        bob.close()
        assert server.present() == {"ann"}


def test_what_is_wrong_is_refused_and_noted() -> None:
    network = MemoryNetwork(["server", "ann"])
    with network.link("server") as server, network.link("ann") as ann:
        server.offer("ann", "r", b"12345")
        with pytest.raises(Refused, match=r"^server: r: 5 bytes; at most 4 are taken$"):
            ann.pull("server", "r", 5, most=4)
        network.spoil("server", "r")
        with pytest.raises(Refused, match="signature") as raised:
            ann.pull("server", "r", 5)
        assert isinstance(raised.value, RunError)
        assert ann.refused.counts == {"server": 2}
        assert [one.why for one in ann.refused] == ["5 bytes; at most 4 are taken", raised.value.why]
        assert (len(ann.refused), len(server.refused)) == (2, 0)
        with pytest.raises(Refused, match=r"no participant of this name; did you mean 'server'\?"):
            ann.pull("serverr", "r", 5)
        with pytest.raises(Refused, match="not a subject"):
            server.offer("ann", "R/*", b"")


def test_a_closed_link_ends_what_waits() -> None:
    network = MemoryNetwork()
    ann = network.link("ann")
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(ann.pull, "server", "r", 60)
        network.awaited("server")
        with pytest.raises(LinkError, match="on this network already"):
            network.link("ann")
        ann.close()
        ann.close()
        with pytest.raises(LinkError, match="the link of ann is closed"):
            pulled.result(60)
    with pytest.raises(LinkError, match="closed"):
        ann.offer("server", "r", b"")


def test_names_and_subjects() -> None:
    assert all(map(is_name, ["a", "hospital-a", "Site_3.b", "x" * 64]))
    assert not any(map(is_name, ["", "a b", "-a", ".", "..", "a/b", "a*", "x" * 65, "é", "a\n"]))
    assert all(map(is_subject, ["a", "run-1/r3/t0/a0/train"]))
    assert not any(map(is_subject, ["", "/a", "a/", "a//b", "A", "a/*", "a" * 201, "a b", "a\n"]))
