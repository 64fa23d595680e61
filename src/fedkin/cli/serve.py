"""`fedkin serve`, `fedkin join` and `fedkin peer`: a federation over a network."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import typer

from fedkin.cli._samples import joined, met, reader
from fedkin.cli.experiments import ending, planned, rooted
from fedkin.cli.options import JSON, OUT, RESTART, RESUME, ROOT
from fedkin.cli.progress import LiveProgress, StopFlag, stop_on_signals
from fedkin.cli.screen import screen
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.network.identity import Identity
    from fedkin.network.joining import Join
    from fedkin.network.ledger import Ledger
    from fedkin.network.link import Link
    from fedkin.running.experiment import Experiment

__all__ = ["join", "peer", "serve"]

_JOIN = typer.Argument(..., metavar="JOIN.toml", help="The join file: who takes part, and what runs.")
_KEY = typer.Option(..., "--key", help="This participant's private key (PEM).")
_CERTIFICATE = typer.Option(None, "--certificate", help="Its certificate (default: the key's name with .crt).")
_LISTEN = typer.Option(
    None, "--listen", metavar="tls/HOST:PORT", help="Where to listen (default: the address in the join file)."
)
_DATA = typer.Option(
    ..., "--data", help="Its samples: a .csv, .parquet or .npz file, a folder of images, or MODULE:FUNCTION."
)
_TARGET = typer.Option(None, "--target", help="The column to learn, in a table, if the experiment names none.")
_GROUP = typer.Option(None, "--group", help="A group that it tells the server, for the records.")
_HELD = typer.Option(
    None, "--test-fraction", min=0, max=0.9,
    help="Share of the samples held out, if they have no split and the experiment does not say it (default: 0.2).",
)  # fmt: skip
_STATE = typer.Option(None, "--state", help="Folder of its states (default: NAME-state beside the join file).")
_YES = typer.Option(False, "--yes", help="Do not ask before what is listed leaves this participant.")
_LABELS = typer.Option(False, "--tell-labels", help="Tell the number of samples of each class, for the report.")
_EPSILON = typer.Option(
    None, "--max-epsilon", min=0, help="With [privacy]: release nothing more above this epsilon, over all runs here."
)
_DEVICE = typer.Option("cpu", "--device", help="Where to train: cpu, cuda, cuda:1.")


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

    plan, folder = planned(experiment, [], None, out, resume, restart)
    root = rooted(folder, data_root, resume is not None)
    invited = read_join(invitation)
    plan = networked.invited(plan, invited)
    console = screen(stderr=True, soft_wrap=True)
    identity = _identity(invited, key, certificate)
    if identity.name != invited.server:
        raise ConfigError(f"--key {key}: it is of {identity.name!r}, and the server is {invited.server!r}")
    places = [listen or invited.members[invited.server].locator]
    with _link(invited, identity, places, [], console.print) as link, stop_on_signals(folder) as stop:
        result = networked.serve(
            plan, link, folder, resume=resume is not None, restart=restart, data_root=root, say=console.print,
            watcher=LiveProgress(plan.method.name, stop, folder, json),
        )  # fmt: skip
    ending(plan, result, folder, json)


def join(
    invitation: Path = _JOIN,
    data: str = _DATA,
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    target: str | None = _TARGET,
    group: str | None = _GROUP,
    test_fraction: float | None = _HELD,
    state: Path | None = _STATE,
    labels: bool = _LABELS,
    max_epsilon: float | None = _EPSILON,
    device: str = _DEVICE,
    yes: bool = _YES,
) -> None:
    """Take part in a federation as a client, with samples of its own, until the run has ended."""
    from fedkin.folders import held
    from fedkin.network.joining import read_join
    from fedkin.network.node import Node
    from fedkin.running import networked

    invited = read_join(invitation)
    if not invited.server:
        raise ConfigError(f"{invitation}: a federation without a server: use fedkin peer")
    plan = networked.experiment_of(invited)
    identity = _identity(invited, key, certificate)
    if identity.name == invited.server:
        raise ConfigError(f"--key {key}: it is of the server, {identity.name!r}, which does not join")
    read = reader(plan, identity.name, data, target, test_fraction, group)
    folder = state if state is not None else invitation.parent / f"{identity.name}-state"
    console = screen(stderr=True, soft_wrap=True)
    with (
        held(folder), _ledger(plan, folder, identity.name, max_epsilon) as ledger,
        _leaving(console.print) as (_, stop),
        _link(invited, identity, [], [invited.server], console.print) as link,
    ):  # fmt: skip
        client, task = joined(read, plan, link, folder, invited.server, _consent(yes, invited.server), ledger, stop)
        Node(
            link, client, task, networked.plan_of, folder, server=invited.server, stop=stop,
            settings=networked.settings_of(plan), labels=labels, device=device, say=console.print,
            consent=_consent(yes, invited.server), ledger=ledger,
        ).run()  # fmt: skip


def peer(
    invitation: Path = _JOIN,
    data: str = _DATA,
    key: Path = _KEY,
    certificate: Path | None = _CERTIFICATE,
    listen: str | None = _LISTEN,
    target: str | None = _TARGET,
    test_fraction: float | None = _HELD,
    state: Path | None = _STATE,
    max_epsilon: float | None = _EPSILON,
    device: str = _DEVICE,
    yes: bool = _YES,
    json: bool = JSON,
) -> None:
    """Take part in a federation without a server, with samples of its own; the records are of this peer."""
    from fedkin.network.joining import read_join
    from fedkin.running import networked

    invited = read_join(invitation)
    if invited.server:
        raise ConfigError(f"{invitation}: a federation with a server ({invited.server}): use fedkin join")
    plan = networked.experiment_of(invited)
    identity = _identity(invited, key, certificate)
    me = identity.name
    read = reader(plan, me, data, target, test_fraction)
    folder = state if state is not None else invitation.parent / f"{me}-state"
    places = {name: member.locator for name, member in invited.members.items()}
    own = listen or places[me]
    # Of two peers with addresses, the one with the lower name is dialled.
    dial = [name for name, place in places.items() if place and name != me and (name < me or not own)]
    console = screen(stderr=True, soft_wrap=True)
    with (
        _ledger(plan, folder, me, max_epsilon) as ledger,
        _link(invited, identity, [own] if own else [], dial, console.print) as link,
        _leaving(console.print) as (flag, stop),
    ):  # fmt: skip
        consent = _consent(yes, "its neighbours")
        client, task, shared = met(read, plan, link, folder, invited.participants, consent, ledger, stop)
        result = networked.exchange(
            plan, link, client, task, invited.participants, folder, resume=True, device=device, stop=stop,
            consent=consent, say=console.print, ledger=ledger, shared=shared,
            watcher=LiveProgress(plan.method.name, flag, folder, json),
        )  # fmt: skip
    ending(plan, result, folder, json)


@contextmanager
def _ledger(plan: Experiment, state: Path, name: str, limit: float | None) -> Iterator[Ledger]:
    """What this participant has released, in a folder beside its states: they go back, and this does not."""
    from fedkin.folders import held
    from fedkin.network.ledger import Ledger

    if not plan.privacy.on:
        ledger = Ledger(limit=limit)
        ledger.page("", plan.privacy)
        yield ledger
        return
    folder = state.parent / f"{name}-releases"
    with held(folder):
        yield Ledger(folder, limit)


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
    with (
        ZenohLink(identity, invited.members, listen=listen, dial=dial, router=invited.router) as link,
        refusals(say, link.refused.add) if listen else nullcontext(),
    ):
        yield link


@contextmanager
def _leaving(say: Callable[[str], None]) -> Iterator[tuple[StopFlag, Event]]:
    """Leave after the current work on Ctrl-C or SIGTERM, immediately on the second; exit status 130."""
    from fedkin.network.node import Left
    from fedkin.running.loop import Stop

    flag, stop = StopFlag(), Event()

    def ask(number: int, frame: object) -> None:
        if flag.asked:
            raise KeyboardInterrupt
        flag.asked = True
        stop.set()
        say("leaving after what is being done now; once more to leave at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag, stop
    except (Left, Stop, KeyboardInterrupt):
        for bar in flag.bars:
            bar.stop()
        say("left; the same command comes back")
        sys.exit(130 if flag.asked else 0)
    finally:
        for bar in flag.bars:
            bar.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _consent(yes: bool, to: str) -> Callable[[list[str]], bool]:
    """Show what will leave this participant, and ask once."""

    def ask(lines: list[str]) -> bool:
        console = screen(stderr=True, soft_wrap=True)
        console.print(f"what leaves this participant, to {to}:")
        for line in lines:
            console.print(f"  {line}")
        if yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked whether this may leave: read it, and give --yes")
        return typer.confirm("may it leave?", err=True)

    return ask
