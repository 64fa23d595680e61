"""The results of a round: its outcome and its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from fedkin.flow import Message

if TYPE_CHECKING:
    from fedkin.graph import Graph

SERVER = "server"


class Missing(StrEnum):
    """Why a message does not count; `text` says it in words."""

    text: str

    LOST = "lost", "lost on the way"
    LATE = "late", "late"
    GONE = "gone", "of clients that are gone"
    STALE = "stale", "of another round"
    REFUSED = "refused", "refused by validation"
    FAILED = "failed", "never made, because the client failed"
    SPENT = "spent", "not sent, because the client's privacy budget is spent"

    def __new__(cls, value: str, text: str = "") -> Missing:
        """Return the member with its text."""
        member = str.__new__(cls, value)
        member._value_, member.text = value, text
        return member


class Undelivered(NamedTuple):
    """Why a message does not count: the kind of failure, and what exactly was wrong."""

    missing: Missing
    reason: str = ""


class Traffic(NamedTuple):
    """A message that was sent: sender, receiver, phase, bytes and floats.

    missing, reason: as in `Undelivered`; None and empty if the message counts. A message that could not be sent at all
    has 0 bytes.
    """

    round: int
    sender: str
    receiver: str
    phase: str
    bytes: int = 0
    floats: int = 0
    missing: Missing | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Outbox:
    """The messages of a peer in one exchange, by receiver, and the phase under which they are recorded."""

    phase: str
    messages: Mapping[str, Message]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a round.

    sampled: ids of the clients that took part. graph: the learned graph. traffic: the messages. samples: training
    samples processed, by id. inferred: samples in inference (Infer). flops: floating-point operations of both.
    skipped: why the round was skipped; empty if it was not. events: ids of clients by event: "joined", "left" or
    "drifted".
    """

    round: int
    sampled: tuple[str, ...]
    graph: Graph | None
    traffic: tuple[Traffic, ...]
    samples: Mapping[str, int]
    inferred: int = 0
    flops: float = 0.0
    skipped: str = ""
    events: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
