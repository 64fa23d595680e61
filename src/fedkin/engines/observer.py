"""Who may watch an engine at work: tests, trackers, a live view."""

from __future__ import annotations

from collections.abc import Mapping

from fedkin.engines.transport import Envelope
from fedkin.flow import Ask, Message

__all__ = ["Observer", "Witness"]


class Observer:
    """Hears what an engine does. Override what is of interest, and change nothing that is given."""

    def travelled(self, envelope: Envelope) -> None:
        """A message has arrived, as its receiver sees it."""

    def answered(self, round: int, ask: Ask, replies: Mapping[str, Message]) -> None:
        """The server's request has been answered by these clients."""


class Witness(Observer):
    """Keeps all it hears: envelopes in the order of delivery; (round, request, replies) of the server."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.asks: list[tuple[int, Ask, Mapping[str, Message]]] = []

    def travelled(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    def answered(self, round: int, ask: Ask, replies: Mapping[str, Message]) -> None:
        self.asks.append((round, ask, dict(replies)))
