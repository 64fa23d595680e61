"""What a peer exchanges with its neighbours: in each exchange it offers a message, or none, to each, and pulls theirs.

All wait for each other. Who is gone or late is left out of that exchange, and not waited for again until it answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from threading import Event

from fedkin import codec
from fedkin.engines.client_side import Outbox
from fedkin.engines.failures import words_of
from fedkin.errors import FedkinError, MethodError, RunError
from fedkin.flow import Message
from fedkin.network.agreement import Agreement, unlike
from fedkin.network.link import Link, LinkError, Missed
from fedkin.network.node import Left
from fedkin.network.sent import Sent
from fedkin.network.settings import NetworkSettings
from fedkin.untrusted import shown

__all__ = ["Heard", "Neighbours"]

_ROOM = 1 << 20  # bytes of an offer beside its message
_SLICE = 0.5  # seconds of one look for a message
_AGAIN = 0.1  # seconds until the others are looked at again
_LINGER = 2.0  # seconds for which one that is refused may look why
_KEPT = 2  # rounds before the current one whose messages are still offered
_LONGEST = 4  # one that does not answer is tried again after 2, 4, 8 and then every 2 ** 4 rounds


@dataclass(frozen=True)
class Heard:
    """What a neighbour offers in an exchange: its message with the phase, or neither.

    ended: whether its round has ended. missing: why there is nothing. round: of which the message is.
    """

    phase: str = ""
    message: Message | None = None
    ended: bool = False
    missing: str = ""
    round: int = 0


@dataclass
class _Down:
    """A neighbour that was missed: how often, and the round in which it is tried again."""

    misses: int = 0
    again: int = 0


class Neighbours:
    """The link of a peer to all others, `names`.

    settings: those of `[network]`. limit: the largest message in bytes. stop: set when the peer is to leave. sent: what
    it offered before it was started again. known: those that have been there, with equal settings. heard: the last
    round of each of which a message came.
    """

    def __init__(
        self, link: Link, names: Iterable[str], mine: Agreement, settings: NetworkSettings, limit: int, *,
        say: Callable[[str], None] = lambda line: None, stop: Event | None = None, sent: Sent | None = None,
    ) -> None:  # fmt: skip
        self.link, self.mine, self.settings, self.say, self.stop = link, mine, settings, say, stop or Event()
        self.others = sorted(set(names) - {link.me})
        told = repr(sorted({*self.others, link.me}))
        self.run = blake2b(told.encode(), digest_size=4).hexdigest()
        self.most = limit + _ROOM
        self.sent = sent or Sent(None)
        self.known: set[str] = set()
        self.compared: dict[str, Future[str | None]] = {}
        self.heard: dict[str, int] = {}
        self.down: dict[str, _Down] = {}
        self.older: dict[tuple[str, int], Heard] = {}
        self.pool = ThreadPoolExecutor(max(2 * len(self.others), 1), thread_name_prefix="neighbour")

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Wait until those are there who begin, and compare what they have; raises Left, and RunError for what differs.

        Where others are in a round already, it waits for nobody who is not there. If this peer goes on with a run, it
        waits for one of them as long as it takes, and for the others for at most `grace`.
        """
        told = codec.encode(self.mine.tree())
        for id in self.others:
            self.link.offer(id, f"{self.run}/terms", told)
        self._say_round(0)
        waited, left = -1, self.settings.grace
        while missing := self._awaited():
            if self.stop.is_set():
                raise Left
            if len(missing) != waited:
                waited = len(missing)
                self.say(f"waiting for {', '.join(missing[:8])}{' and others' if len(missing) > 8 else ''}")
            since = time.monotonic()
            for id, words in zip(missing, self.pool.map(self._compare, missing), strict=True):
                if words:
                    self._linger(id)
                    raise RunError(f"{id} cannot be a neighbour: {words}")
            if not self.link.present().intersection(missing) and any(self.now().values()):
                return
            if self.sent and self.known:
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
            there = Agreement.of(codec.decode(self.link.pull(id, f"{self.run}/terms", _SLICE, self.most)))
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
        while id in self.link.present() and time.monotonic() < until and not self.stop.wait(_AGAIN):
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

    def again(self, round: int) -> None:
        """Offer again what was offered in the rounds up to this one, before this peer was started again."""
        for number, turn, to, data in self.sent.read():
            if number <= round and to in self.others:
                self.link.offer(to, f"{self.run}/r{number}/t{turn}", data)

    def enter(self, round: int) -> None:
        """Say which round this peer is in, and forget messages of rounds that nobody asks for any more."""
        self._say_round(round)
        first = round - _KEPT - self.settings.staleness
        self.link.withdraw(f"{self.run}/r{first - 1}/")
        self.sent.drop(first)

    def _say_round(self, round: int) -> None:
        told = codec.encode({"round": round})
        for id in self.others:
            self.link.offer(id, f"{self.run}/now", told)

    def now(self) -> dict[str, int]:
        """Return the round in which each of the others is that answers."""
        present = [id for id in self.others if id in self.link.present()]
        told = zip(present, self.pool.map(self._round_of, present), strict=True)
        return {id: round for id, round in told if round is not None}

    def _round_of(self, id: str) -> int | None:
        try:
            return int(codec.decode(self.link.pull(id, f"{self.run}/now", _SLICE, self.most))["round"])
        except (LinkError, MethodError, KeyError, TypeError, ValueError):
            return None

    def exchange(self, round: int, turn: int, near: Iterable[str], box: Outbox | None) -> dict[str, Heard]:
        """Offer to these neighbours (a box of None: the round has ended here), and return what they offer."""
        near = sorted(near)
        offers = _offers(near, box)
        self.sent.keep(round, turn, offers)
        for id, data in offers.items():
            self.link.offer(id, f"{self.run}/r{round}/t{turn}", data)
        if box is None:
            return {}
        until, phase = time.monotonic() + self.settings.deadline, box.phase
        jobs = {id: self.pool.submit(self._pulled, id, round, turn, phase, until) for id in near}
        return {id: job.result() for id, job in jobs.items()}

    def _pulled(self, id: str, round: int, turn: int, phase: str, until: float) -> Heard:
        """Return what a neighbour offers in this exchange, awaited while it may come."""
        if words := self._is_down(id, round):
            return Heard(missing=words)
        silent, last = 0.0, False
        while (left := until - time.monotonic()) > 0:
            begun = time.monotonic()
            try:
                heard = self._newest(id, round, turn, phase, min(left, _SLICE))
                self.down.pop(id, None)
                self.heard[id] = max(heard.round, self.heard.get(id, 0))
                return heard
            except Missed:
                there = self._round_of(id) if id in self.link.present() else None
            except LinkError as error:
                return Heard(missing=f"refused: {words_of(error)}")
            if self.stop.is_set():
                return Heard(missing="late: this peer was stopped")
            if last:
                return Heard(missing=f"late: it left round {round} out")
            # Whoever is in a later round has offered all of this one, or left it out: a last look shows which.
            last = there is not None and there > round
            silent = 0.0 if there is not None else silent + time.monotonic() - begun
            if silent > self.settings.grace:
                away = id not in self.link.present()
                return self._missed(id, round, f"gone: {'the connection is lost' if away else 'it does not answer'}")
        return self._missed(id, round, f"late: nothing within {self.settings.deadline:g} s")

    def _newest(self, id: str, round: int, turn: int, phase: str, timeout: float) -> Heard:
        """Return the newest message that may be used, if there is one within the timeout; raises Missed."""
        if self.settings.staleness:
            there = self._round_of(id)
            for number in range(round, max(round - self.settings.staleness, 1) - 1, -1):
                if there is not None and number > there:
                    continue
                heard = self.older.get((id, turn))
                if heard is None or heard.round != number:
                    with suppress(Missed):
                        heard = self._read(id, number, turn, _AGAIN)
                if heard is not None and heard.round == number and (number == round or _fits(heard, phase)):
                    self.older[id, turn] = heard
                    return heard
        return self._read(id, round, turn, timeout)

    def _read(self, id: str, round: int, turn: int, timeout: float) -> Heard:
        data = self.link.pull(id, f"{self.run}/r{round}/t{turn}", timeout, self.most)
        try:
            tree = codec.decode(data)
            if "message" not in tree:
                return Heard(ended=bool(tree["ended"]), round=round)
            return Heard(str(tree["phase"]), Message(**tree["message"]), round=round)
        except (MethodError, KeyError, TypeError) as error:
            words = f"not a message ({words_of(error)})"
            self.link.refused.add(id, f"r{round}/t{turn}", words)
            return Heard(missing=f"refused: {words}", round=round)

    # -- back-off ---------------------------------------------------------------------------------------------------

    def _missed(self, id: str, round: int, words: str) -> Heard:
        """Note a neighbour that is not waited for again before it answers, and in fewer and fewer rounds."""
        down = self.down.setdefault(id, _Down())
        down.misses += 1
        down.again = round + 2 ** min(down.misses, _LONGEST)
        return Heard(missing=words)

    def _is_down(self, id: str, round: int) -> str:
        """Return why this neighbour is not waited for now; empty if it is."""
        down = self.down.get(id)
        if down is None:
            return ""
        if id not in self.link.present():
            down.again = round  # it is tried as soon as it is back
            return "gone: not connected"
        if round < down.again:
            return f"gone: tried again in round {down.again}"
        there = self._round_of(id)
        if there is None:
            return self._missed(id, round, "gone: it does not answer").missing
        return "" if there >= round - 1 else f"late: it is in round {there}"

    def end(self, round: int) -> None:
        """Stay until the others that are there have all that this peer offers."""
        self.enter(round)
        until = time.monotonic() + self.settings.deadline
        while not self.stop.wait(_AGAIN) and time.monotonic() < until:
            if all(there >= round for there in self.now().values()):
                return

    def close(self) -> None:
        """Release the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)


def _offers(near: Iterable[str], box: Outbox | None) -> dict[str, bytes]:
    """Return what is offered to each neighbour; one message to many is encoded once."""
    nothing, encoded = codec.encode({"ended": box is None}), dict[int, bytes]()
    for message in box.messages.values() if box is not None else ():
        if id(message) not in encoded:
            assert box is not None
            encoded[id(message)] = codec.encode({"ended": False, "phase": box.phase, "message": dict(message)})
    messages = box.messages if box is not None else {}
    return {name: encoded[id(messages[name])] if name in messages else nothing for name in near}


def _fits(heard: Heard, phase: str) -> bool:
    """Whether an earlier message can be used in this phase."""
    return not heard.ended and not heard.missing and (heard.message is None or heard.phase == phase)
