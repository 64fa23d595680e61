"""Faults as a setting: the section `[faults]`, with keyed randomness, and the transport that makes them happen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkin.engines.transport import SERVER, Envelope, Transport
from fedkin.errors import MethodError
from fedkin.flow import Message
from fedkin.keys import rng
from fedkin.settings import Settings

__all__ = ["KINDS", "Crashed", "Faults", "Faulty", "spoiled"]

Kind = Literal["nan", "inf", "shape", "type", "missing", "extra", "count"]
KINDS: tuple[Kind, ...] = ("nan", "inf", "shape", "type", "missing", "extra", "count")


class Faults(Settings):
    """The section `[faults]`: how often what goes wrong. All draws are keyed by the run's seed, client and round.

    dropout: probability in [0, 1) that a client's exchange with the server is lost. before: the share of these that
    are lost on the way to the client, before it trains; the others are lost on the way back. Between peers it is the
    probability that a message is lost.
    late: probability that a reply comes `late_by` rounds later. stale: that it is of the round before.
    crash: that a client fails in a phase, or a peer in a round, before it has done anything.
    garbage: that a reply, or what a peer shares, is spoiled in one of these `kinds`: a number that is "nan" or "inf",
    tensors of another "shape", a value of another "type", a "missing" or an "extra" field, a "count" out of range.
    gone: probability that a client leaves in some round and never comes back; it is evaluated with what it had.
    """

    dropout: float = Field(0.0, ge=0, lt=1)
    before: float = Field(0.5, ge=0, le=1)
    late: float = Field(0.0, ge=0, lt=1)
    late_by: int = Field(1, ge=1)
    stale: float = Field(0.0, ge=0, lt=1)
    crash: float = Field(0.0, ge=0, lt=1)
    garbage: float = Field(0.0, ge=0, lt=1)
    kinds: tuple[Kind, ...] = Field(KINDS, min_length=1)
    gone: float = Field(0.0, ge=0, lt=1)

    @property
    def on_the_way(self) -> bool:
        """Whether any of these faults happen to messages."""
        return any((self.dropout, self.late, self.stale, self.garbage, self.gone))

    def crashes(self, seed: int, id: str, round: int, phase: str) -> bool:
        """Whether this client fails in this phase."""
        return self.crash > 0 and float(rng(seed, id, round, phase, "crash").random()) < self.crash


class Crashed(MethodError):
    """A client failed because `faults.crash` has it so."""


class Faulty(Transport):
    """The transport that loses, delays, ages and spoils messages; another transport delivers the others.

    An exchange between the server and a client is lost one way or the other, never both. Draws are keyed by (seed,
    client, round, phase), so that one fault changes no other draw.
    """

    def __init__(self, inner: Transport, faults: Faults, seed: int, rounds: int = 1) -> None:
        self.inner, self.faults, self.seed, self.rounds = inner, faults, seed, rounds
        self.held: list[tuple[int, Envelope]] = []

    def order(self, ids: Iterable[str], round: int) -> list[str]:
        return self.inner.order(ids, round)

    def carry(self, envelope: Envelope) -> Envelope | None:
        what = self.loses(envelope)
        if what is not None:
            if what == "late":
                self.held.append((envelope.round + self.faults.late_by, envelope._replace(message=Message())))
            return None
        carried = self.inner.carry(envelope)
        if carried is None or envelope.sender == SERVER:
            return carried
        if self._draw(envelope, "garbage") < self.faults.garbage:
            draw = rng(self.seed, envelope.sender, envelope.round, _occasion(envelope), "kind of garbage")
            kind = self.faults.kinds[int(draw.integers(len(self.faults.kinds)))]
            carried = carried._replace(message=spoiled(carried.message, kind))
        if self._draw(envelope, "stale") < self.faults.stale:
            carried = carried._replace(round=envelope.round - 1)
        return carried

    def loses(self, envelope: Envelope) -> str | None:
        """Why this message does not arrive in its round: "gone", "lost" or "late"; None: it does."""
        faults, there = self.faults, envelope.sender == SERVER
        if any(self._gone(id) <= envelope.round for id in (envelope.sender, envelope.receiver) if id != SERVER):
            return "gone"
        if faults.dropout and self._dropped(envelope):
            return "lost"
        return "late" if not there and self._draw(envelope, "late") < faults.late else None

    def arrived(self, round: int) -> list[Envelope]:
        # Without their contents, which nobody reads.
        here = [envelope for due, envelope in self.held if due <= round]
        self.held = [(due, envelope) for due, envelope in self.held if due > round]
        return here

    def state(self) -> list[Any]:
        return [[due, *envelope._replace(message=None)] for due, envelope in self.held]  # type: ignore[arg-type]

    def restore(self, state: list[Any]) -> None:
        self.held = [(due, Envelope(*rest)._replace(message=Message())) for due, *rest in state]

    def _dropped(self, envelope: Envelope) -> bool:
        dropout, there = self.faults.dropout, envelope.sender == SERVER
        again = f" again {envelope.attempt}" if envelope.attempt else ""
        if not there and envelope.receiver != SERVER:
            occasion = f"share {envelope.turn} to {envelope.receiver}{again}"
            return self._number(envelope.sender, envelope.round, occasion, "dropout") < dropout
        client = envelope.receiver if there else envelope.sender
        draw = self._number(client, envelope.round, envelope.phase + again, "dropout")
        before = dropout * self.faults.before
        return draw < before if there else before <= draw < dropout

    def _gone(self, id: str) -> float:
        """Return the round from which on a client is gone."""
        if not self.faults.gone:
            return float("inf")
        draw = rng(self.seed, id, "gone")
        return 1 + int(draw.integers(self.rounds)) if draw.random() < self.faults.gone else float("inf")

    def _draw(self, envelope: Envelope, fault: str) -> float:
        if not getattr(self.faults, fault):
            return 1.0
        return self._number(envelope.sender, envelope.round, _occasion(envelope), fault)

    def _number(self, client: str, round: int, occasion: str, fault: str) -> float:
        return float(rng(self.seed, client, round, occasion, fault).random())


def _occasion(envelope: Envelope) -> str:
    """Return what keys a fault of a message: all receivers of what a peer shares get the same."""
    again = f" again {envelope.attempt}" if envelope.attempt else ""
    return f"{envelope.phase} {envelope.turn}{again}"


def spoiled(message: Mapping[str, Any], kind: str) -> Message:
    """Return the message with this fault; one that has no place for it gets a field that nobody asked for.

    >>> spoiled(Message(n=3), "count")["n"]
    1000000000000
    """
    fields = dict(message)
    change = {
        "nan": lambda leaf: _with(leaf, float("nan")), "inf": lambda leaf: _with(leaf, float("inf")),
        "shape": lambda leaf: leaf.new_zeros(*leaf.shape, 2) if isinstance(leaf, Tensor) else leaf,
        "count": lambda leaf: 10**12 if type(leaf) is int else leaf,
        "type": lambda leaf: "garbage",
    }.get(kind)  # fmt: skip
    other: dict[str, Any] = {} if kind == "missing" else {**fields, "garbage": 1}
    made = other if change is None else _changed(fields, change)
    same = len(made) == len(fields) and all(made[name] is value for name, value in fields.items())
    return Message(**{**made, "garbage": float("nan")} if same else made)


def _changed(tree: Any, change: Any) -> Any:
    """Return the tree with all leaves changed; parts without a change are the same objects."""
    if not isinstance(tree, Mapping):
        return change(tree)
    made = {name: _changed(item, change) for name, item in tree.items()}
    return tree if all(made[name] is item for name, item in tree.items()) else made


def _with(leaf: Any, number: float) -> Any:
    """Return the leaf with its first number replaced, if it has floats."""
    if isinstance(leaf, float):
        return number
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not leaf.numel():
        return leaf
    made = leaf.detach().clone(memory_format=torch.contiguous_format)
    made.view(-1)[0] = number
    return made
