"""Links over Eclipse Zenoh with mutual TLS: who dials is asked over the same connection, and need open no port.

Access control by the name in the certificate, signatures over whole offers, and limits for each participant.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Condition, Event
from time import monotonic
from typing import Any

from fedkin.errors import ConfigError, nearest
from fedkin.network.access import ALIVE, KEY, PART, configured, listening, located
from fedkin.network.book import Book
from fedkin.network.closing import close_at_the_end
from fedkin.network.identity import Identity, verify
from fedkin.network.link import LARGEST, Link, LinkError, Missed, Refused, is_subject
from fedkin.network.offers import CHANGED, FIRST, HEAD, REST, Limits, Offers, Question
from fedkin.network.probe import Answered, NotReached, probe
from fedkin.network.signing import DIGEST, Head, Signer
from fedkin.untrusted import said, shown

try:
    import zenoh
except ImportError:
    raise ConfigError("a federation over a network needs Zenoh: pip install 'fedkin[network]'") from None

__all__ = ["ZenohLink"]

# Seconds that one question may take; more than an owner waits for an offer before it says "not yet".
_ASKED = 15.0
# Seconds from one question to the next when nobody answered.
_AGAIN = 0.3
# Parts of one offer that are asked for at a time.
_AHEAD = 3
# Seconds that a participant that answered the handshake has to be seen; much for where many share a machine.
_SEEN = 30.0


@dataclass(frozen=True)
class _Sought:
    """An offer that is being pulled, until when."""

    owner: str
    subject: str
    timeout: float
    end: float
    most: int

    @property
    def left(self) -> float:
        return self.end - monotonic()


class ZenohLink(Link):
    """A participant's link over the network.

    identity: who this is. book: the participants. listen: locators (tls/HOST:PORT) at which others may dial this one;
    dial: names of those that this one dials, each with a locator in the book. Those that do not answer yet are dialled
    again and again. router: who passes what is sealed end to end, which all dial instead; it has a locator in the book,
    and takes no part. Raises LinkError, in one line, if a handshake is refused, or an address cannot be listened at;
    ConfigError for settings that cannot be.
    """

    def __init__(
        self, identity: Identity, book: Book, listen: Iterable[str] = (), dial: Iterable[str] = (),
        limits: Limits | None = None, router: str = "",
    ) -> None:  # fmt: skip
        super().__init__(identity.name)
        self._identity = identity
        self._book = {name: member for name, member in book.items() if name not in (identity.name, router)}
        for name, member in self._book.items():
            member.check(name, f"members.{shown(name, 64)}")
        verify(identity.chain, identity.roots, identity.name, f"the certificate of {identity.name}")
        self._dial = {name: self._locator_of(name, book) for name in ([router] if router else dial)}
        places = [located(place) for place in listen]
        self._signer = _sealer(identity, self._book) if router else Signer(identity, self._book)
        self._there: set[str] = set()
        self._state = Condition()
        self._closing = Event()
        self._stop = zenoh.CancellationToken()
        there = self._probed()
        try:
            config = configured(identity, self._book, places, list(self._dial.values()), router)
            self._session = zenoh.open(zenoh.Config.from_json5(config))
        except zenoh.ZError as error:
            raise LinkError(f"{self.me}: the network cannot be opened ({listening(places)}{said(error)})") from None
        self._offers = Offers(self._book, self.refused.add, limits)
        close_at_the_end(self)
        try:
            self._declare()
            if not router:
                self._await(there)
        except BaseException:
            self.close()
            raise

    def offer(self, to: str, subject: str, data: bytes) -> None:
        self._check(to, subject)
        self._offers.put(to, subject, self._signer.write(to, subject, bytes(data)))

    def withdraw(self, prefix: str, to: str | None = None) -> None:
        self._offers.remove(prefix, to)

    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        self._check(owner, subject)
        sought = _Sought(owner, subject, timeout, monotonic() + timeout, most)
        while True:
            since = monotonic()
            head, first = self._first(sought)
            parts = self._rest(sought, head)
            if parts is None:  # it was replaced meanwhile
                self._pause(sought, since)
                continue
            data = b"".join((first, *parts))
            if hashlib.sha256(data).digest() != head.digest:
                raise self._refusal(sought, "not the bytes that were signed")
            try:
                return self._signer.opened(owner, subject, data)
            except ValueError as error:
                raise self._refusal(sought, str(error)) from None

    def present(self) -> frozenset[str]:
        with self._state:
            return frozenset(self._there)

    def close(self) -> None:
        with self._state:
            if self._closing.is_set():
                return
            self._closing.set()
        self._stop.cancel()  # type: ignore[no-untyped-call]
        self._offers.close()
        self._session.close()  # type: ignore[no-untyped-call]

    # -- opening ----------------------------------------------------------------------------------------------

    def _locator_of(self, name: str, book: Book) -> str:
        if name not in book or name == self.me:
            raise ConfigError(f"{shown(name, 64)}: not in the address book; {nearest(name, self._book)}")
        if not book[name].locator:
            raise ConfigError(f"{name}: the address book has no address to dial; expected locator = 'tls/HOST:PORT'")
        return book[name].locator

    def _probed(self) -> list[str]:
        """Those of the dialled that answer; raises LinkError for one that cannot be who it should be."""
        there = []
        for name, place in self._dial.items():
            try:
                probe(self._identity, name, place)
                there.append(name)
            except Answered as error:
                raise LinkError(f"{self.me} dials {error}") from None
            except NotReached:
                continue
        return there

    def _declare(self) -> None:
        session = self._session
        self._queryable = session.declare_queryable(f"{KEY}/{self.me}/**", self._asked)
        self._watch = session.liveliness().declare_subscriber(f"{ALIVE}/*", self._seen, history=True)
        self._token = session.liveliness().declare_token(f"{ALIVE}/{self.me}")

    def _await(self, names: list[str]) -> None:
        """Wait until these are seen; raises LinkError if one that answered the handshake does not let us in."""
        with self._state:
            self._state.wait_for(lambda: self._there.issuperset(names), _SEEN)
            missing = sorted(set(names) - self._there)
        if missing:
            raise LinkError(
                f"{self.me}: {missing[0]} answers at {self._dial[missing[0]]} and does not let {self.me} in; is it a "
                f"node of this federation, with {self.me} in its address book?"
            )

    def _seen(self, sample: Any) -> None:
        name = str(sample.key_expr).rpartition("/")[2]
        with self._state:
            if sample.kind == zenoh.SampleKind.DELETE:
                self._there.discard(name)
            elif name in self._book:
                self._there.add(name)
            self._state.notify_all()

    # -- answering --------------------------------------------------------------------------------------------

    def _asked(self, query: Any) -> None:
        """Put what one asks on the offers; Zenoh waits for this to return, so that nothing is answered here."""
        asker, _, subject = str(query.key_expr).removeprefix(f"{KEY}/{self.me}/").partition("/")
        wanted = query.attachment.to_bytes() if query.attachment is not None else b""
        if len(wanted) != 4 + DIGEST or not is_subject(subject):
            self.refused.add(asker if asker in self._book else "", shown(subject, 200), "not a question that can be")
            query.drop()
            return
        number, of = int.from_bytes(wanted[:4], "big"), wanted[4:]
        answer = partial(self._answer, query, asker)
        self._offers.ask(Question(asker, subject, number, of, answer, query.drop))

    def _answer(self, query: Any, asker: str, kind: bytes, data: bytes) -> None:
        # The link may be cut at any moment: whoever asked asks again.
        with suppress(zenoh.ZError), query:
            with self._state:
                self.bytes_out[asker] += len(data) + len(kind)
            query.reply(query.key_expr, data, attachment=kind)

    # -- asking -----------------------------------------------------------------------------------------------

    def _first(self, sought: _Sought) -> tuple[Head, bytes]:
        """The head and the first bytes of an offer, awaited."""
        while True:
            since = monotonic()
            for kind, data in self._replies(sought, self._get(sought, 0, bytes(DIGEST))):
                if kind[:1] == HEAD:
                    head = self._checked(sought, kind[1:])
                    self._check_part(sought, head, 0, data)
                    return head, data
            self._pause(sought, since)

    def _checked(self, sought: _Sought, head: bytes) -> Head:
        try:
            found = self._signer.read(sought.owner, sought.subject, head)
        except ValueError as error:
            raise self._refusal(sought, str(error)) from None
        if found.size > sought.most + self._signer.extra:
            raise self._refusal(sought, f"{found.size:,} bytes; at most {sought.most:,} are taken")
        return found

    def _rest(self, sought: _Sought, head: Head) -> list[bytes] | None:
        """The parts after the first; None if the offer was replaced."""
        count = -(-max(0, head.size - FIRST) // PART)
        asked: deque[Any] = deque()
        parts: list[bytes] = []
        for number in range(1, count + 1):
            while len(asked) < min(_AHEAD, count - number + 1):
                asked.append(self._get(sought, number + len(asked), head.digest))
            part = self._part(sought, number, head.digest, asked.popleft())
            if part is None:
                return None
            self._check_part(sought, head, number, part)
            parts.append(part)
        return parts

    def _part(self, sought: _Sought, number: int, of: bytes, replies: Any) -> bytes | None:
        while True:
            since = monotonic()
            for kind, data in self._replies(sought, replies):
                if kind == CHANGED:
                    return None
                if kind == REST:
                    return data
            self._pause(sought, since)
            replies = self._get(sought, number, of)

    def _get(self, sought: _Sought, number: int, of: bytes) -> Any:
        """The replies, as they come, to one question. They have the priority of the question."""
        try:
            return self._session.get(
                f"{KEY}/{sought.owner}/{self.me}/{sought.subject}", timeout=max(0.001, min(_ASKED, sought.left)),
                attachment=number.to_bytes(4, "big") + of, cancellation_token=self._stop,
                priority=zenoh.Priority.BACKGROUND if number else zenoh.Priority.DATA_HIGH,
                target=zenoh.QueryTarget.ALL, consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )  # fmt: skip
        except zenoh.ZError:
            self._check_open()
            return ()

    def _replies(self, sought: _Sought, replies: Any) -> Iterator[tuple[bytes, bytes]]:
        """(kind and head, bytes) of what came in answer to a question."""
        for reply in replies:
            if reply.ok is not None and reply.ok.attachment is not None:
                kind, data = reply.ok.attachment.to_bytes(), reply.ok.payload.to_bytes()
                with self._state:
                    self.bytes_in[sought.owner] += len(kind) + len(data)
                yield kind, data

    def _pause(self, sought: _Sought, since: float) -> None:
        """Wait until there may be a question after the one of that time; raises Missed when no time is left for it."""
        self._closing.wait(max(0.0, min(since + _AGAIN - monotonic(), sought.left)))
        self._check_open()
        if sought.left <= 0:
            raise Missed(sought.owner, sought.subject, f"{self._why(sought.owner)} within {sought.timeout:g} s")

    def _why(self, owner: str) -> str:
        if owner in self.present():
            return "not offered"
        if owner in self._dial:
            try:
                probe(self._identity, owner, self._dial[owner])
            except (Answered, NotReached) as error:
                return f"not reached ({error})"
        return "not reached"

    # -- checks -----------------------------------------------------------------------------------------------

    def _refusal(self, sought: _Sought, why: str) -> Refused:
        self.refused.add(sought.owner, sought.subject, why)
        return Refused(sought.owner, sought.subject, why)

    def _check_part(self, sought: _Sought, head: Head, number: int, part: bytes) -> None:
        """Raise Refused for a part of another length: nobody fills the memory with more than was vouched for."""
        before = FIRST + (number - 1) * PART if number else 0
        expected = max(0, min(head.size - before, PART if number else FIRST))
        if len(part) != expected:
            raise self._refusal(sought, f"{len(part):,} bytes in a part; expected {expected:,}")

    def _check(self, name: str, subject: str) -> None:
        if name not in self._book:
            raise Refused(name, subject, f"no participant of this name; {nearest(name, self._book)}")
        if not is_subject(subject):
            raise Refused(name, subject, "not a subject: words of a-z 0-9 . _ - with / between them")
        self._check_open()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise LinkError(f"the link of {self.me} is closed")


def _sealer(identity: Identity, book: Book) -> Signer:
    from fedkin.network.sealing import Sealer  # it needs a newer cryptography than links without a router

    return Sealer(identity, book)
