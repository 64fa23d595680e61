"""`fedkin flower`: a federation on a Flower deployment, and the server's app that Flower starts there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli import participant
from fedkin.cli.options import ROOT
from fedkin.cli.output import say, write_run_report
from fedkin.errors import ConfigError, FedkinError
from fedkin.running.progress import Progress, StopFlag, make_console
from fedkin.untrusted import error_text, plain_word

if TYPE_CHECKING:
    from fedkin.network.flower.server_calls import GridCalls
    from fedkin.network.link import Link


flower = typer.Typer(no_args_is_help=True, help="A federation on an existing Flower deployment (docs/flower.md).")

_PATIENCE = 5.0  # seconds of one wait for the server, whose messages take seconds
_LOOK = 5.0  # seconds between two looks at the SuperLink
_GONE = 180.0  # seconds; a message of 25 MB takes 16


@flower.command("new")
def _new(
    folder: Path = typer.Argument(..., metavar="DIR", help="A new folder for the app."),
    experiment: Path = typer.Option(..., metavar="E.toml", help="The experiment file."),
    out: Path = typer.Option(..., help="Folder for the records, on the machine of the SuperLink."),
    data_root: Path | None = ROOT,
) -> None:
    """Write an app that `flwr run` accepts: the server's part, and a part that passes messages on at the nodes.

    Examples:
    fedkin flower new app --experiment EXPERIMENT.toml --out /srv/runs/wards
    """
    from fedkin.running.networked import write_app

    write_app(folder, experiment, out, data_root)
    say(
        f"app:     {folder}", f"records: {out.absolute()}, on the machine of the SuperLink",
        f"run it:  flwr run {folder} NAME-OF-THE-SUPERLINK --stream",
    )  # fmt: skip


@flower.command("node")
def _node(
    experiment: Path = typer.Argument(..., metavar="E.toml", help="The experiment file, the same as the server's."),
    name: str = typer.Option(..., help="The name with which this machine's SuperNode was registered."),
    socket: Path = typer.Option(..., help="The unix socket in the SuperNode's --node-config."),
    state: Path = typer.Option(..., help="Folder of its states; the same one when it comes back."),
    data: str = participant.DATA,
    group: str | None = participant.GROUP,
    test_fraction: float | None = participant.HELD,
    max_epsilon: float | None = participant.EPSILON,
    device: str = participant.DEVICE,
    unseen: bool = participant.UNSEEN,
    yes: bool = participant.YES,
) -> None:
    """Take part as the client of this machine's SuperNode, with samples of its own, until the run has ended.

    Examples:
    fedkin flower node EXPERIMENT.toml --name a --socket a.sock --state a --data stays.csv
    """
    from fedkin.folders import locked
    from fedkin.network.client import NetworkClient
    from fedkin.running import networked
    from fedkin.running.experiment import load

    if not plain_word(name) or name == "server":
        raise ConfigError(f"--name {name!r}: not a name that a client can have: 1 to 64 of A-Z a-z 0-9 . _ -")
    loaded = load(experiment)
    settings = networked.settings_of(loaded)
    samples, watch = participant.own_samples(loaded, name, data, test_fraction, group)
    console = make_console(stderr=True, soft_wrap=True)
    consent = participant.consenting(yes, "the server of the Flower deployment")
    with (
        locked(state), participant.ledger_in(loaded, state, name, max_epsilon) as ledger,
        participant.leave_on_signals(console.print) as (_, stop), _listening(socket, name) as link,
    ):  # fmt: skip
        NetworkClient(
            link, samples, networked.setup_of, state, stop=stop, settings=settings, device=device,
            say=console.print, consent=consent, ledger=ledger, patience=_PATIENCE,
            take_home=networked.taking_home(loaded), unseen=unseen, watch=watch,
        ).run()  # fmt: skip


@flower.command("leave")
def _leave(state: Path = typer.Option(..., help="The folder of the `fedkin flower node` that leaves.")) -> None:
    """Leave a running federation: from the next round on its data do not count. Ctrl-C of `node` only pauses.

    Examples:
    fedkin flower leave --state a
    """
    from fedkin.folders import holder
    from fedkin.network.client import LEAVES

    if holder(state) is None:
        raise ConfigError(f"--state {state}: no fedkin flower node runs with this folder; start it, and then leave")
    (state / LEAVES).touch(mode=0o600)
    say("fedkin flower node ends when the server has recorded that it leaves")


@contextmanager
def _listening(path: Path, name: str) -> Iterator[Link]:
    """Yield this node's link, which is called through a socket; it ends after its last offer was fetched."""
    from fedkin.network.calls import AnsweringLink
    from fedkin.network.flower.client_app import Listening

    link = AnsweringLink(name)
    try:
        listening = Listening(path, link.answer)
    except OSError as error:
        raise ConfigError(f"--socket {path}: {error.strerror or error}") from None
    with listening, link:
        yield link


# -- the server's app -----------------------------------------------------------------------------------------------


def server_app(experiment: Path) -> Any:
    """Return the ServerApp of an experiment file; raises ImportError without Flower."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    def main(grid: Any, context: Any) -> None:
        """Run the experiment and write its report; raises RuntimeError with one line for any error."""
        from fedkin.network.flower.server_calls import GridCalls
        from fedkin.running.networked import run_app

        calls = GridCalls(grid, _say)
        # Flower kills an app whose run is stopped; the run continues from its last round when it is submitted again.
        watcher = Progress("fedkin", StopFlag(), console=make_console(soft_wrap=True, force_terminal=False))
        Thread(target=_end_with, args=(calls,), name="superlink", daemon=True).start()
        try:
            result, folder = run_app(experiment, calls, context.run_config, _say, watcher)
            write_run_report([folder], folder)
        except FedkinError as error:
            raise RuntimeError(error_text(error)) from None
        _say(f"the run has ended after {len(result.rounds)} rounds: {folder}")

    app.main()(main)
    return app


def _end_with(calls: GridCalls) -> None:
    """End at once when the SuperLink is gone: it will start another process of this app, which needs the same records.

    A kill at any moment costs only the current round.
    """
    while not calls.over.wait(_LOOK):
        if time.monotonic() - calls.answered > _GONE:
            _say(f"Flower's SuperLink has not answered for {_GONE:g} s: submit the run again when it is back")
            os._exit(1)


def _say(line: str) -> None:
    print(f"fedkin: {line}", flush=True)
