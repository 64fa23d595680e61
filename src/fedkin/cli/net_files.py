"""`fedkin net init`, `ca`, `invite` and `show`: keys, certificates and join files."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli.output import make_console
from fedkin.errors import ConfigError
from fedkin.folders import write_new
from fedkin.untrusted import shown

if TYPE_CHECKING:
    from cryptography import x509

    from fedkin.network.join_file import Member

__all__ = ["add_look_command", "add_prepare_commands"]

_NAME = typer.Option(..., "--name", help="The participant: letters, digits, '.', '_', '-'; at most 64.")
_HOSTS = typer.Option([], "--host", help="A host name or address at which others dial it. May be repeated.")
_SIGN = typer.Option([], "--sign", help="A certificate request to sign. May be repeated.", metavar="FILE")
_CA_NAME = typer.Option("fedkin-ca", "--name", help="Name of a new CA.")
_DAYS = typer.Option(None, "--days", min=1, max=36500, help="Days of validity (default: 3650 for a CA, 365).")
_REPLACE = typer.Option(False, "--replace", help="With --sign: replace a certificate that is there.")
_CA = typer.Option(..., "--ca", help="Certificate of the CA (PEM).")
_MEMBERS = typer.Option([], "--member", help="A participant; with an address if others dial it. May be repeated.")
_PINS = typer.Option([], "--certificate", help="A member's certificate, to accept that one only. May be repeated.")


def add_prepare_commands(net: typer.Typer) -> None:
    """Add the commands that make keys, certificates and join files to the group."""
    panel = "Prepare"
    net.command("init", rich_help_panel=panel)(_init)
    net.command("ca", rich_help_panel=panel)(_ca)
    net.command("invite", rich_help_panel=panel)(_invite)


def add_look_command(net: typer.Typer) -> None:
    """Add the command that shows one of these files to the group."""
    net.command("show", rich_help_panel="Look")(_show)


def _init(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder for the key and the request."),
    name: str = _NAME,
    hosts: list[str] = _HOSTS,
) -> None:
    """Make a private key, and a request for a certificate to send to whoever runs the CA."""
    from fedkin.network import identity

    key = identity.make_key()
    request = identity.make_request(key, name, hosts)
    _made(folder)
    identity.write_private(folder / f"{name}.key", identity.key_pem(key))
    _write(folder / f"{name}.csr", identity.request_pem(request), replace=True)
    _say(
        f"key:      {folder / f'{name}.key'} (stays here)",
        f"request:  {folder / f'{name}.csr'} (send it to whoever runs the CA)",
        f"          {identity.fingerprint(request)}",
    )


def _ca(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder of the CA."),
    sign: list[Path] = _SIGN,
    name: str = _CA_NAME,
    days: int | None = _DAYS,
    replace: bool = _REPLACE,
) -> None:
    """Make a CA; with --sign, sign requests with the one that is there."""
    from fedkin.network import identity

    if sign:
        _sign(folder, sign, days or 365, replace)
        return
    key, certificate = identity.make_ca(name, days or 3650)
    _made(folder)
    identity.write_private(folder / "ca.key", identity.key_pem(key))
    _write(folder / "ca.crt", identity.certificate_pem([certificate]), replace=True)
    _say(
        f"key:          {folder / 'ca.key'} (whoever has it can pose as anyone: keep it offline)",
        f"certificate:  {folder / 'ca.crt'}",
        f"              {identity.fingerprint(certificate)}",
    )


def _sign(folder: Path, requests: Sequence[Path], days: int, replace: bool) -> None:
    from fedkin.network import identity

    if not (folder / "ca.key").exists():
        raise ConfigError(f"{folder}: no CA here (ca.key); make one: fedkin net ca {folder}")
    key = identity.read_key(folder / "ca.key")
    ca = identity.certificates_of(identity.read_file(folder / "ca.crt"), str(folder / "ca.crt"))[0]
    if ca.public_key() != key.public_key():
        raise ConfigError(f"{folder / 'ca.crt'}: this certificate is not for the key {folder / 'ca.key'}")
    if ca.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise ConfigError(f"{folder / 'ca.crt'}: this CA expired; make another in a new folder")
    read = [identity.request_of(identity.read_file(path), str(path)) for path in requests]
    names = [identity.common_name(request.subject, str(path)) for request, path in zip(read, requests, strict=True)]
    twice = sorted({name for name in names if names.count(name) > 1 or name == "ca"})
    if twice:
        raise ConfigError(f"--sign: {twice[0]!r} is there twice, or is the CA's own")
    for name, request in zip(names, read, strict=True):
        certificate = identity.sign_request(request, key, ca, days)
        _write(folder / f"{name}.crt", identity.certificate_pem([certificate]), replace)
        _say(
            f"request:      {identity.fingerprint(request)} (compare it with what {name} sees)",
            f"certificate:  {folder / f'{name}.crt'}",
            *_about(certificate),
        )


def _invite(
    experiment: Path = typer.Argument(..., metavar="E.toml", help="The experiment file."),
    out: Path = typer.Option(..., "--out", help="The join file to write."),
    ca: Path = _CA,
    server: str | None = typer.Option(
        None, "--server", help="Who aggregates, and its address.", metavar="NAME=ADDRESS"
    ),
    router: str | None = typer.Option(
        None,
        "--router",
        help="Who passes sealed messages between all, if they only dial.",
        metavar="NAME=ADDRESS",
    ),
    members: list[str] = _MEMBERS,
    certificates: list[Path] = _PINS,
    name: str | None = typer.Option(None, "--name", help="Name of the federation (default: the experiment's)."),
) -> None:
    """Write a join file: the experiment, who takes part, at which addresses, and whose CA is trusted."""
    from fedkin.network import identity
    from fedkin.network.join_file import VERSION, Join, hash_of, write_join
    from fedkin.records.files import SETTINGS_BYTES
    from fedkin.running.experiment import load
    from fedkin.running.shared_metrics import sendable
    from fedkin.settings import parse
    from fedkin.untrusted import text_in

    plan = load(experiment)
    text = sendable(plan, text_in(experiment, SETTINGS_BYTES))
    book, first = _book([*filter(None, [server]), *members, *filter(None, [router])], certificates)
    between = router.partition("=")[0] if router else ""
    if server and not router and not book[first].locator:
        raise ConfigError(f"--server {first}: expected its address too: --server {first}=tls/HOST:PORT")
    table: dict[str, Any] = {
        "version": VERSION, "federation": name or plan.name, "server": first if server else "", "router": between,
        "ca": identity.certificate_pem(identity.certificates_of(identity.read_file(ca), str(ca))).decode(),
        "experiment": text, "experiment_hash": hash_of(text), "members": book,
    }  # fmt: skip
    join = parse(Join, table, "join")
    write_join(join, out)
    _say(f"join file:  {out} (no secret; send it by a way that its readers trust)", *_of_join(join))


def _book(members: Sequence[str], pins: Sequence[Path]) -> tuple[dict[str, Member], str]:
    """(the address book of NAME or NAME=ADDRESS, with the certificates in these files; the first name)."""
    from fedkin.network import identity
    from fedkin.network.join_file import Member
    from fedkin.settings import parse

    if not members:
        raise ConfigError("nobody takes part; expected --server NAME=tls/HOST:PORT, --member NAME")
    book: dict[str, Member] = {}
    for word in members:
        name, _, place = word.partition("=")
        if name in book:
            raise ConfigError(f"--member {shown(name, 64)}: there already")
        book[name] = parse(Member, {"locator": place}, f"--member {shown(name, 64)}")
        book[name].check(name, f"--member {shown(name, 64)}")
    for path in pins:
        chain = identity.certificates_of(identity.read_file(path), str(path))
        name = identity.common_name(chain[0].subject, str(path))
        if name not in book:
            raise ConfigError(f"--certificate {path}: it is of {name!r}, who is not a member: --member {name}")
        pem = identity.certificate_pem(chain[:1]).decode()
        book[name] = Member(locator=book[name].locator, certificate=pem)
    return book, next(iter(book))


def _show(path: Path = typer.Argument(..., metavar="FILE", help="A certificate, a request, or a join file.")) -> None:
    """Say what a certificate, a certificate request or a join file says."""
    from fedkin.network import identity
    from fedkin.network.join_file import read_join

    data = b"" if path.suffix == ".toml" else identity.read_file(path)
    if b"PRIVATE KEY-----" in data:
        raise ConfigError(f"{path}: holds a private key, which is shown to nobody")
    if b"-----BEGIN CERTIFICATE REQUEST-----" in data:
        _say(*_of_request(identity.request_of(data, str(path))))
    elif b"-----BEGIN CERTIFICATE-----" in data:
        for certificate in identity.certificates_of(data, str(path)):
            _say(*_about(certificate))
    else:
        _say(*_of_join(read_join(path)))


def _about(certificate: x509.Certificate) -> list[str]:
    from fedkin.network import identity

    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return [
        f"subject:      {certificate.subject.rfc4514_string()}",
        f"signed by:    {certificate.issuer.rfc4514_string()}",
        f"valid:        {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC{_expired(last)}",
        f"hosts:        {', '.join(identity.hosts_of(certificate)) or 'none'}",
        f"fingerprint:  {identity.fingerprint(certificate)}",
    ]


def _expired(last: datetime.datetime) -> str:
    return " (expired)" if last < datetime.datetime.now(datetime.UTC) else ""


def _of_request(request: x509.CertificateSigningRequest) -> list[str]:
    from fedkin.network import identity

    return [
        f"request of:   {request.subject.rfc4514_string()}",
        f"hosts:        {', '.join(identity.hosts_of(request)) or 'none'}",
        f"fingerprint:  {identity.fingerprint(request)}",
    ]


def _of_join(join: Any) -> list[str]:
    lines = [f"federation:  {join.federation}", f"server:      {join.server or 'none: peers'}"]
    lines += [f"router:      {join.router}, which passes sealed messages"] if join.router else []
    for name, member in join.members.items():
        pin = f", certificate {member.pin}" if member.pin else ""
        lines.append(f"member:      {name}{f' at {member.locator}' if member.locator else ''}{pin}")
    lines += [f"ca:          {line.strip()}" for root in join.roots for line in _about(root)]
    return [*lines, f"experiment:  {join.experiment_hash}", *(f"  {line}" for line in join.experiment.splitlines())]


def _made(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror or error}") from None


def _write(path: Path, data: bytes, replace: bool) -> None:
    write_new(path, data, "--replace replaces it", mode=0o644, replace=replace)


def _say(*lines: str) -> None:
    console = make_console(soft_wrap=True)
    for line in lines:
        console.print(line)
