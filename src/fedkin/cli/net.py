"""`fedkin net`, a federation over a network: its commands, and those with which participants take part."""

from __future__ import annotations

import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli import participant
from fedkin.cli.experiments import finish_run
from fedkin.cli.net_files import ca, init, invite, show
from fedkin.cli.net_status import status
from fedkin.cli.options import JSON, OUT, RESUME, ROOT
from fedkin.cli.output import say, stop_on_signals
from fedkin.cli.starting import start_or_resume
from fedkin.errors import ConfigError
from fedkin.folders import holder, locked
from fedkin.running.progress import Progress

if TYPE_CHECKING:
    from fedkin.network.identity import Identity
    from fedkin.network.join_file import Join
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
        _say(f"fedkin net join of {identity.name} is told: it ends when the server has let it go")
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
    place = listen or invited.members[invited.router].locator
    with run_router(identity, invited.members, [place]):
        say(
            f"router {identity.name} listens at {place}; it sees who exchanges with whom, when, how much and under "
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
    place = listen or invited.members[me].locator
    listens = place and not invited.router and invited.server in ("", me)
    if listens:
        _check_host(invited, identity)
    return ZenohLink(
        identity, invited.members, [place] if listens else [], invited.dialled_by(me), router=invited.router,
        revoked=Revocations(revoked),
    )  # fmt: skip


def _check_host(invited: Join, identity: Identity) -> None:
    """Raise ConfigError if others dial this participant at a host that is not in its certificate."""
    from fedkin.network.identity import hosts_of

    me, place = identity.name, invited.members[identity.name].locator
    if not any(me in invited.dialled_by(name) for name in invited.participants):
        return
    host = place.removeprefix("tls/").rpartition(":")[0].strip("[]").lower()
    hosts = [each.lower() for each in hosts_of(identity.chain[0])]
    if host not in hosts and f"*.{host.partition('.')[2]}" not in hosts:
        raise ConfigError(
            f"--key: the certificate of {me!r} is for {' and '.join(hosts) or 'no host'}, and the others dial it at "
            f"{place}: make both anew with fedkin net init DIR --name {me} --host {host}, and have DIR/{me}.csr signed"
        )


net = typer.Typer(no_args_is_help=True, help="A federation over a network (docs/network.md).")
_PANELS: dict[str, dict[str, Any]] = {
    "Prepare": {"init": init, "ca": ca, "invite": invite},
    "Look": {"show": show, "status": status},
    "Take part": {"serve": _serve, "join": _join, "leave": _leave, "router": _router},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        net.command(_name, rich_help_panel=_panel)(_command)
