"""A network inside one process, with switches for what happens to a real one: for tests of what runs on a network."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from fedkin.network.link import LARGEST, Link, LinkError, Missed

__all__ = ["MemoryLink", "MemoryNetwork"]


class MemoryNetwork:
    """Links of one process that reach each other unless a switch says otherwise.

    >>> network = MemoryNetwork()
    >>> with network.link("server") as server, network.link("ann") as ann:
    ...     server.offer("ann", "run1/r0/train", b"model")
    ...     ann.pull("server", "run1/r0/train", timeout=1)
    b'model'
    """

    def __init__(self) -> None:
        self._state = Condition()
        self._open: dict[str, MemoryLink] = {}
        self._cut: set[frozenset[str]] = set()
        self._held: set[str] = set()
        self._spoilt: set[tuple[str, str]] = set()

    def link(self, name: str) -> MemoryLink:
        """The end of this participant; after it was closed, a new one without offers, as after a restart."""
        with self._state:
            if name in self._open:
                raise LinkError(f"{name} is on this network already")
            self._open[name] = link = MemoryLink(self, name)
            self._state.notify_all()
        return link

    def cut(self, *names: str) -> None:
        """Cut the link between two, or one off from all others; pulls wait, and find nothing in time."""
        self._change(lambda: self._cut.add(frozenset(names)))

    def mend(self, *names: str) -> None:
        """Join them again; pulls that still wait go on."""
        self._change(lambda: self._cut.discard(frozenset(names)))

    def hold(self, owner: str) -> Callable[[], None]:
        """Keep the offers of `owner` back; returns what lets them through again."""
        self._change(lambda: self._held.add(owner))
        return lambda: self._change(lambda: self._held.remove(owner))

    def spoil(self, owner: str, prefix: str = "") -> Callable[[], None]:
        """Have pulls of subjects that begin so refused, as if signed wrongly; returns what lets them through again."""
        self._change(lambda: self._spoilt.add((owner, prefix)))
        return lambda: self._change(lambda: self._spoilt.remove((owner, prefix)))

    def opened(self, name: str, timeout: float = 30.0) -> None:
        """Wait until this participant is on the network; raises Missed if it does not come."""
        with self._state:
            if not self._state.wait_for(lambda: name in self._open, timeout):
                raise Missed(name, "", f"it did not come in {timeout:g} s")

    def _change(self, change: Callable[[], object]) -> None:
        with self._state:
            change()
            self._state.notify_all()

    def _reached(self, one: str, other: str) -> bool:
        return not self._cut & {frozenset(names) for names in ((one,), (other,), (one, other))}

    def _served(self, owner: str, to: str, subject: str) -> bytes | None:
        """What this participant would get now."""
        if owner not in self._open or owner in self._held or not self._reached(owner, to):
            return None
        return self._open[owner].offers.get((to, subject))


class MemoryLink(Link):
    """An end of a `MemoryNetwork`; its `link` makes them."""

    def __init__(self, network: MemoryNetwork, me: str) -> None:
        super().__init__(me)
        self._network = network
        self._closed = False
        self.offers: dict[tuple[str, str], bytes] = {}

    def offer(self, to: str, subject: str, data: bytes) -> None:
        self.check(to, subject)
        kept = bytes(data)
        with self._network._state:
            self._check_open()
            self.offers[to, subject] = kept
            self._network._state.notify_all()

    def withdraw(self, prefix: str, to: str | None = None) -> None:
        with self._network._state:
            for key in [key for key in self.offers if key[1].startswith(prefix) and to in (None, key[0])]:
                del self.offers[key]

    def pull(self, owner: str, subject: str, timeout: float, most: int = LARGEST) -> bytes:
        self.check(owner, subject)
        network, waits = self._network, (owner, self.me, subject)
        with network._state:
            network._state.wait_for(lambda: self._closed or network._served(*waits) is not None, timeout)
            self._check_open()
            data = network._served(owner, self.me, subject)
            if data is None:
                there = owner in network._open and network._reached(owner, self.me)
                raise Missed(owner, subject, f"not {'offered' if there else 'reached'} within {timeout:g} s")
            return self._taken(owner, subject, data, most)

    def _taken(self, owner: str, subject: str, data: bytes, most: int) -> bytes:
        if any(owner == spoilt and subject.startswith(prefix) for spoilt, prefix in self._network._spoilt):
            raise self.refusal(owner, subject, "its signature is not that of the owner")
        if len(data) > most:
            raise self.refusal(owner, subject, f"{len(data):,} bytes; at most {most:,} are taken")
        self.bytes_in[owner] += len(data)
        self._network._open[owner].bytes_out[self.me] += len(data)
        return data

    def present(self) -> frozenset[str]:
        network = self._network
        with network._state:
            return frozenset(name for name in network._open if name != self.me and network._reached(name, self.me))

    def close(self) -> None:
        with self._network._state:
            if not self._closed:
                self._closed = True
                self.offers.clear()
                self._network._open.pop(self.me, None)
                self._network._state.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError(f"the link of {self.me} is closed")
