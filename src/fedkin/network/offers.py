"""The offers of a participant, and the questions of others for their parts, with limits for each other participant.

A question waits until its offer is made. If a question ends without an answer, the asker asks again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from fedkin.network.zenoh_config import PART

# Kinds of answers: a head and the first bytes, a later part, or the offer was replaced meanwhile.
HEAD, REST, CHANGED = b"H", b"P", b"C"
# Bytes of the first part: small enough to be sent with the priority of small messages.
FIRST = 1 << 16
DIGEST = 32  # bytes of a hash
# Limits for each other participant: subjects with a waiting question, answers that are sent at the same time, and
# questions that are being answered or queued for it.
WAITING, RUNNING, QUEUED = 64, 8, 256


class Part(NamedTuple):
    """A part that is asked for: its number, and the hash of the offer.

    Part 0 is asked for without a hash, and is the first part of the current offer, whatever that is.
    """

    number: int = 0
    of: bytes = bytes(DIGEST)


def part_count(size: int) -> int:
    """Return the number of parts of an offer of this size."""
    return 1 + -(-max(0, size - FIRST) // PART)


def bounds(number: int) -> slice:
    """Return where a part of an offer begins and ends; the first part is shorter."""
    start = FIRST + (number - 1) * PART
    return slice(start, start + PART) if number else slice(FIRST)


@dataclass(frozen=True)
class Offer:
    """An offer: its bytes, their SHA-256, which identifies the offer, and its head, which authenticates the bytes."""

    data: bytes
    digest: bytes
    head: bytes


@dataclass(frozen=True)
class Question:
    """A participant's question for a part.

    answer: called once with the answer's kind (and head), and its bytes. drop: called once if there is no answer.
    """

    asker: str
    subject: str
    part: Part
    answer: Callable[[bytes, bytes], None]
    drop: Callable[[], None]


class Offers:
    """All offers of a participant. Thread-safe.

    names: the other participants; each is answered in separate threads, so that nobody waits for another's slow link.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._lock = Lock()
        self._offers: dict[tuple[str, str], Offer] = {}
        self._waiting: dict[str, dict[str, Question]] = {name: {} for name in names}
        self._queued: Counter[str] = Counter()
        self._pools = {name: ThreadPoolExecutor(RUNNING, f"answers {name}") for name in self._waiting}
        self._closed = False

    def put(self, to: str, subject: str, offer: Offer) -> None:
        """Make this offer; it replaces the last offer to the same participant under the same subject."""
        with self._lock:
            self._offers[to, subject] = offer
            if not self._closed and (question := self._waiting[to].pop(subject, None)) is not None:
                self._begin(question)

    def remove(self, prefix: str, to: str | None) -> None:
        """Withdraw the offers whose subject begins with `prefix`, only those to `to` if it is given."""
        with self._lock:
            for key in [key for key in self._offers if key[1].startswith(prefix) and to in (None, key[0])]:
                del self._offers[key]

    def ask(self, question: Question) -> str:
        """Answer a question in a thread, now or once its offer is made; returns at once.

        Returns why the question is refused, and then neither answers nor drops it; empty if it is not refused.
        """
        who, dropped = question.asker, None
        with self._lock:
            if self._closed:
                dropped = question
            elif who not in self._waiting:
                return "it asks, and is not in the address book"
            elif self._queued[who] >= QUEUED:
                return f"more than {QUEUED} questions wait for their answers"
            elif question.part.number == 0 and (who, question.subject) not in self._offers:
                dropped = self._wait(question)
            else:
                self._begin(question)
        if dropped is not None:
            dropped.drop()
        return ""

    def _wait(self, question: Question) -> Question | None:
        """Let a question wait; returns an older question that it displaces: of this subject, or beyond the limit."""
        waiting = self._waiting[question.asker]
        older = waiting.pop(question.subject, None)
        if older is None and len(waiting) >= WAITING:
            older = waiting.pop(next(iter(waiting)))
        waiting[question.subject] = question
        return older

    def _begin(self, question: Question) -> None:
        self._queued[question.asker] += 1
        self._pools[question.asker].submit(self._answer, question)

    def _answer(self, question: Question) -> None:
        number, of = question.part
        with self._lock:
            offer = self._offers.get((question.asker, question.subject))
        try:
            if offer is None or (number and offer.digest != of):
                question.answer(CHANGED, b"")
            else:
                question.answer(REST if number else HEAD + offer.head, offer.data[bounds(number)])
        finally:
            with self._lock:
                self._queued[question.asker] -= 1

    def drop_waiting(self) -> None:
        """Drop the waiting questions; their askers ask again."""
        with self._lock:
            waiting = [question for questions in self._waiting.values() for question in questions.values()]
            for questions in self._waiting.values():
                questions.clear()
        for question in waiting:
            question.drop()

    def close(self) -> None:
        """Drop the waiting questions; no answer begins after this."""
        with self._lock:
            self._closed = True
            self._offers.clear()
        self.drop_waiting()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
