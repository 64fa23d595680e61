"""What a federation needs of a network: participants offer bytes to each other, and pull what others offer to them.

An owner never sends of its own accord: it offers, and whom it is for pulls. A pull waits until there is an offer, and
goes on after the network was cut, so that the two may come in either order, and again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Self

from fedkin.engines.secure_sums import Signatures, Unsigned
from fedkin.errors import RunError
from fedkin.untrusted import escaped, plain_word

# The most bytes of an offer that a pull takes unless it is told otherwise.
LARGEST = 1 << 28
# What may be wrong if another participant is not reached.
UNREACHED = (
    "is it running, its address in the join file right and its port open; are both certificates valid and of this "
    "federation's CA, is this participant in its address book, and does no other process use this participant's key?"
)
_SUBJECT = re.compile(r"[a-z0-9._-]+(?:/[a-z0-9._-]+)*")
_LONGEST_SUBJECT = 200
_KEPT = 1000


class LinkError(RunError):
    """The network cannot do what was asked: the link is closed, or cannot be opened."""


class Left(Exception):
    """A participant left before the run had ended, as it was asked to."""


class _NoOffer(LinkError):
    def __init__(self, owner: str, subject: str, why: str) -> None:
        super().__init__(f"{escaped(owner, 64)}: {escaped(subject, _LONGEST_SUBJECT)}: {why}")
        self.owner, self.subject, self.why = owner, subject, why


class Missed(_NoOffer):
    """Nothing came in time: the owner offered nothing, or was not reached."""


class Refused(_NoOffer):
    """An offer that is not what it should be (signature, size), or a name or subject that cannot be one."""


@dataclass(frozen=True)
class Refusal:
    """Something that was refused: by whom it came ("" if that is not known), under which subject, and why."""

    who: str
    subject: str
    why: str


class Refusals:
    """What a link refused: how often by each participant, and the newest of them in full. Safe between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._newest: deque[Refusal] = deque(maxlen=_KEPT)

    def add(self, who: str, subject: str, why: str) -> None:
        """Note one."""
        with self._lock:
            self._counts[who] += 1
            self._newest.append(Refusal(who, subject, why))

    @property
    def counts(self) -> Mapping[str, int]:
        """How many by each participant."""
        with self._lock:
            return dict(self._counts)

    def __iter__(self) -> Iterator[Refusal]:
        """The newest, at most 1,000, in the order in which they came."""
        with self._lock:
            return iter(list(self._newest))

    def __len__(self) -> int:
        with self._lock:
            return self._counts.total()


def is_name(text: str) -> bool:
    """Whether this can be the name of a participant: 1 to 64 of A-Z a-z 0-9 . _ - that begin with a letter or digit.

    >>> is_name("hospital-a"), is_name("a/b"), is_name("")
    (True, False, False)
    """
    return plain_word(text)


def is_subject(text: str) -> bool:
    """Whether this can be a subject: words of a-z 0-9 . _ - with / between them, at most 200 characters.

    >>> is_subject("run1/r3/t0/a0/train"), is_subject("run1//train"), is_subject("run1/*")
    (True, False, False)
    """
    return len(text) <= _LONGEST_SUBJECT and _SUBJECT.fullmatch(text) is not None


class Link(ABC):
    """A participant's end of the network; leave it with `with` or `close`. All methods are safe between threads.

    me: the participant's name. refused: what came and was refused. bytes_in, bytes_out: bytes of offers that were
    pulled from, and served to, each participant; what was sent again counts again. latency: seconds that an offer may
    take to come to a participant that is there, and its answer back, where that is long. signatures: how keys of secure
    sums are signed; without certificates they are not, so that a server that lies could exchange them.
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
        """Serve data to `to` alone until it is withdrawn, replaced by a later offer, or the link is closed.

        A pull that waits for it gets it at once, and it may be pulled again. Raises Refused for a name or a subject
        that cannot be one, LinkError when the link is closed.
        """

    @abstractmethod
    def withdraw(self, prefix: str, to: str | None = None) -> None:
        """Forget the offers whose subject begins with prefix, those to `to` alone if it is given."""

    @abstractmethod
    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        """What `owner` offers to this participant under `subject`, awaited for at most `timeout` seconds.

        It goes on after a cut link and a restart of the owner. Raises Missed if it has not come in time: what has come
        of it is kept, and the next pull goes on there. Raises Refused for a wrong signature, more than `most` bytes, or
        a name that nobody has, and LinkError when the link is closed.
        """

    @abstractmethod
    def present(self) -> frozenset[str]:
        """The other participants that are there now, as far as this one sees."""

    def check(self, name: str, subject: str) -> None:
        """Raise Refused for a name or a subject that cannot be one."""
        if not is_name(name) or name == self.me:
            raise Refused(name, subject, "not a name that another participant can have")
        if not is_subject(subject):
            raise Refused(name, subject, "not a subject: words of a-z 0-9 . _ - with / between them")

    def refusal(self, owner: str, subject: str, why: str) -> Refused:
        """Note an offer that is refused, and return the error that says so."""
        self.refused.add(owner, subject, why)
        return Refused(owner, subject, why)

    def trouble(self) -> str:
        """Why this link reaches nobody any more, if that is known; else empty."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Leave; pulls that wait end with LinkError. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
