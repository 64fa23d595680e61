"""The parts of secure sums: fixed-point numbers, masks from seeds, agreed keys, and shares of secrets.

All arithmetic on numbers is modulo 2^64. `cryptography` has the ciphers and the curve; it is imported on first use.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from fedkin.errors import MethodError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Words: TypeAlias = npt.NDArray[np.uint64]

BOUND = 1024.0  # largest absolute value that can be summed
KEY_BYTES, SHARE_BYTES = 32, 33
_PRIME = 2**256 + 297  # the smallest prime above all secrets of 32 bytes
_NONCE = 12


class FixedPoint:
    """Weighted numbers as integers modulo 2^64: x of weight w is round(w x 2^bits).

    `total` is the largest sum of weights. `bits` is as large as it can be without an overflow of the sum of numbers up
    to `BOUND`. The error of the mean of m numbers is then at most m 2^-(bits + 1) / (sum of weights), plus the rounding
    of float64.

    >>> fixed = FixedPoint(total=8)
    >>> words = fixed.encode(np.array([0.5, -2.0]), 3) + fixed.encode(np.array([1.5, 0.0]), 5)
    >>> fixed.decode(words) / 8
    array([ 1.125, -0.75 ])
    """

    def __init__(self, total: float) -> None:
        self.total = total
        self.bits = 62 - math.ceil(math.log2(BOUND * max(total, 1.0)))

    def encode(self, numbers: npt.NDArray[np.float64], weight: float) -> Words:
        """Return the numbers as integers; raises MethodError if one is not finite or above `BOUND`."""
        if numbers.size and not np.abs(numbers).max() <= BOUND:
            raise MethodError(f"a number is above {BOUND:g} or not finite, and cannot be summed securely")
        return np.rint(numbers * (weight * 2.0**self.bits)).astype(np.int64).view(np.uint64)

    def decode(self, words: Words) -> npt.NDArray[np.float64]:
        """Return the weighted sum in these integers."""
        return np.asarray(words.view(np.int64) * 2.0**-self.bits)


def mask(seed: bytes, count: int) -> Words:
    """Return `count` uniform integers from a seed of 32 bytes that is used for nothing else (ChaCha20)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8")


class KeyPair:
    """A Curve25519 key pair, by which two members agree on secrets of 32 bytes (X25519, HKDF with SHA-256)."""

    def __init__(self, private: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._key: X25519PrivateKey = (
            X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        )
        self.private, self.public = self._key.private_bytes_raw(), self._key.public_key().public_bytes_raw()

    def agreed(self, other: bytes, purpose: bytes) -> bytes:
        """Return the secret shared with a public key's owner for one purpose; raises MethodError for a bad key."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise MethodError("a public key that no secret can be agreed with") from None
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    """Return the encrypted text, authenticated together with `about` (ChaCha20-Poly1305)."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about)


def opened(key: bytes, data: bytes, about: bytes) -> bytes:
    """Return the decrypted text; raises MethodError if it was sealed with another key or another `about`."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(data[:_NONCE], data[_NONCE:], about)
    except (InvalidTag, ValueError):
        raise MethodError("shares that were sealed by another key, or for another sum") from None


def shares_of(secret: bytes, points: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Return a share of a secret of 32 bytes for each point (above 0); any `threshold` shares recover the secret.

    Shamir's scheme (CACM 1979), modulo 2^256 + 297: fewer shares reveal nothing about the secret.

    >>> shares = shares_of(bytes(range(32)), [1, 2, 3, 4], 3)
    >>> joined({point: shares[point] for point in (4, 1, 2)}) == bytes(range(32))
    True
    """
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(_PRIME) for _ in range(threshold - 1))]
    shares = {}
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % _PRIME
        shares[point] = value.to_bytes(SHARE_BYTES)
    return shares


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from shares by point; raises MethodError if they do not fit a secret of 32 bytes."""
    secret = 0
    for point, share in shares.items():
        above = below = 1
        for other in shares:
            if other != point:
                above, below = above * other % _PRIME, below * (other - point) % _PRIME
        secret = (secret + int.from_bytes(share) * above * pow(below, -1, _PRIME)) % _PRIME
    if secret >= 2**256:
        raise MethodError("shares that do not fit together")
    return secret.to_bytes(KEY_BYTES)


def digest(*parts: bytes) -> bytes:
    """Return SHA-256 of the parts, each with its length."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8) + part)
    return hashed.digest()
