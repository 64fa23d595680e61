"""A link over a network with calls only: the server sends each client letters, and each letter is answered by one.

For networks that carry a request to a client and a reply back, and nothing else. A letter holds the writer's offers
since the reader's last letter. A client's offers come with its answer, so the client holds a call back until it has
made an offer or has nothing to do.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from threading import Condition, Thread
from typing import Annotated, Any, Protocol

import torch
from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictStr
from torch import Tensor

from fedkin import codec
from fedkin.engines.results import SERVER
from fedkin.errors import MethodError
from fedkin.network.link import LARGEST, Link, LinkError, Missed
from fedkin.network.messages import Count, WireMessage, listed, read
from fedkin.untrusted import error_text, escaped, plain_word

_TOGETHER = 0.05  # seconds to wait for further offers before a letter is sent
_LOOK = 2.0  # seconds between two looks at which participants can be called
_FIRST = 1.0  # seconds until a participant that was not reached is called again; twice as long each time
_SETTLED = 1.0  # seconds within which a client that has made an offer waits for the next one
_LEAVING = 120.0  # seconds to wait for the answers to open calls when the link is closed
_MOST = 4 * LARGEST  # bytes of a letter
_MOST_SUBJECTS = 1000


# -- letters ------------------------------------------------------------------------------------------------------


def _bytes_of(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype != torch.uint8:
        raise ValueError("expected bytes")
    return codec.bytes_of(value)


class Letter(WireMessage):
    """A letter from one participant to another.

    me, to: names of the writer and the reader. life: id of the writer's process. version: that of its newest offer.
    other, received: the reader's life and version, as far as the writer knows. since: the letter has all offers after
    this version. subjects: those of all current offers. new: the offers since then, by subject. hold: seconds for which
    an answer may be held back until it has an offer. beat: most seconds until the caller calls again. waits: the writer
    waits for an offer, and has no other work.
    """

    me: StrictStr
    to: StrictStr
    life: StrictStr
    version: Count
    other: StrictStr
    received: Count
    since: Count
    subjects: Annotated[list[StrictStr], listed, Field(max_length=_MOST_SUBJECTS)]
    new: Annotated[dict[StrictStr, Annotated[bytes, BeforeValidator(_bytes_of)]], Field(max_length=_MOST_SUBJECTS)]
    hold: Annotated[StrictFloat, Field(ge=0, le=3600)] = 0.0
    beat: Annotated[StrictFloat, Field(ge=0, le=86400)] = 0.0
    waits: StrictBool = False


class Mailbox:
    """One participant's side of the offers between it and one other participant. Not thread-safe.

    Letters may be lost: the next letter repeats the offers that the other has not confirmed. A restarted process has
    another life, and gets all offers.

    >>> here, there = Mailbox("server", "ann"), Mailbox("ann", "server")
    >>> here.put("r/0/order", b"train")
    True
    >>> _ = there.read(here.letter())
    >>> there.theirs
    {'r/0/order': b'train'}
    """

    def __init__(self, me: str, other: str) -> None:
        self.me, self.name, self.life = me, other, secrets.token_hex(8)
        self.version = self.confirmed = self.received = 0
        self.other = ""
        self.offers: dict[str, tuple[int, bytes]] = {}
        self.theirs: dict[str, bytes] = {}

    def put(self, subject: str, data: bytes) -> bool:
        """Make an offer; returns whether it is new."""
        if (before := self.offers.get(subject)) is not None and before[1] == data:
            return False
        self.version += 1
        self.offers[subject] = self.version, data
        return True

    def withdraw(self, prefix: str) -> None:
        """Withdraw the offers whose subject begins with `prefix`."""
        self.offers = {subject: each for subject, each in self.offers.items() if not subject.startswith(prefix)}

    @property
    def news(self) -> bool:
        """Whether there is an offer that the other has not confirmed."""
        return any(version > self.confirmed for version, _ in self.offers.values())

    def letter(self, **more: Any) -> bytes:
        """Return the bytes of a letter. more: further fields."""
        new = {
            subject: codec.tensor_of(data) for subject, (version, data) in self.offers.items()
            if version > self.confirmed
        }  # fmt: skip
        return codec.encode({
            "me": self.me, "to": self.name, "life": self.life, "version": self.version, "other": self.other,
            "received": self.received, "since": self.confirmed, "subjects": list(self.offers), "new": new, **more,
        })  # fmt: skip

    def read(self, data: bytes) -> Letter:
        """Process a letter of the other, and return it; raises MethodError for an invalid letter."""
        letter = read(Letter, data)
        if letter.me != self.name or letter.to != self.me:
            expected = f"where {self.name!r} writes to {self.me!r}"
            raise MethodError(f"a letter from {letter.me!r} to {letter.to!r}, {expected}")
        if letter.life != self.other:
            self.other, self.theirs, self.received = letter.life, {}, 0
        self.confirmed = letter.received if letter.other == self.life else 0
        # Skip letters that a newer letter has overtaken, and letters to an earlier process of this name, which lack the
        # offers that the earlier process has confirmed.
        if letter.since <= self.received <= letter.version:
            kept = {**self.theirs, **letter.new}
            self.theirs = {subject: kept[subject] for subject in letter.subjects if subject in kept}
            self.received = letter.version
        return letter


# -- links --------------------------------------------------------------------------------------------------------


class Calls(Protocol):
    """A network that carries a call to a participant, and its answer back. Thread-safe."""

    def names(self) -> Collection[str]:
        """Return the participants that can be called now; raises LinkError if the network is gone."""

    def call(self, name: str, data: bytes, within: float) -> bytes:
        """Return the answer of this participant; raises LinkError if none comes within `within` seconds."""

    def close(self) -> None:
        """Stop; waiting calls raise LinkError."""


class Boxed(Link):
    """The common part of both ends: a mailbox for each other participant."""

    def __init__(self, me: str) -> None:
        super().__init__(me)
        self.state = Condition()
        self.closed = False
        self.boxes: dict[str, Mailbox] = {}
        self.awaited: list[tuple[str, str]] = []

    def box(self, name: str) -> Mailbox:
        """Return the mailbox for a participant; it is made on first use."""
        return self.boxes.setdefault(name, Mailbox(self.me, name))

    def offer(self, to: str, subject: str, data: bytes) -> None:
        self.check(to, subject)
        with self.state:
            self._check_open()
            if self.box(to).put(subject, bytes(data)):
                self.state.notify_all()

    def withdraw(self, prefix: str, to: str | None = None) -> None:
        with self.state:
            for name, box in self.boxes.items():
                if to in (None, name):
                    box.withdraw(prefix)

    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        self.check(owner, subject)
        with self.state:
            self._check_open()
            box, wanted = self.box(owner), (owner, subject)
            self.awaited.append(wanted)
            self.state.notify_all()
            try:
                self.state.wait_for(lambda: self.closed or subject in box.theirs, timeout)
            finally:
                self.awaited.remove(wanted)
            self._check_open()
            if (data := box.theirs.get(subject)) is None:
                why = "not offered" if owner in self.present() else "not reached"
                raise Missed(owner, subject, f"{why} within {timeout:g} s")
            if len(data) > most:
                raise self.refusal(owner, subject, f"{len(data):,} bytes; at most {most:,} are taken")
            self.bytes_in[owner] += len(data)
            return data

    def read(self, name: str, data: bytes) -> Letter:
        """Process a letter, and count the bytes that the other has confirmed; raises MethodError if it is invalid."""
        box = self.box(name)
        if len(data) > _MOST:
            raise MethodError(f"not a letter: {len(data):,} bytes")
        before = box.confirmed
        letter = box.read(data)
        confirmed = [each for version, each in box.offers.values() if before < version <= box.confirmed]
        self.bytes_out[name] += sum(map(len, confirmed))
        self.state.notify_all()
        return letter

    def _check_open(self) -> None:
        if self.closed:
            raise LinkError(f"the link of {self.me} is closed")


class CallingLink(Boxed):
    """The server's end: calls each client when there is an offer for it, or while the client works.

    hold: seconds for which a client may hold a call back while it works. beat: seconds after which a client with
    nothing to do is called, to see that it is there. within: seconds to answer a call, in addition to `hold`.
    """

    def __init__(
        self, calls: Calls, *, hold: float = 30.0, beat: float = 30.0, within: float = 90.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        super().__init__(SERVER)
        self.calls, self.hold, self.beat, self.within, self.say = calls, hold, beat, within, say
        self.latency = within
        self.here: set[str] = set()
        self.threads: dict[str, Thread] = {}
        self.watch = Thread(target=self._watch, name="calls", daemon=True)
        self.watch.start()

    def present(self) -> frozenset[str]:
        with self.state:
            return frozenset(self.here)

    def _watch(self) -> None:
        """Start a thread for each participant that can be called."""
        unnamed = set[str]()
        while not self.closed:
            try:
                names = set(self.calls.names())
            except LinkError as error:
                self.say(error_text(error))
                names = set()
            with self.state:
                for name in sorted(names - set(self.threads) - unnamed):
                    if not plain_word(name) or name == self.me:
                        unnamed.add(name)
                        self.say(f"{escaped(repr(name), 80)} cannot be the name of a client: it is not called")
                        continue
                    self.threads[name] = Thread(target=self._carry, args=(name,), name=f"calls {name}", daemon=True)
                    self.threads[name].start()
                self.state.wait_for(lambda: self.closed, min(_LOOK, self.beat))

    def _carry(self, name: str) -> None:
        """Call one participant again and again."""
        box, pause, why = self.box(name), 0.0, ""
        while True:
            if (letter := self._due(box, pause)) is None:
                return
            try:
                answer = self.calls.call(name, letter, self.hold + self.within)
                with self.state:
                    reply = self.read(name, answer)
                    self.here.add(name)
                    self.state.notify_all()
                pause, why = self.beat if reply.waits else 0.0, ""
            except (LinkError, MethodError) as error:
                with self.state:
                    gone = name in self.here
                    self.here.discard(name)
                    self.state.notify_all()
                if isinstance(error, MethodError):
                    self.refused.add(name, error_text(error))
                if error_text(error) != why and not self.closed:
                    why = error_text(error)
                    self.say(f"{name}: {escaped(why, 300)}")
                pause = min(_FIRST if gone or not pause else 2 * pause, self.beat)

    def _due(self, box: Mailbox, pause: float) -> bytes | None:
        """Return the next letter, once it has an offer or the pause is over; None when the link is closed."""
        with self.state:
            if pause:
                self.state.wait_for(lambda: self.closed or (box.name in self.here and box.news), pause)
            self.state.wait_for(lambda: self.closed, _TOGETHER)
            return None if self.closed else box.letter(hold=self.hold, beat=self.beat)

    def close(self) -> None:
        """Close the link after the open calls are answered, since they carry the last offers."""
        with self.state:
            if self.closed:
                return
            self.closed = True
            self.state.notify_all()
            threads = list(self.threads.values())
        until = time.monotonic() + min(self.hold + self.within, _LEAVING)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        self.calls.close()
        self.watch.join(2 * _LOOK)


class AnsweringLink(Boxed):
    """A client's end: `answer` takes each call of the server, and returns the answer."""

    def __init__(self, me: str) -> None:
        super().__init__(me)
        self.answering = 0
        self.until = 0.0

    def answer(self, data: bytes) -> bytes:
        """Answer a call once there is an offer to send, or no work to do.

        Raises MethodError for an invalid letter, and LinkError when the link is closed.
        """
        with self.state:
            self._check_open()
            self.answering += 1
            try:
                box = self.box(SERVER)
                call = self.read(SERVER, data)
                self.state.wait_for(lambda: self.closed or box.news or self._idle(), call.hold)
                # After an offer a client soon waits for the next one: say so in the answer, to save a call.
                self.state.wait_for(lambda: self.closed or self._idle(), min(call.hold, _SETTLED))
                self.until = time.monotonic() + 2 * call.beat + 60.0
                return box.letter(waits=self._idle())
            finally:
                self.answering -= 1
                self.state.notify_all()

    def _idle(self) -> bool:
        """Whether this participant waits for an offer that the server has not made yet."""
        theirs = self.box(SERVER).theirs
        return any(subject not in theirs for _, subject in self.awaited)

    def present(self) -> frozenset[str]:
        with self.state:
            return frozenset({SERVER} if self.answering or time.monotonic() < self.until else ())

    def close(self) -> None:
        """Close the link after the running calls are answered."""
        with self.state:
            self.closed = True
            self.state.notify_all()
            self.state.wait_for(lambda: not self.answering, 10)
