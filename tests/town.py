"""A federation's certificates, made once, and links that leave when a test ends."""

from __future__ import annotations

import datetime
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedkin.network.book import Member
from fedkin.network.identity import Identity, make_ca, make_request, sign_request
from fedkin.network.keys import PrivateKey, make_key
from fedkin.network.zenoh import ZenohLink

HOSTS = ["127.0.0.1", "localhost"]


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

    def expired(self, name: str) -> Identity:
        """One whose certificate was valid until yesterday."""
        good = self.signed(name)
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            good.chain[0].issuer, good.chain[0].subject, good.key.public_key(), x509.random_serial_number(),
            now - datetime.timedelta(days=9), now - datetime.timedelta(days=1), list(good.chain[0].extensions),
        )  # fmt: skip
        return Identity(name, good.key, (builder.sign(self.key, hashes.SHA256()),), (self.ca,))


def new_town(name: str = "test-ca") -> Town:
    return Town(*make_ca(name, 20))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

    def link(self, name: str, **more: Any) -> ZenohLink:
        options = {"identity": self.town[name], "book": self.book, **more}
        made = ZenohLink(**options)
        self.stack.callback(made.close)
        return made


@contextmanager
def made_net(town: Town) -> Iterator[Net]:
    """A federation of a server, ann and bob at a free port."""
    place = f"tls/127.0.0.1:{free_port()}"
    book = {"server": Member(locator=place), "ann": Member(), "bob": Member()}
    with ExitStack() as stack:
        yield Net(town, stack, place, book)
