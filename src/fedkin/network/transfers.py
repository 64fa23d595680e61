"""An offer of another participant on its way here, part by part.

Parts that have arrived are kept, so that a pull that timed out continues later.
"""

from __future__ import annotations

import hashlib
import math
from itertools import islice
from threading import Condition
from time import monotonic

from fedkin.network.offers import CHANGED, HEAD, REST, Part, bounds, part_count
from fedkin.network.signing import Head, Signer

_AGAIN = 0.3  # seconds until a question without an answer is repeated
_AHEAD = 8  # parts of one offer that are requested at the same time


class Transfer:
    """An offer on its way here: its head, for which the owner vouches, and its parts by number. Thread-safe.

    asked: when each part may be asked for again; infinite while a question for it is open. refused: why the offer is
    invalid. touched, most: the time of the last pull, and its limit in bytes. begun_at: when the head arrived.
    """

    def __init__(self, owner: str, subject: str, signer: Signer) -> None:
        self.owner, self.subject, self.signer = owner, subject, signer
        self.touched, self.most, self.begun_at, self.refused, self.over = 0.0, 0, 0.0, "", False
        self._changed = Condition()
        self._restart()

    def _restart(self) -> None:
        self.head: Head | None = None
        self.parts: dict[int, bytes] = {}
        self.asked: dict[Part, float] = {}

    @property
    def came(self) -> int:
        """Bytes that have arrived."""
        return sum(map(len, self.parts.values()))

    @property
    def complete(self) -> bool:
        """Whether all parts are there."""
        return not self._missing()

    def _missing(self) -> list[Part]:
        """Return the next parts that have not arrived, at most `_AHEAD`; the head arrives with the first part."""
        if self.head is None:
            return [Part()]
        numbers = (number for number in range(1, part_count(self.head.size)) if number not in self.parts)
        return [Part(number, self.head.digest) for number in islice(numbers, _AHEAD)]

    def next_part(self, end: float) -> Part | None:
        """Wait until there is a part to ask for, and return it.

        None: all parts have arrived, or the offer was refused, or it is later than `end`.
        """
        with self._changed:
            while (missing := self._missing()) and not (self.refused or self.over):
                now = monotonic()
                for part in missing:
                    if self.asked.get(part, 0.0) <= now:
                        self.asked[part] = math.inf
                        return part
                if now >= end:
                    break
                self._changed.wait(min([end, *(self.asked[part] for part in missing)]) - now)
            return None

    def receive(self, part: Part, kind: bytes, data: bytes) -> None:
        """Process an answer; a second answer to the same question is dropped."""
        with self._changed:
            if self.asked.get(part) == math.inf:
                self.asked[part] = monotonic() + _AGAIN
                try:
                    self._take(part.number, kind, data)
                except ValueError as error:
                    self.refused = str(error)
                self._changed.notify_all()

    def _take(self, number: int, kind: bytes, data: bytes) -> None:
        """Keep a part; raises ValueError if its length does not fit the head, so that nobody can fill the memory."""
        if kind == CHANGED:
            self._restart()
            return
        if number == 0 and kind[:1] == HEAD:
            head = self.signer.read(self.owner, self.subject, kind[1:])
            if head.size > self.most + self.signer.extra:
                raise ValueError(f"{head.size:,} bytes; at most {self.most:,} are taken")
            self.head, self.begun_at = head, monotonic()
        elif kind != REST or self.head is None:
            return
        expected = len(range(self.head.size)[bounds(number)])
        if len(data) != expected:
            raise ValueError(f"{len(data):,} bytes in a part; expected {expected:,}")
        self.parts[number] = data

    def end(self, part: Part) -> None:
        """Note that a question has ended; if it had no answer, it is asked again after a pause."""
        with self._changed:
            if self.asked.get(part) == math.inf:
                self.asked[part] = monotonic() + _AGAIN
                self._changed.notify_all()

    def end_all(self) -> None:
        """Note that all questions have ended: the connection to the owner is gone, so that no answer comes."""
        with self._changed:
            self.asked = dict.fromkeys(self.asked, monotonic() + _AGAIN)
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def opened(self) -> bytes:
        """Return the content of the parts; raises ValueError unless the owner signed it."""
        if self.refused:
            raise ValueError(self.refused)
        assert self.head is not None
        data = b"".join(part for _, part in sorted(self.parts.items()))
        if hashlib.sha256(data).digest() != self.head.digest:
            raise ValueError("not the bytes that were signed")
        return self.signer.opened(self.owner, self.subject, data)
