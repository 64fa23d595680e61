"""Offers and the questions that wait for them: nobody waits for the slow link of another, and nobody takes it all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event

import pytest

from fedkin.network.offers import CHANGED, FIRST, HEAD, REST, Offer, Offers, Part, Question
from fedkin.network.zenoh_config import PART

Answers = SimpleQueue[tuple[bytes, bytes]]
_FIRST = Part()


class Desk:
    """Offers to ann and bob, and what is refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.dropped: SimpleQueue[str] = SimpleQueue()
        self.offers = Offers(["ann", "bob"])

    def put(self, to: str, data: bytes, subject: str = "r") -> bytes:
        """Offer these bytes; returns their digest."""
        digest = hashlib.sha256(data).digest()
        self.offers.put(to, subject, Offer(data, digest, b"head"))
        return digest

    def ask(
        self, asker: str = "ann", part: Part = _FIRST, before: Callable[[], object] = lambda: None, subject: str = "r"
    ) -> Answers:
        """Ask; the answer comes into the queue, after `before`."""
        answers: Answers = SimpleQueue()

        def answer(kind: bytes, data: bytes) -> None:
            before()
            answers.put((kind, data))

        if why := self.offers.ask(Question(asker, subject, part, answer, lambda: self.dropped.put(asker))):
            self.refused.append(why)
        return answers


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.offers.close()


def test_parts_make_the_whole(desk: Desk) -> None:
    data = bytes(range(256)) * ((FIRST + 2 * PART) // 256 + 1)
    digest = desk.put("ann", data)
    kind, whole = desk.ask().get(timeout=30)
    assert kind == HEAD + b"head"
    assert len(whole) == FIRST
    for number in (1, 2, 3):
        kind, more = desk.ask(part=Part(number, digest)).get(timeout=30)
        assert kind == REST
        assert len(more) <= PART
        whole += more
    assert whole == data
    assert desk.ask(part=Part(4, digest)).get(timeout=30) == (REST, b"")
    desk.put("ann", b"new")
    assert desk.ask(part=Part(1, digest)).get(timeout=30) == (CHANGED, b"")


def test_a_question_waits_for_its_own_offer(desk: Desk) -> None:
    first, ann, bob = desk.ask(), desk.ask(), desk.ask("bob")
    assert desk.dropped.get(timeout=30) == "ann"  # of two questions for one subject the older one
    desk.put("ann", b"x")
    assert ann.get(timeout=30) == (HEAD + b"head", b"x")
    assert first.empty()
    assert bob.empty()
    desk.offers.remove("r", "ann")
    again = desk.ask()
    desk.put("ann", b"y")
    assert again.get(timeout=30) == (HEAD + b"head", b"y")
    desk.offers.close()
    assert desk.dropped.get(timeout=30) == "bob"


def test_a_slow_link_delays_nobody_else(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.network.offers.RUNNING", 2)
    for name in ("ann", "bob"):
        desk.put(name, b"x")
    go = Event()
    slow = [desk.ask(before=lambda: go.wait(60)) for _ in range(10)]
    assert desk.ask("bob").get(timeout=30) == (HEAD + b"head", b"x")
    assert all(answers.empty() for answers in slow)
    go.set()
    assert [answers.get(timeout=30)[0] for answers in slow] == [HEAD + b"head"] * 10


def test_what_is_beyond_the_limits_is_dropped(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in {"RUNNING": 1, "QUEUED": 3, "WAITING": 1}.items():
        monkeypatch.setattr(f"fedkin.network.offers.{limit}", value)
    go = Event()
    desk.put("ann", b"x")
    kept = [desk.ask(before=lambda: go.wait(60)) for _ in range(3)]
    desk.ask()
    assert desk.refused == ["more than 3 questions wait for their answers"]
    go.set()
    assert [answers.get(timeout=30)[0] for answers in kept] == [HEAD + b"head"] * 3
    older, newer = (desk.ask("bob", subject=subject) for subject in "ab")
    assert desk.dropped.get(timeout=30) == "bob"
    for subject in "ab":
        desk.put("bob", b"x", subject)
    assert newer.get(timeout=30) == (HEAD + b"head", b"x")
    assert older.empty()
    desk.ask("zoe")
    assert desk.refused[1:] == ["it asks, and is not in the address book"]
    assert desk.dropped.empty()  # who asks drops what is refused


def test_nothing_is_answered_after_the_end(desk: Desk) -> None:
    desk.put("ann", b"x")
    desk.offers.close()
    desk.offers.close()
    desk.ask()
    assert desk.dropped.get(timeout=30) == "ann"
    assert desk.refused == []
