"""How peers meet: they wait for who begins, compare what they have, take in who comes later, and say where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from threading import Event, Lock

from fedkin import codec
from fedkin.engines.failures import words_of
from fedkin.errors import FedkinError, MethodError, RunError
from fedkin.network.agreement import Agreement, unlike
from fedkin.network.link import Left, Link, LinkError, Missed
from fedkin.network.peer_outbox import Sent
from fedkin.network.settings import NetworkSettings
from fedkin.untrusted import shown

__all__ = ["AGAIN", "SLICE", "Meeting", "Now"]

SLICE = 0.5  # seconds of one look for an offer
_TERMS = 5.0  # seconds of one look for what another has: with many peers on one machine an answer may take long
AGAIN = 0.1  # seconds until the others are looked at again
_ROOM = 1 << 20  # bytes of an offer beside its message
_LINGER = 2.0  # seconds for which one that is refused may look why
_KEPT = 3  # exchanges of rounds with a neighbour whose messages are still offered to it


@dataclass(frozen=True)
class Now:
    """What another peer says of itself: its round, or the one that it will begin with while it waits for others.

    offered: the rounds of which it offers something to this peer, each with its last turn. Of a round before its own
    it offers nothing more. counts: on whom it counts in its round.
    """

    round: int
    waits: bool
    offered: Mapping[int, int]
    counts: frozenset[str] = frozenset()

    @property
    def first(self) -> int | None:
        """The earliest round of which it offers something to this peer; None: of no round."""
        return min(self.offered, default=None)

    def left_out(self, round: int, turn: int) -> bool:
        """Whether it will not offer anything in this turn of this round any more."""
        return self.round > round and self.offered.get(round, -1) < turn


class Meeting:
    """The link of a peer to all others, `names`.

    settings: those of `[network]`. limit: the largest message in bytes. stop: set when the peer is to leave. sent: what
    it offered before it was started again. done: the rounds that it had done then. known: those that have been there,
    with equal settings. heard: the last round of each of which a message came.
    """

    def __init__(
        self, link: Link, names: Iterable[str], mine: Agreement, settings: NetworkSettings, limit: int, *,
        say: Callable[[str], None] = lambda line: None, stop: Event | None = None, sent: Sent | None = None,
        done: int = 0,
    ) -> None:  # fmt: skip
        self.link, self.mine, self.settings, self.say, self.stop = link, mine, settings, say, stop or Event()
        self.others = sorted(set(names) - {link.me})
        told = repr(sorted({*self.others, link.me}))
        self.run = blake2b(told.encode(), digest_size=4).hexdigest()
        self.most = limit + _ROOM
        self.sent = Sent(None) if sent is None else sent
        self.done, self.round, self.waits, self.ended = done, done + 1, True, False
        # The rounds of which something is offered to each of the others, with the last turn.
        self.offered: dict[str, dict[int, int]] = {id: {} for id in self.others}
        self.known: set[str] = set()
        self.telling = Lock()
        self.compared: dict[str, Future[str | None]] = {}
        self.heard: dict[str, int] = {}
        self.pool = ThreadPoolExecutor(max(2 * len(self.others), 1), thread_name_prefix="neighbour")

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Wait until those are there who begin, and compare what they have; raises Left, and RunError for what differs.

        Where others are in a round already, it waits for those who are there and on whom they count, for at most
        `deadline`, and for nobody else. If this peer goes on with a run, it waits for one of them as long as it takes,
        and for the others for at most `grace`.
        """
        told = codec.encode(self.mine.tree())
        for id in self.others:
            self.link.offer(id, f"{self.run}/terms", told)
        self._again()
        self.tell(self.others)
        self._wait()
        for id in self.link.present().intersection(self.others) - self.known:
            self.compared[id] = self.pool.submit(self._compare, id)
        for job in self.compared.values():
            job.result()
        self.admit()

    def _wait(self) -> None:
        waited, left = -1, self.settings.grace if self.done else self.settings.deadline
        while missing := self._awaited():
            if self.stop.is_set():
                raise Left
            if len(missing) != waited:
                waited = len(missing)
                self.say(f"waiting for {', '.join(missing[:8])}{' and others' if len(missing) > 8 else ''}")
            since, present = time.monotonic(), self.link.present()
            here = [id for id in missing if id in present]
            if not here:
                self.stop.wait(AGAIN)
            for id, words in zip(here, self.pool.map(self._compare, here), strict=True):
                if words:
                    self._linger(id)
                    raise RunError(f"{id} cannot be a neighbour: {words}")
            begun = list[Now]()
            if not self.link.present().intersection(missing):
                begun = [there for there in self.now().values() if not there.waits]
                # One on whom they count may not have been seen here yet: it is started again, as this peer is.
                if begun and not {id for there in begun for id in there.counts}.intersection(missing):
                    return
            if begun or (self.done and self.known):
                left -= time.monotonic() - since
                if left <= 0:
                    return

    def _awaited(self) -> list[str]:
        """Return who has to be there before this peer begins, and was not yet."""
        first, missing = self.settings.clients, [id for id in self.others if id not in self.known]
        if isinstance(first, int):
            return missing if len(self.known) + 1 < min(first, len(self.others) + 1) else []
        return [id for id in missing if id in first]

    def _compare(self, id: str) -> str | None:
        """Take in a participant whose settings are equal; returns what differs, and None if it says nothing yet."""
        try:
            there = Agreement.of(codec.decode(self.link.pull(id, f"{self.run}/terms", _TERMS, self.most)))
        except Missed:
            return None
        except (MethodError, FedkinError) as error:
            return words_of(error)
        if words := unlike(self.mine, there):
            return f"{words} (there: at {id})"
        self.known.add(id)
        return ""

    def _linger(self, id: str) -> None:
        """Stay for a moment, so that the other one sees what differs too."""
        until = time.monotonic() + _LINGER
        while id in self.link.present() and time.monotonic() < until and not self.stop.wait(AGAIN):
            pass

    def admit(self) -> None:
        """Take in who has come since, without waiting for it; who has other settings is refused, and harms nobody."""
        for id in self.link.present().intersection(self.others) - self.known:
            if id not in self.compared:
                self.compared[id] = self.pool.submit(self._compare, id)
            elif (job := self.compared[id]).done():
                if words := job.result():
                    if id not in self.link.refused.counts:
                        self.say(f"{id} is refused: {shown(words, 400)}")
                    self.link.refused.add(id, "terms", words)
                del self.compared[id]
        for id in [id for id, job in self.compared.items() if id in self.known and job.done()]:
            self.say(f"{id} is here")
            del self.compared[id]

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _again(self) -> None:
        """Offer again what was offered before this peer was started again."""
        for number, turn, to, data in self.sent.read():
            if number <= self.round and to in self.others:
                self.put(to, number, turn, data)

    def enter(self, round: int) -> None:
        """Say which round this peer is in."""
        self.round, self.waits = round, False
        self.tell(self.others)

    def counted(self) -> frozenset[str]:
        """Return those on whom this peer counts."""
        return frozenset(self.known)

    def tell(self, ids: Iterable[str]) -> None:
        """Say to these where this peer is."""
        with self.telling:
            counts = [] if self.ended else sorted(self.counted())
            for id in ids:
                offered = [list(each) for each in sorted(self.offered[id].items())]
                told = {"round": self.round, "waits": self.waits, "offered": offered, "counts": counts}
                self.link.offer(id, f"{self.run}/now", codec.encode(told))

    def put(self, id: str, round: int, turn: int, data: bytes) -> None:
        """Offer the message of an exchange, and forget those of rounds that nobody asks for any more."""
        self.link.offer(id, f"{self.run}/r{round}/t{turn}", data)
        rounds = self.offered[id]
        rounds[round] = turn
        for old in sorted(rounds)[: -_KEPT - self.settings.staleness]:
            self.link.withdraw(f"{self.run}/r{old}/", id)
            del rounds[old]

    def now(self, ids: Iterable[str] | None = None) -> dict[str, Now]:
        """Return what each of the others says of itself that answers (of these; None: of all)."""
        here = self.link.present()
        present = [id for id in (self.others if ids is None else sorted(ids)) if id in here]
        told = zip(present, self.pool.map(self.now_of, present), strict=True)
        return {id: there for id, there in told if there is not None}

    def now_of(self, id: str) -> Now | None:
        """Return what this one says of itself; None if it does not answer."""
        try:
            tree = codec.decode(self.link.pull(id, f"{self.run}/now", SLICE, self.most))
            offered = {int(round): int(turn) for round, turn in tree["offered"]}
            return Now(int(tree["round"]), bool(tree["waits"]), offered, frozenset(map(str, tree["counts"])))
        except (LinkError, MethodError, KeyError, TypeError, ValueError):
            return None

    def round_of(self, id: str) -> int | None:
        """Return the round in which another peer says that it is; None if it does not answer."""
        there = self.now_of(id)
        return None if there is None else there.round

    def end(self, round: int) -> None:
        """Stay until the others that are there have all that this peer offers."""
        self.ended = True
        self.enter(round)
        until = time.monotonic() + self.settings.deadline
        while not self.stop.wait(AGAIN) and time.monotonic() < until:
            if all(there.round >= round for there in self.now().values()):
                return

    def close(self) -> None:
        """Release the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)
