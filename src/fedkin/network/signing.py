"""What goes with every offer: its size, its hash, the owner's signature under both, and the owner's certificate.

The signature covers who offers, to whom, under which subject (which begins with the run's name), the size and the hash
of all bytes: an offer that is kept and served again under another subject, or to another participant, is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from fedkin.errors import ConfigError
from fedkin.network.book import Book
from fedkin.network.identity import Identity, certificate_pem, certificates_of, fingerprint, verify
from fedkin.network.keys import is_signed
from fedkin.network.offers import Offer

__all__ = ["DIGEST", "LONGEST_HEAD", "Head", "Signer"]

DIGEST = 32
LONGEST_HEAD = 1 << 15
_VERSION = b"fedkin/1"
_FIXED = len(_VERSION) + 8 + DIGEST + 2


@dataclass(frozen=True)
class Head:
    """What an owner vouched for. size: bytes of the offer. digest: their SHA-256."""

    size: int
    digest: bytes


class Signer:
    """Writes heads in the name of one participant, and reads those of the others in its address book.

    extra: by how many bytes an offer may be larger than what is in it.
    """

    extra = 0

    def __init__(self, identity: Identity, book: Book) -> None:
        self._identity = identity
        self._pins = {name: member.pin for name, member in book.items()}
        self._chain = certificate_pem(identity.chain)
        self._latest = b"", hashlib.sha256(b"").digest()

    def write(self, to: str, subject: str, data: bytes) -> Offer:
        """The data with its head."""
        size, digest = len(data), self._hashed(data)
        signature = self._identity.sign(_statement(self._identity.name, to, subject, size, digest))
        fixed = _VERSION + size.to_bytes(8, "big") + digest + len(signature).to_bytes(2, "big")
        return Offer(data, digest, fixed + signature + self._chain)

    def _hashed(self, data: bytes) -> bytes:
        """SHA-256; a server offers the same bytes to many, one after another, and hashes them once."""
        latest, digest = self._latest
        if latest is not data:
            digest = hashlib.sha256(data).digest()
            self._latest = data, digest
        return digest

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        """The head of an offer of `owner` to this participant; raises ValueError with why it is none."""
        if not _FIXED < len(data) <= LONGEST_HEAD or not data.startswith(_VERSION):
            raise ValueError("not an offer of this version of fedkin")
        place = len(_VERSION)
        size, digest = int.from_bytes(data[place : place + 8], "big"), data[place + 8 : place + 8 + DIGEST]
        length = int.from_bytes(data[_FIXED - 2 : _FIXED], "big")
        signature, pem = data[_FIXED : _FIXED + length], data[_FIXED + length :]
        try:
            chain = certificates_of(pem, "its certificate")
            verify(chain, self._identity.roots, owner, "its certificate")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        pin = self._pins[owner]
        if pin and fingerprint(chain[0]) != pin:
            raise ValueError(f"its certificate has {fingerprint(chain[0])}; the address book has {pin}")
        statement = _statement(owner, self._identity.name, subject, size, digest)
        if not is_signed(chain[0].public_key(), signature, statement):
            raise ValueError("its signature does not fit: changed on the way, or signed for something else")
        return Head(size, digest)

    def opened(self, owner: str, subject: str, data: bytes) -> bytes:
        """What is in an offer: the same bytes, where nothing is sealed; raises ValueError where that is not so."""
        return data


def _statement(owner: str, to: str, subject: str, size: int, digest: bytes) -> bytes:
    return json.dumps([_VERSION.decode(), owner, to, subject, size, digest.hex()]).encode()
