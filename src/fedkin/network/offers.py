"""What a participant offers, and the questions for it, with limits for each of the others.

A question for what is not offered yet waits until it is offered. Whoever asked asks again when its question has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from fedkin.network.zenoh_config import PART

# Kinds of answers: a head and the first bytes, a later part, or the offer was replaced meanwhile.
HEAD, REST, CHANGED = b"H", b"P", b"C"
# Bytes of the first part: small enough to be sent with the priority of small messages.
FIRST = 1 << 16


# What one other participant may take: subjects for which a question waits for an offer, answers that are being sent at
# a time, and questions that are being answered or are about to be.
WAITING, RUNNING, QUEUED = 64, 8, 256


@dataclass(frozen=True)
class Offer:
    """Bytes, their SHA-256, which names this very offer, and the head that vouches for them."""

    data: bytes
    digest: bytes
    head: bytes

    def part(self, number: int) -> bytes:
        """The bytes of a part; part 0 is the first and a short one."""
        start = FIRST + (number - 1) * PART
        return self.data[:FIRST] if number == 0 else self.data[start : start + PART]


@dataclass(frozen=True)
class Question:
    """One participant asks for a part: of whatever is offered (part 0), or of the offer with this hash.

    answer: called once with what goes with the answer, and bytes. drop: called once if it gets none.
    """

    asker: str
    subject: str
    part: int
    of: bytes
    answer: Callable[[bytes, bytes], None]
    drop: Callable[[], None]


class Offers:
    """All offers of a participant. Safe between threads.

    names: the other participants; each is answered in threads of its own, so that nobody waits for the slow link of
    another. refused: told (who, subject, why) of each question beyond the limits.
    """

    def __init__(self, names: Iterable[str], refused: Callable[[str, str, str], None]) -> None:
        self._refused = refused
        self._lock = Lock()
        self._offers: dict[tuple[str, str], Offer] = {}
        self._waiting: dict[str, dict[str, Question]] = {name: {} for name in names}
        self._queued: Counter[str] = Counter()
        self._pools = {name: ThreadPoolExecutor(RUNNING, f"answers {name}") for name in self._waiting}
        self._closed = False

    def put(self, to: str, subject: str, offer: Offer) -> None:
        """Offer this, in place of what was offered to the same participant under the same subject."""
        with self._lock:
            self._offers[to, subject] = offer
            if not self._closed and (question := self._waiting[to].pop(subject, None)) is not None:
                self._begin(question)

    def remove(self, prefix: str, to: str | None) -> None:
        """Forget the offers whose subject begins with prefix, those to `to` alone if it is given."""
        with self._lock:
            for key in [key for key in self._offers if key[1].startswith(prefix) and to in (None, key[0])]:
                del self._offers[key]

    def ask(self, question: Question) -> None:
        """Have a question answered, now or when there is something to answer; returns at once."""
        who, why = question.asker, ""
        dropped: Question | None = question
        with self._lock:
            if self._closed:
                pass
            elif who not in self._waiting:
                why = "it asks, and is not in the address book"
            elif self._queued[who] >= QUEUED:
                why = f"more than {QUEUED} questions wait for their answers"
            elif question.part == 0 and (who, question.subject) not in self._offers:
                dropped = self._wait(question)
            else:
                self._begin(question)
                return
        if why:
            self._refused(who, question.subject, why)
        if dropped is not None:
            dropped.drop()

    def _wait(self, question: Question) -> Question | None:
        """Have it wait; returns an older question that waits no longer: for the same subject, or beyond the limit."""
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
        with self._lock:
            offer = self._offers.get((question.asker, question.subject))
        try:
            if question.part == 0 and offer is not None:
                question.answer(HEAD + offer.head, offer.part(0))
            elif offer is None or offer.digest != question.of:
                question.answer(CHANGED, b"")
            else:
                question.answer(REST, offer.part(question.part))
        finally:
            with self._lock:
                self._queued[question.asker] -= 1

    def drop_waiting(self) -> None:
        """Drop what waits; whoever asked asks again."""
        with self._lock:
            waiting = [question for questions in self._waiting.values() for question in questions.values()]
            for questions in self._waiting.values():
                questions.clear()
        for question in waiting:
            question.drop()

    def close(self) -> None:
        """Drop what waits; no answer begins after this."""
        with self._lock:
            self._closed = True
            self._offers.clear()
        self.drop_waiting()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
