"""Participants that can all only dial out, by a router that can neither read nor forge what it passes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import zenoh

from certificates import Net, Town, institution, kept_port, member
from fedkin.errors import ConfigError
from fedkin.network.join_file import Member
from fedkin.network.link import Missed, Refused
from fedkin.network.offers import DIGEST, FIRST, HEAD
from fedkin.network.signing import Sealer, Signer
from fedkin.network.zenoh_config import KEY
from fedkin.network.zenoh_link import ZenohLink, run_router
from support import present

NAMES = ("ann", "bob", "eve")
SECRET = b"weights that nobody else may read " * 40


@pytest.fixture
def book(town: Town) -> Iterator[dict[str, Member]]:
    pinned = {name: member(town[name]) for name in NAMES}
    with kept_port() as port:
        yield {**pinned, "between": Member(locator=f"tls/127.0.0.1:{port}")}


@pytest.fixture
def router(town: Town, book: dict[str, Member]) -> Iterator[zenoh.Session]:
    with run_router(town["between"], book, [book["between"].locator]) as router:
        yield router


Opened = Callable[..., ZenohLink]


@pytest.fixture
def opened(town: Town, book: dict[str, Member], router: zenoh.Session) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield partial(Net(town, stack, "", book).link, router="between")


def seen(link: ZenohLink, names: set[str]) -> bool:
    with link._state:
        return link._state.wait_for(lambda: link.present() >= names, 30)


# -- whole links ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, FIRST, 2_000_001])
def test_two_that_only_dial_out_exchange_by_a_router(opened: Opened, size: int) -> None:
    ann, bob, data = opened("ann"), opened("bob"), os.urandom(size)
    assert seen(ann, {"bob"})
    assert seen(bob, {"ann"})
    assert "between" not in ann.present()  # it takes no part
    ann.offer("bob", "run1/r0/t0", data)
    bob.offer("ann", "run1/r0/t0", b"other way")
    assert bob.pull("ann", "run1/r0/t0", 30, most=max(size, 1)) == data
    assert ann.pull("bob", "run1/r0/t0", 30) == b"other way"
    with pytest.raises(Missed):
        opened("eve").pull("ann", "run1/r0/t0", 0.5)


def test_what_a_router_sees_is_ciphertext_and_routing_names(opened: Opened, router: zenoh.Session) -> None:
    ann, bob = opened("ann"), opened("bob")
    assert seen(bob, {"ann"})
    ann.offer("bob", "run1/r0/t0", SECRET)
    # A router can ask in bob's name, and gets all that bob would get.
    question, everyone = bytes(4 + DIGEST) + b"run1/r0/t0", zenoh.QueryTarget.ALL
    got = b""
    for _ in range(50):
        for reply in router.get(f"{KEY}/ann/bob", attachment=question, timeout=60.0, target=everyone):
            answer = present(reply.ok)
            got = present(answer.attachment).to_bytes() + answer.payload.to_bytes()
        if got:
            break
    assert len(got) > len(SECRET)
    pieces = {SECRET[start : start + 8] for start in range(len(SECRET) - 8)}
    assert not any(piece in got for piece in pieces)
    assert b"CERTIFICATE" not in got  # who signed is sealed too
    assert bob.pull("ann", "run1/r0/t0", 30) == SECRET


def test_a_router_cannot_answer_in_anothers_name(opened: Opened, router: zenoh.Session, town: Town, book: Any) -> None:
    bob = opened("bob")
    posing = Sealer(replace(town["between"], name="ann"), {name: book[name] for name in NAMES})
    plain = Signer(town["between"], book)

    def forged(query: Any) -> None:
        subject = query.attachment.to_bytes()[4 + DIGEST :].decode()
        offer = (plain if subject == "plain" else posing).write("bob", subject, b"forged")
        with query:
            query.reply(query.key_expr, offer.data, attachment=HEAD + offer.head)

    queryable = router.declare_queryable(f"{KEY}/ann/bob", forged)
    for subject, words in (("plain", "not sealed"), ("sealed", "its certificate")):
        with pytest.raises(Refused, match=words):
            bob.pull("ann", subject, 30)
    queryable.undeclare()  # type: ignore[no-untyped-call]
    assert bob.refused.counts == {"ann": 2}


def test_a_participant_asks_and_answers_in_its_own_name_alone(opened: Opened) -> None:
    ann, bob, eve = opened("ann"), opened("bob"), opened("eve")
    assert seen(bob, {"ann", "eve"})
    assert seen(eve, {"ann"})
    ann.offer("bob", "r/0", SECRET)
    assert bob.pull("ann", "r/0", 30) == SECRET
    question = bytes(4 + DIGEST) + b"r/0"
    for key in (f"{KEY}/ann/bob", f"{KEY}/**"):
        assert not list(eve._session.get(key, attachment=question, timeout=0.5, target=zenoh.QueryTarget.ALL))


def test_who_is_not_a_member_is_not_let_in(opened: Opened, town: Town, book: dict[str, Member]) -> None:
    mallory = {**book, "mallory": member(town["mallory"])}
    ann, odd = opened("ann"), opened("mallory", identity=town["mallory"], book=mallory)
    ann.offer("bob", "r/0", b"x")
    with pytest.raises(Missed):
        odd.pull("ann", "r/0", 0.5)
    assert "mallory" not in ann.present()


def test_another_at_the_routers_address_passes_nothing(town: Town, book: dict[str, Member]) -> None:
    with (
        run_router(town["eve"], book, [book["between"].locator]),
        ZenohLink(town["ann"], book, router="between") as ann, ZenohLink(town["bob"], book, router="between") as bob,
    ):  # fmt: skip
        ann.offer("bob", "r/0", b"x")
        with pytest.raises(Missed, match="not reached"):
            bob.pull("ann", "r/0", 0.5)


# -- sealing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sealers(town: Town, book: dict[str, Member]) -> dict[str, Sealer]:
    return {name: Sealer(town[name], {other: book[other] for other in NAMES if other != name}) for name in NAMES}


def test_only_the_receiver_opens_and_only_as_what_it_was_sealed(sealers: dict[str, Sealer]) -> None:
    offer = sealers["ann"].write("bob", "r/0", SECRET)
    head = sealers["bob"].read("ann", "r/0", offer.head)
    assert (head.size, head.digest) == (len(offer.data), hashlib.sha256(offer.data).digest())
    assert sealers["bob"].opened("ann", "r/0", offer.data) == SECRET
    for reader, owner, subject in (("eve", "ann", "r/0"), ("bob", "eve", "r/0"), ("bob", "ann", "r/1")):
        with pytest.raises(ValueError, match="not sealed to this participant for this subject"):
            sealers[reader].opened(owner, subject, offer.data)


@pytest.mark.parametrize("at", [0, 70, 200, -1])
def test_a_changed_bit_is_refused(sealers: dict[str, Sealer], at: int) -> None:
    data = bytearray(sealers["ann"].write("bob", "r/0", SECRET).data)
    data[at] ^= 1
    with pytest.raises(ValueError, match="changed on the way"):
        sealers["bob"].opened("ann", "r/0", bytes(data))


def test_who_seals_must_have_signed(sealers: dict[str, Sealer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can seal to bob: what is in it must have ann's signature."""
    inner = Signer.write(sealers["eve"], "bob", "r/0", SECRET)
    with monkeypatch.context() as patch:
        patch.setattr(Signer, "write", lambda *_: inner)
        patch.setattr(sealers["eve"], "_identity", replace(sealers["eve"]._identity, name="ann"))
        offer = sealers["eve"].write("bob", "r/0", SECRET)
    with pytest.raises(ValueError, match="its certificate"):
        sealers["bob"].opened("ann", "r/0", offer.data)


@pytest.mark.parametrize("data", [b"", b"short", bytes(100)])
def test_what_is_not_sealed_is_refused(sealers: dict[str, Sealer], data: bytes) -> None:
    with pytest.raises(ValueError, match="not sealed"):
        sealers["bob"].opened("ann", "r/0", data)
    with pytest.raises(ValueError, match="not sealed, though it came by a router"):
        sealers["bob"].read("ann", "r/0", data)


def test_a_member_without_a_certificate_cannot_be_sealed_to(town: Town) -> None:
    with pytest.raises(ConfigError, match=r"members.bob: no certificate, and by a router"):
        Sealer(town["ann"], {"bob": Member()})
    clinic = institution("bob")
    with pytest.raises(ConfigError, match=r"keys of P-256; got another"):
        Sealer(town["ann"], {"bob": member(clinic)})
    with pytest.raises(ConfigError, match="this key is another"):
        Sealer(clinic, {})
