"""Who is who: certificates whose common name is a participant's name, requests for them, and a small CA.

PEM files of an existing PKI work too: a certificate of X.509 for a key of ECDSA or RSA, with intermediates after it.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.errors import ConfigError
from fedkin.network.keys import PrivateKey, key_pem, make_key, read_file, read_key, sign
from fedkin.network.link import is_name
from fedkin.untrusted import said, shown

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509 import verification
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ConfigError("a federation over a network needs cryptography: pip install 'fedkin[network]'") from None

__all__ = [
    "Identity", "certificate_pem", "certificates_of", "common_name", "fingerprint", "hosts_of", "load", "make_ca",
    "make_request", "request_of", "request_pem", "sign_request", "thumb", "verify",
]  # fmt: skip

_PEM = serialization.Encoding.PEM
# A clock that is a little late still accepts what was signed now.
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

    def sign(self, data: bytes) -> bytes:
        """A signature under the data, with the key of the certificate."""
        return sign(self.key, data)

    @property
    def key_pem(self) -> bytes:
        """The private key in PEM."""
        return key_pem(self.key)


def load(
    key: Path, certificate: Path, roots: Sequence[x509.Certificate], now: datetime.datetime | None = None
) -> Identity:
    """The identity in these files; raises ConfigError unless the key fits and the certificate can be used now."""
    chain = certificates_of(read_file(certificate), str(certificate))
    own = read_key(key)
    if chain[0].public_key() != own.public_key():
        raise ConfigError(f"{certificate}: this certificate is not for the key {key}")
    name = common_name(chain[0].subject, str(certificate))
    verify(chain, roots, name, str(certificate), now)
    return Identity(name, own, tuple(chain), tuple(roots))


def certificates_of(data: bytes, where: str) -> list[x509.Certificate]:
    """The certificates in PEM, at least one; raises ConfigError."""
    try:
        found = x509.load_pem_x509_certificates(data)
        for each in found:
            each.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where}: not a certificate in PEM ({said(error)})") from None
    return found


def certificate_pem(chain: Iterable[x509.Certificate]) -> bytes:
    """Certificates in PEM, one after another."""
    return b"".join(each.public_bytes(_PEM) for each in chain)


def common_name(subject: x509.Name, where: str) -> str:
    """The one common name, if a participant can have it; raises ConfigError."""
    names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(names) != 1 or not is_name(names[0]):
        got = ", ".join(repr(shown(each, 64)) for each in names) or "none"
        raise ConfigError(
            f"{where}: expected one common name of letters, digits, '.', '_' and '-', which names the participant; got "
            f"{got}"
        )
    return names[0]


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, as "sha256:" and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()}"


def request_pem(request: x509.CertificateSigningRequest) -> bytes:
    """A request in PEM."""
    return request.public_bytes(_PEM)


def thumb(request: x509.CertificateSigningRequest) -> str:
    """SHA-256 of a request, as "sha256:" and 64 hexadecimal digits, to compare over the telephone."""
    return f"sha256:{hashlib.sha256(request.public_bytes(serialization.Encoding.DER)).hexdigest()}"


def hosts_of(signed: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """The host names and addresses for which a certificate is, or which a request asks for."""
    try:
        names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [shown(str(each.value), 100) for each in names if isinstance(each, (x509.DNSName, x509.IPAddress))]


# -- verifying ------------------------------------------------------------------------------------------------


def verify(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], name: str, where: str,
    now: datetime.datetime | None = None,
) -> None:  # fmt: skip
    """Raise ConfigError unless chain[0] is `name`'s, is valid now, and leads to one of the roots."""
    now = now or datetime.datetime.now(datetime.UTC)
    got = common_name(chain[0].subject, where)
    if got != name:
        raise ConfigError(f"{where}: this certificate is of {got!r}; expected {name!r}")
    for each in chain:
        _check_dates(each, where, now)
    if chain[0].issuer != chain[0].subject and _is_ca(chain[0], where):
        raise ConfigError(f"{where}: this is the certificate of a CA; expected a participant's")
    policy = verification.PolicyBuilder().store(verification.Store(list(roots))).time(now).extension_policies(
        ca_policy=_of_a_ca(),
        ee_policy=verification.ExtensionPolicy.permit_all(),
    )  # fmt: skip
    try:
        if chain[0].issuer == chain[0].subject:
            raise verification.VerificationError("signed by itself")
        policy.build_client_verifier().verify(chain[0], list(chain[1:]))
    except (verification.VerificationError, ValueError) as error:
        raise ConfigError(f"{where}: {_why(chain, roots, said(error), now)}") from None


def _of_a_ca() -> verification.ExtensionPolicy:
    """What a CA's certificate must say; less than browsers want, which refuse many an institution's own CA."""

    def signs(policy: object, certificate: object, found: x509.KeyUsage | None) -> None:
        if found is not None and not found.key_cert_sign:
            raise ValueError("its issuer may not sign certificates")

    either = verification.Criticality.AGNOSTIC
    rules = verification.ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, either, None)
    return rules.may_be_present(x509.KeyUsage, either, signs)


def _is_ca(certificate: x509.Certificate, where: str) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False
    except (ValueError, x509.DuplicateExtension) as error:
        raise ConfigError(f"{where}: the certificate cannot be used ({said(error)})") from None


def _check_dates(certificate: x509.Certificate, where: str, now: datetime.datetime) -> None:
    subject = shown(certificate.subject.rfc4514_string(), 80)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise ConfigError(
            f"{where}: the certificate of {subject} expired on {last:%Y-%m-%d %H:%M} UTC; have a new one signed"
        )
    if now < first:
        raise ConfigError(
            f"{where}: the certificate of {subject} is valid from {first:%Y-%m-%d %H:%M} UTC on; is the clock right?"
        )


def _why(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], detail: str, now: datetime.datetime
) -> str:
    """Why no way leads from a certificate to the roots."""
    top = chain[-1]
    wanted = " or ".join(shown(root.subject.rfc4514_string(), 80) for root in roots)
    issuer = shown(top.issuer.rfc4514_string(), 80)
    if chain[0].issuer == chain[0].subject:
        return f"the certificate is signed by itself; expected one signed by {wanted}"
    named = [root for root in roots if root.subject == top.issuer]
    if not named:
        return f"unknown CA: the certificate is signed by {issuer}; expected {wanted}"
    if any(not root.not_valid_before_utc <= now <= root.not_valid_after_utc for root in named):
        return f"the certificate of the CA {issuer} is not valid now"
    for root in named:
        try:
            top.verify_directly_issued_by(root)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return f"the certificate cannot be used ({detail})"
    return f"signed by another CA of the name {issuer}, not by the one of this federation"


# -- making ---------------------------------------------------------------------------------------------------


def make_ca(name: str, days: int) -> tuple[PrivateKey, x509.Certificate]:
    """(key, certificate) of a new CA that signs participants' certificates."""
    key = make_key()
    subject = _name(name)
    builder = _begun(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), True).add_extension(_usage(True), True)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
    return key, builder.sign(key, hashes.SHA256())


def make_request(key: PrivateKey, name: str, hosts: Sequence[str] = ()) -> x509.CertificateSigningRequest:
    """A request for a certificate of this participant; hosts: names and addresses at which others dial it.

    Raises ConfigError for a name that cannot be one.
    """
    subject = _name(name)
    common_name(subject, "--name")
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys((*hosts, name))])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(names, False)
    return builder.sign(key, hashes.SHA256())


def request_of(data: bytes, where: str) -> x509.CertificateSigningRequest:
    """A request in PEM, signed by its own key and for a name that can be one; raises ConfigError."""
    try:
        request = x509.load_pem_x509_csr(data)
        good = request.is_signature_valid
        request.public_key()
        list(request.extensions)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise ConfigError(f"{where}: not a certificate request in PEM ({said(error)})") from None
    if not good:
        raise ConfigError(f"{where}: the request is not signed by its own key; it was changed, make it anew")
    common_name(request.subject, where)
    return request


def sign_request(
    request: x509.CertificateSigningRequest, key: PrivateKey, ca: x509.Certificate, days: int
) -> x509.Certificate:
    """The certificate that a request asks for: its common name, key and hosts, and nothing else of it.

    It is never valid for longer than the CA.
    """
    name = common_name(request.subject, "request")
    builder = _begun(_name(name), ca.subject, request.public_key(), days, ca.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(False, None), True).add_extension(_usage(False), True)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(both, False).add_extension(_asked(request, name), False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())  # type: ignore[arg-type]
    return builder.add_extension(issuer, False).sign(key, hashes.SHA256())


def _asked(request: x509.CertificateSigningRequest, name: str) -> x509.SubjectAlternativeName:
    try:
        return request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([_host(name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, public: object, days: int, end: datetime.datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    last = now + datetime.timedelta(days=days)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).serial_number(
        x509.random_serial_number()
    ).public_key(public).not_valid_before(now - _EARLIER).not_valid_after(min(last, end or last))  # type: ignore[arg-type]  # fmt: skip
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)  # type: ignore[arg-type]


def _usage(ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise ConfigError(f"--name: {shown(name, 80)!r} cannot be a common name ({said(error)})") from None


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"--host: {shown(host, 80)!r} is no host name or address") from None
