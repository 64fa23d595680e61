"""What a link refuses: strangers, participants that pose as others, and offers that are not what their owner signed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zenoh

from certificates import Net, Town, both_ways, member, new_town
from fedkin.errors import ConfigError
from fedkin.network.identity import Identity, Revocations, fingerprint
from fedkin.network.link import Missed, Refused
from fedkin.network.offers import CHANGED, DIGEST, HEAD, Offer
from fedkin.network.signing import Signer
from fedkin.network.zenoh_config import participant_config, router_config
from fedkin.network.zenoh_link import ZenohLink

UNREADABLE = "not an offer of this version of fedkin"
QUESTION = bytes(4 + DIGEST) + b"r"  # for the first part of what is offered as r


def strangers(town: Town) -> dict[str, Identity]:
    """Identities that call themselves ann, and are not of this federation."""
    alone = new_town("ann")
    return {
        "self-signed": Identity("ann", alone.key, (alone.ca,), (town.ca,)),
        "expired": town.expired("ann"),
        "another CA of the same name": replace(new_town().signed("ann"), roots=(town.ca,)),
        "another CA": replace(new_town("other-ca").signed("ann"), roots=(town.ca,)),
    }


def settings(identity: Identity, place: str, **link: Any) -> zenoh.Config:
    """A session of an attacker: without access control of its own, and told to fail if it is not let in."""
    made = json.loads(participant_config(identity, ["server"], [], [place]))
    made["access_control"] = {"enabled": False}
    made["connect"] |= {"timeout_ms": 0, "exit_on_failure": True}
    made["transport"]["link"]["tls"] |= link.pop("tls", {})
    made["transport"]["link"] |= link
    return zenoh.Config.from_json5(json.dumps(made))


def known(session: zenoh.Session, key: str) -> None:
    """Wait until a session knows that somebody answers this."""
    with session.declare_querier(key) as asker:
        seen = threading.Event()
        with asker.declare_matching_listener(lambda status: seen.set() if status.matching else None):
            assert asker.matching_status.matching or seen.wait(30)  # type: ignore[attr-defined]


def works(server: ZenohLink, ann: ZenohLink) -> bool:
    """Nobody is harmed: both go on as before."""
    server.offer("ann", "r/works", b"yes")
    return ann.pull("server", "r/works", 30) == b"yes" and server.present() == {"ann"}


# -- who is not let in ----------------------------------------------------------------------------------------


def test_strangers_get_no_link(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    nothing = {f"connect_{part}_base64": None for part in ("private_key", "certificate")}
    tries = {name: settings(identity, net.place) for name, identity in strangers(net.town).items()}
    tries["no certificate"] = settings(net.town["ann"], net.place, tls=nothing)
    tries["plaintext"] = settings(net.town["ann"], net.place.replace("tls/", "tcp/"), protocols=["tcp"])
    for config in tries.values():
        with pytest.raises(zenoh.ZError):
            zenoh.open(config).close()  # type: ignore[no-untyped-call]
        assert [link.auth_identifier for link in server._session.info.links()] == ["ann"]
    assert works(server, ann)
    assert not server.refused.counts


def test_an_identity_that_cannot_be_used_is_refused_before_anything_is_dialled(net: Net) -> None:
    with pytest.raises(ConfigError, match=r"^the certificate of ann: the certificate of CN=ann expired on .* UTC"):
        net.link("ann", identity=net.town.expired("ann"), dial=["server"])


@pytest.mark.parametrize("kind", ["expired", "another CA of the same name"])
def test_a_stranger_that_is_dialled_gets_no_link(net: Net, kind: str) -> None:
    config = zenoh.Config.from_json5(participant_config(strangers(net.town)[kind], ["bob"], [net.place], []))
    with zenoh.open(config) as stranger:
        bob = net.member("bob")
        with pytest.raises(Missed, match=r"^server: r: not reached \(is it running, its address .* within 0.5 s$"):
            bob.pull("server", "r", 0.5)
        assert list(stranger.info.links()) == []


def test_another_at_the_servers_address_says_nothing_in_its_name(net: Net) -> None:
    bob, ann = net.link("bob", listen=[net.place]), net.member("ann")
    bob.offer("ann", "r", b"x")
    assert ann.pull("bob", "r", 30) == b"x"
    with pytest.raises(Missed, match=r"^server: r: not reached"):
        ann.pull("server", "r", 0.2)


def test_who_is_not_in_the_address_book_is_not_let_in(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    assert works(server, ann)
    zoe = net.member("zoe")
    with pytest.raises(Missed, match=r"^server: r: not reached"):
        zoe.pull("server", "r", 0.5)
    assert works(server, ann)


# -- participants that pose as others -------------------------------------------------------------------------


def test_a_participant_asks_in_its_own_name_alone(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    for name in ("ann", "bob"):
        server.offer(name, "r", f"for {name}".encode())

    def answers(session: Any, key: str, within: float = 0.3) -> list[str]:
        # Not what a session says of itself.
        far = {"target": zenoh.QueryTarget.ALL, "allowed_destination": zenoh.Locality.REMOTE}
        got = session.get(key, timeout=within, attachment=QUESTION, **far)
        return [reply.ok.payload.to_string() for reply in got if reply.ok is not None]

    with zenoh.open(settings(net.town["bob"], net.place)) as bob:
        known(bob, "fedkin/server/bob")
        assert answers(bob, "fedkin/server/bob", 60) == ["for bob"]
        for key in ("fedkin/server/ann", "fedkin/server/*", "fedkin/server/**", "fedkin/**", "**", "@/**"):
            assert answers(bob, key) == []
    assert ann.pull("server", "r", 30) == b"for ann"


def test_a_participant_answers_and_is_seen_as_itself_alone(net: Net) -> None:
    server = net.server()

    def forge(query: Any) -> None:
        asked.append(str(query.key_expr))
        with query:
            query.reply(query.key_expr, b"forged", attachment=HEAD + b"forged")

    asked: list[str] = []
    with zenoh.open(settings(net.town["bob"], net.place)) as bob:
        kept = [bob.declare_queryable(key, forge) for key in ("fedkin/ann/server", "**", "fedkin/bob/server")]
        tokens = [bob.liveliness().declare_token(f"fedkin-alive/{name}") for name in ("ann", "bob")]
        with server._state:
            assert server._state.wait_for(lambda: bool(server.present()), 30)
        assert server.present() == {"bob"}
        with pytest.raises(Refused, match=r"^bob: r: not an offer of this version"):
            server.pull("bob", "r", 30)
        with pytest.raises(Missed, match=r"^ann: r: not reached"):
            server.pull("ann", "r", 0.5)
        assert set(asked) == {"fedkin/bob/server"}
        assert len(kept + tokens) == 5
    assert server.refused.counts == {"bob": 1}


# -- offers that are not what was signed ----------------------------------------------------------------------


Change = Callable[[Offer, Net], Offer]


def headed(**changes: str) -> Change:
    return lambda offer, net: replace(offer, head=json.dumps({**json.loads(offer.head), **changes}).encode())


def signed_by(identity: Callable[[Town], Identity]) -> Change:
    return lambda offer, net: Signer(identity(net.town), net.book).write("server", "r", offer.data)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (headed(signature="00"), "its signature does not fit: changed on the way, or signed for something else"),
        (lambda offer, net: replace(offer, data=bytes(len(offer.data))), "not the bytes that were signed"),
        (lambda offer, net: replace(offer, data=offer.data[:-1]), "31 bytes in a part; expected 32"),
        (lambda offer, net: replace(offer, data=offer.data + b"!"), "33 bytes in a part; expected 32"),
        (
            signed_by(lambda town: replace(town["bob"], name="ann")),
            "its certificate: this certificate is of 'bob'; expected 'ann'",
        ),
        (signed_by(lambda town: town.expired("ann")), "its certificate: the certificate of CN=ann expired on .*"),
        (lambda offer, net: replace(offer, head=b"\x00garbage\xff" * 30), UNREADABLE),
        (headed(chain="-----BEGIN CERTI"), "its certificate: not a certificate in PEM .*"),
        (lambda offer, net: replace(offer, head=offer.head + b" " * (1 << 16)), UNREADABLE),
    ],
    ids=["unsigned", "other", "shorter", "longer", "of another", "expired", "garbage", "cut", "huge"],
)
def test_an_offer_that_is_not_what_was_signed(net: Net, change: Change, why: str) -> None:
    server, ann = net.server(), net.member("ann")
    offer = ann._signer.write("server", "r", b"thirty-two bytes that are signed")
    ann._offers.put("server", "r", change(offer, net))
    with pytest.raises(Refused, match=rf"^ann: r: {why}$"):
        server.pull("ann", "r", 30)
    assert server.refused.counts == {"ann": 1}
    ann._offers.put("server", "r", offer)
    assert server.pull("ann", "r", 30) == offer.data


def test_an_offer_for_something_else_is_refused(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    replays = [ann._signer.write(*what, b"old") for what in (("server", "run1/r1/train"), ("bob", "run1/r2/train"))]
    for replay in replays:
        ann._offers.put("server", "run1/r2/train", replay)
        with pytest.raises(Refused, match="signed for something else"):
            server.pull("ann", "run1/r2/train", 30)
    assert server.refused.counts == {"ann": 2}


def test_an_offer_that_is_too_large_is_refused_before_it_is_sent(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    ann.offer("server", "r", bytes(3_000_000))
    with pytest.raises(Refused, match=r"^ann: r: 3,000,000 bytes; at most 2,999,999 are taken$"):
        server.pull("ann", "r", 30, most=2_999_999)
    assert server.bytes_in["ann"] < 100_000
    assert len(server.pull("ann", "r", 30, most=3_000_000)) == 3_000_000


def test_a_certificate_that_is_not_the_one_in_the_book(net: Net, town: Town) -> None:
    ann, refused = net.member("ann"), r"^ann: r: its certificate has sha256:\w{64}; the address book has sha256:"
    ann.offer("server", "r", b"x")
    for pinned, accepted in (
        (town.signed("ann"), pytest.raises(Refused, match=refused)), (town["ann"], nullcontext())
    ):  # fmt: skip
        with closing(net.server(book={**net.book, "ann": member(pinned)})) as server, accepted:
            assert server.pull("ann", "r", 60) == b"x"


def test_who_is_revoked_is_heard_and_answered_no_more(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    path.write_text("# nobody yet\n")
    server, ann, bob = net.server(revoked=Revocations(path)), net.member("ann"), net.member("bob")
    assert all(both_ways(link, server) for link in (ann, bob))
    path.write_text(f"ann  # its machine was stolen\n{fingerprint(net.town['bob'].chain[0])}\n")
    for name in ("ann", "bob"):
        with pytest.raises(Refused, match="its certificate is revoked"):
            server.pull(name, "r", 30)
    assert server.present() == {"bob"}
    with pytest.raises(Missed):
        ann.pull("server", "r", 0.3)


# -- questions without end ------------------------------------------------------------------------------------


def test_a_participant_fills_no_memory_with_keys(net: Net) -> None:
    """All keys that may be declared over a link are listed; what is beyond them does not get through."""
    book = [net.town[name] for name in ("ann", "bob", "server")]
    names = [each.name for each in book]
    for config in (participant_config(book[0], names[1:], [], []), router_config(net.town["zoe"], names, [])):
        declared = [
            rule["key_exprs"] for rule in json.loads(config)["access_control"]["rules"]
            if rule["flows"] == ["ingress"] and {"declare_queryable", "liveliness_token"} & set(rule["messages"])
        ]  # fmt: skip
        assert sum(map(len, declared)) <= len(names) * (len(names) + 1)
        assert not any("*" in key for keys in declared for key in keys)
    server = net.server()
    server.offer("bob", "r", b"for bob")
    with zenoh.open(settings(net.town["bob"], net.place)) as bob:
        keys = ["bob", "ann", *(f"bob/{number}" for number in range(9)), *(f"bob{number}" for number in range(9))]
        tokens = [bob.liveliness().declare_token(f"fedkin-alive/{key}") for key in keys]
        known(bob, "fedkin/server/bob")
        (reply,) = bob.get("fedkin/server/bob", timeout=60, attachment=QUESTION)
        assert reply.ok is not None
        assert server.present() == {"bob"}
        assert len(tokens) == 20


def test_questions_that_cannot_be_are_dropped(net: Net) -> None:
    server, ann = net.server(), net.member("ann")
    with zenoh.open(settings(net.town["bob"], net.place)) as bob:
        known(bob, "fedkin/server/bob")
        for attachment in (b"", None, b"x" * 36, bytes(36) + b"R", bytes(36) + b"a" * 300):
            got = bob.get("fedkin/server/bob", timeout=60, attachment=attachment)
            assert [reply.ok for reply in got] == []
        # A part beyond the end, of an offer that there is not.
        (reply,) = list(bob.get("fedkin/server/bob", timeout=60, attachment=b"\xff" * 36 + b"r"))
        assert reply.ok is not None
        assert reply.ok.attachment == zenoh.ZBytes(CHANGED)
    assert server.refused.counts == {"bob": 5}
    assert works(server, ann)
