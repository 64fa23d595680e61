"""`fedkin net`, a federation over a network: keys and join files, taking part, and how it stands."""

from __future__ import annotations

import datetime
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli import participant
from fedkin.cli.experiments import finish_run, start_or_resume
from fedkin.cli.options import JSON, OUT, RESUME, ROOT
from fedkin.cli.output import print_table, printed_as_json, say, stop_on_signals
from fedkin.errors import ConfigError, RunError
from fedkin.folders import holder, locked, write_new
from fedkin.report.units import megabytes
from fedkin.running.progress import Progress, make_console
from fedkin.untrusted import escaped

if TYPE_CHECKING:
    from cryptography import x509

    from fedkin.network.identity import Identity
    from fedkin.network.join_file import Join, Member
    from fedkin.network.status import Other, Status
    from fedkin.network.zenoh_link import ZenohLink

_JOIN = typer.Argument(..., metavar="JOIN.toml", help="The join file: who takes part, and what runs.")
_KEY = typer.Option(..., help="This participant's private key (PEM).")
_CERTIFICATE = typer.Option(None, help="Its certificate (default: the key's name with .crt).")
_REVOKED = typer.Option(None, metavar="FILE", help="Names and fingerprints that are no longer accepted, one a line.")
_LISTEN = typer.Option(None, metavar="tls/HOST:PORT", help="Where to listen (default: the address in the join file).")


def _serve(
    experiment: Path | None = typer.Argument(None, metavar="[E.toml]", help="Experiment file; not with --resume."),
    invitation: Path = typer.Option(..., "--join", help="The join file that the participants have."),
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
    revoked: Path | None = _REVOKED,
    data_root: Path | None = ROOT,
    out: Path | None = OUT,
    resume: Path | None = RESUME,
    json: bool = JSON,
) -> None:
    """Run an experiment as its server: wait for the clients, run the rounds, and keep the records of a simulation.

    Examples:
    fedkin net serve EXPERIMENT.toml --join join.toml --key server.key
    """
    from fedkin.running import networked

    loaded, folder, root = start_or_resume(experiment, [], None, out, resume, data_root)
    invited, identity = _invited(invitation, key, certificate)
    loaded = networked.with_join_file(loaded, invited)
    if identity.name != invited.server:
        raise ConfigError(f"--key {key}: it is of {identity.name!r}, and the server is {invited.server!r}")
    with _link(invited, identity, listen, revoked) as link, stop_on_signals(folder) as stop:
        watcher = Progress(loaded.method.name, stop, json)
        result = networked.serve(loaded, link, folder, data_root=root, say=_say, watcher=watcher)
    finish_run(loaded, result, folder, json)


def _join(
    invitation: Path = _JOIN,
    data: str = participant.DATA,
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
    revoked: Path | None = _REVOKED,
    group: str | None = participant.GROUP,
    test_fraction: float | None = participant.HELD,
    state: Path | None = participant.STATE,
    max_epsilon: float | None = participant.EPSILON,
    device: str = participant.DEVICE,
    unseen: bool = participant.UNSEEN,
    yes: bool = participant.YES,
    json: bool = JSON,
) -> None:
    """Take part with samples of its own until the run has ended: as a client, or as a peer if there is no server.

    Examples:
    fedkin net join join.toml --data stays.csv --key north.key
    """
    from fedkin.network.client import NetworkClient
    from fedkin.records.files import seal_of
    from fedkin.running import networked

    invited, identity = _invited(invitation, key, certificate)
    experiment, me = networked.experiment_of(invited), identity.name
    if me == invited.server:
        raise ConfigError(f"--key {key}: it is of the server, {me!r}, which does not join")
    samples, watch = participant.own_samples(experiment, me, data, test_fraction, group)
    folder = state if state is not None else invitation.parent / f"{me}-state"
    consent = participant.consenting(yes, invited.server or "its neighbours")
    if invited.server:
        with (
            locked(folder), participant.ledger_in(experiment, folder, me, max_epsilon) as ledger,
            participant.leave_on_signals(_say) as (_, stop),
            _link(invited, identity, listen, revoked) as link,
        ):  # fmt: skip
            if (round := seal_of(folder).round) is not None:
                _say(f"kept from an earlier start: its model after round {round} (fedkin export {folder})")
            NetworkClient(
                link, samples, networked.setup_of, folder, server=invited.server, stop=stop, say=_say,
                settings=networked.settings_of(experiment), device=device, consent=consent, ledger=ledger,
                take_home=networked.taking_home(experiment), unseen=unseen, watch=watch,
            ).run()  # fmt: skip
        return
    if unseen:
        raise ConfigError("--unseen: a federation of peers has no server that would send a model")
    with (
        participant.ledger_in(experiment, folder, me, max_epsilon) as ledger,
        _link(invited, identity, listen, revoked) as link, participant.leave_on_signals(_say) as (flag, stop),
    ):  # fmt: skip
        result = networked.exchange(
            experiment, link, samples, invited.participants, folder, device=device, stop=stop, consent=consent,
            say=_say, ledger=ledger, watcher=Progress(experiment.method.name, flag, json),
        )  # fmt: skip
    finish_run(experiment, result, folder, json)


def _leave(
    invitation: Path = _JOIN,
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    revoked: Path | None = _REVOKED,
    state: Path | None = participant.STATE,
) -> None:
    """Leave a running federation: from the next round on its data do not count. Ctrl-C of `join` only pauses.

    Examples:
    fedkin net leave join.toml --key north.key
    """
    from fedkin.network.client import LEAVES, ServerConnection

    invited, identity = _invited(invitation, key, certificate)
    if not invited.server:
        raise ConfigError("a federation of peers has no server that counts who is there: end fedkin net join")
    if identity.name == invited.server:
        raise ConfigError(f"--key {key}: it is of the server, {identity.name!r}, which ends with Ctrl-C")
    folder = state or invitation.parent / f"{identity.name}-state"
    if holder(folder) is not None:
        (folder / LEAVES).touch(mode=0o600)
        _say(f"fedkin net join of {identity.name} ends when the server has recorded that it leaves")
        return
    with (
        locked(folder), participant.leave_on_signals(_say) as (_, stop),
        _link(invited, identity, None, revoked) as link,
    ):  # fmt: skip
        connection = ServerConnection(link, invited.server, say=_say, stop=stop)
        connection.await_farewell(connection.say_leaving())


def _router(
    invitation: Path = typer.Argument(..., metavar="JOIN.toml", help="The join file, which names this router."),
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
) -> None:
    """Pass sealed messages between participants that can only dial out, until Ctrl-C.

    Examples:
    fedkin net router join.toml --key router.key
    """
    from fedkin.network.zenoh_link import run_router

    invited, identity = _invited(invitation, key, certificate)
    if identity.name != invited.router:
        raise ConfigError(f"--key {key}: it is of {identity.name!r}, and the router is {invited.router or 'nobody'!r}")
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    endpoint = listen or invited.members[invited.router].locator
    with run_router(identity, invited.members, [endpoint]):
        say(
            f"router {identity.name} listens at {endpoint}; it sees who exchanges with whom, when, how much and under "
            "which name, and nothing else"
        )
        stop.wait()


def _invited(path: Path, key: Path, certificate: Path | None) -> tuple[Join, Identity]:
    """Return the join file and this participant's identity; raises ConfigError if it is not a member."""
    from fedkin.network.identity import load
    from fedkin.network.join_file import read_join

    invited = read_join(path)
    identity = load(key, certificate or key.with_suffix(".crt"), invited.roots)
    if identity.name not in invited.members:
        raise ConfigError(f"--key {key}: {identity.name!r} is not a member of this federation")
    return invited, identity


def _say(line: str) -> None:
    say(line, stderr=True)


def _link(invited: Join, identity: Identity, listen: str | None, revoked: Path | None) -> ZenohLink:
    """Return this participant's link; a participant that dials tries to reach the others again and again."""
    from fedkin.network.identity import Revocations
    from fedkin.network.zenoh_link import ZenohLink

    me = identity.name
    if me == invited.router:
        raise ConfigError(f"{me} is the router, which takes no part: fedkin net router")
    endpoint = listen or invited.members[me].locator
    listens = endpoint and not invited.router and invited.server in ("", me)
    if listens:
        _check_host(invited, identity)
    return ZenohLink(
        identity, invited.members, [endpoint] if listens else [], invited.dialled_by(me), router=invited.router,
        revoked=Revocations(revoked),
    )  # fmt: skip


def _check_host(invited: Join, identity: Identity) -> None:
    """Raise ConfigError if others dial this participant at a host that is not in its certificate."""
    from fedkin.network.identity import hosts_of

    me, endpoint = identity.name, invited.members[identity.name].locator
    if not any(me in invited.dialled_by(name) for name in invited.participants):
        return
    host = endpoint.removeprefix("tls/").rpartition(":")[0].strip("[]").lower()
    hosts = [each.lower() for each in hosts_of(identity.chain[0])]
    if host not in hosts and f"*.{host.partition('.')[2]}" not in hosts:
        raise ConfigError(
            f"--key: the certificate of {me!r} is for {' and '.join(hosts) or 'no host'}, and the others dial it at "
            f"{endpoint}: make new ones with fedkin net init DIR --name {me} --host {host}, and have "
            f"DIR/{me}.csr signed"
        )


# -- prepare and look: keys, certificates, and join files that say who takes part --------------------------------------


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
        f"key:          {folder / 'ca.key'} (with it anyone can pose as any participant: keep it offline)",
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
        say(
            f"request:      {identity.fingerprint(request)} (compare it with what {name} sees)",
            f"certificate:  {folder / f'{name}.crt'}",
            *_certificate_lines(certificate),
        )


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
        name, _, endpoint = word.partition("=")
        if name in book:
            raise ConfigError(f"{option} {escaped(name, 64)}: there already")
        book[name] = Member(locator=endpoint and locator(endpoint, f"{option} {escaped(name, 64)}: "))
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
    facts = _facts_of(signed)
    lines = [f"request of:   {facts['subject']}"]
    if "valid" in facts:
        first, last = map(datetime.datetime.fromisoformat, facts["valid"])
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


# -- how a federation stands, from the files of its participants on this machine ---------------------------------------


_EVERY = 1.0  # seconds between two readings of the status
_MARK = 12  # digits of a model's hash that are shown


def status(
    path: Path = typer.Argument(
        ..., metavar="FOLDER", help="The server's run, a participant's state folder, a folder of these, or a join file."
    ),
    watch: bool = typer.Option(False, "--watch", help="Print it again each second, until all have ended."),
    json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """Show the state of a federation from the folders of its participants on this machine; needs no network.

    Examples:
    fedkin net status runs/wards
    """
    from fedkin.network.status import FILE, read_status

    folder = path.parent if path.suffix == ".toml" else path
    files = [folder / FILE] if (folder / FILE).exists() else sorted(folder.glob(f"*/{FILE}"))
    if not files:
        raise RunError(
            f"{path}: no {FILE} here or in its folders; name the folder of a participant: that of --out of fedkin net "
            "serve, or NAME-state beside the join file"
        )
    pause = Event()
    while True:
        statuses = {file: read_status(file) for file in files}
        if not printed_as_json(json, {str(file): status.model_dump() for file, status in statuses.items()}):
            if watch:
                make_console().clear()
            for file, status in statuses.items():
                _print_status(file, status)
        if not watch or all(status.state != "running" for status in statuses.values()):
            return
        pause.wait(_EVERY)


def _print_status(file: Path, status: Status) -> None:
    now = time.time()
    late = status.late(now)
    round = f"round {status.round} of {status.rounds}" if status.rounds else "not begun"
    state = "left; the same command comes back" if status.state == "left" else status.state
    who = f"{status.federation or 'federation'}: {status.name} ({status.role})"
    say(f"{who}, {round}, {'silent' if late else state}")
    if late:
        say(f"it has written nothing for {_ago(late)}: its process was killed or is stopped ({file.parent})")
    if status.weights:
        weights = ", ".join(f"{name} {weight:.2f}" for name, weight in status.weights.items())
        say(f"learned weights: {weights}")
    if status.model:
        say(f"its model: {status.model[:_MARK]} (fedkin export {file.parent})")
    if status.epsilon is not None:
        say(f"released so far in this run: epsilon {status.epsilon:.2f}")
    known = status.state == "running" and not late  # else nobody knows who is here
    _print_others(status.others, now, known)
    if status.nameless:
        say(f"refused, and nobody knows whose: {status.nameless}")


# The last three columns are left out if they are empty.
_HEADS = ("name", "here", "round", "last seen", "from it", "to it", "refused", "epsilon", "group", "model")


def _print_others(others: Mapping[str, Other], now: float, known: bool) -> None:
    """Print a line for each other participant, and why messages were refused. known: whether their `here` holds now."""
    rows = [_row(name, other, now, known and other.here) for name, other in others.items()]
    heads = [head for head in _HEADS if head not in _HEADS[-3:] or any(row[head] for row in rows)]
    print_table(heads, [[row[head] for head in heads] for row in rows])
    say(*(f"refused of {name}, the last: {escaped(other.why)}" for name, other in others.items() if other.why))


def _row(name: str, other: Other, now: float, here: bool) -> dict[str, str]:
    seen = "never" if other.seen is None else f"{_ago(max(0.0, now - other.seen))} ago"
    return dict(zip(_HEADS, (
        name, "yes" if here else "no", "" if other.round is None else str(other.round),
        "now" if here else seen, megabytes(other.bytes_in), megabytes(other.bytes_out), str(other.refused or ""),
        "" if other.epsilon is None else f"{other.epsilon:.2f}", "" if other.group is None else str(other.group),
        other.model[:_MARK],
    ), strict=True))  # fmt: skip


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


net = typer.Typer(no_args_is_help=True, help="A federation over a network (docs/network.md).")
_PANELS: dict[str, dict[str, Any]] = {
    "Prepare": {"init": init, "ca": ca, "invite": invite},
    "Look": {"show": show, "status": status},
    "Take part": {"serve": _serve, "join": _join, "leave": _leave, "router": _router},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        net.command(_name, rich_help_panel=_panel)(_command)
