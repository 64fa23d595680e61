"""What a peer exchanges with its neighbours: in each exchange it offers a message, or none, to each, and pulls theirs.

All wait for each other. Who is gone or late is left out of that exchange, and not waited for again until it answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedkin import codec
from fedkin.engines.client_side import Outbox
from fedkin.engines.failures import words_of
from fedkin.errors import MethodError
from fedkin.flow import Message
from fedkin.network.link import LinkError, Missed
from fedkin.network.peer_join import AGAIN, SLICE, Meeting

__all__ = ["Heard", "Neighbours"]

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


class Neighbours(Meeting):
    """The exchanges with the others, one after another in each round; see `Meeting` for what it is made of."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.down: dict[str, _Down] = {}
        self.older: dict[tuple[str, int], Heard] = {}
        self.awaited: set[str] = set()  # whose connection is lost, and who is waited for

    def counted(self) -> frozenset[str]:
        return super().counted() - self.down.keys()

    def exchange(self, round: int, turn: int, near: Iterable[str], box: Outbox | None) -> dict[str, Heard]:
        """Offer to these neighbours (a box of None: the round has ended here), and return what they offer."""
        near = sorted(near)
        offers = _offers(near, box)
        self.sent.keep(round, turn, offers)
        for id, data in offers.items():
            self.put(id, round, turn, data)
        if turn == 0:
            self.tell(near)
            self.sent.drop({kept for rounds in self.offered.values() for kept in rounds})
        if box is None:
            return {}
        until, phase = time.monotonic() + self.settings.deadline, box.phase
        jobs = {id: self.pool.submit(self._pulled, id, round, turn, phase, until) for id in near}
        return {id: job.result() for id, job in jobs.items()}

    def _pulled(self, id: str, round: int, turn: int, phase: str, until: float) -> Heard:
        """Return what a neighbour offers in this exchange, awaited while it may come."""
        if words := self._is_down(id, round):
            return Heard(missing=words)
        silent = 0.0
        while (left := until - time.monotonic()) > 0:
            begun = time.monotonic()
            try:
                heard = self._newest(id, round, turn, phase, min(left, SLICE))
                self.down.pop(id, None)
                self.heard[id] = max(heard.round, self.heard.get(id, 0))
                if id in self.awaited:
                    self.awaited.discard(id)
                    self.say(f"round {round}: {id} is connected again")
                return heard
            except Missed:
                there = self.now_of(id) if id in self.link.present() else None
            except LinkError as error:
                return Heard(missing=f"refused: {words_of(error)}")
            if self.stop.is_set():
                return Heard(missing="late: this peer was stopped")
            if there is not None and there.left_out(round, turn):
                return Heard(missing=f"late: it left round {round} out")
            silent = 0.0 if there is not None else silent + time.monotonic() - begun
            if silent > self.settings.grace:
                away = id not in self.link.present()
                return self._missed(id, round, f"gone: {'the connection is lost' if away else 'it does not answer'}")
            if id not in self.awaited and id not in self.link.present():
                self.awaited.add(id)
                self.say(f"round {round}: {id} is not connected: waiting for at most {self.settings.grace:g} s")
        return self._missed(id, round, f"late: nothing within {self.settings.deadline:g} s")

    def _newest(self, id: str, round: int, turn: int, phase: str, timeout: float) -> Heard:
        """Return the newest message that may be used, if there is one within the timeout; raises Missed."""
        if self.settings.staleness:
            there = self.round_of(id)
            for number in range(round, max(round - self.settings.staleness, 1) - 1, -1):
                if there is not None and number > there:
                    continue
                heard = self.older.get((id, turn))
                if heard is None or heard.round != number:
                    with suppress(Missed):
                        heard = self._read(id, number, turn, AGAIN)
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
        self.awaited.discard(id)
        down = self.down.setdefault(id, _Down())
        down.misses += 1
        down.again = round + 2 ** min(down.misses, _LONGEST)
        self.tell(self.others)  # who starts again waits for those on whom others count
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
        there = self.round_of(id)
        if there is None:
            return self._missed(id, round, "gone: it does not answer").missing
        return "" if there >= round - 1 else f"late: it is in round {there}"


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
