"""Signed offers: size, hash, the owner's signature under both, and its certificate go with every offer.

The signature covers owner, receiver, subject (which begins with the run's name), size and hash of all bytes: an offer
that is served again under another subject, or to another participant, is refused.

Offers by a router are also sealed end to end (HPKE, RFC 9180): signed by the owner, then encrypted to the receiver with
signature and certificate, bound to owner, receiver and subject. The router sees the subject, and can neither read,
change nor forge an offer, though identity on the link ends at it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec

from fedkin.errors import ConfigError
from fedkin.network.identity import (
    Identity,
    Revocations,
    certificate_pem,
    certificates_of,
    fingerprint,
    is_signed,
    verify,
)
from fedkin.network.join_file import AddressBook
from fedkin.network.offers import Offer

__all__ = ["DIGEST", "LONGEST_HEAD", "Head", "Sealer", "Signer"]

DIGEST = 32
LONGEST_HEAD = 1 << 15
_SIGNED, _SEALED = b"fedkin/1", b"fedkin/sealed/1"
_FIXED = len(_SIGNED) + 8 + DIGEST + 2
_LENGTH = 4


@dataclass(frozen=True)
class Head:
    """What an owner vouched for. size: bytes of the offer. digest: their SHA-256."""

    size: int
    digest: bytes


class Signer:
    """Writes heads of one participant's offers, and reads those of the others in its address book.

    extra: by how many bytes an offer may be larger than its content.
    """

    extra = 0

    def __init__(self, identity: Identity, book: AddressBook, revoked: Revocations | None = None) -> None:
        self._identity, self._revoked = identity, revoked or Revocations()
        self._pins = {name: member.pin for name, member in book.items()}
        self._chain = certificate_pem(identity.chain)
        self._latest = b"", hashlib.sha256(b"").digest()

    def write(self, to: str, subject: str, data: bytes) -> Offer:
        """Return the data with its head."""
        size, digest = len(data), self._hashed(data)
        signature = self._identity.sign(_statement(self._identity.name, to, subject, size, digest))
        fixed = _SIGNED + size.to_bytes(8, "big") + digest + len(signature).to_bytes(2, "big")
        return Offer(data, digest, fixed + signature + self._chain)

    def _hashed(self, data: bytes) -> bytes:
        """Return SHA-256; a server offers the same bytes to many, one after another, and hashes them once."""
        latest, digest = self._latest
        if latest is not data:
            digest = hashlib.sha256(data).digest()
            self._latest = data, digest
        return digest

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        """Return the head of an offer of `owner` to this participant; raises ValueError with why it is none."""
        if not _FIXED < len(data) <= LONGEST_HEAD or not data.startswith(_SIGNED):
            raise ValueError("not an offer of this version of fedkin")
        place = len(_SIGNED)
        size, digest = int.from_bytes(data[place : place + 8], "big"), data[place + 8 : place + 8 + DIGEST]
        length = int.from_bytes(data[_FIXED - 2 : _FIXED], "big")
        signature, pem = data[_FIXED : _FIXED + length], data[_FIXED + length :]
        try:
            chain = certificates_of(pem, "its certificate")
            verify(chain, self._identity.roots, owner, "its certificate")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if owner in self._revoked or fingerprint(chain[0]) in self._revoked:
            raise ValueError("its certificate is revoked")
        pin = self._pins[owner]
        if pin and fingerprint(chain[0]) != pin:
            raise ValueError(f"its certificate has {fingerprint(chain[0])}; the address book has {pin}")
        statement = _statement(owner, self._identity.name, subject, size, digest)
        if not is_signed(chain[0].public_key(), signature, statement):
            raise ValueError("its signature does not fit: changed on the way, or signed for something else")
        return Head(size, digest)

    def opened(self, owner: str, subject: str, data: bytes) -> bytes:
        """Return the content of an offer whose head and hash fit; raises ValueError if it is not sealed right."""
        return data


class Sealer(Signer):
    """Seals offers, and opens those of others. The address book has the certificate of each of them.

    Raises ConfigError for one without, for a key that is none of P-256, and for a `cryptography` without HPKE.
    """

    extra = LONGEST_HEAD + (1 << 10)

    def __init__(self, identity: Identity, book: AddressBook, revoked: Revocations | None = None) -> None:
        super().__init__(identity, book, revoked)
        try:
            from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
        except ImportError:
            raise ConfigError("messages by a router are sealed by HPKE: pip install -U 'cryptography>=47'") from None
        if not isinstance(identity.key, ec.EllipticCurvePrivateKey) or identity.key.curve.name != "secp256r1":
            raise ConfigError(
                f"{identity.name}: by a router messages are sealed to keys of P-256, and this key is another"
            )
        self._key = identity.key
        self._keys = {name: _public(name, member.certificate) for name, member in book.items()}
        self._suite = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)

    def write(self, to: str, subject: str, data: bytes) -> Offer:
        """Return the sealed offer."""
        signed = super().write(to, subject, data)
        text = len(signed.head).to_bytes(_LENGTH, "big") + signed.head + data
        sealed = self._suite.encrypt(text, self._keys[to], info=_info(self._identity.name, to, subject))
        digest = hashlib.sha256(sealed).digest()
        return Offer(sealed, digest, _SEALED + len(sealed).to_bytes(8, "big") + digest)

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        """Return size and hash of what is sealed; raises ValueError for an offer that is not sealed."""
        if not data.startswith(_SEALED) or len(data) != len(_SEALED) + 8 + DIGEST:
            raise ValueError("not sealed, though it came by a router")
        rest = data[len(_SEALED) :]
        return Head(int.from_bytes(rest[:8], "big"), rest[8:])

    def opened(self, owner: str, subject: str, data: bytes) -> bytes:
        """Return what was sealed; raises ValueError unless it is the owner's, for this participant and subject."""
        try:
            text = self._suite.decrypt(data, self._key, info=_info(owner, self._identity.name, subject))
        except (InvalidTag, ValueError):
            raise ValueError("not sealed to this participant for this subject, or changed on the way") from None
        start = _LENGTH + int.from_bytes(text[:_LENGTH], "big")
        head, content = super().read(owner, subject, text[_LENGTH:start]), text[start:]
        if len(content) != head.size or hashlib.sha256(content).digest() != head.digest:
            raise ValueError("not the bytes that were signed")
        return content


def _public(name: str, certificate: str) -> ec.EllipticCurvePublicKey:
    if not certificate:
        raise ConfigError(
            f"members.{name}: no certificate, and by a router messages are sealed to it: fedkin net invite "
            f"--certificate {name}.crt"
        )
    key = certificates_of(certificate.encode(), f"members.{name}.certificate")[0].public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise ConfigError(f"members.{name}.certificate: by a router messages are sealed to keys of P-256; got another")
    return key


def _statement(owner: str, to: str, subject: str, size: int, digest: bytes) -> bytes:
    return json.dumps([_SIGNED.decode(), owner, to, subject, size, digest.hex()]).encode()


def _info(owner: str, to: str, subject: str) -> bytes:
    return json.dumps([_SEALED.decode(), owner, to, subject]).encode()
