"""`fedkin net`: keys, certificates, join files and the status of federations over a network."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli.completion import check_experiment
from fedkin.cli.lazy import command_after_import
from fedkin.cli.output import make_console
from fedkin.cli.serve import join, peer, serve
from fedkin.cli.status import status
from fedkin.errors import ConfigError
from fedkin.folders import write_new
from fedkin.untrusted import shown

if TYPE_CHECKING:
    from cryptography import x509

    from fedkin.network.book import Member

__all__ = ["net"]

net = typer.Typer(
    no_args_is_help=True, help="Keys, certificates and join files of federations over a network; how one goes."
)

_NAME = typer.Option(..., "--name", help="The participant: letters, digits, '.', '_', '-'; at most 64.")
_HOSTS = typer.Option([], "--host", help="A host name or address at which others dial it. May be repeated.")
_SIGN = typer.Option([], "--sign", help="A certificate request to sign. May be repeated.", metavar="FILE")
_CA_NAME = typer.Option("fedkin-ca", "--name", help="Name of a new CA.")
_DAYS = typer.Option(None, "--days", min=1, max=36500, help="Days of validity (default: 3650 for a CA, 365).")
_REPLACE = typer.Option(False, "--replace", help="With --sign: replace a certificate that is there.")
_CA = typer.Option(..., "--ca", help="Certificate of the CA (PEM).")
_MEMBERS = typer.Option([], "--member", help="A participant; with an address if others dial it. May be repeated.")
_PINS = typer.Option([], "--certificate", help="A member's certificate, to accept that one only. May be repeated.")


_reads_experiment = command_after_import("fedkin.running.experiment", experiment=check_experiment)
net.command("serve", cls=_reads_experiment)(serve)
net.command("join", cls=command_after_import("fedkin.running.experiment"))(join)
net.command("peer", cls=command_after_import("fedkin.running.experiment"))(peer)
net.command("status", cls=command_after_import("fedkin.network.status"))(status)


@net.command("init", cls=command_after_import("fedkin.network.joining"))
def _init(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder for the key and the request."),
    name: str = _NAME,
    hosts: list[str] = _HOSTS,
) -> None:
    """Make a private key, and a request for a certificate to send to whoever runs the CA."""
    from fedkin.network import keys
    from fedkin.network.identity import make_request, request_pem, thumb

    key = keys.make_key()
    request = make_request(key, name, hosts)
    _made(folder)
    keys.write_private(folder / f"{name}.key", keys.key_pem(key))
    _write(folder / f"{name}.csr", request_pem(request), replace=True)
    _say(
        f"key:      {folder / f'{name}.key'} (stays here)",
        f"request:  {folder / f'{name}.csr'} (send it to whoever runs the CA)",
        f"          {thumb(request)}",
    )


@net.command("ca", cls=command_after_import("fedkin.network.joining"))
def _ca(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder of the CA."),
    sign: list[Path] = _SIGN,
    name: str = _CA_NAME,
    days: int | None = _DAYS,
    replace: bool = _REPLACE,
) -> None:
    """Make a CA; with --sign, sign requests with the one that is there."""
    from fedkin.network import keys
    from fedkin.network.identity import certificate_pem, fingerprint, make_ca

    if sign:
        _sign(folder, sign, days or 365, replace)
        return
    key, certificate = make_ca(name, days or 3650)
    _made(folder)
    keys.write_private(folder / "ca.key", keys.key_pem(key))
    _write(folder / "ca.crt", certificate_pem([certificate]), replace=True)
    _say(
        f"key:          {folder / 'ca.key'} (whoever has it can pose as anyone: keep it offline)",
        f"certificate:  {folder / 'ca.crt'}",
        f"              {fingerprint(certificate)}",
    )


def _sign(folder: Path, requests: Sequence[Path], days: int, replace: bool) -> None:
    from fedkin.network import keys
    from fedkin.network.identity import certificate_pem, certificates_of, common_name, request_of, sign_request, thumb

    if not (folder / "ca.key").exists():
        raise ConfigError(f"{folder}: no CA here (ca.key); make one: fedkin net ca {folder}")
    key = keys.read_key(folder / "ca.key")
    ca = certificates_of(keys.read_file(folder / "ca.crt"), str(folder / "ca.crt"))[0]
    if ca.public_key() != key.public_key():
        raise ConfigError(f"{folder / 'ca.crt'}: this certificate is not for the key {folder / 'ca.key'}")
    if ca.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise ConfigError(f"{folder / 'ca.crt'}: this CA expired; make another in a new folder")
    read = [request_of(keys.read_file(path), str(path)) for path in requests]
    names = [common_name(request.subject, str(path)) for request, path in zip(read, requests, strict=True)]
    twice = sorted({name for name in names if names.count(name) > 1 or name == "ca"})
    if twice:
        raise ConfigError(f"--sign: {twice[0]!r} is there twice, or is the CA's own")
    for name, request in zip(names, read, strict=True):
        certificate = sign_request(request, key, ca, days)
        _write(folder / f"{name}.crt", certificate_pem([certificate]), replace)
        _say(
            f"request:      {thumb(request)} (compare it with what {name} sees)",
            f"certificate:  {folder / f'{name}.crt'}",
            *_about(certificate),
        )


@net.command("invite", cls=command_after_import("fedkin.running.experiment"))
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
    from fedkin.network import keys
    from fedkin.network.identity import certificate_pem, certificates_of
    from fedkin.network.joining import VERSION, Join, hash_of, write_join
    from fedkin.records.files import SETTINGS_BYTES
    from fedkin.running.experiment import load
    from fedkin.running.shared_metrics import sendable
    from fedkin.settings import parse
    from fedkin.untrusted import text_in

    known = load(experiment)
    text = sendable(known, text_in(experiment, SETTINGS_BYTES))
    book, first = _book([*filter(None, [server]), *members, *filter(None, [router])], certificates)
    between = router.partition("=")[0] if router else ""
    if server and not router and not book[first].locator:
        raise ConfigError(f"--server {first}: expected its address too: --server {first}=tls/HOST:PORT")
    table: dict[str, Any] = {
        "version": VERSION, "federation": name or known.name, "server": first if server else "", "router": between,
        "ca": certificate_pem(certificates_of(keys.read_file(ca), str(ca))).decode(),
        "experiment": text, "experiment_hash": hash_of(text), "members": book,
    }  # fmt: skip
    join = parse(Join, table, "join")
    write_join(join, out)
    _say(f"join file:  {out} (no secret; send it by a way that its readers trust)", *_of_join(join))


def _book(members: Sequence[str], pins: Sequence[Path]) -> tuple[dict[str, Member], str]:
    """(the address book of NAME or NAME=ADDRESS, with the certificates in these files; the first name)."""
    from fedkin.network import keys
    from fedkin.network.book import Member
    from fedkin.network.identity import certificate_pem, certificates_of, common_name
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
        chain = certificates_of(keys.read_file(path), str(path))
        name = common_name(chain[0].subject, str(path))
        if name not in book:
            raise ConfigError(f"--certificate {path}: it is of {name!r}, who is not a member: --member {name}")
        pem = certificate_pem(chain[:1]).decode()
        book[name] = Member(locator=book[name].locator, certificate=pem)
    return book, next(iter(book))


@net.command("router", cls=command_after_import("fedkin.network.joining"))
def _router(
    invitation: Path = typer.Argument(..., metavar="JOIN.toml", help="The join file, which names this router."),
    key: Path = typer.Option(..., "--key", help="The router's private key (PEM)."),
    certificate: Path | None = typer.Option(None, "--certificate", help="Its certificate (default: the key's name)."),
    listen: str | None = typer.Option(None, "--listen", metavar="tls/HOST:PORT", help="Where to listen."),
) -> None:
    """Pass sealed messages between participants that can only dial out, until Ctrl-C."""
    import signal
    from threading import Event

    from fedkin.network.handshakes import refusals
    from fedkin.network.identity import load
    from fedkin.network.joining import read_join
    from fedkin.network.link import Refusals
    from fedkin.network.router import Router

    invited = read_join(invitation)
    identity = load(key, certificate or key.with_suffix(".crt"), invited.roots)
    if identity.name != invited.router:
        raise ConfigError(f"--key {key}: it is of {identity.name!r}, and the router is {invited.router or 'nobody'!r}")
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    place = listen or invited.members[invited.router].locator
    with Router(identity, invited.members, [place]), refusals(_say, Refusals().add):
        _say(f"router {identity.name} listens at {place}; it sees who exchanges with whom, when, how much and under "
             "which name, and nothing else")  # fmt: skip
        stop.wait()


@net.command("show", cls=command_after_import("fedkin.network.joining"))
def _show(path: Path = typer.Argument(..., metavar="FILE", help="A certificate, a request, or a join file.")) -> None:
    """Say what a certificate, a certificate request or a join file says."""
    from fedkin.network import keys
    from fedkin.network.identity import certificates_of, request_of
    from fedkin.network.joining import read_join

    data = b"" if path.suffix == ".toml" else keys.read_file(path)
    if b"PRIVATE KEY-----" in data:
        raise ConfigError(f"{path}: holds a private key, which is shown to nobody")
    if b"-----BEGIN CERTIFICATE REQUEST-----" in data:
        _say(*_of_request(request_of(data, str(path))))
    elif b"-----BEGIN CERTIFICATE-----" in data:
        for certificate in certificates_of(data, str(path)):
            _say(*_about(certificate))
    else:
        _say(*_of_join(read_join(path)))


def _about(certificate: x509.Certificate) -> list[str]:
    from fedkin.network.identity import fingerprint, hosts_of

    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return [
        f"subject:      {certificate.subject.rfc4514_string()}",
        f"signed by:    {certificate.issuer.rfc4514_string()}",
        f"valid:        {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC{_expired(last)}",
        f"hosts:        {', '.join(hosts_of(certificate)) or 'none'}",
        f"fingerprint:  {fingerprint(certificate)}",
    ]


def _expired(last: datetime.datetime) -> str:
    return " (expired)" if last < datetime.datetime.now(datetime.UTC) else ""


def _of_request(request: x509.CertificateSigningRequest) -> list[str]:
    from fedkin.network.identity import hosts_of, thumb

    return [
        f"request of:   {request.subject.rfc4514_string()}",
        f"hosts:        {', '.join(hosts_of(request)) or 'none'}",
        f"fingerprint:  {thumb(request)}",
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
