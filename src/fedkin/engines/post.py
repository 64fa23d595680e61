"""The post of a simulation: it counts what is sent, has it carried, and tells observers what arrived."""

from __future__ import annotations

from collections.abc import Container, Sequence

from fedkin.engines.accounting.clock import Clock
from fedkin.engines.accounting.traffic import Scales
from fedkin.engines.base import Traffic
from fedkin.engines.observer import Observer
from fedkin.engines.transport import Envelope, Transport

__all__ = ["Post"]


class Post:
    """traffic: a line for each message of the round so far; a message that is lost was sent, and counts."""

    def __init__(self, transport: Transport, clock: Clock, observers: Sequence[Observer]) -> None:
        self.transport, self.clock, self.observers = transport, clock, list(observers)
        self.scales = Scales()
        self.traffic: list[Traffic] = []

    def send(self, envelopes: Sequence[Envelope], there: Container[str] | None = None) -> list[Envelope]:
        """Those that arrive, as they arrive. there: receivers that still listen (None: all)."""
        with self.clock.of("messages"):
            self.traffic += self.scales.weigh(envelopes)
        carry = self.transport.carry
        listened = (sent for sent in envelopes if there is None or sent.receiver in there)
        arrived = [envelope for sent in listened if (envelope := carry(sent)) is not None]
        for observer in self.observers:
            for envelope in arrived:
                observer.travelled(envelope)
        return arrived
