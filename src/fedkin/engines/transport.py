"""Transports of messages between participants: as objects or as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from fedkin import codec
from fedkin.errors import MethodError
from fedkin.flow import Message
from fedkin.keys import rng
from fedkin.untrusted import said

__all__ = ["SERVER", "BytesTransport", "Envelope", "Transport"]

SERVER = "server"


class Envelope(NamedTuple):
    """A message with its sender and receiver.

    round, phase: the round and phase of the message. turn: the number of the exchange in the round, from 0. run: an id
    of the run. attempt: how often this was asked before in the round.
    """

    round: int
    phase: str
    turn: int
    sender: str
    receiver: str
    message: Message
    run: str = ""
    attempt: int = 0

    def to_bytes(self) -> bytes:
        """Return the envelope and its message as safetensors bytes."""
        return codec.encode({**self._asdict(), "message": dict(self.message)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Return the envelope that `to_bytes` wrote; raises MethodError for other bytes."""
        fields = codec.decode(data)
        try:
            return cls(**{**fields, "message": Message(**fields["message"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MethodError(f"not an envelope: {len(data)} bytes ({said(error)})") from None


class Transport:
    """The transport that delivers each message as the object that was sent, to clients in the order of their ids."""

    @property
    def sure(self) -> bool:
        """Whether every message arrives as the object that was sent, so that none needs to be carried by itself."""
        return getattr(self.carry, "__func__", None) is Transport.carry

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        """Return the order in which participants are served in this round."""
        return sorted(ids)

    def carry(self, envelope: Envelope) -> Envelope | None:
        """Return the envelope as its receiver sees it; None if it is lost."""
        return envelope

    def loses(self, envelope: Envelope) -> str | None:
        """Return why `carry` returns None for this envelope, in a word."""
        return "lost"

    def arrived(self, round: int) -> list[Envelope]:
        """Return what was sent in an earlier round and comes in this one."""
        return []

    def state(self) -> list[Any]:
        """Return what is still under way, for a checkpoint."""
        return []

    def restore(self, state: list[Any]) -> None:
        """Go back to what `state` returned."""


class BytesTransport(Transport):
    """The transport that delivers each message through bytes, to clients in a shuffled order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        names = sorted(ids)
        drawn = rng(self.seed, "", round, "loopback order").permutation(len(names))
        return [names[i] for i in drawn]

    def carry(self, envelope: Envelope) -> Envelope | None:
        return Envelope.from_bytes(envelope.to_bytes())
