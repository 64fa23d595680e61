"""A federation's certificates, made once, and links that leave when a test ends."""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import os
import secrets
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from threading import Condition, Event, Thread
from time import monotonic
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from numpy.random import Generator

from fedkin.keys import rng
from fedkin.network import identity as keys
from fedkin.network.identity import Identity, PrivateKey, certificate_pem, make_ca, make_key, make_request, sign_request
from fedkin.network.join_file import Member
from fedkin.network.zenoh_link import ZenohLink

# Addresses of the two ends of a link between network namespaces.
SHAPED = ["10.99.7.1", "10.99.7.2"]
HOSTS = ["127.0.0.1", "localhost", *SHAPED]
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x0001 | 0x1000  # of linux/if_tun.h


@dataclass
class Town:
    """A CA and the identities that it signed."""

    key: PrivateKey
    ca: x509.Certificate
    made: dict[str, Identity] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Identity:
        if name not in self.made:
            self.made[name] = self.signed(name)
        return self.made[name]

    def signed(self, name: str, days: int = 10) -> Identity:
        """A new identity of this name."""
        key = make_key()
        certificate = sign_request(make_request(key, name, HOSTS), self.key, self.ca, days)
        return Identity(name, key, (certificate,), (self.ca,))

    def save(self, name: str, folder: Path) -> None:
        """Write the files of this identity's key and certificates."""
        save(self[name], folder / name)

    def expired(self, name: str) -> Identity:
        """One whose certificate was valid until yesterday."""
        good = self.signed(name)
        (own,) = good.chain
        old = certificate(own.subject, self.ca.subject, good.key.public_key(), self.key, own.extensions, -9, -1)
        return replace(good, chain=(old,))


def certificate(
    subject: x509.Name, issuer: x509.Name, public: Any, by: PrivateKey, extensions: Iterable[x509.Extension[Any]],
    first: float = -1, last: float = 1,
) -> x509.Certificate:  # fmt: skip
    """A certificate that is valid from this day on to that day, counted from today."""
    begin, end = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(day) for day in (first, last))
    builder = x509.CertificateBuilder(
        issuer, subject, public, x509.random_serial_number(), begin, end, list(extensions)
    )
    return builder.sign(by, hashes.SHA256())


def save(identity: Identity, place: Path) -> None:
    """Write the files of its key and certificates, PLACE.key and PLACE.crt."""
    keys.write_private(place.with_suffix(".key"), identity.key_pem)
    place.with_suffix(".crt").write_bytes(certificate_pem(identity.chain))


def member(identity: Identity, **fields: Any) -> Member:
    """An entry of the address book that pins this identity's certificate."""
    return Member(certificate=certificate_pem(identity.chain).decode(), **fields)


def new_town(name: str = "test-ca") -> Town:
    return Town(*make_ca(name, 20))


def institution(name: str) -> Identity:
    """An identity of another PKI: an RSA key, signed by an intermediate CA that a root on P-384 signed."""
    root, middle = ec.generate_private_key(ec.SECP384R1()), keys.make_key()
    own = rsa.generate_private_key(65537, 2048)

    def signed(subject: str, issuer: str, public: Any, by: PrivateKey, ca: bool) -> x509.Certificate:
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        kinds: list[tuple[Any, bool]] = [(x509.BasicConstraints(ca, None), True), (here, False)]
        extensions = [x509.Extension(kind.oid, critical, kind) for kind, critical in kinds]
        return certificate(_named(subject), _named(issuer), public, by, extensions)

    top = signed("Clinic Root", "Clinic Root", root.public_key(), root, True)
    between = signed("Clinic CA 7", "Clinic Root", middle.public_key(), root, True)
    return Identity(name, own, (signed(name, "Clinic CA 7", own.public_key(), middle, False), between), (top,))


def _named(name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Clinic"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def free_port() -> int:
    """A port at which nobody listens, below those that the system gives to programs that ask for any."""
    with socket.socket() as probe:
        while True:
            port = secrets.randbelow(12_000) + 20_000
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


@dataclass
class Net:
    """A server that listens, and members that dial it."""

    town: Town
    stack: ExitStack
    place: str
    book: dict[str, Member]

    def server(self, **more: Any) -> ZenohLink:
        return self.link("server", listen=[self.place], **more)

    def member(self, name: str, **more: Any) -> ZenohLink:
        return self.link(name, dial=["server"], **more)

    def wired(self, kind: Callable[[int], Wire] | None = None) -> Wire:
        """Put a wire between the server and the members that are opened from now on."""
        wire = (kind or Wire)(int(self.place.rpartition(":")[2]))
        self.stack.callback(wire.close)
        self.book = {**self.book, "server": Member(locator=f"tls/127.0.0.1:{wire.port}")}
        return wire

    def link(self, name: str, **more: Any) -> ZenohLink:
        options = {"identity": self.town[name], "book": self.book, **more}
        made = ZenohLink(**options)
        self.stack.callback(made.close)
        return made


def both_ways(one: ZenohLink, other: ZenohLink) -> bool:
    """Whether what each of them offers arrives at the other."""
    one.offer(other.me, "r", b"up")
    other.offer(one.me, "r", b"down")
    return (one.pull(other.me, "r", 60), other.pull(one.me, "r", 60)) == (b"down", b"up")


class Wire:
    """A TCP connection through this process, which can be cut, and which passes bytes to who dialled only as allowed.

    left: how many more bytes of answers pass; None: all.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._state = Condition()
        self._sockets: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._closed = self._apart = False
        self.left: int | None = None
        self.passed = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *given: Any) -> None:
        thread = Thread(target=target, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # nobody is there, now
                    near.close()
                    continue
                with self._state:
                    self._sockets += [near, far]
                    if self._apart:
                        near.shutdown(socket.SHUT_RDWR)
                self._start(self._pump, near, far, False)
                self._start(self._pump, far, near, True)

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14):
                if answers:
                    with self._state:
                        self._state.wait_for(lambda: self._closed or self.left is None or self.left > 0)
                        self.left = None if self.left is None else self.left - len(data)
                        self.passed += len(data)
                        self._state.notify_all()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def allow(self, more: int | None) -> None:
        """Let so many more bytes of answers pass, or all (None)."""
        with self._state:
            self.left = None if more is None else max(0, self.left or 0) + more
            self._state.notify_all()

    def cut(self, apart: bool = False) -> None:
        """End all connections; new ones are let through, or (apart) ended at once until `mend`."""
        with self._state:
            self._apart = apart
            ended = list(self._sockets)
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let new connections through again."""
        with self._state:
            self._apart = False

    def close(self) -> None:
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._server.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(30)
        for each in (self._server, *self._sockets):
            each.close()


class SlowWire(Wire):
    """Such a connection that is slow, and far away: rate, in bytes a second, and delay, in seconds, each way."""

    def __init__(self, port: int, rate: float, delay: float) -> None:
        self.rate, self.delay = rate, delay
        super().__init__(port)

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        # No more is on its way than what the line holds.
        line = Queue[tuple[float, bytes]](max(2, int(self.rate * 2 * self.delay / 8192)))
        self._start(self._take, source, line)
        with suppress(OSError):
            while (arriving := line.get())[1]:
                self._wait_until(arriving[0])
                self.passed += len(arriving[1]) if answers else 0
                target.sendall(arriving[1])
            target.shutdown(socket.SHUT_WR)

    def _take(self, source: socket.socket, line: Queue[tuple[float, bytes]]) -> None:
        free = 0.0
        with suppress(OSError):
            while data := source.recv(8192):
                free = max(free, monotonic()) + len(data) / self.rate
                self._wait_until(free)
                line.put((free + self.delay, data))
        line.put((0.0, b""))

    def _wait_until(self, due: float) -> None:
        with self._state:
            self._state.wait_for(lambda: self._closed, max(0.0, due - monotonic()))


def ip(*words: str) -> None:
    """Run `ip`; raises OSError with what it says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Line:
    """A line between two network namespaces, whose packets pass through this process: slow, far, and some are lost.

    rate: bytes a second each way. delay: seconds each way. loss: the share of packets that are lost. The kernel needs
    no qdisc for it, but root and /dev/net/tun, without which this raises OSError.
    """

    _BUFFER = 0.2  # seconds of what waits for the line; what comes when it is full is lost

    def __init__(self, rate: float, delay: float, loss: float) -> None:
        self.rate, self.delay, self.loss = rate, delay, loss
        number = os.getpid()
        self.server, self.clients, self.device = f"fedkin-s{number}", f"fedkin-c{number}", f"fkc{number}"
        self._closed, self._ends = Event(), list[int]()
        try:
            ends = {self.server: f"fks{number}", self.clients: self.device}
            for (space, device), address in zip(ends.items(), SHAPED, strict=True):
                ip("netns", "add", space)
                self._ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
                fcntl.ioctl(self._ends[-1], _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER))
                ip("link", "set", device, "netns", space)
                ip("-n", space, "address", "add", f"{address}/24", "dev", device)
                for each in ("lo", device):
                    ip("-n", space, "link", "set", each, "up")
                # The one that every kernel has and allows here; a lost packet halves its rate.
                ip("netns", "exec", space, "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        except OSError:
            self.close()
            raise
        for source, target in (self._ends, self._ends[::-1]):
            line = Queue[tuple[float, bytes]]()
            Thread(target=self._take, args=(source, line, rng(0, "line", source)), daemon=True).start()
            Thread(target=self._bring, args=(line, target), daemon=True).start()

    def up(self, up: bool) -> None:
        """Take the line down, so that packets are lost and nobody is told, or up again."""
        ip("-n", self.clients, "link", "set", self.device, "up" if up else "down")

    def _take(self, source: int, line: Queue[tuple[float, bytes]], draw: Generator) -> None:
        free = 0.0
        while not self._closed.is_set():
            try:
                packet = os.read(source, 1 << 16)
            except OSError:  # nothing is there, or the line is down
                self._closed.wait(0.001)
                continue
            now = monotonic()
            if draw.random() >= self.loss and free - now < self._BUFFER:
                free = max(free, now) + len(packet) / self.rate
                line.put((free + self.delay, packet))
        line.put((0.0, b""))

    def _bring(self, line: Queue[tuple[float, bytes]], target: int) -> None:
        while True:
            due, packet = line.get()
            if not packet:
                return
            self._closed.wait(max(0.0, due - monotonic()))
            with suppress(OSError):  # the line is down
                os.write(target, packet)

    def close(self) -> None:
        self._closed.set()
        for space in (self.server, self.clients):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
        for end in self._ends:
            os.close(end)


@contextmanager
def kept_port() -> Iterator[int]:
    """A port at which nobody listens, and which no other program takes: who sets SO_REUSEADDR, as links do, may."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])


@contextmanager
def made_net(town: Town) -> Iterator[Net]:
    """A federation of a server, ann and bob at a port of its own."""
    with kept_port() as port, ExitStack() as stack:
        place = f"tls/127.0.0.1:{port}"
        book = {"server": Member(locator=place), "ann": Member(), "bob": Member()}
        yield Net(town, stack, place, book)
