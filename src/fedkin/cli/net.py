"""`fedkin net`: a federation over a network: its server, clients, peers and router, and how it goes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from fedkin.cli.experiments import data_root_of, finish_run, start_or_resume
from fedkin.cli.net_files import add_look_command, add_prepare_commands
from fedkin.cli.options import JSON, OUT, RESTART, RESUME, ROOT
from fedkin.cli.output import as_json, make_console
from fedkin.cli.participant import (
    DATA,
    DEVICE,
    EPSILON,
    GROUP,
    HELD,
    LABELS,
    METRIC,
    STATE,
    TARGET,
    YES,
    consenting,
    leaving,
    ledger_in,
    read_samples,
)  # fmt: skip
from fedkin.cli.progress import Progress, stop_on_signals
from fedkin.errors import ConfigError, RunError
from fedkin.report.units import megabytes
from fedkin.untrusted import shown

if TYPE_CHECKING:
    from fedkin.network.identity import Identity
    from fedkin.network.join_file import Join
    from fedkin.network.link import Link
    from fedkin.network.status import Other, Status

__all__ = ["net"]

net = typer.Typer(no_args_is_help=True, help="A federation over a network (docs/network.md).")
add_prepare_commands(net)

_TAKE_PART = "Take part"
_EVERY = 1.0  # seconds between two looks at how it goes

_JOIN = typer.Argument(..., metavar="JOIN.toml", help="The join file: who takes part, and what runs.")
_KEY = typer.Option(..., "--key", help="This participant's private key (PEM).")
_CERTIFICATE = typer.Option(None, "--certificate", help="Its certificate (default: the key's name with .crt).")
_REVOKED = typer.Option(
    None, "--revoked", metavar="FILE", help="Names and fingerprints that count no more, one a line; it may change."
)
_LISTEN = typer.Option(
    None, "--listen", metavar="tls/HOST:PORT", help="Where to listen (default: the address in the join file)."
)


@net.command("serve", rich_help_panel=_TAKE_PART)
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
    restart: bool = RESTART,
    json: bool = JSON,
) -> None:
    """Run an experiment as its server: wait for the clients, then the rounds, with the records of a simulation."""
    from fedkin.network.join_file import read_join
    from fedkin.running import networked

    plan, folder = start_or_resume(experiment, [], None, out, resume, restart)
    root = data_root_of(folder, data_root, resume is not None)
    invited = read_join(invitation)
    plan = networked.invited(plan, invited)
    console = make_console(stderr=True, soft_wrap=True)
    identity = _identity(invited, key, certificate)
    if identity.name != invited.server:
        raise ConfigError(f"--key {key}: it is of {identity.name!r}, and the server is {invited.server!r}")
    places = [listen or invited.members[invited.server].locator]
    with _link(invited, identity, places, [], revoked) as link, stop_on_signals(folder) as stop:
        result = networked.serve(
            plan, link, folder, resume=resume is not None, restart=restart, data_root=root, say=console.print,
            watcher=Progress(plan.method.name, stop, json),
        )  # fmt: skip
    finish_run(plan, result, folder, json)


@net.command("join", rich_help_panel=_TAKE_PART)
def _join(
    invitation: Path = _JOIN,
    data: str = DATA,
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    target: str | None = TARGET,
    group: str | None = GROUP,
    test_fraction: float | None = HELD,
    state: Path | None = STATE,
    labels: bool = LABELS,
    metric: list[str] = METRIC,
    max_epsilon: float | None = EPSILON,
    device: str = DEVICE,
    yes: bool = YES,
) -> None:
    """Take part in a federation as a client, with samples of its own, until the run has ended."""
    from fedkin.folders import held
    from fedkin.network.client import NetworkClient
    from fedkin.network.join_file import read_join
    from fedkin.running import networked

    invited = read_join(invitation)
    if not invited.server:
        raise ConfigError(f"{invitation}: a federation without a server: use fedkin net peer")
    plan = networked.experiment_of(invited, metric)
    identity = _identity(invited, key, certificate)
    if identity.name == invited.server:
        raise ConfigError(f"--key {key}: it is of the server, {identity.name!r}, which does not join")
    samples = read_samples(plan, identity.name, data, target, test_fraction, group)
    folder = state if state is not None else invitation.parent / f"{identity.name}-state"
    say, consent = make_console(stderr=True, soft_wrap=True).print, consenting(yes, invited.server)
    with (
        held(folder), ledger_in(plan, folder, identity.name, max_epsilon) as ledger,
        leaving(say) as (_, stop), _link(invited, identity, [], [invited.server]) as link,
    ):  # fmt: skip
        NetworkClient(
            link, samples, networked.plan_of, folder, server=invited.server, stop=stop,
            settings=networked.settings_of(plan), labels=labels, device=device, say=say, consent=consent, ledger=ledger,
        ).run()  # fmt: skip


@net.command("peer", rich_help_panel=_TAKE_PART)
def _peer(
    invitation: Path = _JOIN,
    data: str = DATA,
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
    revoked: Path | None = _REVOKED,
    target: str | None = TARGET,
    test_fraction: float | None = HELD,
    state: Path | None = STATE,
    metric: list[str] = METRIC,
    max_epsilon: float | None = EPSILON,
    device: str = DEVICE,
    yes: bool = YES,
    json: bool = JSON,
) -> None:
    """Take part in a federation without a server, with samples of its own; the records are of this peer."""
    from fedkin.network.join_file import read_join
    from fedkin.running import networked

    invited = read_join(invitation)
    if invited.server:
        raise ConfigError(f"{invitation}: a federation with a server ({invited.server}): use fedkin net join")
    plan = networked.experiment_of(invited, metric)
    identity = _identity(invited, key, certificate)
    me = identity.name
    samples = read_samples(plan, me, data, target, test_fraction)
    folder = state if state is not None else invitation.parent / f"{me}-state"
    places = {name: member.locator for name, member in invited.members.items()}
    address = listen or places[me]
    # Of two peers with addresses, the one with the lower name is dialled.
    dial = [name for name, place in places.items() if place and name != me and (name < me or not address)]
    say, consent = make_console(stderr=True, soft_wrap=True).print, consenting(yes, "its neighbours")
    with (
        ledger_in(plan, folder, me, max_epsilon) as ledger,
        _link(invited, identity, [address] if address else [], dial, revoked) as link, leaving(say) as (flag, stop),
    ):  # fmt: skip
        result = networked.exchange(
            plan, link, samples, invited.participants, folder, resume=True, device=device, stop=stop,
            consent=consent, say=say, ledger=ledger,
            watcher=Progress(plan.method.name, flag, json),
        )  # fmt: skip
    finish_run(plan, result, folder, json)


@net.command("router", rich_help_panel=_TAKE_PART)
def _router(
    invitation: Path = typer.Argument(..., metavar="JOIN.toml", help="The join file, which names this router."),
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
) -> None:
    """Pass sealed messages between participants that can only dial out, until Ctrl-C."""
    from fedkin.network.join_file import read_join
    from fedkin.network.zenoh_link import Router

    invited = read_join(invitation)
    identity = _identity(invited, key, certificate)
    if identity.name != invited.router:
        raise ConfigError(f"--key {key}: it is of {identity.name!r}, and the router is {invited.router or 'nobody'!r}")
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    place = listen or invited.members[invited.router].locator
    with Router(identity, invited.members, [place]):
        make_console(soft_wrap=True).print(
            f"router {identity.name} listens at {place}; it sees who exchanges with whom, when, how much and under "
            "which name, and nothing else"
        )
        stop.wait()


def _identity(invited: Join, key: Path, certificate: Path | None) -> Identity:
    """Return who this is; raises ConfigError for who is not a member."""
    from fedkin.network.identity import load

    identity = load(key, certificate or key.with_suffix(".crt"), invited.roots)
    if identity.name not in invited.members:
        raise ConfigError(f"--key {key}: {identity.name!r} is not a member of this federation")
    return identity


@contextmanager
def _link(
    invited: Join, identity: Identity, listen: list[str], dial: list[str], revoked: Path | None = None
) -> Iterator[Link]:
    """Open this participant's link; those who dial look for the others again and again."""
    from fedkin.network.identity import Revocations
    from fedkin.network.zenoh_link import ZenohLink

    if invited.router:
        if identity.name == invited.router:
            raise ConfigError(f"{identity.name} is the router, which takes no part: fedkin net router")
        listen, dial = [], []
    elif listen:
        _check_host(invited, identity)
    out = Revocations(revoked)
    with ZenohLink(identity, invited.members, listen, dial, router=invited.router, revoked=out) as link:
        yield link


def _check_host(invited: Join, identity: Identity) -> None:
    """Raise ConfigError if others dial this participant at a host that is not in its certificate."""
    from fedkin.network.identity import hosts_of
    from fedkin.network.join_file import host_and_port

    me, place = identity.name, invited.members[identity.name].locator
    others = [name for name, member in invited.members.items() if name != me]
    # Of two peers with addresses, the one with the lower name is dialled.
    dialled = me == invited.server or any(name > me or not invited.members[name].locator for name in others)
    if not place or not dialled:
        return
    host, hosts = host_and_port(place)[0].lower(), [each.lower() for each in hosts_of(identity.chain[0])]
    if host not in hosts and f"*.{host.partition('.')[2]}" not in hosts:
        raise ConfigError(
            f"--key: the certificate of {me!r} is for {' and '.join(hosts) or 'no host'}, and the others dial it at "
            f"{place}: make both anew with fedkin net init DIR --name {me} --host {host}, and have DIR/{me}.csr signed"
        )


add_look_command(net)


# -- status -------------------------------------------------------------------------------------------------------


@net.command("status", rich_help_panel="Look")
def _status(
    path: Path = typer.Argument(
        ..., metavar="FOLDER", help="The server's run, a participant's state folder, a folder of these, or a join file."
    ),
    watch: bool = typer.Option(False, "--watch", help="Print it again each second, until all have ended."),
    json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """Say how a federation goes, as its participants on this machine see it: it needs no network."""
    from fedkin.network.status import read_status

    files, pause = _status_files(path), Event()
    while True:
        statuses = {file: read_status(file) for file in files}
        if json:
            print(as_json({str(file): status.model_dump() for file, status in statuses.items()}))
        else:
            if watch:
                make_console().clear()
            for file, status in statuses.items():
                _print_status(file, status)
        if not watch or all(status.state != "running" for status in statuses.values()):
            return
        pause.wait(_EVERY)


def _status_files(path: Path) -> list[Path]:
    """Return the status files of a folder, or of the folders in it; raises RunError if there is none."""
    from fedkin.network.status import FILE

    folder = path.parent if path.suffix == ".toml" else path
    if path.name == FILE:
        return [path]
    files = [folder / FILE] if (folder / FILE).exists() else sorted(folder.glob(f"*/{FILE}"))
    if not files:
        raise RunError(
            f"{path}: no {FILE} here or in its folders; name the folder of a participant: that of --out of fedkin net "
            "serve, or NAME-state beside the join file"
        )
    return files


def _print_status(file: Path, status: Status) -> None:
    console, now = make_console(soft_wrap=True), time.time()
    round = f"round {status.round} of {status.rounds}" if status.rounds else "not begun"
    late = status.late(now)
    state = "silent" if late else "left; the same command comes back" if status.state == "left" else status.state
    console.print(f"{status.federation or 'federation'}: {status.name} ({status.role}), {round}, {state}")
    if late:
        console.print(f"it has written nothing for {_ago(late)}: its process was killed or is stopped ({file.parent})")
    if status.weights:
        console.print(f"learned weights: {_weights(status.weights)}")
    if status.epsilon is not None:
        console.print(f"released so far in this run: epsilon {status.epsilon:.2f}")
    columns: dict[str, Callable[[str, Other], str]] = {
        "name": lambda name, other: name,
        "here": lambda name, other: "yes" if other.here else "no",
        "round": lambda name, other: "" if other.round is None else str(other.round),
        "last seen": lambda name, other: _seen(other, now),
        "from it": lambda name, other: megabytes(other.bytes_in),
        "to it": lambda name, other: megabytes(other.bytes_out),
        "refused": lambda name, other: str(other.refused or ""),
        "epsilon": lambda name, other: "" if other.epsilon is None else f"{other.epsilon:.2f}",
        "learned": lambda name, other: _learned(other),
    }
    for optional in ("epsilon", "learned"):
        if not any(columns[optional](name, other) for name, other in status.others.items()):
            del columns[optional]
    table = Table(*columns)
    for name, other in status.others.items():
        table.add_row(*(shown(cell(name, other)) for cell in columns.values()))
    console.print(table)
    for name, other in status.others.items():
        if other.why:
            console.print(f"refused of {name}, the last: {shown(other.why)}")
    if status.nameless:
        console.print(f"refused, and nobody knows whose: {status.nameless}")


def _seen(other: Other, now: float) -> str:
    if other.here:
        return "now"
    return "never" if other.seen is None else f"{_ago(max(0.0, now - other.seen))} ago"


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _learned(other: Other) -> str:
    group = "" if other.group is None else f"group {other.group}"
    return "; ".join(filter(None, (group, _weights(other.weights))))


def _weights(weights: dict[str, float]) -> str:
    return ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items())
