"""What a participant offers, and the questions for it, with limits for each of the others.

A question for what is not offered yet is kept, and answered when it is offered, or with "not yet" after a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from time import monotonic

from fedkin.network.zenoh_config import PART

__all__ = ["CHANGED", "FIRST", "HEAD", "LATER", "REST", "Limits", "Offer", "Offers", "Question"]

# Kinds of answers: a head and the first bytes, a later part, not offered yet, or the offer was replaced meanwhile.
HEAD, REST, LATER, CHANGED = b"H", b"P", b"L", b"C"
# Bytes of the first part: small enough to be sent with the priority of small messages.
FIRST = 1 << 16


@dataclass(frozen=True)
class Limits:
    """What one other participant may take.

    rate, burst: questions a second, and at once. held: questions that wait for an offer. running: answers that are
    being sent at a time. queued: questions that wait to be answered. hold: seconds that a question waits for an offer.
    """

    rate: float = 500.0
    burst: int = 1000
    held: int = 64
    running: int = 8
    queued: int = 256
    hold: float = 8.0


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


@dataclass
class _Asker:
    """What one participant takes now."""

    left: float
    filled: float
    held: int = 0
    running: int = 0
    queue: deque[Callable[[], None]] = field(default_factory=deque)


class Offers:
    """All offers of a participant. Safe between threads; answers are given in threads of its own.

    names: the other participants. refused: told (who, subject, why) of each question beyond the limits.
    """

    def __init__(
        self, names: Iterable[str], refused: Callable[[str, str, str], None], limits: Limits | None = None
    ) -> None:
        self._limits = limits or Limits()
        self._refused = refused
        self._state = Condition()
        self._offers: dict[tuple[str, str], Offer] = {}
        self._held: dict[tuple[str, str], list[tuple[float, Question]]] = {}
        self._askers = {name: _Asker(self._limits.burst, monotonic()) for name in names}
        self._closed = False
        # Enough that nobody waits for the slow link of another.
        self._pool = ThreadPoolExecutor(max(1, self._limits.running * len(self._askers)), "fedkin-answer")
        self._keeper = Thread(target=self._expire, name="fedkin-held", daemon=True)
        self._keeper.start()

    def put(self, to: str, subject: str, offer: Offer) -> None:
        """Offer this, in place of what was offered to the same participant under the same subject."""
        with self._state:
            self._offers[to, subject] = offer
            for _, question in self._held.pop((to, subject), ()):
                self._askers[to].held -= 1
                self._begin(question)

    def remove(self, prefix: str, to: str | None) -> None:
        """Forget the offers whose subject begins with prefix, those to `to` alone if it is given."""
        with self._state:
            for key in [key for key in self._offers if key[1].startswith(prefix) and to in (None, key[0])]:
                del self._offers[key]

    def ask(self, question: Question) -> None:
        """Have a question answered, now or when there is something to answer; returns at once."""
        why = self._taken(question)
        if why:
            self._refused(question.asker, question.subject, why)
            question.drop()

    def close(self) -> None:
        """Drop what waits; no answer begins after this."""
        with self._state:
            self._closed = True
            waiting = [question for each in self._held.values() for _, question in each]
            self._held.clear()
            self._offers.clear()
            self._state.notify_all()
        for question in waiting:
            question.drop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._keeper.join()

    def _taken(self, question: Question) -> str:
        """Why a question is refused; empty if it is taken."""
        with self._state:
            asker = self._askers.get(question.asker)
            if self._closed:
                question.drop()
                return ""
            if asker is None:
                return "it asks, and is not in the address book"
            if not self._paid(asker):
                return f"more than {self._limits.rate:g} questions a second"
            if len(asker.queue) >= self._limits.queued:
                return f"more than {self._limits.queued} questions wait for their answers"
            key = question.asker, question.subject
            if question.part == 0 and key not in self._offers and asker.held < self._limits.held:
                asker.held += 1
                if not self._held:
                    self._state.notify_all()
                self._held.setdefault(key, []).append((monotonic() + self._limits.hold, question))
            else:
                self._begin(question)
        return ""

    def _paid(self, asker: _Asker) -> bool:
        """Take one from the questions that the asker has left; they come back with time."""
        now = monotonic()
        asker.left = min(self._limits.burst, asker.left + (now - asker.filled) * self._limits.rate)
        asker.filled = now
        if asker.left < 1:
            return False
        asker.left -= 1
        return True

    def _begin(self, question: Question) -> None:
        """Have it answered when its asker has fewer answers under way than it may."""
        asker, work = self._askers[question.asker], partial(self._answer, question)
        if asker.running < self._limits.running:
            asker.running += 1
            self._pool.submit(self._work, asker, work)
        else:
            asker.queue.append(work)

    def _work(self, asker: _Asker, work: Callable[[], None]) -> None:
        while True:
            work()
            with self._state:
                if self._closed or not asker.queue:
                    asker.running -= 1
                    return
                work = asker.queue.popleft()

    def _answer(self, question: Question) -> None:
        with self._state:
            offer = self._offers.get((question.asker, question.subject))
        if question.part == 0:
            question.answer(LATER, b"") if offer is None else question.answer(HEAD + offer.head, offer.part(0))
        elif offer is None or offer.digest != question.of:
            question.answer(CHANGED, b"")
        else:
            question.answer(REST, offer.part(question.part))

    def _expire(self) -> None:
        """Answer questions that have waited long enough; all wait equally long, so that the oldest is the next."""
        with self._state:
            while not self._closed:
                now = monotonic()
                for key, waiting in list(self._held.items()):
                    for _, question in [each for each in waiting if each[0] <= now]:
                        self._askers[question.asker].held -= 1
                        self._begin(question)
                    self._held[key] = [each for each in waiting if each[0] > now]
                self._held = {key: waiting for key, waiting in self._held.items() if waiting}
                ends = [end for waiting in self._held.values() for end, _ in waiting]
                self._state.wait(min(ends) - now if ends else None)
