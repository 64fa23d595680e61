"""The post of a simulation: it counts what is sent, has it carried and checked, and tells observers what arrived."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from fedkin.engines.accounting.clock import Clock
from fedkin.engines.accounting.traffic import Scales
from fedkin.engines.base import Traffic
from fedkin.engines.failures import words_of
from fedkin.engines.observer import Observer
from fedkin.engines.transport import SERVER, Envelope, Transport
from fedkin.forms import Fault

__all__ = ["Check", "Post"]

# What looks at envelopes and finds faults: see `Door.look`.
Check = Callable[[Sequence[Envelope]], Sequence[Fault | None]]


class Post:
    """The messages of a simulation.

    traffic: a line for each message of the round so far. One that is missing has the reason in its line; if it was sent
    it counts. refused, unsent: of the last exchange, what the door refused for its form, and what could not be sent.
    """

    def __init__(self, transport: Transport, clock: Clock, observers: Sequence[Observer]) -> None:
        self.transport, self.clock, self.observers = transport, clock, list(observers)
        self.scales = Scales()
        self.traffic: list[Traffic] = []
        self.refused: list[tuple[Envelope, Fault]] = []
        self.unsent: dict[str, Exception] = {}

    def send(
        self, envelopes: Sequence[Envelope], there: Container[str] | None = None, check: Check | None = None
    ) -> list[Envelope]:
        """Those that arrive, as they arrive. there: receivers that still listen (None: all). check: at the door."""
        missing: dict[int, str] = {}
        with self.clock.of("messages"):
            rows = self._weighed(envelopes, missing)
        carried = self._carried(envelopes, there, missing)
        arrived = list(carried.values()) if check is None else self._checked(carried, check, missing)
        for place, words in missing.items():
            rows[place] = (rows[place] or _nothing(envelopes[place]))._replace(missing=words)
        self.traffic += [row for row in rows if row is not None]
        for observer in self.observers:
            for envelope in arrived:
                observer.travelled(envelope)
        return arrived

    def _carried(
        self, envelopes: Sequence[Envelope], there: Container[str] | None, missing: dict[int, str]
    ) -> dict[int, Envelope]:
        """Return those that come to their receivers, by place, and note those that are lost."""
        going = dict(enumerate(envelopes))
        if missing or there is not None:
            going = {
                place: envelope for place, envelope in going.items()
                if place not in missing and (there is None or envelope.receiver in there)
            }  # fmt: skip
        if self.transport.sure:
            return going
        carried = {}
        for place, envelope in going.items():
            came = self.transport.carry(envelope)
            if came is None:
                missing[place] = self.transport.loses(envelope) or "lost"
            else:
                carried[place] = came
        return carried

    def miss(self, envelope: Envelope, words: str) -> None:
        """Add a line for a message that is missing, without having been sent in this exchange."""
        self.traffic.append(_nothing(envelope)._replace(missing=words))

    def _weighed(self, envelopes: Sequence[Envelope], missing: dict[int, str]) -> list[Traffic | None]:
        """Return the line of each message, and why some cannot be sent; raises the error of what the server sends."""
        self.unsent = {}
        try:
            return self.scales.weigh(envelopes)
        except Exception:
            if any(envelope.sender == SERVER for envelope in envelopes):
                raise
        rows: list[Traffic | None] = [None] * len(envelopes)
        for place, envelope in enumerate(envelopes):
            try:
                (rows[place],) = self.scales.weigh([envelope])
            except Exception as error:  # the sender may have put anything into it
                missing[place] = f"failed: {words_of(error)}"
                self.unsent[envelope.sender] = error
        return rows

    def _checked(self, carried: Mapping[int, Envelope], check: Check, missing: dict[int, str]) -> list[Envelope]:
        """Return what passes the door, and note the others as missing."""
        arrived, self.refused = [], []
        with self.clock.of("door"):
            faults = check(list(carried.values()))
        if not any(faults):
            return list(carried.values())
        for (place, envelope), fault in zip(carried.items(), faults, strict=True):
            if fault is None:
                arrived.append(envelope)
                continue
            missing[place] = f"{'stale' if fault.kind == 'stale' else 'refused'}: {fault.words}"
            if fault.kind == "form":
                self.refused.append((envelope, fault))
        return arrived


def _nothing(envelope: Envelope) -> Traffic:
    """Return the line of a message of no bytes."""
    return Traffic(envelope.round, envelope.sender, envelope.receiver, envelope.phase, 0, 0)
