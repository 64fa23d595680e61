"""Links, a federation's interface to a network: participants make offers of bytes, and pull the offers of others.

An owner never pushes data: it makes an offer, and the receiver pulls it. A pull waits for the offer, and continues
after a network failure, so that offer and pull may come in either order and may be repeated.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from threading import Lock
from typing import Self

from fedkin.engines.secure_sums import Signatures, Unsigned
from fedkin.errors import RunError
from fedkin.untrusted import escaped, plain_word

# The default limit in bytes of an offer that a pull accepts.
LARGEST = 1 << 28
# What may be wrong if another participant is not reached.
UNREACHED = (
    "is it running, its address in the join file right and its port open; are both certificates valid and of this "
    "federation's CA, is this participant in its join file, and does no other process use this participant's key?"
)
_SUBJECT = re.compile(r"[a-z0-9._-]+(?:/[a-z0-9._-]+)*")
_LONGEST_SUBJECT = 200


class LinkError(RunError):
    """The network cannot do what was asked: the link is closed, or cannot be opened."""


class Left(Exception):
    """This participant leaves before the run has ended, as requested."""


class _NoOffer(LinkError):
    def __init__(self, owner: str, subject: str, why: str) -> None:
        super().__init__(f"{escaped(owner, 64)}: {escaped(subject, _LONGEST_SUBJECT)}: {why}")


class Missed(_NoOffer):
    """Nothing came in time: the owner offered nothing, or was not reached."""


class Refused(_NoOffer):
    """An offer with a wrong signature or size, or an invalid name or subject."""


class Refusals:
    """The refusals of a link by participant ("" if unknown): their number, and the newest reason."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}

    def add(self, who: str, why: str) -> None:
        """Add a refusal; thread-safe."""
        with self._lock:
            self.counts[who] += 1
            self.reasons[who] = why


def is_subject(text: str) -> bool:
    """Whether this is a valid subject: words of a-z 0-9 . _ - with / between them, at most 200 characters.

    >>> is_subject("run1/r3/t0/a0/train"), is_subject("run1//train"), is_subject("run1/*")
    (True, False, False)
    """
    return len(text) <= _LONGEST_SUBJECT and _SUBJECT.fullmatch(text) is not None


class Link(ABC):
    """A participant's end of the network; leave it with `with` or `close`. All methods are thread-safe.

    me: the participant's name. refused: the refused messages. bytes_in, bytes_out: bytes of offers pulled from, and
    served to, each participant; repeated bytes count again. latency: seconds that an offer to a connected participant
    and its answer may take, if that is long. signatures: how keys of secure sums are signed; without certificates they
    are not signed, so that a dishonest server could exchange them.
    """

    latency: float = 0.0
    signatures: Signatures = Unsigned()

    def __init__(self, me: str) -> None:
        self.me = me
        self.refused = Refusals()
        self.bytes_in: Counter[str] = Counter()
        self.bytes_out: Counter[str] = Counter()

    @abstractmethod
    def offer(self, to: str, subject: str, data: bytes) -> None:
        """Serve data to `to` alone until the offer is withdrawn or replaced, or the link is closed.

        A waiting pull gets the offer at once; the offer may be pulled again. Raises Refused for an invalid name or
        subject, and LinkError when the link is closed.
        """

    @abstractmethod
    def withdraw(self, prefix: str, to: str | None = None) -> None:
        """Withdraw the offers whose subject begins with `prefix`, only those to `to` if it is given."""

    @abstractmethod
    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        """Return the offer of `owner` to this participant under `subject`; wait for it at most `timeout` seconds.

        The pull continues after a cut link and a restart of the owner. Raises Missed if the offer has not arrived in
        time; the parts that arrived are kept for the next pull. Raises Refused for a wrong signature, more than `most`
        bytes, or an unknown name, and LinkError when the link is closed.
        """

    @abstractmethod
    def present(self) -> frozenset[str]:
        """Return the other participants that are connected now, as far as this participant sees."""

    def check(self, name: str, subject: str) -> None:
        """Raise Refused for an invalid name or subject."""
        if not plain_word(name) or name == self.me:
            raise Refused(name, subject, "not a name that another participant can have")
        if not is_subject(subject):
            raise Refused(name, subject, "not a subject: words of a-z 0-9 . _ - with / between them")

    def refusal(self, owner: str, subject: str, why: str) -> Refused:
        """Note a refused offer, and return the error to raise."""
        self.refused.add(owner, why)
        return Refused(owner, subject, why)

    def trouble(self) -> str:
        """Return why this link cannot reach anybody any more; empty if no reason is known."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Close the link; waiting pulls end with LinkError. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
