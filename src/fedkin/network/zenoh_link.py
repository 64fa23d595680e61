"""Links over Eclipse Zenoh with mutual TLS. A participant that dials answers over its connection, and opens no port.

Access control by the name in the certificate, signatures over complete offers, and limits for each participant. Large
offers are sent in parts. Parts that have arrived are kept, so that a pull that timed out continues later.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Condition, Event, Lock, Thread, main_thread
from time import monotonic
from typing import Any
from weakref import WeakSet

from fedkin.errors import ConfigError, nearest
from fedkin.network.identity import NOBODY, Identity, Revocations
from fedkin.network.join_file import AddressBook, locator
from fedkin.network.link import LARGEST, UNREACHED, Link, LinkError, Missed, Refused, is_subject
from fedkin.network.offers import CHANGED, FIRST, HEAD, REST, Offers, Question
from fedkin.network.signing import DIGEST, Head, Sealer, Signer
from fedkin.network.zenoh_config import ALIVE, KEY, PART, participant_config, router_config
from fedkin.untrusted import error_text, escaped

try:
    import zenoh
    from zenoh.handlers import Callback
except ImportError:
    raise ConfigError("a federation over a network needs Zenoh: pip install 'fedkin[network]'") from None

_ASKED = 60.0  # seconds that one question may take: a part may wait for others on a slow link
_AGAIN = 0.3  # seconds until a question without an answer is repeated
_AHEAD = 8  # parts of one offer that are requested at the same time
_HELD = 3.0  # seconds for which a question waits for an offer; then another process of this name may answer it
_KEPT = 600.0  # seconds for which the parts of an offer are kept after its last pull
_FRESH = 2.0  # seconds for which an offer still counts as new if its parts began to arrive between two pulls

_OPEN: WeakSet[ZenohLink] = WeakSet()
_WATCHED = Lock()


def _session(config: str, who: str, places: list[str]) -> Any:
    """Open a session; RUST_LOG=zenoh_link_tls=warn makes Zenoh print which handshakes were refused, and why."""
    zenoh.try_init_log_from_env()  # type: ignore[no-untyped-call]
    try:
        return zenoh.open(zenoh.Config.from_json5(config))
    except zenoh.ZError as error:
        where = f"listening at {', '.join(places)}: " if places else ""
        raise LinkError(
            f"{who}: the network cannot be opened ({where}{error_text(error).partition(' at /')[0]})"
        ) from None


class ZenohLink(Link):
    """A participant's link over the network.

    identity: that of this participant. book: the participants. listen: locators (tls/HOST:PORT) at which others may
    dial this participant; dial: names of participants that it dials, each with a locator in the book, and repeatedly
    until they answer. router: name of the router, which passes on sealed messages and which all dial instead; it has a
    locator in the book, and takes no part. revoked: names and certificates that are not valid any more. Raises
    LinkError if it cannot listen at an address, ConfigError for invalid settings.
    """

    def __init__(
        self, identity: Identity, book: AddressBook, listen: Iterable[str] = (), dial: Iterable[str] = (),
        router: str = "", revoked: Revocations = NOBODY,
    ) -> None:  # fmt: skip
        super().__init__(identity.name)
        self._identity = identity
        self._book = {name: member for name, member in book.items() if name not in (identity.name, router)}
        identity.check()
        dialled = [self._locator_of(name, book) for name in ([router] if router else dial)]
        places = [locator(place, "listen: ") for place in listen]
        self._revoked = revoked
        self._signer = self.signatures = (Sealer if router else Signer)(identity, self._book, self._revoked)
        self._present: set[str] = set()
        self._transfers: dict[tuple[str, str], _Transfer] = {}
        self._state = Condition()
        self._over = Event()
        self._stop = zenoh.CancellationToken()
        self._session = _session(participant_config(identity, self._book, places, dialled, router), self.me, places)
        self._offers = Offers(self._book)
        _close_at_exit(self)
        try:
            places = [f"{KEY}/{self.me}/{name}" for name in self._book]
            self._queryables = [self._session.declare_queryable(place, self._asked) for place in places]
            liveliness = self._session.liveliness()
            self._watch = liveliness.declare_subscriber(f"{ALIVE}/*", self._seen, history=True)
            self._token = liveliness.declare_token(f"{ALIVE}/{self.me}")
            Thread(target=self._sweep, name="questions", daemon=True).start()
        except BaseException:
            self.close()
            raise

    def _locator_of(self, name: str, book: AddressBook) -> str:
        if name not in book or name == self.me:
            raise ConfigError(f"{escaped(name, 64)}: not in the address book; {nearest(name, self._book)}")
        if not book[name].locator:
            raise ConfigError(f"{name}: the address book has no address to dial; expected locator = 'tls/HOST:PORT'")
        return book[name].locator

    def offer(self, to: str, subject: str, data: bytes) -> None:
        self.check(to, subject)
        self._offers.put(to, subject, self._signer.write(to, subject, bytes(data)))

    def withdraw(self, prefix: str, to: str | None = None) -> None:
        self._offers.remove(prefix, to)

    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        self.check(owner, subject)
        end = monotonic() + timeout
        transfer = self._transfer(owner, subject, most)
        while (question := transfer.next_question(end)) is not None:
            self._ask(transfer, *question)
        transfer.touched = monotonic()
        self._check_open()
        if not (transfer.complete or transfer.refused):
            why = "not offered" if owner in self.present() else f"not reached ({UNREACHED})"
            why = why if transfer.head is None else f"{transfer.came:,} of {transfer.head.size:,} bytes came"
            raise Missed(owner, subject, f"{why} within {timeout:g} s")
        try:
            return self._opened(transfer)
        except ValueError as error:
            raise self.refusal(owner, subject, str(error)) from None
        finally:
            with self._state:
                if self._transfers.get((owner, subject)) is transfer:
                    del self._transfers[owner, subject]

    def present(self) -> frozenset[str]:
        with self._state:
            return frozenset(name for name in self._present if name not in self._revoked)

    def trouble(self) -> str:
        try:
            self._identity.check()
        except ConfigError as error:
            return str(error)
        return ""

    def close(self) -> None:
        with self._state:
            if self._over.is_set():
                return
            self._over.set()
            transfers = list(self._transfers.values())
        for transfer in transfers:
            transfer.close()
        self._stop.cancel()  # type: ignore[no-untyped-call]
        self._offers.close()
        self._session.close()

    # -- answering ------------------------------------------------------------------------------------------------

    def _seen(self, sample: Any) -> None:
        name, ends = str(sample.key_expr).split("/")[1], sample.kind == zenoh.SampleKind.DELETE
        with self._state:
            if ends:
                self._present.discard(name)
            elif name in self._book:
                self._present.add(name)
            lost = [each for each in self._transfers.values() if each.owner == name] if ends else []
            self._state.notify_all()
        # Zenoh ends the questions that it knows of when a link is cut, and loses those that are asked meanwhile.
        for transfer in lost:
            transfer.end_all()

    def _sweep(self) -> None:
        while not self._over.wait(_HELD):
            self._offers.drop_waiting()

    def _asked(self, query: Any) -> None:
        """Hand a question to the offers; Zenoh waits for this to return, so nothing is answered here."""
        asker = str(query.key_expr).rpartition("/")[2]
        wanted = query.attachment.to_bytes() if query.attachment is not None else b""
        part, of = int.from_bytes(wanted[:4], "big"), wanted[4 : 4 + DIGEST]
        subject = wanted[4 + DIGEST :].decode("ascii", "replace")
        if not is_subject(subject):
            why = "not a question that can be"
        elif asker in self._revoked:
            why = "it is revoked"
        else:
            answer = partial(self._answer, query, asker)
            why = self._offers.ask(Question(asker, subject, part, of, answer, query.drop))
        if why:
            self.refused.add(asker if asker in self._book else "", escaped(subject, 200), why)
            query.drop()

    def _answer(self, query: Any, asker: str, kind: bytes, data: bytes) -> None:
        # The link may be cut at any moment: the asker asks again.
        with suppress(zenoh.ZError), query:
            with self._state:
                self.bytes_out[asker] += len(data) + len(kind)
            query.reply(query.key_expr, data, attachment=kind)

    # -- asking ---------------------------------------------------------------------------------------------------

    def _transfer(self, owner: str, subject: str, most: int) -> _Transfer:
        """Return the transfer of this offer, which may have begun with an earlier pull."""
        now, key = monotonic(), (owner, subject)
        with self._state:
            self._check_open()
            for old in [each for each, other in self._transfers.items() if other.touched < now - _KEPT]:
                del self._transfers[old]
            transfer = self._transfers.get(key)
            # An offer whose parts began to arrive after its last pull may have been replaced since.
            if transfer is None or transfer.touched < transfer.begun_at < now - _FRESH:
                transfer = self._transfers[key] = _Transfer(owner, subject, self._signer)
            transfer.touched, transfer.most = now, most
            return transfer

    def _ask(self, transfer: _Transfer, number: int, of: bytes) -> None:
        """Ask for a part; the transfer gets the answer, even after this pull has ended."""

        def received(reply: Any) -> None:
            if reply.ok is not None and reply.ok.attachment is not None:
                kind, data = reply.ok.attachment.to_bytes(), reply.ok.payload.to_bytes()
                with self._state:
                    self.bytes_in[transfer.owner] += len(kind) + len(data)
                transfer.receive(number, of, kind, data)

        try:
            self._session.get(
                f"{KEY}/{transfer.owner}/{self.me}",
                Callback(received, partial(transfer.end, number, of), indirect=False),
                timeout=_ASKED, cancellation_token=self._stop,
                attachment=number.to_bytes(4, "big") + of + transfer.subject.encode(),
                priority=zenoh.Priority.BACKGROUND if number else zenoh.Priority.DATA_HIGH,
                target=zenoh.QueryTarget.ALL, consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )  # fmt: skip
        except zenoh.ZError:
            self._check_open()
            transfer.end(number, of)

    def _opened(self, transfer: _Transfer) -> bytes:
        """Return the content of the parts; raises ValueError unless the owner signed it."""
        if transfer.refused:
            raise ValueError(transfer.refused)
        assert transfer.head is not None
        data = b"".join(part for _, part in sorted(transfer.parts.items()))
        if hashlib.sha256(data).digest() != transfer.head.digest:
            raise ValueError("not the bytes that were signed")
        return self._signer.opened(transfer.owner, transfer.subject, data)

    def check(self, name: str, subject: str) -> None:
        if name not in self._book:
            raise Refused(name, subject, f"no participant of this name; {nearest(name, self._book)}")
        super().check(name, subject)
        self._check_open()

    def _check_open(self) -> None:
        if self._over.is_set():
            raise LinkError(f"the link of {self.me} is closed")


class _Transfer:
    """An offer on its way here: its head, for which the owner vouches, and its parts by number. Thread-safe.

    asked: when each part may be asked for again; infinite while a question for it is open. refused: why the offer is
    invalid. touched, most: the time of the last pull, and its limit in bytes. begun_at: when the head arrived.
    """

    def __init__(self, owner: str, subject: str, signer: Signer) -> None:
        self.owner, self.subject, self.signer = owner, subject, signer
        self.touched, self.most, self.begun_at, self.refused, self.over = 0.0, 0, 0.0, "", False
        self._changed = Condition()
        self._restart()

    def _restart(self) -> None:
        self.head: Head | None = None
        self.parts: dict[int, bytes] = {}
        self.asked: dict[int, float] = {}

    @property
    def came(self) -> int:
        """Bytes that have arrived."""
        return sum(map(len, self.parts.values()))

    @property
    def complete(self) -> bool:
        """Whether all parts are there."""
        return len(self.parts) == self._count()

    def _count(self) -> int:
        return 1 if self.head is None else 1 + -(-max(0, self.head.size - FIRST) // PART)

    def next_question(self, end: float) -> tuple[int, bytes] | None:
        """Wait until there is a part to ask for, and return its number and the hash of the offer.

        None: all parts have arrived, or the offer was refused, or it is later than `end`.
        """
        with self._changed:
            while not (self.complete or self.refused or self.over):
                now = monotonic()
                times = {each: self.asked.get(each, 0.0) for each in range(self._count()) if each not in self.parts}
                if list(times.values()).count(math.inf) >= _AHEAD:
                    times = {}
                for number, time in times.items():
                    if time <= now:
                        self.asked[number] = math.inf
                        return number, self._digest(number)
                if now >= end:
                    break
                self._changed.wait(min([end, *times.values()]) - now)
            return None

    def receive(self, number: int, of: bytes, kind: bytes, data: bytes) -> None:
        """Process an answer; a second answer to the same question is dropped."""
        with self._changed:
            if self._is_awaited(number, of):
                self.asked[number] = monotonic() + _AGAIN
                try:
                    self._take(number, kind, data)
                except ValueError as error:
                    self.refused = str(error)
                self._changed.notify_all()

    def _take(self, number: int, kind: bytes, data: bytes) -> None:
        """Keep a part; raises ValueError if its length does not fit the head, so that nobody can fill the memory."""
        if kind == CHANGED:
            self._restart()
            return
        if number == 0 and kind[:1] == HEAD:
            head = self.signer.read(self.owner, self.subject, kind[1:])
            if head.size > self.most + self.signer.extra:
                raise ValueError(f"{head.size:,} bytes; at most {self.most:,} are taken")
            self.head, self.begun_at = head, monotonic()
        elif kind != REST or self.head is None:
            return
        before = FIRST + (number - 1) * PART if number else 0
        expected = max(0, min(self.head.size - before, PART if number else FIRST))
        if len(data) != expected:
            raise ValueError(f"{len(data):,} bytes in a part; expected {expected:,}")
        self.parts[number] = data

    def end(self, number: int, of: bytes) -> None:
        """Note that a question has ended; if it had no answer, it is asked again after a pause."""
        with self._changed:
            if self._is_awaited(number, of):
                self.asked[number] = monotonic() + _AGAIN
                self._changed.notify_all()

    def end_all(self) -> None:
        """Note that all questions have ended: the connection to the owner is gone, so that no answer comes."""
        with self._changed:
            self.asked = dict.fromkeys(self.asked, monotonic() + _AGAIN)
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def _is_awaited(self, number: int, of: bytes) -> bool:
        return self.asked.get(number) == math.inf and of == self._digest(number)

    def _digest(self, number: int) -> bytes:
        """Return the offer's hash for a question for a part: zeros for the first part, whose answer has the hash."""
        return self.head.digest if number and self.head is not None else bytes(DIGEST)


@contextmanager
def run_router(identity: Identity, book: AddressBook, listen: Iterable[str]) -> Iterator[zenoh.Session]:
    """Run a router, for participants that can only dial out: it passes sealed offers between them, and reads none.

    The router is no participant: it asks nothing and offers nothing, and each participant may ask and answer only in
    its own name. identity: that of the router. book: the participants. listen: locators at which they dial the router.
    Raises LinkError if it cannot listen at an address, ConfigError for invalid settings.
    """
    identity.check()
    places = [locator(place, "listen: ") for place in listen]
    names = sorted(set(book) - {identity.name})
    session = _session(router_config(identity, names, places), identity.name, places)
    token = session.liveliness().declare_token(f"{ALIVE}/{identity.name}")
    try:
        yield session
    finally:
        del token
        session.close()


def _close_at_exit(link: ZenohLink) -> None:
    """Close this link when the main thread ends.

    Python waits for the threads of a Zenoh session before it runs atexit functions, so otherwise it would never end.
    """
    if _WATCHED.acquire(blocking=False):  # once in a process
        Thread(target=_close_all, name="fedkin-end").start()
    _OPEN.add(link)


def _close_all() -> None:
    main_thread().join()
    for link in list(_OPEN):
        link.close()
