"""`fedkin net serve`, `fedkin net join` and `fedkin net peer`: a federation over a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedkin.cli._samples import joined, met, reader
from fedkin.cli.experiments import data_root_of, finish_run, start_or_resume
from fedkin.cli.options import JSON, OUT, RESTART, RESUME, ROOT
from fedkin.cli.output import make_console
from fedkin.cli.progress import LiveProgress, stop_on_signals
from fedkin.cli.taking import (
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
)
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.network.identity import Identity
    from fedkin.network.joining import Join
    from fedkin.network.link import Link

__all__ = ["join", "peer", "serve"]

_JOIN = typer.Argument(..., metavar="JOIN.toml", help="The join file: who takes part, and what runs.")
_KEY = typer.Option(..., "--key", help="This participant's private key (PEM).")
_CERTIFICATE = typer.Option(None, "--certificate", help="Its certificate (default: the key's name with .crt).")
_LISTEN = typer.Option(
    None, "--listen", metavar="tls/HOST:PORT", help="Where to listen (default: the address in the join file)."
)


def serve(
    experiment: Path | None = typer.Argument(None, metavar="[E.toml]", help="Experiment file; not with --resume."),
    invitation: Path = typer.Option(..., "--join", help="The join file that the participants have."),
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
    data_root: Path | None = ROOT,
    out: Path | None = OUT,
    resume: Path | None = RESUME,
    restart: bool = RESTART,
    json: bool = JSON,
) -> None:
    """Run an experiment as its server: wait for the clients, then the rounds, with the records of a simulation."""
    from fedkin.network.joining import read_join
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
    with _link(invited, identity, places, [], console.print) as link, stop_on_signals(folder) as stop:
        result = networked.serve(
            plan, link, folder, resume=resume is not None, restart=restart, data_root=root, say=console.print,
            watcher=LiveProgress(plan.method.name, stop, folder, json),
        )  # fmt: skip
    finish_run(plan, result, folder, json)


def join(
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
    from fedkin.network.joining import read_join
    from fedkin.network.node import Node
    from fedkin.running import networked

    invited = read_join(invitation)
    if not invited.server:
        raise ConfigError(f"{invitation}: a federation without a server: use fedkin net peer")
    plan = networked.experiment_of(invited, metric)
    identity = _identity(invited, key, certificate)
    if identity.name == invited.server:
        raise ConfigError(f"--key {key}: it is of the server, {identity.name!r}, which does not join")
    read = reader(plan, identity.name, data, target, test_fraction, group)
    folder = state if state is not None else invitation.parent / f"{identity.name}-state"
    console = make_console(stderr=True, soft_wrap=True)
    with (
        held(folder), ledger_in(plan, folder, identity.name, max_epsilon) as ledger,
        leaving(console.print) as (_, stop),
        _link(invited, identity, [], [invited.server], console.print) as link,
    ):  # fmt: skip
        client, task = joined(read, plan, link, folder, invited.server, consenting(yes, invited.server), ledger, stop)
        Node(
            link, client, task, networked.plan_of, folder, server=invited.server, stop=stop,
            settings=networked.settings_of(plan), labels=labels, device=device, say=console.print,
            consent=consenting(yes, invited.server), ledger=ledger,
        ).run()  # fmt: skip


def peer(
    invitation: Path = _JOIN,
    data: str = DATA,
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
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
    from fedkin.network.joining import read_join
    from fedkin.running import networked

    invited = read_join(invitation)
    if invited.server:
        raise ConfigError(f"{invitation}: a federation with a server ({invited.server}): use fedkin net join")
    plan = networked.experiment_of(invited, metric)
    identity = _identity(invited, key, certificate)
    me = identity.name
    read = reader(plan, me, data, target, test_fraction)
    folder = state if state is not None else invitation.parent / f"{me}-state"
    places = {name: member.locator for name, member in invited.members.items()}
    own = listen or places[me]
    # Of two peers with addresses, the one with the lower name is dialled.
    dial = [name for name, place in places.items() if place and name != me and (name < me or not own)]
    console = make_console(stderr=True, soft_wrap=True)
    with (
        ledger_in(plan, folder, me, max_epsilon) as ledger,
        _link(invited, identity, [own] if own else [], dial, console.print) as link,
        leaving(console.print) as (flag, stop),
    ):  # fmt: skip
        consent = consenting(yes, "its neighbours")
        client, task, shared = met(read, plan, link, folder, invited.participants, consent, ledger, stop)
        result = networked.exchange(
            plan, link, client, task, invited.participants, folder, resume=True, device=device, stop=stop,
            consent=consent, say=console.print, ledger=ledger, shared=shared,
            watcher=LiveProgress(plan.method.name, flag, folder, json),
        )  # fmt: skip
    finish_run(plan, result, folder, json)


def _identity(invited: Join, key: Path, certificate: Path | None) -> Identity:
    """Return who this is; raises ConfigError for who is not a member."""
    from fedkin.network.identity import load

    identity = load(key, certificate or key.with_suffix(".crt"), invited.roots)
    if identity.name not in invited.members:
        raise ConfigError(f"--key {key}: {identity.name!r} is not a member of this federation")
    return identity


@contextmanager
def _link(
    invited: Join, identity: Identity, listen: list[str], dial: list[str], say: Callable[[str], None]
) -> Iterator[Link]:
    """This participant's link; those who dial look for the others again and again, who listens says whom it refuses."""
    from fedkin.network.handshakes import refusals
    from fedkin.network.zenoh import ZenohLink

    if invited.router:
        if identity.name == invited.router:
            raise ConfigError(f"{identity.name} is the router, which takes no part: fedkin net router")
        listen, dial = [], []
    elif listen:
        _check_host(invited, identity)
    with (
        ZenohLink(identity, invited.members, listen=listen, dial=dial, router=invited.router) as link,
        refusals(say, link.refused.add) if listen else nullcontext(),
    ):
        yield link


def _check_host(invited: Join, identity: Identity) -> None:
    """Raise ConfigError if others dial this participant at a host for which its certificate is not."""
    from fedkin.network.book import host_and_port
    from fedkin.network.identity import hosts_of

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
