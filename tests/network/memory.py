"""A network inside one process, with switches for what happens to a real one: for tests of what runs on a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Condition

from fedkin.errors import nearest
from fedkin.network.link import LARGEST, Link, LinkError, Missed, Refused, is_name, is_subject

__all__ = ["Hold", "MemoryLink", "MemoryNetwork"]


class MemoryNetwork:
    """Links of one process that reach each other unless a switch says otherwise.

    names: all who may take part; other names are refused, as by the address book of a real network. None: anyone.

    >>> network = MemoryNetwork()
    >>> with network.link("server") as server, network.link("ann") as ann:
    ...     server.offer("ann", "run1/r0/train", b"model")
    ...     ann.pull("server", "run1/r0/train", timeout=1)
    b'model'
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self.names = None if names is None else frozenset(names)
        self._state = Condition()
        self._open: dict[str, MemoryLink] = {}
        self._gone: set[str] = set()
        self._cut: set[frozenset[str]] = set()
        self._holds: list[Hold] = []
        self._spoilt: list[tuple[str, str, str]] = []
        self._waiting: list[tuple[str, str, str]] = []

    def link(self, name: str) -> MemoryLink:
        """The end of this participant; after it was closed, a new one without offers, as after a restart."""
        self._check(name)
        with self._state:
            if name in self._open:
                raise LinkError(f"{name} is on this network already")
            self._open[name] = link = MemoryLink(self, name)
            self._state.notify_all()
        return link

    def cut(self, one: str, other: str) -> None:
        """Cut the link between two; pulls wait, and find nothing in time."""
        self._change(lambda: self._cut.add(frozenset((one, other))))

    def mend(self, one: str, other: str) -> None:
        """Join the two again; pulls that still wait go on."""
        self._change(lambda: self._cut.discard(frozenset((one, other))))

    def drop(self, name: str) -> None:
        """Cut a participant off from all others; its own link stays open and does not know."""
        self._change(lambda: self._gone.add(name))

    def back(self, name: str) -> None:
        """Let a participant that was dropped reach the others again."""
        self._change(lambda: self._gone.discard(name))

    def hold(self, owner: str, to: str | None = None, prefix: str = "") -> Hold:
        """Keep offers back (of `owner`, to `to` or anyone, of subjects that begin with prefix) until it is released."""
        hold = Hold(self, owner, to, prefix)
        self._change(lambda: self._holds.append(hold))
        return hold

    def spoil(self, owner: str, prefix: str = "", why: str = "its signature is not that of the owner") -> Forging:
        """Have pulls of these subjects refused until it is released, as if their signature were wrong."""
        forging = owner, prefix, why
        self._change(lambda: self._spoilt.append(forging))
        return Forging(self, forging)

    def awaited(self, owner: str, prefix: str = "", timeout: float = 30.0) -> tuple[str, str]:
        """(who, subject) of a pull from `owner` that waits now; waits until there is one, and raises Missed if not."""
        with self._state:
            if not self._state.wait_for(lambda: self._waits(owner, prefix), timeout):
                raise Missed(owner, prefix, f"nobody pulled it in {timeout:g} s")
            return self._waits(owner, prefix)[0]

    def opened(self, name: str, timeout: float = 30.0) -> None:
        """Wait until this participant is on the network; raises Missed if it does not come."""
        with self._state:
            if not self._state.wait_for(lambda: name in self._open, timeout):
                raise Missed(name, "", f"it did not come in {timeout:g} s")

    def _waits(self, owner: str, prefix: str) -> list[tuple[str, str]]:
        return [(who, subject) for of, who, subject in self._waiting if of == owner and subject.startswith(prefix)]

    def _change(self, change: Callable[[], object]) -> None:
        with self._state:
            change()
            self._state.notify_all()

    def _check(self, name: str, subject: str = "") -> None:
        if not is_name(name):
            raise Refused(name, subject, "not a name that a participant can have")
        if self.names is not None and name not in self.names:
            raise Refused(name, subject, f"no participant of this name; {nearest(name, self.names)}")

    def _reached(self, one: str, other: str) -> bool:
        return not self._gone & {one, other} and frozenset((one, other)) not in self._cut

    def _served(self, owner: str, to: str, subject: str) -> bytes | None:
        """What this participant would get now."""
        held = any(hold.keeps(owner, to, subject) for hold in self._holds)
        if owner not in self._open or held or not self._reached(owner, to):
            return None
        return self._open[owner].offers.get((to, subject))

    def _why(self, owner: str, to: str) -> str:
        there = owner in self._open and self._reached(owner, to)
        return "not offered" if there else "not reached"


class Hold:
    """Offers that are kept back until `release`."""

    def __init__(self, network: MemoryNetwork, owner: str, to: str | None, prefix: str) -> None:
        self._network, self._owner, self._to, self._prefix = network, owner, to, prefix

    def keeps(self, owner: str, to: str, subject: str) -> bool:
        """Whether this offer is one of them."""
        return owner == self._owner and self._to in (None, to) and subject.startswith(self._prefix)

    def release(self) -> None:
        """Let them through."""
        self._network._change(lambda: self._network._holds.remove(self))


class Forging:
    """Offers that are refused until `release`."""

    def __init__(self, network: MemoryNetwork, forging: tuple[str, str, str]) -> None:
        self._network, self._forging = network, forging

    def release(self) -> None:
        """Let what was signed through again."""
        self._network._change(lambda: self._network._spoilt.remove(self._forging))


class MemoryLink(Link):
    """An end of a `MemoryNetwork`; its `link` makes them."""

    def __init__(self, network: MemoryNetwork, me: str) -> None:
        super().__init__(me)
        self._network = network
        self._closed = False
        self.offers: dict[tuple[str, str], bytes] = {}

    def offer(self, to: str, subject: str, data: bytes) -> None:
        self._check(to, subject)
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
        self._check(owner, subject)
        network, waits = self._network, (owner, self.me, subject)
        with network._state:
            network._waiting.append(waits)
            network._state.notify_all()
            try:
                network._state.wait_for(lambda: self._closed or network._served(*waits) is not None, timeout)
            finally:
                network._waiting.remove(waits)
            self._check_open()
            data = network._served(owner, self.me, subject)
            if data is None:
                raise Missed(owner, subject, f"{network._why(owner, self.me)} within {timeout:g} s")
            return self._taken(owner, subject, data, most)

    def _taken(self, owner: str, subject: str, data: bytes, most: int) -> bytes:
        for of, prefix, why in self._network._spoilt:
            if of == owner and subject.startswith(prefix):
                raise self._refusal(owner, subject, why)
        if len(data) > most:
            raise self._refusal(owner, subject, f"{len(data):,} bytes; at most {most:,} are taken")
        self.bytes_in[owner] += len(data)
        self._network._open[owner].bytes_out[self.me] += len(data)
        return data

    def _refusal(self, owner: str, subject: str, why: str) -> Refused:
        self.refused.add(owner, subject, why)
        return Refused(owner, subject, why)

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

    def _check(self, name: str, subject: str) -> None:
        self._network._check(name, subject)
        if not is_subject(subject):
            raise Refused(name, subject, "not a subject: words of a-z 0-9 . _ - with / between them")

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError(f"the link of {self.me} is closed")
