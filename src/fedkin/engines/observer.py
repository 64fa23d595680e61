"""Observers of an engine, for tests and live views."""

from __future__ import annotations

from collections.abc import Mapping

from fedkin.engines.transport import Envelope
from fedkin.flow import Ask, Message

__all__ = ["Observer", "Witness"]


class Observer:
    """An observer of an engine; subclasses override methods, and must not change their arguments."""

    def travelled(self, envelope: Envelope) -> None:
        """Called when a message has arrived, with the message as its receiver sees it."""

    def answered(self, round: int, ask: Ask, replies: Mapping[str, Message]) -> None:
        """Called when clients have answered a request of the server."""


class Witness(Observer):
    """An observer that stores envelopes in the order of delivery, and (round, request, replies) of the server."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.asks: list[tuple[int, Ask, Mapping[str, Message]]] = []

    def travelled(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    def answered(self, round: int, ask: Ask, replies: Mapping[str, Message]) -> None:
        self.asks.append((round, ask, dict(replies)))
