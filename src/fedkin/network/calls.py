"""A link over a network that can only call: the server calls each client in turn, and its letter is answered by one.

For networks that carry a request to a client and a reply back, and nothing else. What a client offers comes with its
answer, so a call is kept back at the client until it has offered something or has nothing to do.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection
from threading import Condition, Thread
from typing import Protocol

from fedkin.errors import MethodError
from fedkin.network.link import LARGEST, Link, LinkError, Missed, Refused, is_name, is_subject
from fedkin.network.mailbox import Head, Mailbox
from fedkin.untrusted import said, shown

__all__ = ["AnsweringLink", "Boxed", "CallingLink", "Calls", "NotReached"]

_TOGETHER = 0.05  # seconds in which what is offered goes into one letter
_LOOK = 2.0  # seconds between two looks at who can be called
_FIRST = 1.0  # seconds until somebody who was not reached is called again; twice as long each time
_SETTLED = 1.0  # seconds in which a client that has offered something comes to wait for the next thing
_LEAVING = 120.0  # seconds in which calls are answered that are on their way when the link is closed
_MOST = 4 * LARGEST  # bytes of a letter


class NotReached(LinkError):
    """A call came to nobody, or was not answered."""


class Calls(Protocol):
    """A network that carries a call to a participant, and its answer back. Safe between threads."""

    def names(self) -> Collection[str]:
        """The participants that can be called now; raises LinkError if the network is gone."""

    def call(self, name: str, data: bytes, within: float) -> bytes:
        """Return what this participant answers; raises NotReached if nothing comes within so many seconds."""

    def close(self) -> None:
        """End; calls that wait raise NotReached."""


class Boxed(Link):
    """What both ends have in common: a mailbox for each other participant."""

    def __init__(self, me: str) -> None:
        super().__init__(me)
        self.state = Condition()
        self.closed = False
        self.boxes: dict[str, Mailbox] = {}
        self.awaited: list[tuple[str, str]] = []

    def box(self, name: str) -> Mailbox:
        """The mailbox for a participant, made when it is first needed."""
        return self.boxes.setdefault(name, Mailbox(self.me, name))

    def offer(self, to: str, subject: str, data: bytes) -> None:
        self._check(to, subject)
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
        self._check(owner, subject)
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
                words = f"{len(data):,} bytes; at most {most:,} are taken"
                self.refused.add(owner, subject, words)
                raise Refused(owner, subject, words)
            self.bytes_in[owner] += len(data)
            return data

    def read(self, name: str, data: bytes) -> Head:
        """Take in a letter, and count what the other has taken; raises MethodError for what is none."""
        box = self.box(name)
        if len(data) > _MOST:
            raise MethodError(f"not a letter: {len(data):,} bytes")
        before = box.told
        head = box.read(data)
        self.bytes_out[name] += sum(
            len(each) for version, each in box.offers.values() if before < version <= box.told
        )  # fmt: skip
        self.state.notify_all()
        return head

    def _check(self, name: str, subject: str) -> None:
        if not is_name(name) or name == self.me:
            raise Refused(name, subject, "not a name that another participant can have")
        if not is_subject(subject):
            raise Refused(name, subject, "not a subject: words of a-z 0-9 . _ - with / between them")

    def _check_open(self) -> None:
        if self.closed:
            raise LinkError(f"the link of {self.me} is closed")

    @abstractmethod
    def present(self) -> frozenset[str]: ...


class CallingLink(Boxed):
    """The server's end: calls each client whenever there is something for it, or while it works.

    hold: seconds for which a client may keep a call back while it works. beat: seconds after which a client with
    nothing to do is called, to see that it is there. within: seconds in which a call is answered beside `hold`.
    """

    def __init__(
        self, me: str, calls: Calls, *, hold: float = 30.0, beat: float = 30.0, within: float = 90.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        super().__init__(me)
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
        """Have a thread for each participant that can be called."""
        told = set[str]()
        while not self.closed:
            try:
                names = set(self.calls.names())
            except LinkError as error:
                self.say(said(error))
                names = set()
            with self.state:
                for name in sorted(names - set(self.threads) - told):
                    if not is_name(name) or name == self.me:
                        told.add(name)
                        self.say(f"{shown(repr(name), 80)} cannot be the name of a client: it is not called")
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
                    head = self.read(name, answer)
                    self.here.add(name)
                    self.state.notify_all()
                pause, why = self.beat if head.waits else 0.0, ""
            except (LinkError, MethodError) as error:
                with self.state:
                    gone = name in self.here
                    self.here.discard(name)
                    self.state.notify_all()
                if isinstance(error, MethodError):
                    self.refused.add(name, "", said(error))
                if said(error) != why and not self.closed:
                    why = said(error)
                    self.say(f"{name}: {shown(why, 300)}")
                pause = min(_FIRST if gone or not pause else 2 * pause, self.beat)

    def _due(self, box: Mailbox, pause: float) -> bytes | None:
        """Return the next letter, once there is something in it or the pause is over; None when the link is closed."""
        with self.state:
            if pause:
                self.state.wait_for(lambda: self.closed or (box.name in self.here and box.news), pause)
            self.state.wait_for(lambda: self.closed, _TOGETHER)
            return None if self.closed else box.letter(hold=self.hold, beat=self.beat)

    def close(self) -> None:
        """Leave, after calls that are on their way were answered: what was offered last is in them."""
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
    """A client's end: `answer` is given each call of the server, and returns its answer."""

    def __init__(self, me: str, server: str = "server") -> None:
        super().__init__(me)
        self.server = server
        self.answering = 0
        self.until = 0.0

    def answer(self, data: bytes) -> bytes:
        """Answer a call once there is something to offer, or no work to do; raises MethodError for what is no letter.

        Raises LinkError when the link is closed.
        """
        with self.state:
            self._check_open()
            self.answering += 1
            try:
                box = self.box(self.server)
                head = self.read(self.server, data)
                self.state.wait_for(lambda: self.closed or box.news or self._idle(), head.hold)
                # Who has just offered something waits for the next thing in a moment: the server need not ask again.
                self.state.wait_for(lambda: self.closed or self._idle(), min(head.hold, _SETTLED))
                self.until = time.monotonic() + 2 * head.beat + 60.0
                return box.letter(waits=self._idle())
            finally:
                self.answering -= 1
                self.state.notify_all()

    def _idle(self) -> bool:
        """Whether this participant waits for what the server has not offered yet."""
        theirs = self.box(self.server).theirs
        return any(subject not in theirs for _, subject in self.awaited)

    def present(self) -> frozenset[str]:
        with self.state:
            return frozenset({self.server} if self.answering or time.monotonic() < self.until else ())

    def close(self) -> None:
        """Leave, after calls that are being answered."""
        with self.state:
            self.closed = True
            self.state.notify_all()
            self.state.wait_for(lambda: not self.answering, 10)
