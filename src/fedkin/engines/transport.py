"""Transports of messages between participants: as objects, as bytes, or with losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedkin import codec
from fedkin.errors import MethodError
from fedkin.flow import Message
from fedkin.keys import rng
from fedkin.untrusted import said

__all__ = ["SERVER", "BytesTransport", "Envelope", "Lossy", "Transport"]

SERVER = "server"


class Envelope(NamedTuple):
    """A message with its sender and receiver.

    round, phase: the round and phase of the message. turn: the number of the exchange in the round, from 0. run: an id
    of the run.
    """

    round: int
    phase: str
    turn: int
    sender: str
    receiver: str
    message: Message
    run: str = ""

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

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        """Return the order in which participants are served in this round."""
        return sorted(ids)

    def carry(self, envelope: Envelope) -> Envelope | None:
        """Return the envelope as its receiver sees it; None if it is lost."""
        return envelope


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


class Lossy(Transport):
    """The transport that loses exchanges with a probability; another transport delivers the other messages.

    Of the lost exchanges between the server and a client, half are lost on the way to the client, and half on the way
    back. Draws are keyed by (seed, client, round, phase), so a lost exchange does not change the other draws.
    """

    def __init__(self, inner: Transport, dropout: float, seed: int) -> None:
        self.inner, self.dropout, self.seed = inner, dropout, seed

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        return self.inner.order(ids, round)

    def carry(self, envelope: Envelope) -> Envelope | None:
        return None if self.loses(envelope) else self.inner.carry(envelope)

    def loses(self, envelope: Envelope) -> bool:
        """Whether this message does not arrive."""
        there = envelope.sender == SERVER
        if not there and envelope.receiver != SERVER:
            return self._draw(envelope.sender, envelope, f"share {envelope.turn} to {envelope.receiver}") < self.dropout
        draw = self._draw(envelope.receiver if there else envelope.sender, envelope, envelope.phase)
        return draw < self.dropout / 2 if there else self.dropout / 2 <= draw < self.dropout

    def _draw(self, client: str, envelope: Envelope, purpose: str) -> float:
        return float(rng(self.seed, client, envelope.round, purpose, "dropout").random())
