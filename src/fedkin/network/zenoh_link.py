"""Links over Eclipse Zenoh with mutual TLS. A participant that dials answers over its connection, and opens no port.

Access control by the name in the certificate, signatures over complete offers, and limits for each participant. Offers
are sent in parts: `Offers` answers the questions of others for them, and a `Transfer` asks for those of one offer.
"""

from __future__ import annotations

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
from fedkin.network.offers import DIGEST, Offers, Part, Question
from fedkin.network.signing import Sealer, Signer
from fedkin.network.transfers import Transfer
from fedkin.network.zenoh_config import ALIVE, KEY, participant_config, router_config
from fedkin.untrusted import error_text, escaped

try:
    import zenoh
    from zenoh.handlers import Callback
except ImportError:
    raise ConfigError("a federation over a network needs Zenoh: pip install 'fedkin[network]'") from None

_ASKED = 60.0  # seconds that one question may take: a part may wait for others on a slow link
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
        endpoints = [locator(endpoint, "listen: ") for endpoint in listen]
        self._revoked = revoked
        self._signer = self.signatures = (Sealer if router else Signer)(identity, self._book, self._revoked)
        self._present: set[str] = set()
        self._transfers: dict[tuple[str, str], Transfer] = {}
        self._state = Condition()
        self._over = Event()
        self._stop = zenoh.CancellationToken()
        self._session = _session(
            participant_config(identity, self._book, endpoints, dialled, router), self.me, endpoints
        )
        self._offers = Offers(self._book)
        _close_at_exit(self)
        try:
            keys = [f"{KEY}/{self.me}/{name}" for name in self._book]
            self._queryables = [self._session.declare_queryable(key, self._asked) for key in keys]
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

    # -- offering -------------------------------------------------------------------------------------------------

    def offer(self, to: str, subject: str, data: bytes) -> None:
        self.check(to, subject)
        self._offers.put(to, subject, self._signer.write(to, subject, bytes(data)))

    def withdraw(self, prefix: str, to: str | None = None) -> None:
        self._offers.remove(prefix, to)

    def _asked(self, query: Any) -> None:
        """Hand a question to the offers; Zenoh waits for this to return, so nothing is answered here."""
        asker = str(query.key_expr).rpartition("/")[2]
        wanted = query.attachment.to_bytes() if query.attachment is not None else b""
        part = Part(int.from_bytes(wanted[:4], "big"), wanted[4 : 4 + DIGEST])
        subject = wanted[4 + DIGEST :].decode("ascii", "replace")
        if not is_subject(subject):
            why = "not a question that can be"
        elif asker in self._revoked:
            why = "it is revoked"
        else:
            answer = partial(self._answer, query, asker)
            why = self._offers.ask(Question(asker, subject, part, answer, query.drop))
        if why:
            self.refused.add(asker if asker in self._book else "", why)
            query.drop()

    def _answer(self, query: Any, asker: str, kind: bytes, data: bytes) -> None:
        # The link may be cut at any moment: the asker asks again.
        with suppress(zenoh.ZError), query:
            with self._state:
                self.bytes_out[asker] += len(data) + len(kind)
            query.reply(query.key_expr, data, attachment=kind)

    def _sweep(self) -> None:
        while not self._over.wait(_HELD):
            self._offers.drop_waiting()

    # -- pulling --------------------------------------------------------------------------------------------------

    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        self.check(owner, subject)
        end = monotonic() + timeout
        transfer = self._transfer(owner, subject, most)
        while (part := transfer.next_part(end)) is not None:
            self._ask(transfer, part)
        transfer.touched = monotonic()
        self._check_open()
        if not (transfer.complete or transfer.refused):
            why = "not offered" if owner in self.present() else f"not reached ({UNREACHED})"
            why = why if transfer.head is None else f"{transfer.came:,} of {transfer.head.size:,} bytes came"
            raise Missed(owner, subject, f"{why} within {timeout:g} s")
        try:
            return transfer.opened()
        except ValueError as error:
            raise self.refusal(owner, subject, str(error)) from None
        finally:
            with self._state:
                if self._transfers.get((owner, subject)) is transfer:
                    del self._transfers[owner, subject]

    def _transfer(self, owner: str, subject: str, most: int) -> Transfer:
        """Return the transfer of this offer, which may have begun with an earlier pull."""
        now, key = monotonic(), (owner, subject)
        with self._state:
            self._check_open()
            for old in [each for each, other in self._transfers.items() if other.touched < now - _KEPT]:
                del self._transfers[old]
            transfer = self._transfers.get(key)
            # An offer whose parts began to arrive after its last pull may have been replaced since.
            if transfer is None or transfer.touched < transfer.begun_at < now - _FRESH:
                transfer = self._transfers[key] = Transfer(owner, subject, self._signer)
            transfer.touched, transfer.most = now, most
            return transfer

    def _ask(self, transfer: Transfer, part: Part) -> None:
        """Ask for a part; the transfer gets the answer, even after this pull has ended."""

        def received(reply: Any) -> None:
            if reply.ok is not None and reply.ok.attachment is not None:
                kind, data = reply.ok.attachment.to_bytes(), reply.ok.payload.to_bytes()
                with self._state:
                    self.bytes_in[transfer.owner] += len(kind) + len(data)
                transfer.receive(part, kind, data)

        try:
            self._session.get(
                f"{KEY}/{transfer.owner}/{self.me}",
                Callback(received, partial(transfer.end, part), indirect=False),
                timeout=_ASKED, cancellation_token=self._stop,
                attachment=part.number.to_bytes(4, "big") + part.of + transfer.subject.encode(),
                priority=zenoh.Priority.BACKGROUND if part.number else zenoh.Priority.DATA_HIGH,
                target=zenoh.QueryTarget.ALL, consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )  # fmt: skip
        except zenoh.ZError:
            self._check_open()
            transfer.end(part)

    # -- presence -------------------------------------------------------------------------------------------------

    def present(self) -> frozenset[str]:
        with self._state:
            return frozenset(name for name in self._present if name not in self._revoked)

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

    def trouble(self) -> str:
        try:
            self._identity.check()
        except ConfigError as error:
            return str(error)
        return ""

    def check(self, name: str, subject: str) -> None:
        if name not in self._book:
            raise Refused(name, subject, f"no participant of this name; {nearest(name, self._book)}")
        super().check(name, subject)
        self._check_open()

    def _check_open(self) -> None:
        if self._over.is_set():
            raise LinkError(f"the link of {self.me} is closed")

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


@contextmanager
def run_router(identity: Identity, book: AddressBook, listen: Iterable[str]) -> Iterator[zenoh.Session]:
    """Run a router, for participants that can only dial out: it passes sealed offers between them, and reads none.

    The router is no participant: it asks nothing and offers nothing, and each participant may ask and answer only in
    its own name. identity: that of the router. book: the participants. listen: locators at which they dial the router.
    Raises LinkError if it cannot listen at an address, ConfigError for invalid settings.
    """
    identity.check()
    endpoints = [locator(endpoint, "listen: ") for endpoint in listen]
    names = sorted(set(book) - {identity.name})
    session = _session(router_config(identity, names, endpoints), identity.name, endpoints)
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
