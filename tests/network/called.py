"""A network inside one process that can only call, with switches for what happens to a real one."""

from __future__ import annotations

from threading import Lock

from fedkin.errors import FedkinError
from fedkin.network.calls import AnsweringLink, CallingLink
from fedkin.network.link import LinkError


class CalledNetwork:
    """Links of one process between a server and those whom it calls; the same form as `MemoryNetwork`.

    lost: names whose next answer is lost on its way. calls: how many came to each.
    """

    def __init__(self, beat: float = 0.2, hold: float = 0.5) -> None:
        self.lock, self.beat, self.hold = Lock(), beat, hold
        self.ends: dict[str, AnsweringLink] = {}
        self.known: set[str] = set()
        self.lost: set[str] = set()
        self.calls: dict[str, int] = {}
        self.said: list[str] = []

    def link(self, name: str) -> CallingLink | AnsweringLink:
        if name == "server":
            return CallingLink(self, hold=self.hold, beat=self.beat, within=5.0, say=self.said.append)
        with self.lock:
            self.known.add(name)
            self.ends[name] = link = AnsweringLink(name)
        return link

    def names(self) -> set[str]:
        with self.lock:
            return set(self.known)

    def call(self, name: str, data: bytes, within: float) -> bytes:
        with self.lock:
            end = self.ends.get(name)
            self.calls[name] = self.calls.get(name, 0) + 1
        if end is None:
            raise LinkError("nobody is there")
        try:
            answer = end.answer(data)
        except FedkinError as error:
            raise LinkError(str(error)) from None
        with self.lock:
            if name in self.lost:
                self.lost.discard(name)
                raise LinkError("the answer was lost")
        return answer

    def close(self) -> None:
        """Nothing is open."""
