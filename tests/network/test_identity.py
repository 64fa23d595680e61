"""Keys, requests and certificates: made, signed, read back and verified, and checked by OpenSSL where it is there."""

from __future__ import annotations

import datetime
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from certificates import Town, certificate, new_town, save
from fedkin.errors import ConfigError
from fedkin.network import identity as keys
from fedkin.network.identity import Revocations, certificate_pem, load, make_request, request_of, sign_request, verify

PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
LOCKED = serialization.BestAvailableEncryption(b"secret")


def saved(folder: Path, town: Town) -> tuple[Path, Path]:
    """Files of a key and its certificate."""
    town.save("ann", folder)
    return folder / "ann.key", folder / "ann.crt"


def test_a_request_becomes_an_identity(tmp_path: Path) -> None:
    ca_key, ca = keys.make_ca("ca", 10)
    key = keys.make_key()
    request = request_of(keys.request_pem(make_request(key, "hospital-a", ["10.0.0.1", "a.example.org"])), "a.csr")
    certificate = sign_request(request, ca_key, ca, 5)
    save(keys.Identity("hospital-a", key, (certificate,), (ca,)), tmp_path / "a")
    identity = load(tmp_path / "a.key", tmp_path / "a.crt", [ca])
    assert identity.name == "hospital-a"
    for signed in (identity.chain[0], request):
        assert keys.hosts_of(signed) == ["10.0.0.1", "a.example.org", "hospital-a"]
    signature = keys.sign(identity.key, b"data")
    assert keys.is_signed(certificate.public_key(), signature, b"data")
    assert not keys.is_signed(certificate.public_key(), signature, b"date")
    assert certificate.not_valid_after_utc < ca.not_valid_after_utc
    assert sign_request(request, ca_key, ca, 500).not_valid_after_utc == ca.not_valid_after_utc


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_accepts_what_was_made_and_works_with_what_it_makes(tmp_path: Path) -> None:
    town = new_town()
    (tmp_path / "ca.crt").write_bytes(certificate_pem([town.ca]))
    saved(tmp_path, town)

    def openssl(*words: str) -> str:
        return subprocess.check_output(["openssl", *words], cwd=tmp_path, stderr=subprocess.DEVNULL, text=True)

    for purpose in ("sslserver", "sslclient"):
        told = openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.crt", "ann.crt")
        assert told == "ann.crt: OK\n"
    told = openssl("x509", "-in", "ann.crt", "-noout", "-fingerprint", "-sha256")
    assert told.strip().rpartition("=")[2].replace(":", "").lower() == keys.fingerprint(town["ann"].chain[0])[7:]

    # A PKI of another kind: an intermediate CA, other curves, and RSA for the participant.
    (tmp_path / "ca.ext").write_text(
        "basicConstraints=critical,CA:TRUE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    (tmp_path / "leaf.ext").write_text("subjectAltName=DNS:clinic-1\nextendedKeyUsage=serverAuth,clientAuth\n")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"]
    for name, kind in (("root", curve), ("middle", curve), ("clinic-1", ["-newkey", "rsa:2048"])):
        files = ["-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        openssl("req", *kind, *files, "-subj", f"/O=Clinic/CN={name}")
    sign = ["x509", "-req", "-days", "5"]
    openssl(*sign, "-in", "root.csr", "-signkey", "root.key", "-extfile", "ca.ext", "-out", "root.crt")
    for name, ca, extensions in (("middle", "root", "ca.ext"), ("clinic-1", "middle", "leaf.ext")):
        by = ["-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial"]
        openssl(*sign, "-in", f"{name}.csr", *by, "-extfile", extensions, "-out", f"{name}.crt")
    chain = (tmp_path / "clinic-1.crt").read_bytes() + (tmp_path / "middle.crt").read_bytes()
    (tmp_path / "clinic-1.crt").write_bytes(chain)
    (root,) = keys.certificates_of((tmp_path / "root.crt").read_bytes(), "root.crt")
    identity = load(tmp_path / "clinic-1.key", tmp_path / "clinic-1.crt", [root])
    assert (identity.name, len(identity.chain)) == ("clinic-1", 2)
    assert keys.is_signed(identity.chain[0].public_key(), keys.sign(identity.key, b"x"), b"x")


def test_who_may_read_a_key_file(tmp_path: Path, town: Town) -> None:
    key, certificate = saved(tmp_path, town)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for mode in (0o640, 0o604, 0o660, 0o644):
        key.chmod(mode)
        with pytest.raises(ConfigError, match=rf"^{key}: others may read .* \(mode {mode:04o}\); chmod 600 {key}$"):
            load(key, certificate, [town.ca])
    key.chmod(0o400)
    assert load(key, certificate, [town.ca]).name == "ann"
    with pytest.raises(ConfigError, match="exists; a private key is never replaced"):
        keys.write_private(key, b"")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a private key in PEM"),
        (b"\x00\xff", "not a private key in PEM"),
        (b"x" * (1 << 18) + b"x", "more than 262,144 bytes"),
        (
            ed25519.Ed25519PrivateKey.generate().private_bytes(PEM, PKCS8, serialization.NoEncryption()),
            "expected a private key for ECDSA or RSA",
        ),
        (keys.make_key().private_bytes(PEM, PKCS8, LOCKED), "has a passphrase"),
    ],
    ids=["empty", "binary", "large", "ed25519", "passphrase"],
)
def test_key_files_that_cannot_be_used(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "a.key"
    keys.write_private(path, content)
    with pytest.raises(ConfigError, match=rf"^{path}: .*{why}"):
        keys.read_key(path)
    with pytest.raises(ConfigError, match=r"none.key: No such file"):
        keys.read_key(tmp_path / "none.key")


def test_a_key_with_a_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, path = keys.make_key(), tmp_path / "a.key"
    keys.write_private(path, key.private_bytes(PEM, PKCS8, LOCKED))
    monkeypatch.setenv("FEDKIN_PASSPHRASE", "secret")
    read = keys.read_key(path)
    assert keys.is_signed(key.public_key(), keys.sign(read, b"x"), b"x")
    monkeypatch.setenv("FEDKIN_PASSPHRASE", "other")
    with pytest.raises(ConfigError, match=r"a\.key: not a private key in PEM"):
        keys.read_key(path)


def test_a_certificate_of_another_key(tmp_path: Path, town: Town) -> None:
    key, certificate = saved(tmp_path, town)
    for content, why in (
        (certificate_pem(town.signed("ann").chain), f"this certificate is not for the key {key}$"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not a certificate in PEM"),
    ):
        certificate.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"^{certificate}: {why}"):
            load(key, certificate, [town.ca])


def of_a_ca(town: Town, name: str, key: keys.PrivateKey, extensions: list[x509.Extension[Any]]) -> x509.Certificate:
    """A certificate of this CA that the town's CA signed."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return certificate(subject, town.ca.subject, key.public_key(), town.key, extensions)


def test_what_is_wrong_with_a_certificate_is_said(town: Town) -> None:
    good, other, same_name = town["ann"].chain, new_town("other-ca").ca, new_town().ca
    middle = of_a_ca(town, "middle", keys.make_key(), list(town.ca.extensions))
    unsigned = "not signed by the CA of this federation: signed by CN=test-ca, expected CN="
    for chain, root, name, why in (
        (good, town.ca, "bob", "this certificate is of 'ann'; expected 'bob'"),
        (town.expired("ann").chain, town.ca, "ann", "expired on .* UTC; have a new one signed"),
        (good, other, "ann", f"{unsigned}other-ca"),
        (good, same_name, "ann", f"{unsigned}test-ca {keys.fingerprint(same_name)}"),
        ([town.ca], town.ca, "test-ca", "not signed by the CA of this federation"),
        ([middle], town.ca, "middle", "this is the certificate of a CA; expected a participant's"),
    ):
        with pytest.raises(ConfigError, match=rf"^c: .*{why}"):
            verify(chain, [root], name, "c")
    with pytest.raises(ConfigError, match=r"^c: .*CN=ann is valid from .* UTC on; is the clock right"):
        verify(good, [town.ca], "ann", "c", datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3))
    verify(good, [other, town.ca], "ann", "c")


def test_a_participant_cannot_sign_for_others(town: Town) -> None:
    """A certificate that the CA signed for a participant is no CA, whatever the participant signs with it."""
    mallory = town.signed("mallory")
    request = make_request(keys.make_key(), "ann")
    forged = sign_request(request, mallory.key, mallory.chain[0], 5)
    with pytest.raises(ConfigError, match=r"^c: .*must be asserted in a CA certificate"):
        verify([forged, mallory.chain[0]], [town.ca], "ann", "c")


def test_a_ca_that_may_not_sign(town: Town) -> None:
    extensions = [one for one in town.ca.extensions if not isinstance(one.value, x509.KeyUsage)]
    usage = town["ann"].chain[0].extensions.get_extension_for_class(x509.KeyUsage)
    ca = of_a_ca(town, "test-ca", town.key, [*extensions, usage])
    with pytest.raises(ConfigError, match=r"^c: .*its issuer may not sign certificates"):
        verify(town["ann"].chain, [ca], "ann", "c")


def test_what_a_request_asks_for_beyond_a_name_is_not_signed(town: Town) -> None:
    key = keys.make_key()
    asked = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "O"), x509.NameAttribute(NameOID.COMMON_NAME, "ann")])
    ).add_extension(x509.BasicConstraints(True, None), True)  # fmt: skip
    signed = sign_request(asked.sign(key, hashes.SHA256()), town.key, town.ca, 5)
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert signed.subject.rfc4514_string() == "CN=ann"


def test_requests_that_cannot_be_signed() -> None:
    with pytest.raises(ConfigError, match=r"^r: not a certificate request in PEM"):
        request_of(b"garbage", "r")
    good = make_request(keys.make_key(), "ann").public_bytes(serialization.Encoding.DER)
    changed = x509.load_der_x509_csr(good.replace(b"\x0c\x03ann", b"\x0c\x03bob")).public_bytes(PEM)
    with pytest.raises(ConfigError, match=r"^r: the request is not signed by its own key"):
        request_of(changed, "r")
    for name in ("a b", "", "é", "-a", "a/b"):
        with pytest.raises(ConfigError, match=r"--name|expected one common name"):
            make_request(keys.make_key(), name)
    for host in ("ü", "bad host", "tls/clinic.org:7447", ""):
        with pytest.raises(ConfigError, match=rf"^--host: '{host}' is no host name or address$"):
            make_request(keys.make_key(), "ann", [host])


def test_a_revoked_line_that_can_be_nobody_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    path.write_text(f"ann  # left\n\nsha256:{'a' * 64}\n")
    at_work = Revocations(path)
    assert "ann" in at_work
    for line in ("revoked ann", "sha256:abc", "SHA256:" + "a" * 64):
        path.write_text(f"bob\n{line}\n")
        assert "bob" in at_work
        with pytest.raises(ConfigError, match=r"line 2: .*expected a name, or a fingerprint sha256:"):
            Revocations(path)
