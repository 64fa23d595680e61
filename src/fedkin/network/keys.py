"""Private keys: made, kept in files that their owner alone may read, and used to sign (RFC 5280 PEM files, PKCS#8)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedkin.errors import ConfigError
from fedkin.folders import write_new
from fedkin.untrusted import said

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
except ImportError:
    raise ConfigError("a federation over a network needs cryptography: pip install 'fedkin[network]'") from None

__all__ = ["PrivateKey", "is_signed", "key_pem", "make_key", "read_file", "read_key", "sign", "write_private"]

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_LARGEST_FILE = 1 << 18


def make_key() -> ec.EllipticCurvePrivateKey:
    """A new private key, on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """The key as PKCS#8 in PEM, without a passphrase."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def sign(key: PrivateKey, data: bytes) -> bytes:
    """A signature with SHA-256: ECDSA, or RSASSA-PSS with a key for RSA."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    return key.sign(data, _pss(), hashes.SHA256())


def is_signed(public: object, signature: bytes, data: bytes) -> bool:
    """Whether this is the signature of the key's owner under the data."""
    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        elif isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, data, _pss(), hashes.SHA256())
        else:
            return False
    except InvalidSignature:
        return False
    return True


def _pss() -> padding.PSS:
    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def read_file(path: Path) -> bytes:
    """The bytes of a small file; raises ConfigError if it cannot be read or is too large for a key or certificate."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"{path}: more than {_LARGEST_FILE:,} bytes; expected keys or certificates in PEM")
    return data


def read_key(path: Path) -> PrivateKey:
    """The private key in a PEM file; raises ConfigError, also if anyone but its owner may read the file."""
    data = read_file(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "nt" and mode & 0o077:
        raise ConfigError(f"{path}: others may read this private key (mode {mode:04o}); chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise ConfigError(f"{path}: this private key has a passphrase; expected one without, in mode 0600") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a private key in PEM ({said(error)})") from None
    if not isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise ConfigError(f"{path}: expected a private key for ECDSA or RSA, got {type(key).__name__}")
    return key


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone may read; raises ConfigError if it exists or cannot be written."""
    write_new(path, data, "a private key is never replaced: name another folder", mode=0o600)
