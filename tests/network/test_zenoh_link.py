"""Links over Zenoh and TLS on this machine: what is offered arrives, whatever happens in between."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from certificates import Net, Town, both_ways, institution, kept_port
from fedkin import codec
from fedkin.errors import ConfigError
from fedkin.network.identity import certificate_pem
from fedkin.network.join_file import Member
from fedkin.network.link import LinkError, Missed, Refused
from fedkin.network.offers import FIRST
from fedkin.network.registration import Registration
from fedkin.network.settings import NetworkSettings
from fedkin.network.zenoh_config import PART
from fedkin.network.zenoh_link import ZenohLink
from fedkin.running.networked import setup_of


def held(link: ZenohLink) -> bool:
    """Wait until a question is kept at this link."""
    pause = Event()
    return any(any(link._offers._waiting.values()) or pause.wait(0.01) for _ in range(3000))


def seen(link: ZenohLink, names: set[str]) -> bool:
    """Wait until exactly these are seen."""
    with link._state:
        return link._state.wait_for(lambda: link.present() == names, 30)


@pytest.mark.parametrize("size", [0, 1, 20_000, FIRST, FIRST + 1, FIRST + PART, 5_000_001])
def test_an_offer_arrives_as_it_was(net: Net, size: int) -> None:
    server, ann = net.server(), net.member("ann")
    data = os.urandom(size)
    server.offer("ann", "run1/r0/train", data)
    assert ann.pull("server", "run1/r0/train", 30) == data
    assert 0 <= ann.bytes_in["server"] - size < 4000
    assert ann.bytes_in["server"] == server.bytes_out["ann"]
    assert not ann.refused.counts + server.refused.counts


def test_a_later_offer_is_pulled_at_once(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(ann.pull, "server", "r/0", 30)
        assert held(server)
        assert not pulled.done()
        server.offer("ann", "r/0", b"late")
        assert pulled.result(30) == b"late"
    server.offer("ann", "r/0", b"newer")
    assert ann.pull("server", "r/0", 30) == b"newer"
    server.withdraw("r/")
    with pytest.raises(Missed, match=r"^server: r/0: not offered within 0.1 s$"):
        ann.pull("server", "r/0", 0.1)


def test_who_dials_is_asked_over_its_own_connection(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    assert both_ways(ann, server)
    for link, other in ((ann, "server"), (server, "ann")):
        assert [way.auth_identifier for way in link._session.info.links()] == [other]


def test_participants_come_and_go(net: Net) -> None:
    server, ann, bob = net.server(), net.member("ann"), net.member("bob")
    assert seen(server, {"ann", "bob"})
    assert seen(ann, {"server"})
    bob.close()
    bob.close()
    assert seen(server, {"ann"})
    with pytest.raises(LinkError, match="the link of bob is closed"):
        bob.pull("server", "r", 1)


@pytest.mark.parametrize("first_leaves", [True, False])
def test_of_two_processes_of_one_name_the_one_that_stays_is_there(net: Net, first_leaves: bool) -> None:
    server, first = net.server(), net.member("ann")
    assert seen(server, {"ann"})
    second = net.member("ann")
    leaves, stays = (first, second) if first_leaves else (second, first)
    leaves.close()
    net.member("bob")
    assert seen(server, {"ann", "bob"})
    stays.offer("server", "r", b"from the other")
    assert server.pull("ann", "r", 30) == b"from the other"
    assert seen(server, {"ann", "bob"})
    stays.close()
    assert seen(server, {"bob"})


def test_a_pull_goes_on_after_its_owner_came_back(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(ann.pull, "server", "r/0", 60)
        assert held(server)
        server.close()
        assert seen(ann, set())
        net.server().offer("ann", "r/0", b"after")
        assert pulled.result(60) == b"after"


def test_members_may_start_before_the_server(net: Net) -> None:
    ann = net.member("ann")
    with pytest.raises(Missed, match=r"^server: r/0: not reached \(is it running, .*\) within 0 s$"):
        ann.pull("server", "r/0", 0)
    net.server().offer("ann", "r/0", b"there")
    assert ann.pull("server", "r/0", 60) == b"there"


def test_peers_reach_each_other_without_a_server(net: Net) -> None:
    places = {name: f"tls/127.0.0.1:{net.stack.enter_context(kept_port())}" for name in ("ann", "bob")}
    book = {name: Member(locator=place) for name, place in places.items()}
    ann, bob = (net.link(name, book=book, listen=[places[name]], dial={"ann", "bob"} - {name}) for name in places)
    assert both_ways(ann, bob)


def test_certificates_of_an_institution_with_its_own_ca(net: Net, town: Town) -> None:
    """Each side trusts both CAs, and one has an RSA key and an intermediate CA."""
    clinic = institution("ann")
    roots = (*clinic.roots, town.ca)
    server = net.server(identity=replace(town["server"], roots=roots))
    ann = net.member("ann", identity=replace(clinic, roots=roots))
    assert both_ways(ann, server)


def test_closing_ends_what_waits(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    with ThreadPoolExecutor(2) as pool:
        pulled = pool.submit(ann.pull, "server", "r/0", 60)
        assert held(server)
        ann.close()
        with pytest.raises(LinkError, match="the link of ann is closed"):
            pulled.result(30)


# -- slow links: parts that arrived are kept --------------------------------------------------------------------------


def test_a_pull_goes_on_where_the_last_one_stopped(net: Net) -> None:
    """Many short pulls over a link that passes a little at a time: each part crosses once."""
    server, wire = net.server(), net.wired()
    wire.allow(40_000)
    ann, data = net.member("ann"), os.urandom(4_000_000)
    server.offer("ann", "r", data)
    pulls, got = 0, None
    while got is None:
        wire.allow(60_000)
        pulls += 1
        assert pulls < 3000
        with suppress(Missed):
            got = ann.pull("server", "r", 0.01)
    assert got == data
    assert pulls > 20
    assert ann.bytes_in["server"] < 1.01 * len(data)
    assert wire.passed < 1.1 * len(data)


def test_a_pull_goes_on_after_a_cut_with_what_it_has(net: Net) -> None:
    server, wire = net.server(), net.wired()
    ann, data = net.member("ann"), os.urandom(4_000_000)
    server.offer("ann", "r", data)
    wire.allow(2_500_000)
    assert seen(ann, {"server"})
    with pytest.raises(Missed, match=r"^server: r: [0-9,]+ of 4,000,000 bytes came within 2 s$"):
        ann.pull("server", "r", 2)
    wire.cut()
    wire.allow(None)
    assert ann.pull("server", "r", 60) == data
    # What was under way when the link was cut crosses again, and no more.
    assert wire.passed < len(data) + 10 * PART


def came_long_ago(link: ZenohLink, subject: str) -> None:
    """Wait until an offer of the server is here, as if it had been for a minute."""
    transfer = link._transfers["server", subject]
    with transfer._changed:
        assert transfer._changed.wait_for(lambda: transfer.complete, 30)
    transfer.touched -= 60
    transfer.begun_at -= 60


def test_parts_that_came_between_two_pulls_are_not_asked_for_again(net: Net) -> None:
    server, wire = net.server(), net.wired()
    ann, data = net.member("ann"), os.urandom(600_000)
    server.offer("ann", "r", data)
    wire.allow(150_000)
    with pytest.raises(Missed, match="of 600,000 bytes came"):
        ann.pull("server", "r", 1)
    wire.allow(None)
    came_long_ago(ann, "r")
    assert ann.pull("server", "r", 30) == data
    assert ann.bytes_in["server"] < 1.02 * len(data)


def test_questions_that_a_cut_link_lost_are_asked_again(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zenoh can lose a question that is asked while the link is being closed: it neither answers nor ends it."""
    server, wire = net.server(), net.wired()
    ann, data = net.member("ann"), os.urandom(1_000_000)
    server.offer("ann", "r", data)
    assert seen(ann, {"server"})
    session, lost = ann._session, list[int]()

    class Losing:
        def __getattr__(self, name: str) -> Any:
            return getattr(session, name)

        def get(self, key: str, handler: Any, *, attachment: bytes, **more: Any) -> None:
            lost.append(int.from_bytes(attachment[:4], "big"))
            if lost[-1] == 2:
                monkeypatch.setattr(ann, "_session", session)
                wire.cut()
            elif lost[-1] == 0:
                session.get(key, handler, attachment=attachment, **more)

    monkeypatch.setattr(ann, "_session", Losing())
    assert ann.pull("server", "r", 50) == data
    assert lost == [0, 1, 2]


def test_a_small_offer_that_came_while_nobody_waited_is_asked_for_again(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    with pytest.raises(Missed):
        ann.pull("server", "now", 0.2)
    server.offer("ann", "now", b"old")
    came_long_ago(ann, "now")
    server.offer("ann", "now", b"new")
    assert ann.pull("server", "now", 30) == b"new"


def test_names_and_settings_that_cannot_be(net: Net) -> None:
    server = net.server()
    with pytest.raises(Refused, match=r"^bobb: r: no participant of this name; did you mean 'bob'\?$"):
        server.pull("bobb", "r", 1)
    with pytest.raises(Refused, match="not a subject"):
        server.offer("ann", "r/*", b"")
    for option, given, words in (
        ("dial", "zoe", "^zoe: not in the address book; known: bob, server"),
        ("dial", "bob", "^bob: the address book has no address to dial"),
        ("listen", "tcp/127.0.0.1:1", r"^listen: expected tls/HOST:PORT, got 'tcp/127.0.0.1:1'$"),
    ):
        with pytest.raises(ConfigError, match=words):
            net.link("ann", **{option: [given]})
    with pytest.raises(LinkError, match=r"^bob: the network cannot be opened \(listening at tls/127.0.0.1"):
        net.link("bob", listen=[net.place])


def test_a_link_whose_certificate_has_expired_says_so(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = net.member("ann")
    assert ann.trouble() == ""
    monkeypatch.setattr(ann, "_identity", net.town.expired("ann"))
    assert ann.trouble().startswith("the certificate of ann: the certificate of CN=ann expired on ")


_LEFT = """
import sys
from pathlib import Path
from fedkin.network.identity import certificates_of, load
from fedkin.network.zenoh_link import ZenohLink
folder, place = Path(sys.argv[1]), sys.argv[2]
roots = certificates_of((folder / "ca.crt").read_bytes(), "ca.crt")
link = ZenohLink(load(folder / "ann.key", folder / "ann.crt", roots), {}, listen=[place])
link.refused.add("", "")
raise RuntimeError("left open")
"""


@pytest.mark.slow
def test_a_process_ends_that_forgot_to_close(tmp_path: Path, net: Net) -> None:
    net.town.save("ann", tmp_path)
    (tmp_path / "ca.crt").write_bytes(certificate_pem([net.town.ca]))
    words = [sys.executable, "-c", _LEFT, str(tmp_path), net.place]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 1
    assert ended.stderr.endswith("RuntimeError: left open\n")


def test_a_question_reaches_a_process_of_the_same_name_that_comes_later(net: Net) -> None:
    server, first = net.server(), net.member("ann")
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(server.pull, "ann", "r", 30)
        assert held(first)
        net.member("ann").offer("server", "r", b"of the second")
        assert pulled.result() == b"of the second"


def test_a_second_process_with_one_key_is_told_soon(net: Net) -> None:
    hello = {"nonce": "0" * 8, "agreement": {"settings": ""}, "about": {"n_train": 1, "n_test": 1, "digest": "0" * 32}}
    registration = Registration(net.server(), "", setup_of, NetworkSettings(clients=2))
    for life, refused in (("a", False), ("b", True), ("a", False)):
        ann, nonce = net.member("ann"), os.urandom(4).hex()
        ann.offer("server", f"life/{life}", b"")
        ann.offer("server", "hello", codec.encode({**hello, "nonce": nonce, "life": life}))
        assert ann.pull("server", f"heard/{nonce}", 60)
        ann.withdraw("hello")
        if refused:
            words = codec.decode(ann.pull("server", f"welcome/{nonce}", 60))["refused"]
            assert words == "another process takes part as ann, with the same key; end one of them"
            ann.close()
    registration.close()
