"""The network side of a peer: how peers meet, and how they exchange messages in each round.

Peers wait for the peers that begin, compare their agreements, admit peers that come later, and announce their rounds.
In each exchange a peer offers a message, or none, to each neighbour, and pulls the neighbours' offers. All wait for
each other. A peer that is gone or late is left out of the exchange; others wait for it again only after it answers.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from threading import Event, Lock
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictStr

from fedkin import codec
from fedkin.engines.failures import words_of
from fedkin.engines.results import Missing, Undelivered
from fedkin.errors import MethodError, RunError, first_few
from fedkin.folders import made_private, replace
from fedkin.network.agreement import Agreement, Terms, difference
from fedkin.network.link import UNREACHED, Left, Link, LinkError, Missed
from fedkin.network.messages import Count, WireMessage, encode, read
from fedkin.network.settings import NetworkSettings
from fedkin.untrusted import error_text, escaped

SLICE = 0.5  # seconds of one pull
AGAIN = 0.1  # seconds between two looks at the others
_TERMS = 5.0  # seconds of one pull of an agreement, which may take long with many peers on one machine
_ROOM = 1 << 20  # bytes of an offer in addition to its message
_HINT = 20.0  # seconds without reaching anybody before a hint is shown
_STAY = 2.0  # seconds in which a refused peer may read why
_OFFERS = re.compile(r"(\d+)-(\d+)\.offers")  # the file of a round and a turn
_KEPT = 3  # last rounds with a neighbour whose messages are still offered to it


class Progress(WireMessage):
    """A peer's progress: its round, or the round with which it will begin while it waits for others.

    offered: (round, last turn) of its offers to the reader; it makes no new offers for rounds before its own. counts:
    the peers on which it counts in its round.
    """

    round: Count
    waits: StrictBool
    offered: Annotated[tuple[tuple[Count, Count], ...], Field(max_length=1000)] = ()
    counts: Annotated[tuple[StrictStr, ...], Field(max_length=100_000)] = ()

    @property
    def first(self) -> int:
        """The earliest round with an offer to the reader; its own round, if there is no offer yet."""
        return min((round for round, _ in self.offered), default=self.round)

    def left_out(self, round: int, turn: int) -> bool:
        """Whether the peer will make no offer in this turn of this round any more."""
        return self.round > round and dict(self.offered).get(round, -1) < turn


class PeerMessage(WireMessage):
    """A peer's offer in an exchange: a message of this phase, or none.

    ended: whether the peer's round has ended. refused: why its message is not sent, if it does not fit the form.
    """

    ended: StrictBool = False
    refused: Annotated[StrictStr, Field(max_length=300)] = ""
    phase: Annotated[StrictStr, Field(max_length=300)] = ""
    message: dict[str, Any] | None = None


class Contact(Enum):
    """How a neighbour is reached: this peer waits for it, also if the connection is lost, until it gives it up."""

    GOOD = 1
    LOST = 2
    GIVEN_UP = 3  # until a message of it comes


class PeerExchange:
    """The exchanges of a peer with all other peers in `names`.

    settings: the section `[network]`. limit: the largest message in bytes. outbox: the stored offers of this peer.
    stop: set it to make the peer leave. done: the number of rounds that were done before a restart. members: the peers
    that have come, with equal settings; none after `end`. last_heard: by peer, the last round with a message from it.
    """

    def __init__(
        self, link: Link, names: Iterable[str], agreement: Agreement, settings: NetworkSettings, limit: int,
        outbox: PeerOutbox, *, say: Callable[[str], None] = lambda line: None, stop: Event | None = None, done: int = 0,
    ) -> None:  # fmt: skip
        self.link, self.agreement, self.settings, self.outbox, self.say = link, agreement, settings, outbox, say
        self.stop = stop or Event()
        self.others = sorted(set(names) - {link.me})
        self.run = blake2b(repr(sorted({*self.others, link.me})).encode(), digest_size=4).hexdigest()
        self.size_limit = limit + _ROOM
        self.pool = ThreadPoolExecutor(max(2 * len(self.others), 1), thread_name_prefix="neighbour")
        # Arrivals. comparisons: those of agreements that have not ended.
        self.members, self.comparisons, self.hinted = set[str](), dict[str, Future[str | None]](), False
        # Progress. offered: by peer, the rounds with offers to it, each with its last turn.
        self.done, self.round, self.waits, self.progress_lock = done, done + 1, True, Lock()
        self.offered: dict[str, dict[int, int]] = {id: {} for id in self.others}
        # Exchanges.
        self.contact, self.last_heard = dict.fromkeys(self.others, Contact.GOOD), dict[str, int]()

    # -- arrivals -------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Wait for the peers that begin, and compare agreements; raises Left, and RunError if agreements differ.

        If others are in a round already, wait only for connected peers and for those on which others count, for at most
        `deadline`. In a resumed run, wait for one of the peers without limit, and for the others for at most `grace`.
        """
        for id in self.others:
            self.link.offer(id, f"{self.run}/terms", encode(Terms(agreement=self.agreement)))
        for number, turn, to, data in self.outbox.read():  # offers from before a restart of this peer
            if number <= self.round and to in self.others:
                self._put(to, number, turn, data)
        self.tell(self.others)
        self._wait()
        self.admit(timeout=None)

    def _wait(self) -> None:
        waited, left = -1, self.settings.grace if self.done else self.settings.deadline
        begun_at = time.monotonic()
        while missing := self._missing():
            if self.stop.is_set():
                raise Left
            if len(missing) != waited:
                waited = len(missing)
                self.say(f"waiting for {first_few(missing)}")
            since = time.monotonic()
            if not self.link.present().intersection(missing):
                self._note_nobody(begun_at)
            self._compare_with(missing)
            # A missing peer that is connected here is awaited, wherever the others are.
            seen = self.link.present().intersection(missing)
            begun = [] if seen else [there for there in self.progress_of_others().values() if not there.waits]
            # One on which they count may not be connected here yet: it may be starting again, as this peer is.
            if begun and not {id for there in begun for id in there.counts}.intersection(missing):
                return
            if begun or (self.done and self.members):
                left -= time.monotonic() - since
                if left <= 0:
                    return

    def _missing(self) -> list[str]:
        """Return the peers that must come before this peer begins, and have not come yet."""
        first, missing = self.settings.clients, [id for id in self.others if id not in self.members]
        if isinstance(first, int):
            return missing if len(self.members) + 1 < min(first, len(self.others) + 1) else []
        return [id for id in missing if id in first]

    def _compare_with(self, missing: Sequence[str]) -> None:
        """Compare agreements with missing peers that are connected; raises RunError for another agreement."""
        for id, words in self._compared(missing, None).items():
            if words:
                self._stay_connected(id)
                raise RunError(f"{id} cannot be a neighbour: {words}")

    def _note_nobody(self, since: float) -> None:
        """Say once what may be wrong if nobody is reached; raises RunError if the link knows the reason."""
        if trouble := self.link.trouble():
            raise RunError(trouble)
        if not self.hinted and time.monotonic() > since + _HINT:
            self.hinted = True
            self.say(f"nobody of them is reached ({UNREACHED})")
        self.stop.wait(AGAIN)

    def _stay_connected(self, id: str) -> None:
        """Stay connected for a moment, so that the other peer sees what differs too."""
        until = time.monotonic() + _STAY
        while id in self.link.present() and time.monotonic() < until and not self.stop.wait(AGAIN):
            pass

    def admit(self, timeout: float | None = 0.0) -> None:
        """Admit peers that have come since, and refuse peers with other settings.

        timeout: how long to wait for their agreements; those that come later are compared at the next call.
        """
        for id, words in self._compared(self.others, timeout).items():
            if not words:
                self.say(f"{id} is here")
                continue
            if id not in self.link.refused.counts:
                self.say(f"{id} is refused: {escaped(words, 400)}")
            self.link.refused.add(id, words)

    def _compared(self, ids: Iterable[str], timeout: float | None) -> dict[str, str]:
        """Compare agreements with those of these peers that are connected and no members yet.

        Return by peer what differs, as far as peers have answered in time; a peer with an equal agreement has an empty
        text, and is a member now.
        """
        for id in sorted(self.link.present().intersection(ids) - self.members - self.comparisons.keys()):
            self.comparisons[id] = self.pool.submit(self._difference, id)
        wait(self.comparisons.values(), timeout)
        ended = {id: self.comparisons.pop(id).result() for id, job in [*self.comparisons.items()] if job.done()}
        answered = {id: words for id, words in ended.items() if words is not None}
        self.members |= {id for id, words in answered.items() if not words}
        return answered

    def _difference(self, id: str) -> str | None:
        """Return what differs in the agreement of this peer, empty if nothing does; None if it does not answer yet."""
        try:
            there = read(Terms, self.link.pull(id, f"{self.run}/terms", _TERMS, self.size_limit)).agreement
        except Missed:
            return None
        except (MethodError, LinkError) as error:
            return words_of(error)
        words = difference(self.agreement, there)
        return f"{words} (there: at {id})" if words else ""

    # -- the progress of each peer --------------------------------------------------------------------------------

    def enter(self, round: int) -> None:
        """Announce the round of this peer."""
        self.round, self.waits = round, False
        self.tell(self.others)

    def tell(self, ids: Iterable[str]) -> None:
        """Tell these peers the progress of this peer."""
        with self.progress_lock:
            counts = tuple(id for id in sorted(self.members) if self.contact[id] is not Contact.GIVEN_UP)
            for id in ids:
                offered = tuple(sorted(self.offered[id].items()))
                now = Progress(round=self.round, waits=self.waits, offered=offered, counts=counts)
                self.link.offer(id, f"{self.run}/now", encode(now))

    def progress_of_others(self, ids: Iterable[str] | None = None) -> dict[str, Progress]:
        """Return the progress of these peers (None: of all), without peers that do not answer."""
        ids = self.others if ids is None else sorted(ids)
        places = zip(ids, self.pool.map(self.progress_of, ids), strict=True)
        return {id: there for id, there in places if there is not None}

    def progress_of(self, id: str) -> Progress | None:
        """Return the progress of this peer; None if it is not connected, or does not answer."""
        if id not in self.link.present():
            return None
        try:
            return read(Progress, self.link.pull(id, f"{self.run}/now", SLICE, self.size_limit))
        except (LinkError, MethodError):
            return None

    def end(self, round: int) -> None:
        """Stay connected until all connected peers have reached this round, and so have all offers of this peer."""
        self.members = set()  # it counts on nobody any more
        self.enter(round)
        until = time.monotonic() + self.settings.deadline
        while not self.stop.wait(AGAIN) and time.monotonic() < until:
            if all(there.round >= round for there in self.progress_of_others().values()):
                return

    def close(self) -> None:
        """Release the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def exchange(
        self, round: int, turn: int, messages: Mapping[str, PeerMessage]
    ) -> dict[str, PeerMessage | Undelivered]:  # fmt: skip
        """Offer each neighbour its message, and return what the neighbours sent.

        A neighbour to which this peer says that its round has ended is not awaited.
        """
        distinct = {id(message): message for message in messages.values()}
        encoded = {key: encode(message) for key, message in distinct.items()}
        offers = {name: encoded[id(message)] for name, message in sorted(messages.items())}
        self.outbox.keep(round, turn, offers)
        for name, data in offers.items():
            self._put(name, round, turn, data)
        if turn == 0:
            self.tell(offers)
            self.outbox.drop({kept for rounds in self.offered.values() for kept in rounds})
        until = time.monotonic() + self.settings.deadline
        awaited = [name for name in offers if not messages[name].ended]
        jobs = {name: self.pool.submit(self._pulled, name, round, turn, until) for name in awaited}
        return {name: job.result() for name, job in jobs.items()}

    def _put(self, id: str, round: int, turn: int, data: bytes) -> None:
        """Offer the message of an exchange, and withdraw those of old rounds, which nobody needs any more."""
        self.link.offer(id, f"{self.run}/r{round}/t{turn}", data)
        rounds = self.offered[id]
        rounds[round] = turn
        for old in sorted(rounds)[:-_KEPT]:
            self.link.withdraw(f"{self.run}/r{old}/", id)
            del rounds[old]

    def _pulled(self, id: str, round: int, turn: int, until: float) -> PeerMessage | Undelivered:
        """Return what a neighbour sent in this exchange; wait for it as long as it may still come."""
        if (why := self._why_given_up(id, round)) is not None:
            return why
        answered_at = time.monotonic()
        while (left := until - time.monotonic()) > 0:
            try:
                return self._read(id, round, turn, min(left, SLICE))
            except Missed:
                there = self.progress_of(id)
            if self.stop.is_set():
                return Undelivered(Missing.LATE, "this peer was stopped")
            if there is not None:
                if there.left_out(round, turn):
                    return Undelivered(Missing.LATE, f"it left round {round} out")
                answered_at = time.monotonic()
                continue
            away = id not in self.link.present()
            if time.monotonic() - answered_at > self.settings.grace:
                return self._give_up_on(id, Missing.GONE, "the connection is lost" if away else "it does not answer")
            if away and self.contact[id] is not Contact.LOST:
                self.contact[id] = Contact.LOST
                self.say(f"round {round}: {id} is not connected: waiting for at most {self.settings.grace:g} s")
        return self._give_up_on(id, Missing.LATE, f"nothing within {self.settings.deadline:g} s")

    def _read(self, id: str, round: int, turn: int, timeout: float) -> PeerMessage | Undelivered:
        """Return an offer, or why it is refused; raises Missed if there is none yet."""
        try:
            data = self.link.pull(id, f"{self.run}/r{round}/t{turn}", timeout, self.size_limit)
        except Missed:
            raise
        except LinkError as error:
            return Undelivered(Missing.REFUSED, words_of(error))
        self.last_heard[id] = max(round, self.last_heard.get(id, 0))
        if self.contact[id] is Contact.LOST:
            self.say(f"round {round}: {id} is connected again")
        self.contact[id] = Contact.GOOD
        try:
            offer = read(PeerMessage, data)
            return Undelivered(Missing.REFUSED, escaped(offer.refused, 300)) if offer.refused else offer
        except MethodError as error:
            self.link.refused.add(id, error_text(error))
            return Undelivered(Missing.REFUSED, error_text(error))

    def _give_up_on(self, id: str, missing: Missing, reason: str) -> Undelivered:
        """Note a neighbour for which this peer does not wait again before it answers."""
        self.contact[id] = Contact.GIVEN_UP
        self.tell(self.others)  # a peer that starts again waits for the peers on which others count
        return Undelivered(missing, reason)

    def _why_given_up(self, id: str, round: int) -> Undelivered | None:
        """Return why this peer does not wait for this neighbour now; None if it waits."""
        if self.contact[id] is not Contact.GIVEN_UP:
            return None
        if id not in self.link.present():
            return Undelivered(Missing.GONE, "not connected")
        there = self.progress_of(id)
        if there is None:
            return Undelivered(Missing.GONE, "it does not answer")
        return None if there.round >= round - 1 else Undelivered(Missing.LATE, f"it is in round {there.round}")


class PeerOutbox:
    """The stored offers of a peer in its last rounds, a file for each exchange, to offer them again after a kill.

    When all peers are killed at once, some have finished a round that others repeat, which then need its messages
    again. The files are flushed to the system, so that they survive a kill; after a loss of power an exchange may be
    missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made_private(folder, "what this peer sends")

    def keep(self, round: int, turn: int, offers: Mapping[str, bytes]) -> None:
        """Write the offers of an exchange by receiver, before they are made; equal offers are written once."""
        if not offers:
            return
        places = {data: str(index) for index, data in enumerate(dict.fromkeys(offers.values()))}
        parts = {name: codec.tensor_of(data) for data, name in places.items()}
        tree = {"to": {id: places[data] for id, data in offers.items()}, "parts": parts}
        path = self.folder / f"{round}-{turn}.offers"
        try:
            replace(path, codec.encode(tree))
        except OSError as error:
            raise RunError(f"{path}: what this peer sends cannot be written ({error})") from None

    def read(self) -> Iterator[tuple[int, int, str, bytes]]:
        """Yield (round, turn, receiver, offer) of all stored offers; a damaged file counts as lost."""
        for round, turn, path in self._files():
            with suppress(OSError, MethodError, KeyError, AttributeError):
                tree = codec.decode(path.read_bytes())
                for id, name in tree["to"].items():
                    yield round, turn, id, codec.bytes_of(tree["parts"][name])

    def life(self) -> str:
        """Return the id of this run of the peer, which stays the same after a restart of its process."""
        path = self.folder / "life"
        try:
            if not path.exists():
                replace(path, secrets.token_hex(8).encode())
            return path.read_text()
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error})") from None

    def drop(self, but: Container[int]) -> None:
        """Remove the files of all rounds except these."""
        for round, _, path in self._files():
            if round not in but:
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, int, Path]]:
        named = [(_OFFERS.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return sorted((int(match[1]), int(match[2]), path) for match, path in named if match)
