"""`fedkin net init`, `ca`, `invite` and `show`: keys, certificates, and join files that say who takes part."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli.options import JSON
from fedkin.cli.output import printed_as_json, say
from fedkin.errors import ConfigError
from fedkin.folders import write_new
from fedkin.untrusted import escaped

if TYPE_CHECKING:
    from cryptography import x509

    from fedkin.network.join_file import Member


def init(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder for the key and the request."),
    name: str = typer.Option(..., help="The participant: letters, digits, '.', '_', '-'; at most 64."),
    hosts: list[str] = typer.Option(
        [], "--host", help="A host name or address at which others dial it. May be repeated."
    ),
) -> None:
    """Make a private key, and a request for a certificate to send to whoever runs the CA.

    Examples:
    fedkin net init keys --name north
    """
    from fedkin.network import identity

    key = identity.make_key()
    request = identity.make_request(key, name, hosts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity.write_private(folder / f"{name}.key", identity.key_pem(key))
    _write(folder / f"{name}.csr", identity.request_pem(request), replace=True)
    say(
        f"key:      {folder / f'{name}.key'} (stays here)",
        f"request:  {folder / f'{name}.csr'} (send it to whoever runs the CA)",
        f"          {identity.fingerprint(request)}",
    )


def ca(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder of the CA."),
    sign: list[Path] = typer.Option([], metavar="FILE", help="A certificate request to sign. May be repeated."),
    name: str = typer.Option("fedkin-ca", help="Name of a new CA."),
    days: int | None = typer.Option(None, min=1, max=36500, help="Days of validity (default: 3650 for a CA, 365)."),
    replace: bool = typer.Option(False, "--replace", help="With --sign: replace a certificate that is there."),
) -> None:
    """Make a CA; with --sign, sign requests with an existing one.

    Examples:
    fedkin net ca ca
    fedkin net ca ca --sign north.csr
    """
    from fedkin.network import identity

    if sign:
        _sign(folder, sign, days or 365, replace)
        return
    key, certificate = identity.make_ca(name, days or 3650)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity.write_private(folder / "ca.key", identity.key_pem(key))
    _write(folder / "ca.crt", identity.certificate_pem([certificate]), replace=True)
    say(
        f"key:          {folder / 'ca.key'} (whoever has it can pose as anyone: keep it offline)",
        f"certificate:  {folder / 'ca.crt'}",
        f"              {identity.fingerprint(certificate)}",
    )


def _sign(folder: Path, requests: Sequence[Path], days: int, replace: bool) -> None:
    from fedkin.network import identity

    key, ca = _read_ca(folder)
    read = [identity.request_of(identity.read_file(path), str(path)) for path in requests]
    names = [identity.common_name(request.subject, str(path)) for request, path in zip(read, requests, strict=True)]
    twice = sorted({name for name in names if names.count(name) > 1 or name == "ca"})
    if twice:
        raise ConfigError(f"--sign: {twice[0]!r} is there twice, or is the CA's own")
    for name, request in zip(names, read, strict=True):
        certificate = identity.sign_request(request, key, ca, days)
        _write(folder / f"{name}.crt", identity.certificate_pem([certificate]), replace)
        say(
            f"request:      {identity.fingerprint(request)} (compare it with what {name} sees)",
            f"certificate:  {folder / f'{name}.crt'}",
            *_certificate_lines(certificate),
        )


def _read_ca(folder: Path) -> tuple[Any, x509.Certificate]:
    """Return the key and the certificate of the CA in a folder; raises ConfigError if they cannot sign."""
    from fedkin.network import identity

    if not (folder / "ca.key").exists():
        raise ConfigError(f"{folder}: no CA here (ca.key); make one: fedkin net ca {folder}")
    key = identity.read_key(folder / "ca.key")
    ca = identity.certificates_of(identity.read_file(folder / "ca.crt"), str(folder / "ca.crt"))[0]
    if ca.public_key() != key.public_key():
        raise ConfigError(f"{folder / 'ca.crt'}: this certificate is not for the key {folder / 'ca.key'}")
    if ca.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise ConfigError(f"{folder / 'ca.crt'}: this CA expired; make another in a new folder")
    return key, ca


def invite(
    experiment: Path = typer.Argument(..., metavar="E.toml", help="The experiment file."),
    out: Path = typer.Option(..., help="The join file to write."),
    ca: Path = typer.Option(..., help="Certificate of the CA (PEM)."),
    server: str | None = typer.Option(None, metavar="NAME=ADDRESS", help="Who aggregates, and its address."),
    router: str | None = typer.Option(
        None, metavar="NAME=ADDRESS", help="Who passes encrypted messages on, if nobody has an open port."
    ),
    members: list[str] = typer.Option(
        [], "--member", help="A participant; with an address if others dial it. May be repeated."
    ),
    certificates: list[Path] = typer.Option(
        [], "--certificate", help="A member's certificate, to accept that one only. May be repeated."
    ),
    name: str | None = typer.Option(None, help="Name of the federation (default: the experiment's)."),
) -> None:
    """Write a join file: the experiment, who takes part, at which addresses, and whose CA is trusted.

    Examples:
    fedkin net invite EXPERIMENT.toml --ca ca.crt --server s=tls/HOST:7447 --member a --out join.toml
    """
    from fedkin.network import identity
    from fedkin.network.join_file import VERSION, Join, write_join
    from fedkin.records.files import SETTINGS_BYTES
    from fedkin.running.experiment import load
    from fedkin.running.networked import check_members, check_no_files
    from fedkin.settings import parse
    from fedkin.untrusted import text_in

    loaded = load(experiment)
    check_no_files(loaded)
    text = text_in(experiment, SETTINGS_BYTES)
    named = [("--server", server), *(("--member", word) for word in members), ("--router", router)]
    book = _book([(option, word) for option, word in named if word], certificates)
    roles = {"--server": (server or "").partition("=")[0], "--router": (router or "").partition("=")[0]}
    option = "--router" if router else "--server"  # whom the others dial
    if (dialled := roles[option]) and not book[dialled].locator:
        raise ConfigError(f"{option} {dialled}: expected its address too: {option} {dialled}=tls/HOST:PORT")
    roots = identity.certificates_of(identity.read_file(ca), str(ca))
    if not all(map(identity.is_ca, roots)):
        raise ConfigError(f"--ca {ca}: this certificate is not that of a CA; fedkin net ca DIR makes one: DIR/ca.crt")
    table: dict[str, Any] = {
        "version": VERSION, "federation": name or loaded.name, "server": roles["--server"],
        "router": roles["--router"], "ca": identity.certificate_pem(roots).decode(), "experiment": text,
        "members": book,
    }  # fmt: skip
    join = parse(Join, table, "join")
    check_members(loaded, join)
    write_join(join, out)
    say(f"join file:  {out} (no secret; send it by a way that its readers trust)", *_of_join(join))


def _book(members: Sequence[tuple[str, str]], pins: Sequence[Path]) -> dict[str, Member]:
    """Return the address book of (option, NAME or NAME=ADDRESS), with the certificates in these files."""
    from fedkin.network import identity
    from fedkin.network.join_file import Member, locator

    if not members:
        raise ConfigError("nobody takes part; expected --server NAME=tls/HOST:PORT, --member NAME")
    book: dict[str, Member] = {}
    for option, word in members:
        name, _, place = word.partition("=")
        if name in book:
            raise ConfigError(f"{option} {escaped(name, 64)}: there already")
        book[name] = Member(locator=place and locator(place, f"{option} {escaped(name, 64)}: "))
    for path in pins:
        chain = identity.certificates_of(identity.read_file(path), str(path))
        name = identity.common_name(chain[0].subject, str(path))
        if name not in book:
            raise ConfigError(f"--certificate {path}: it is of {name!r}, who is not a member: --member {name}")
        pem = identity.certificate_pem(chain[:1]).decode()
        book[name] = Member(locator=book[name].locator, certificate=pem)
    return book


def show(
    path: Path = typer.Argument(..., metavar="FILE", help="A certificate, a request, or a join file."),
    json: bool = JSON,
) -> None:
    """Say what a certificate, a certificate request or a join file says.

    Examples:
    fedkin net show join.toml
    """
    from fedkin.network import identity
    from fedkin.network.join_file import read_join

    data = b"" if path.suffix == ".toml" else identity.read_file(path)
    if b"PRIVATE KEY-----" in data:
        raise ConfigError(f"{path}: holds a private key, which is shown to nobody")
    if b"-----BEGIN CERTIFICATE REQUEST-----" in data:
        request = identity.request_of(data, str(path))
        if not printed_as_json(json, _facts_of(request)):
            say(*_certificate_lines(request))
    elif b"-----BEGIN CERTIFICATE-----" in data:
        chain = identity.certificates_of(data, str(path))
        if not printed_as_json(json, list(map(_facts_of, chain))):
            say(*(line for certificate in chain for line in _certificate_lines(certificate)))
    else:
        join = read_join(path)
        more = {"ca": list(map(_facts_of, join.roots)), "experiment_hash": join.experiment_hash}
        if not printed_as_json(json, join.model_dump() | more):
            say(*_of_join(join))


def _facts_of(signed: x509.Certificate | x509.CertificateSigningRequest) -> dict[str, Any]:
    """Return what `_certificate_lines` says, by name; times in ISO 8601."""
    from cryptography import x509

    from fedkin.network import identity

    facts: dict[str, Any] = {"subject": signed.subject.rfc4514_string()}
    if isinstance(signed, x509.Certificate):
        facts["signed by"] = signed.issuer.rfc4514_string()
        facts["valid"] = [signed.not_valid_before_utc.isoformat(), signed.not_valid_after_utc.isoformat()]
    return facts | {"hosts": identity.hosts_of(signed), "fingerprint": identity.fingerprint(signed)}


def _certificate_lines(signed: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """Return lines about a certificate or a request for one."""
    from cryptography import x509

    facts = _facts_of(signed)
    lines = [f"request of:   {facts['subject']}"]
    if isinstance(signed, x509.Certificate):
        first, last = signed.not_valid_before_utc, signed.not_valid_after_utc
        expired = " (expired)" if last < datetime.datetime.now(datetime.UTC) else ""
        lines = [
            f"subject:      {facts['subject']}", f"signed by:    {facts['signed by']}",
            f"valid:        {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC{expired}",
        ]  # fmt: skip
    return [
        *lines, f"hosts:        {', '.join(facts['hosts']) or 'none'}", f"fingerprint:  {facts['fingerprint']}",
    ]  # fmt: skip


def _of_join(join: Any) -> list[str]:
    lines = [f"federation:  {join.federation}", f"server:      {join.server or 'none: peers'}"]
    lines += [f"router:      {join.router}, which passes sealed messages"] if join.router else []
    for name, member in join.members.items():
        pin = f", certificate {member.pin}" if member.pin else ""
        lines.append(f"member:      {name}{f' at {member.locator}' if member.locator else ''}{pin}")
    lines += [f"ca:          {line.strip()}" for root in join.roots for line in _certificate_lines(root)]
    return [*lines, f"experiment:  {join.experiment_hash}", *(f"  {line}" for line in join.experiment.splitlines())]


def _write(path: Path, data: bytes, replace: bool) -> None:
    write_new(path, data, "--replace replaces it", mode=0o644, replace=replace)
