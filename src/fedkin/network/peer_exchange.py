"""What a peer exchanges with the others: how they meet, and in each round the messages of one exchange after another.

Peers wait for those who begin, compare what they have, take in who comes later, and say in which round they are. In
each exchange a peer offers a message, or none, to each neighbour, and pulls theirs. All wait for each other. Who is
gone or late is left out of that exchange, and not waited for again until it answers.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Event, Lock
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictStr

from fedkin import codec
from fedkin.engines.failures import words_of
from fedkin.engines.results import Missing, Outbox
from fedkin.errors import MethodError, RunError
from fedkin.flow import Message
from fedkin.folders import made_private, replace
from fedkin.network.agreement import Agreement, Terms, unlike
from fedkin.network.link import UNREACHED, Left, Link, LinkError, Missed
from fedkin.network.messages import Count, Sent, encode, read
from fedkin.network.settings import NetworkSettings
from fedkin.untrusted import error_text, escaped

SLICE = 0.5  # seconds of one look for an offer
AGAIN = 0.1  # seconds until the others are looked at again
_TERMS = 5.0  # seconds of one look for what another has: with many peers on one machine an answer may take long
_ROOM = 1 << 20  # bytes of an offer beside its message
_HINT = 20.0  # seconds after which one that reaches nobody is told what may be wrong
_LINGER = 2.0  # seconds for which one that is refused may look why
_OFFERS = re.compile(r"(\d+)-(\d+)\.offers")  # the file of a round and a turn
_KEPT = 3  # exchanges of rounds with a neighbour whose messages are still offered to it


class Whereabouts(Sent):
    """Where a peer is: its round, or the one that it will begin with while it waits for others.

    offered: (round, last turn) of what it offers to the reader. Of a round before its own it offers nothing more.
    counts: on whom it counts in its round.
    """

    round: Count
    waits: StrictBool
    offered: Annotated[tuple[tuple[Count, Count], ...], Field(max_length=1000)] = ()
    counts: Annotated[tuple[StrictStr, ...], Field(max_length=100_000)] = ()

    @property
    def first(self) -> int | None:
        """The earliest round of which it offers something to the reader; None: of no round."""
        return min((round for round, _ in self.offered), default=None)

    def left_out(self, round: int, turn: int) -> bool:
        """Whether it will not offer anything in this turn of this round any more."""
        return self.round > round and dict(self.offered).get(round, -1) < turn


class PeerMessage(Sent):
    """What a peer offers in an exchange: a message of this phase, or none. ended: whether its round has ended."""

    ended: StrictBool = False
    phase: Annotated[StrictStr, Field(max_length=300)] = ""
    message: dict[str, Any] | None = None


@dataclass(frozen=True)
class Heard:
    """What came of a neighbour in an exchange: its message with the phase, or neither.

    ended: whether its round has ended. missing, reason: why there is nothing.
    """

    missing: Missing | None = None
    reason: str = ""
    phase: str = ""
    message: Message | None = None
    ended: bool = False


class PeerExchange:
    """The link of a peer to all others, `names`.

    settings: those of `[network]`. limit: the largest message in bytes. outbox: what it offered before it was started
    again. stop: set when the peer is to leave. done: the rounds that it had done then. members: those that have been
    there, with equal settings. heard: the last round of each of which a message came.
    """

    def __init__(
        self, link: Link, names: Iterable[str], agreement: Agreement, settings: NetworkSettings, limit: int,
        outbox: PeerOutbox, *, say: Callable[[str], None] = lambda line: None, stop: Event | None = None, done: int = 0,
    ) -> None:  # fmt: skip
        self.link, self.agreement, self.settings, self.outbox, self.say = link, agreement, settings, outbox, say
        self.stop = stop or Event()
        self.others = sorted(set(names) - {link.me})
        self.run = blake2b(repr(sorted({*self.others, link.me})).encode(), digest_size=4).hexdigest()
        self.most = limit + _ROOM
        self.done, self.round, self.waits, self.ended = done, done + 1, True, False
        # The rounds of which something is offered to each of the others, with the last turn.
        self.offered: dict[str, dict[int, int]] = {id: {} for id in self.others}
        self.members: set[str] = set()
        self.hinted = False
        self.telling = Lock()
        self.comparisons: dict[str, Future[str | None]] = {}
        self.heard: dict[str, int] = {}
        self.down: set[str] = set()  # who was missed, and did not answer since
        self.awaited: set[str] = set()  # whose connection is lost, and who is waited for
        self.pool = ThreadPoolExecutor(max(2 * len(self.others), 1), thread_name_prefix="neighbour")

    # -- arrivals -------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Wait until those are there who begin, and compare what they have; raises Left, and RunError for what differs.

        Where others are in a round already, it waits for those who are there and on whom they count, for at most
        `deadline`, and for nobody else. If this peer goes on with a run, it waits for one of them as long as it takes,
        and for the others for at most `grace`.
        """
        for id in self.others:
            self.link.offer(id, f"{self.run}/terms", encode(Terms(agreement=self.agreement)))
        for number, turn, to, data in self.outbox.read():  # what was offered before this peer was started again
            if number <= self.round and to in self.others:
                self._put(to, number, turn, data)
        self.tell(self.others)
        self._wait()
        self.admit()
        wait(self.comparisons.values())
        self.admit()

    def _wait(self) -> None:
        waited, left = -1, self.settings.grace if self.done else self.settings.deadline
        begun_at = time.monotonic()
        while missing := self._missing():
            if self.stop.is_set():
                raise Left
            if len(missing) != waited:
                waited = len(missing)
                self.say(f"waiting for {', '.join(missing[:8])}{' and others' if len(missing) > 8 else ''}")
            since, present = time.monotonic(), self.link.present()
            here = [id for id in missing if id in present]
            if not here:
                self._note_nobody(begun_at)
            for id, words in zip(here, self.pool.map(self._compare, here), strict=True):
                if words:
                    self._linger(id)
                    raise RunError(f"{id} cannot be a neighbour: {words}")
            begun = list[Whereabouts]()
            if not self.link.present().intersection(missing):
                begun = [there for there in self.whereabouts().values() if not there.waits]
                # One on whom they count may not have been seen here yet: it is started again, as this peer is.
                if begun and not {id for there in begun for id in there.counts}.intersection(missing):
                    return
            if begun or (self.done and self.members):
                left -= time.monotonic() - since
                if left <= 0:
                    return

    def _note_nobody(self, since: float) -> None:
        """Say once what may be wrong where nobody is reached; raises RunError for a trouble that is known."""
        if trouble := self.link.trouble():
            raise RunError(trouble)
        if not self.hinted and time.monotonic() > since + _HINT:
            self.hinted = True
            self.say(f"nobody of them is reached ({UNREACHED})")
        self.stop.wait(AGAIN)

    def _missing(self) -> list[str]:
        """Return who has to be there before this peer begins, and was not yet."""
        first, missing = self.settings.clients, [id for id in self.others if id not in self.members]
        if isinstance(first, int):
            return missing if len(self.members) + 1 < min(first, len(self.others) + 1) else []
        return [id for id in missing if id in first]

    def _compare(self, id: str) -> str | None:
        """Take in a participant whose settings are equal; returns what differs, and None if it says nothing yet."""
        try:
            there = read(Terms, self.link.pull(id, f"{self.run}/terms", _TERMS, self.most)).agreement
        except Missed:
            return None
        except (MethodError, LinkError) as error:
            return words_of(error)
        if words := unlike(self.agreement, there):
            return f"{words} (there: at {id})"
        self.members.add(id)
        return ""

    def _linger(self, id: str) -> None:
        """Stay for a moment, so that the other one sees what differs too."""
        until = time.monotonic() + _LINGER
        while id in self.link.present() and time.monotonic() < until and not self.stop.wait(AGAIN):
            pass

    def admit(self) -> None:
        """Take in who has come since, without waiting for it; who has other settings is refused, and harms nobody."""
        for id in self.link.present().intersection(self.others) - self.members:
            if id not in self.comparisons:
                self.comparisons[id] = self.pool.submit(self._compare, id)
            elif (job := self.comparisons[id]).done():
                if words := job.result():
                    if id not in self.link.refused.counts:
                        self.say(f"{id} is refused: {escaped(words, 400)}")
                    self.link.refused.add(id, "terms", words)
                del self.comparisons[id]
        for id in [id for id, job in self.comparisons.items() if id in self.members and job.done()]:
            self.say(f"{id} is here")
            del self.comparisons[id]

    # -- where each is --------------------------------------------------------------------------------------------

    def enter(self, round: int) -> None:
        """Say which round this peer is in."""
        self.round, self.waits = round, False
        self.tell(self.others)

    def tell(self, ids: Iterable[str]) -> None:
        """Say to these where this peer is."""
        with self.telling:
            counts = () if self.ended else tuple(sorted(self.members - self.down))
            for id in ids:
                offered = tuple(sorted(self.offered[id].items()))
                now = Whereabouts(round=self.round, waits=self.waits, offered=offered, counts=counts)
                self.link.offer(id, f"{self.run}/now", encode(now))

    def whereabouts(self, ids: Iterable[str] | None = None) -> dict[str, Whereabouts]:
        """Return where each of the others is that answers (of these; None: of all)."""
        here = self.link.present()
        present = [id for id in (self.others if ids is None else sorted(ids)) if id in here]
        places = zip(present, self.pool.map(self.whereabouts_of, present), strict=True)
        return {id: there for id, there in places if there is not None}

    def whereabouts_of(self, id: str) -> Whereabouts | None:
        """Return where this one is; None if it does not answer."""
        try:
            return read(Whereabouts, self.link.pull(id, f"{self.run}/now", SLICE, self.most))
        except (LinkError, MethodError):
            return None

    def end(self, round: int) -> None:
        """Stay until the others that are there have all that this peer offers."""
        self.ended = True
        self.enter(round)
        until = time.monotonic() + self.settings.deadline
        while not self.stop.wait(AGAIN) and time.monotonic() < until:
            if all(there.round >= round for there in self.whereabouts().values()):
                return

    def close(self) -> None:
        """Release the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def exchange(self, round: int, turn: int, near: Iterable[str], box: Outbox | None) -> dict[str, Heard]:
        """Offer to these neighbours (a box of None: the round has ended here), and return what they offer."""
        near = sorted(near)
        offers = _offers(near, box)
        self.outbox.keep(round, turn, offers)
        for id, data in offers.items():
            self._put(id, round, turn, data)
        if turn == 0:
            self.tell(near)
            self.outbox.drop({kept for rounds in self.offered.values() for kept in rounds})
        if box is None:
            return {}
        until = time.monotonic() + self.settings.deadline
        jobs = {id: self.pool.submit(self._pulled, id, round, turn, until) for id in near}
        return {id: job.result() for id, job in jobs.items()}

    def _put(self, id: str, round: int, turn: int, data: bytes) -> None:
        """Offer the message of an exchange, and forget those of rounds that nobody asks for any more."""
        self.link.offer(id, f"{self.run}/r{round}/t{turn}", data)
        rounds = self.offered[id]
        rounds[round] = turn
        for old in sorted(rounds)[:-_KEPT]:
            self.link.withdraw(f"{self.run}/r{old}/", id)
            del rounds[old]

    def _pulled(self, id: str, round: int, turn: int, until: float) -> Heard:
        """Return what a neighbour offers in this exchange, awaited while it may come."""
        if (down := self._is_down(id, round)) is not None:
            return down
        silent = 0.0
        while (left := until - time.monotonic()) > 0:
            begun = time.monotonic()
            try:
                heard = self._read(id, round, turn, min(left, SLICE))
            except Missed:
                there = self.whereabouts_of(id) if id in self.link.present() else None
            except LinkError as error:
                return Heard(Missing.REFUSED, words_of(error))
            else:
                self.down.discard(id)
                self.heard[id] = max(round, self.heard.get(id, 0))
                if id in self.awaited:
                    self.awaited.discard(id)
                    self.say(f"round {round}: {id} is connected again")
                return heard
            if self.stop.is_set():
                return Heard(Missing.LATE, "this peer was stopped")
            if there is not None and there.left_out(round, turn):
                return Heard(Missing.LATE, f"it left round {round} out")
            silent = 0.0 if there is not None else silent + time.monotonic() - begun
            away = id not in self.link.present()
            if silent > self.settings.grace:
                return self._missed(id, Missing.GONE, "the connection is lost" if away else "it does not answer")
            if away and id not in self.awaited:
                self.awaited.add(id)
                self.say(f"round {round}: {id} is not connected: waiting for at most {self.settings.grace:g} s")
        return self._missed(id, Missing.LATE, f"nothing within {self.settings.deadline:g} s")

    def _read(self, id: str, round: int, turn: int, timeout: float) -> Heard:
        data = self.link.pull(id, f"{self.run}/r{round}/t{turn}", timeout, self.most)
        try:
            offer = read(PeerMessage, data)
        except MethodError as error:
            self.link.refused.add(id, f"r{round}/t{turn}", error_text(error))
            return Heard(Missing.REFUSED, error_text(error))
        message = None if offer.message is None else Message(**offer.message)
        return Heard(phase=offer.phase, message=message, ended=offer.ended)

    def _missed(self, id: str, missing: Missing, reason: str) -> Heard:
        """Note a neighbour that is not waited for again before it answers."""
        self.awaited.discard(id)
        self.down.add(id)
        self.tell(self.others)  # who starts again waits for those on whom others count
        return Heard(missing, reason)

    def _is_down(self, id: str, round: int) -> Heard | None:
        """Return why this neighbour is not waited for now; None if it is."""
        if id not in self.down:
            return None
        if id not in self.link.present():
            return Heard(Missing.GONE, "not connected")
        there = self.whereabouts_of(id)
        if there is None:
            return Heard(Missing.GONE, "it does not answer")
        return None if there.round >= round - 1 else Heard(Missing.LATE, f"it is in round {there.round}")


class PeerOutbox:
    """The offers of a peer in its last rounds, a file for each exchange, which it offers again after a kill.

    When all peers are killed at once, some have finished a round that others repeat, and these need its messages once
    more. The files are flushed to the system, so that they survive a kill; after a loss of power an exchange may be
    missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made_private(folder, "what this peer sends")

    def keep(self, round: int, turn: int, offers: Mapping[str, bytes]) -> None:
        """Write the offers of an exchange by receiver, before they are made; equal ones are written once."""
        if not offers:
            return
        places = {data: str(place) for place, data in enumerate(dict.fromkeys(offers.values()))}
        parts = {name: codec.tensor_of(data) for data, name in places.items()}
        tree = {"to": {id: places[data] for id, data in offers.items()}, "parts": parts}
        path = self.folder / f"{round}-{turn}.offers"
        try:
            replace(path, codec.encode(tree))
        except OSError as error:
            raise RunError(f"{path}: what this peer sends cannot be written ({error})") from None

    def read(self) -> Iterator[tuple[int, int, str, bytes]]:
        """Yield (round, turn, receiver, offer) of all that is kept; a damaged file counts as lost."""
        for round, turn, path in self._files():
            with suppress(OSError, MethodError, KeyError, AttributeError):
                tree = codec.decode(path.read_bytes())
                for id, name in tree["to"].items():
                    yield round, turn, id, codec.bytes_of(tree["parts"][name])

    def life(self) -> str:
        """Return what names this run of the peer, also after a restart of its process."""
        path = self.folder / "life"
        try:
            if not path.exists():
                replace(path, secrets.token_hex(8).encode())
            return path.read_text()
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error})") from None

    def drop(self, but: Container[int]) -> None:
        """Forget all rounds but these."""
        for round, _, path in self._files():
            if round not in but:
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, int, Path]]:
        named = [(_OFFERS.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return sorted((int(match[1]), int(match[2]), path) for match, path in named if match)


def _offers(near: Iterable[str], box: Outbox | None) -> dict[str, bytes]:
    """Return what is offered to each neighbour; one message to many is encoded once."""
    if box is None:
        return dict.fromkeys(near, encode(PeerMessage(ended=True)))
    nothing, encoded = encode(PeerMessage()), dict[int, bytes]()
    for message in box.messages.values():
        if id(message) not in encoded:
            encoded[id(message)] = encode(PeerMessage(phase=box.phase, message=dict(message)))
    return {name: encoded[id(box.messages[name])] if name in box.messages else nothing for name in near}
