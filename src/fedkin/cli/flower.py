"""`fedkin flower`: a federation on a Flower deployment that is there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedkin.cli.options import ROOT
from fedkin.cli.output import make_console
from fedkin.cli.participant import (
    DATA,
    DEVICE,
    EPSILON,
    GROUP,
    HELD,
    LABELS,
    METRIC,
    TARGET,
    YES,
    consenting,
    joined,
    leaving,
    ledger_in,
    read_samples,
)  # fmt: skip
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.network.link import Link

__all__ = ["flower"]

flower = typer.Typer(
    no_args_is_help=True, help="A federation on a Flower deployment that is there already (docs/flower.md)."
)

_PATIENCE = 5.0  # seconds of one wait for the server, whose messages take seconds


@flower.command("new")
def _new(
    folder: Path = typer.Argument(..., metavar="DIR", help="A new folder for the app."),
    experiment: Path = typer.Option(..., "--experiment", metavar="E.toml", help="The experiment file."),
    out: Path = typer.Option(..., "--out", help="Folder for the records, on the machine of the SuperLink."),
    data_root: Path | None = ROOT,
    simulation: bool = typer.Option(
        False, "--simulation", help="For Flower's simulation: its nodes are the clients of the experiment's scenario."
    ),
) -> None:
    """Write an app that `flwr run` accepts: the server's part, and what hands messages on at the nodes."""
    from fedkin.running.flowered import write_app

    write_app(folder, experiment, out, data_root, simulation)
    console = make_console(soft_wrap=True)
    console.print(f"app:     {folder}")
    console.print(f"records: {out.absolute()}, on the machine of the SuperLink")
    console.print(f"run it:  flwr run {folder} NAME-OF-THE-SUPERLINK --stream")


@flower.command("node")
def _node(
    experiment: Path = typer.Argument(..., metavar="E.toml", help="The experiment file, the same as the server's."),
    name: str = typer.Option(..., "--name", help="The name with which this machine's SuperNode was registered."),
    socket: Path = typer.Option(..., "--socket", help="The unix socket that its SuperNode is told of."),
    state: Path = typer.Option(..., "--state", help="Folder of its states; the same one when it comes back."),
    data: str = DATA,
    target: str | None = TARGET,
    group: str | None = GROUP,
    test_fraction: float | None = HELD,
    labels: bool = LABELS,
    metric: list[str] = METRIC,
    max_epsilon: float | None = EPSILON,
    device: str = DEVICE,
    yes: bool = YES,
) -> None:
    """Take part as the client of this machine's SuperNode, with samples of its own, until the run has ended."""
    from fedkin.folders import held
    from fedkin.network.client import NetworkClient
    from fedkin.network.link import is_name
    from fedkin.running import networked
    from fedkin.running.experiment import load
    from fedkin.running.shared_metrics import read_metrics

    if not is_name(name) or name == "server":
        raise ConfigError(f"--name {name!r}: not a name that a client can have: 1 to 64 of A-Z a-z 0-9 . _ -")
    read_metrics(metric)
    plan = load(experiment)
    settings = networked.settings_of(plan)
    samples = read_samples(plan, name, data, target, test_fraction, group)
    console, consent = make_console(stderr=True, soft_wrap=True), consenting(yes, "the server of the Flower deployment")
    with (
        held(state), ledger_in(plan, state, name, max_epsilon) as ledger, leaving(console.print) as (_, stop),
        _listening(socket, name) as link,
    ):  # fmt: skip
        client, task = joined(samples, plan, link, state, "server", consent, ledger, stop)
        NetworkClient(
            link, client, task, networked.plan_of, state, stop=stop, settings=settings, labels=labels, device=device,
            say=console.print, consent=consent, ledger=ledger, patience=_PATIENCE,
        ).run()  # fmt: skip


@contextmanager
def _listening(path: Path, name: str) -> Iterator[Link]:
    """This node's link, which is called by a socket; what it offered last is fetched before it ends."""
    from fedkin.network.calls import AnsweringLink
    from fedkin.network.flower.client_app import Listening

    link = AnsweringLink(name)
    try:
        listening = Listening(path, link.answer)
    except OSError as error:
        raise ConfigError(f"--socket {path}: {error.strerror or error}") from None
    with listening, link:
        yield link
