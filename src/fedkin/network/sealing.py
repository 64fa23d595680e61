"""Offers that go by a router, sealed end to end: signed by the owner, then encrypted to the receiver (HPKE, RFC 9180).

The router passes bytes that it can neither read nor change, and it cannot pose as anybody, though identity on the link
ends at it. Sealed is the whole offer with its signature and certificate; its subject, which names run, round and phase,
is a routing name that the router sees. HPKE binds owner, receiver and subject.
"""

from __future__ import annotations

import hashlib
import json

from fedkin.errors import ConfigError
from fedkin.network.book import Book
from fedkin.network.identity import Identity, certificates_of
from fedkin.network.offers import Offer
from fedkin.network.signing import DIGEST, LONGEST_HEAD, Head, Signer

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
except ImportError:
    raise ConfigError(
        "messages by a router are sealed by HPKE, which needs cryptography 47 or later: pip install -U cryptography"
    ) from None

__all__ = ["Sealer"]

_VERSION = b"fedkin/sealed/1"
_LENGTH = 4


class Sealer(Signer):
    """Seals offers, and opens those of others. The address book has the certificate of each that it exchanges with.

    Raises ConfigError for one without, and for a key that is none of P-256.
    """

    extra = LONGEST_HEAD + (1 << 10)

    def __init__(self, identity: Identity, book: Book) -> None:
        super().__init__(identity, book)
        if not isinstance(identity.key, ec.EllipticCurvePrivateKey) or identity.key.curve.name != "secp256r1":
            raise ConfigError(
                f"{identity.name}: by a router messages are sealed to keys of P-256, and this key is another"
            )
        self._key = identity.key
        self._keys = {name: _public(name, member.certificate) for name, member in book.items()}
        self._suite = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)

    def write(self, to: str, subject: str, data: bytes) -> Offer:
        """The sealed offer."""
        inner = super().write(to, subject, data)
        text = len(inner.head).to_bytes(_LENGTH, "big") + inner.head + data
        sealed = self._suite.encrypt(text, self._keys[to], info=_info(self._identity.name, to, subject))
        digest = hashlib.sha256(sealed).digest()
        return Offer(sealed, digest, _VERSION + len(sealed).to_bytes(8, "big") + digest)

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        """The size and hash of what is sealed; raises ValueError for an offer that is not sealed."""
        if not data.startswith(_VERSION) or len(data) != len(_VERSION) + 8 + DIGEST:
            raise ValueError("not sealed, though it came by a router")
        rest = data[len(_VERSION) :]
        return Head(int.from_bytes(rest[:8], "big"), rest[8:])

    def opened(self, owner: str, subject: str, data: bytes) -> bytes:
        """What was sealed; raises ValueError unless it is the owner's, for this participant under this subject."""
        me = self._identity.name
        try:
            text = self._suite.decrypt(data, self._key, info=_info(owner, me, subject))
        except (InvalidTag, ValueError):
            raise ValueError("not sealed to this participant for this subject, or changed on the way") from None
        start = _LENGTH + int.from_bytes(text[:_LENGTH], "big")
        head, plain = super().read(owner, subject, text[_LENGTH:start]), text[start:]
        if len(plain) != head.size or hashlib.sha256(plain).digest() != head.digest:
            raise ValueError("not the bytes that were signed")
        return plain


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


def _info(owner: str, to: str, subject: str) -> bytes:
    return json.dumps([_VERSION.decode(), owner, to, subject]).encode()
