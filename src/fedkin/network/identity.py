"""Keys and certificates: a participant's name is the common name of its certificate.

A small CA signs requests. PEM files of an existing PKI work too: X.509 for ECDSA or RSA keys, with intermediates.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.errors import ConfigError
from fedkin.folders import write_new
from fedkin.untrusted import error_text, escaped, plain_word

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.x509 import verification
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ConfigError("a federation over a network needs cryptography: pip install 'fedkin[network]'") from None

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_PEM = serialization.Encoding.PEM
_DER = serialization.Encoding.DER
_LARGEST_FILE = 1 << 18
_PASSPHRASE = "FEDKIN_PASSPHRASE"
# A new certificate is valid from this long ago, for participants with a slow clock.
_EARLIER = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Identity:
    """A participant's own key and certificate.

    chain: the certificate, then intermediates up to a CA's. roots: the CAs that the federation trusts.
    """

    name: str
    key: PrivateKey
    chain: tuple[x509.Certificate, ...]
    roots: tuple[x509.Certificate, ...]

    @property
    def key_pem(self) -> bytes:
        """The private key in PEM."""
        return key_pem(self.key)

    def check(self) -> None:
        """Raise ConfigError unless its certificate is valid now, and leads to one of the roots."""
        verify(self.chain, self.roots, self.name, f"the certificate of {self.name}")


def load(key: Path, certificate: Path, roots: Sequence[x509.Certificate]) -> Identity:
    """Return the identity in these files; raises ConfigError unless the key fits and the certificate is valid now."""
    chain = certificates_of(read_file(certificate), str(certificate))
    private = read_key(key)
    if chain[0].public_key() != private.public_key():
        raise ConfigError(f"{certificate}: this certificate is not for the key {key}")
    name = common_name(chain[0].subject, str(certificate))
    verify(chain, roots, name, str(certificate))
    return Identity(name, private, tuple(chain), tuple(roots))


# -- keys ---------------------------------------------------------------------------------------------------------


def make_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """Return the key as PKCS#8 in PEM, without a passphrase."""
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def read_file(path: Path) -> bytes:
    """Return the bytes of a small file; raises ConfigError if it is unreadable or too large for keys in PEM."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"{path}: more than {_LARGEST_FILE:,} bytes; expected keys or certificates in PEM")
    return data


def read_key(path: Path) -> PrivateKey:
    """Return the private key in a PEM file; raises ConfigError, also if others than its owner may read the file.

    The passphrase of an encrypted key is read from the environment variable FEDKIN_PASSPHRASE.
    """
    data = read_file(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "nt" and mode & 0o077:
        raise ConfigError(f"{path}: others may read this private key (mode {mode:04o}); chmod 600 {path}")
    try:
        passphrase = os.environ.get(_PASSPHRASE, "").encode() if b"ENCRYPTED" in data else b""
        key = serialization.load_pem_private_key(data, passphrase or None)
    except TypeError:
        raise ConfigError(f"{path}: this private key has a passphrase; set {_PASSPHRASE} to it") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a private key in PEM ({error_text(error)})") from None
    if not isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise ConfigError(f"{path}: expected a private key for ECDSA or RSA, got {type(key).__name__}")
    return key


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner may read; raises ConfigError if it exists or cannot be written."""
    write_new(path, data, "a private key is never replaced: name another folder", mode=0o600)


def sign(key: PrivateKey, data: bytes) -> bytes:
    """Return a signature with SHA-256: ECDSA, or RSASSA-PSS with an RSA key."""
    return key.sign(data, *_scheme(key))


def is_signed(public: object, signature: bytes, data: bytes) -> bool:
    """Return whether this is a valid signature of the data by the key's owner."""
    if not isinstance(public, (ec.EllipticCurvePublicKey, rsa.RSAPublicKey)):
        return False
    try:
        public.verify(signature, data, *_scheme(public))
    except InvalidSignature:
        return False
    return True


def _scheme(key: object) -> tuple[Any, ...]:
    if isinstance(key, (ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey)):
        return (ec.ECDSA(hashes.SHA256()),)
    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH), hashes.SHA256()


# -- certificates -------------------------------------------------------------------------------------------------


def certificates_of(data: bytes, where: str) -> list[x509.Certificate]:
    """Return the certificates in PEM, at least one; raises ConfigError."""
    try:
        certificates = x509.load_pem_x509_certificates(data)
        for each in certificates:
            each.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where}: not a certificate in PEM{_instead(data, error)}") from None
    return certificates


def _instead(data: bytes, error: Exception) -> str:
    """Return what PEM data are instead of what was expected, or else the error."""
    for label, what in ((b"PRIVATE KEY", "private key"), (b"REQUEST", "request"), (b"CERTIFICATE", "certificate")):
        if re.search(rb"-----BEGIN [A-Z ]*" + label + rb"-----", data):
            return f": it is a {what}"
    return f" ({error_text(error)})" if b"-----BEGIN " in data else ""


def is_ca(certificate: x509.Certificate) -> bool:
    """Return whether this is the certificate of a CA."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def certificate_pem(chain: Iterable[x509.Certificate]) -> bytes:
    """Return certificates in PEM, one after another."""
    return b"".join(each.public_bytes(_PEM) for each in chain)


def common_name(subject: x509.Name, where: str) -> str:
    """Return the only common name; raises ConfigError unless it is a valid participant name."""
    names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(names) != 1 or not plain_word(names[0]):
        got = ", ".join(repr(escaped(each, 64)) for each in names) or "none"
        expected = "one common name of letters, digits, '.', '_' and '-', which names the participant"
        raise ConfigError(f"{where}: expected {expected}; got {got}")
    return names[0]


def fingerprint(signed: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Return SHA-256 of a certificate or request, as "sha256:" and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(signed.public_bytes(_DER)).hexdigest()}"


def hosts_of(signed: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """Return the host names and addresses of a certificate or request."""
    try:
        names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [escaped(str(each.value), 100) for each in names if isinstance(each, (x509.DNSName, x509.IPAddress))]


def verify(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], name: str, where: str,
    now: datetime.datetime | None = None,
) -> None:  # fmt: skip
    """Raise ConfigError unless chain[0] is of `name`, is valid now, and leads to one of the roots."""
    now = now or datetime.datetime.now(datetime.UTC)
    got = common_name(chain[0].subject, where)
    if got != name:
        raise ConfigError(f"{where}: this certificate is of {got!r}; expected {name!r}")
    for each in chain:
        holder = f"the certificate of {escaped(each.subject.rfc4514_string(), 80)}"
        first, last = each.not_valid_before_utc, each.not_valid_after_utc
        if now > last:
            raise ConfigError(f"{where}: {holder} expired on {last:%Y-%m-%d %H:%M} UTC; have a new one signed")
        if now < first:
            raise ConfigError(f"{where}: {holder} is valid from {first:%Y-%m-%d %H:%M} UTC on; is the clock right?")
    either = verification.Criticality.AGNOSTIC
    # Less strict than browsers, which refuse the CAs of many institutions.
    anything = verification.ExtensionPolicy.permit_all()
    ca_policy = anything.require_present(x509.BasicConstraints, either, None).may_be_present(
        x509.KeyUsage, either, _check_issuer
    )
    leaf_policy = anything.may_be_present(x509.BasicConstraints, either, _check_leaf)
    policy = verification.PolicyBuilder().store(verification.Store(list(roots))).time(now).extension_policies(
        ca_policy=ca_policy, ee_policy=leaf_policy
    )  # fmt: skip
    try:
        policy.build_client_verifier().verify(chain[0], list(chain[1:]))
    except (verification.VerificationError, ValueError) as error:
        issuer = escaped(chain[-1].issuer.rfc4514_string(), 80)
        wanted = " or ".join(f"{escaped(root.subject.rfc4514_string(), 80)} {fingerprint(root)}" for root in roots)
        why = f"signed by {issuer}, expected {wanted} ({error_text(error)})"
        raise ConfigError(f"{where}: not signed by the CA of this federation: {why}") from None


def _check_issuer(policy: object, certificate: object, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("its issuer may not sign certificates")


def _check_leaf(policy: object, certificate: object, constraints: x509.BasicConstraints | None) -> None:
    if constraints is not None and constraints.ca:
        raise ValueError("this is the certificate of a CA; expected a participant's")


_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


class Revocations:
    """Revoked names and fingerprints in a file, one per line; each lookup reads the file again.

    path: the file; None: nothing is revoked. Raises ConfigError if the file cannot be read at first. If it cannot be
    read later, the entries that were read before count.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.entries = path, frozenset[str]()
        self._read()

    def __contains__(self, entry: str) -> bool:
        with suppress(ConfigError):
            self._read()
        return entry in self.entries

    def _read(self) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path is not None else []
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path}: {getattr(error, 'strerror', None) or error_text(error)}") from None
        entries = [line.partition("#")[0].strip() for line in lines]
        self.entries = frozenset(entries) - {""}
        for number, entry in enumerate(entries, 1):
            if entry and not (plain_word(entry) or _FINGERPRINT.fullmatch(entry)):
                what = f"{escaped(entry, 80)!r} can be nobody; expected a name, or a fingerprint sha256: of 64 digits"
                raise ConfigError(f"{self.path}: line {number}: {what}")


NOBODY = Revocations()


# -- requests and the CA ------------------------------------------------------------------------------------------


def request_pem(request: x509.CertificateSigningRequest) -> bytes:
    """Return a request in PEM."""
    return request.public_bytes(_PEM)


def make_request(key: PrivateKey, name: str, hosts: Sequence[str] = ()) -> x509.CertificateSigningRequest:
    """Return a request for a certificate of this participant; hosts: names and addresses at which others dial it.

    Raises ConfigError for an invalid participant name.
    """
    subject = _name(name)
    common_name(subject, "--name")
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys((*hosts, name))])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(names, False)
    return builder.sign(key, hashes.SHA256())


def request_of(data: bytes, where: str) -> x509.CertificateSigningRequest:
    """Return the request in PEM data; raises ConfigError unless its own key signed it and its name is valid."""
    try:
        request = x509.load_pem_x509_csr(data)
        good = request.is_signature_valid
        request.public_key()
        list(request.extensions)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise ConfigError(f"{where}: not a certificate request in PEM{_instead(data, error)}") from None
    if not good:
        raise ConfigError(f"{where}: the request is not signed by its own key; it was changed; make a new one")
    common_name(request.subject, where)
    return request


def make_ca(name: str, days: int) -> tuple[PrivateKey, x509.Certificate]:
    """Return (key, certificate) of a new CA that signs participants' certificates."""
    key = make_key()
    subject = _name(name)
    now = datetime.datetime.now(datetime.UTC)
    builder = _builder(subject, subject, key.public_key(), True, now + datetime.timedelta(days=days))
    return key, builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False
    ).sign(key, hashes.SHA256())  # fmt: skip


def sign_request(
    request: x509.CertificateSigningRequest, key: PrivateKey, ca: x509.Certificate, days: int
) -> x509.Certificate:
    """Return the certificate for a request, with only the request's common name, key and hosts.

    The certificate is never valid for longer than that of the CA.
    """
    name = common_name(request.subject, "request")
    try:
        hosts = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        hosts = x509.SubjectAlternativeName([_host(name)])
    last = min(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days), ca.not_valid_after_utc)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())  # type: ignore[arg-type]
    builder = _builder(_name(name), ca.subject, request.public_key(), False, last)
    for extension in (both, hosts, issuer):
        builder = builder.add_extension(extension, False)
    return builder.sign(key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, public: object, ca: bool, last: datetime.datetime
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not ca, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = x509.CertificateBuilder(
        issuer, subject, public, x509.random_serial_number(), datetime.datetime.now(datetime.UTC) - _EARLIER, last  # type: ignore[arg-type]
    )  # fmt: skip
    builder = builder.add_extension(x509.BasicConstraints(ca, 0 if ca else None), True).add_extension(usage, True)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)  # type: ignore[arg-type]


def _name(name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise ConfigError(f"--name: {escaped(name, 80)!r} cannot be a common name ({error_text(error)})") from None


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if re.fullmatch(r"[\w.*-]+", host, re.ASCII) is None:
            raise ConfigError(f"--host: {escaped(host, 80)!r} is no host name or address") from None
        return x509.DNSName(host)
