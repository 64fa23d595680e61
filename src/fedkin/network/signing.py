"""Signed offers: each offer has its size and hash, the owner's signature of both, and the owner's certificate.

The signature covers owner, receiver, subject (which begins with the run's name), size and hash of all bytes: an offer
that is served again under another subject, or to another participant, is refused.

Offers over a router are also sealed end to end (HPKE, RFC 9180): the owner signs the offer, and then encrypts it with
signature and certificate to the receiver, bound to owner, receiver and subject. The router sees the subject, and can
neither read, change nor forge an offer, though the TLS connections end at the router.
"""

from __future__ import annotations

import hashlib
import json

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import ConfigError
from fedkin.network.identity import (
    NOBODY,
    Identity,
    Revocations,
    certificate_pem,
    certificates_of,
    fingerprint,
    is_signed,
    sign,
    verify,
)
from fedkin.network.join_file import AddressBook
from fedkin.network.offers import Offer

LONGEST_HEAD = 1 << 15
_SIGNED, _SEALED, _SUMS = "fedkin/1", "fedkin/sealed/1", b"fedkin/sums/1"
_LENGTH = 4
_CURVE = "secp256r1"  # P-256


class Head(BaseModel):
    """The head of an offer.

    kind: signed, or sealed (signature and certificates are then inside). size: bytes of the offer. sha256: their hash.
    signature: in hexadecimal digits. chain: the owner's certificate and intermediates, in PEM.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    signature: str = Field("", pattern="^[0-9a-f]*$")
    chain: str = ""

    @property
    def digest(self) -> bytes:
        """The hash as bytes."""
        return bytes.fromhex(self.sha256)


def _read(data: bytes, kind: str) -> Head | None:
    """Return a head of this kind; None for anything else."""
    try:
        head = Head.model_validate_json(data) if len(data) <= LONGEST_HEAD else None
    except ValidationError:
        return None
    return head if head is not None and head.kind == kind else None


class Signer:
    """Writes the heads of one participant's offers, and reads those of the others in its address book.

    A certificate is accepted if the federation's CA signed it, it is the one in the address book (if that has one), and
    it is not revoked. extra: by how many bytes an offer may be larger than its content.
    """

    extra = 0

    def __init__(self, identity: Identity, book: AddressBook, revoked: Revocations = NOBODY) -> None:
        self._identity, self._revoked = identity, revoked
        self._pins = {name: member.pin for name, member in book.items()}
        self._chain = certificate_pem(identity.chain)

    def _certificate(self, owner: str, chain: bytes) -> x509.Certificate:
        """Return the certificate of `owner` in this PEM chain; raises ValueError if it is not accepted."""
        try:
            certificates = certificates_of(chain, "its certificate")
            verify(certificates, self._identity.roots, owner, "its certificate")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        mark, pin = fingerprint(certificates[0]), self._pins.get(owner, "")
        if owner in self._revoked or mark in self._revoked:
            raise ValueError("its certificate is revoked")
        if pin and mark != pin:
            raise ValueError(f"its certificate has {mark}; the address book has {pin}")
        return certificates[0]

    def write(self, to: str, subject: str, data: bytes) -> Offer:
        """Return the data with its head."""
        digest, me = hashlib.sha256(data), self._identity
        statement = _statement(me.name, to, subject, len(data), digest.hexdigest())
        head = Head(
            kind=_SIGNED, size=len(data), sha256=digest.hexdigest(), signature=sign(me.key, statement).hex(),
            chain=self._chain.decode(),
        )  # fmt: skip
        return Offer(data, digest.digest(), head.model_dump_json().encode())

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        """Return the head of an offer of `owner` to this participant; raises ValueError if it is invalid."""
        if (head := _read(data, _SIGNED)) is None:
            raise ValueError("not an offer of this version of fedkin")
        certificate = self._certificate(owner, head.chain.encode())
        statement = _statement(owner, self._identity.name, subject, head.size, head.sha256)
        if len(head.signature) % 2 or not is_signed(certificate.public_key(), bytes.fromhex(head.signature), statement):
            raise ValueError("its signature does not fit: changed on the way, or signed for something else")
        return head

    def opened(self, owner: str, subject: str, data: bytes) -> bytes:
        """Return the content of an offer whose head and hash are valid; raises ValueError if its seal is not."""
        return data

    def sign(self, id: str, data: bytes) -> bytes:
        """Sign data of secure sums, for other clients; returns the signature's length, the signature, and the chain."""
        signature = sign(self._identity.key, _SUMS + data)
        return len(signature).to_bytes(2) + signature + self._chain

    def holds(self, id: str, data: bytes, signature: bytes) -> bool:
        """Return whether this data of secure sums was signed with an accepted certificate of `id`."""
        end = 2 + int.from_bytes(signature[:2])
        try:
            return is_signed(self._certificate(id, signature[end:]).public_key(), signature[2:end], _SUMS + data)
        except ValueError:
            return False


class Sealer(Signer):
    """Seals offers, and opens those of others; the address book must have the certificates of all others.

    Raises ConfigError for a missing certificate, for a key that is not on P-256, and for a `cryptography` without HPKE.
    """

    extra = LONGEST_HEAD + (1 << 10)

    def __init__(self, identity: Identity, book: AddressBook, revoked: Revocations = NOBODY) -> None:
        super().__init__(identity, book, revoked)
        try:
            from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
        except ImportError:
            raise ConfigError("messages by a router are sealed by HPKE: pip install -U 'cryptography>=47'") from None
        if not isinstance(identity.key, ec.EllipticCurvePrivateKey) or identity.key.curve.name != _CURVE:
            why = "by a router messages are sealed to keys of P-256, and this key is another"
            raise ConfigError(f"{identity.name}: {why}")
        self._key = identity.key
        self._keys = {name: _public(name, member.certificate) for name, member in book.items()}
        self._suite = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)

    def write(self, to: str, subject: str, data: bytes) -> Offer:
        """Return the sealed offer."""
        signed = super().write(to, subject, data)
        text = len(signed.head).to_bytes(_LENGTH, "big") + signed.head + data
        sealed = self._suite.encrypt(text, self._keys[to], info=_info(self._identity.name, to, subject))
        digest = hashlib.sha256(sealed)
        head = Head(kind=_SEALED, size=len(sealed), sha256=digest.hexdigest())
        return Offer(sealed, digest.digest(), head.model_dump_json().encode())

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        """Return the head with size and hash of the sealed bytes; raises ValueError for an unsealed offer."""
        if (head := _read(data, _SEALED)) is None:
            raise ValueError("not sealed, though it came by a router")
        return head

    def opened(self, owner: str, subject: str, data: bytes) -> bytes:
        """Return the sealed content; raises ValueError unless the owner sealed it for this participant and subject."""
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
        how = f"fedkin net invite --certificate {name}.crt"
        raise ConfigError(f"members.{name}: no certificate, and by a router messages are sealed to it: {how}")
    key = certificates_of(certificate.encode(), f"members.{name}.certificate")[0].public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE:
        raise ConfigError(f"members.{name}.certificate: by a router messages are sealed to keys of P-256; got another")
    return key


def _statement(owner: str, to: str, subject: str, size: int, sha256: str) -> bytes:
    return json.dumps([_SIGNED, owner, to, subject, size, sha256]).encode()


def _info(owner: str, to: str, subject: str) -> bytes:
    return json.dumps([_SEALED, owner, to, subject]).encode()
