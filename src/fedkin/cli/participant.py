"""Common code of commands that take part with their own samples: options, samples, consent, leaving."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import typer

from fedkin.errors import ConfigError
from fedkin.running.progress import StopFlag, make_console

if TYPE_CHECKING:
    from fedkin.data.own import FileWatch, OwnTable
    from fedkin.engines.ledger import Ledger
    from fedkin.federation import Client, Task
    from fedkin.running.experiment import Experiment

Consent = Callable[[list[str]], bool]


_sample_option: Any = partial(typer.Option, rich_help_panel="Its samples")
_consent_option: Any = partial(typer.Option, rich_help_panel="What leaves")
DATA = _sample_option(..., help="Its samples: a .csv, .parquet or .npz file, a folder of images, or MODULE:FUNCTION.")
HELD = _sample_option(
    None, min=0, max=0.9,
    help="Share of the samples held out, if they have no split and the experiment does not say it (default: 0.2).",
)  # fmt: skip
GROUP = _consent_option(None, help="The group of this participant, which the server records.")
YES = _consent_option(False, "--yes", help="Do not ask for consent to what will leave this participant.")
EPSILON = _consent_option(None, min=0, help="With \\[privacy]: the largest epsilon over all runs here.")
STATE = typer.Option(None, help="Folder of its states (default: NAME-state beside the join file).")
UNSEEN = typer.Option(
    False, "--unseen", help="Never train: it is only evaluated, and gets a model; needs network.newcomers."
)
DEVICE = typer.Option("cpu", help="Where to train: cpu, cuda, cuda:1.")


@contextmanager
def ledger_in(experiment: Experiment, state: Path, name: str, limit: float | None) -> Iterator[Ledger]:
    """Open the record of this participant's releases, outside the folder of states, which may be set back."""
    from fedkin.engines.ledger import Ledger
    from fedkin.folders import locked

    if not experiment.privacy.on:
        ledger = Ledger(limit=limit)
        ledger.page("", experiment.privacy)
        yield ledger
        return
    folder = state.parent / f"{name}-releases"
    with locked(folder):
        yield Ledger(folder, limit)


@contextmanager
def leave_on_signals(say: Callable[[str], None]) -> Iterator[tuple[StopFlag, Event]]:
    """Leave after the current work on Ctrl-C or SIGTERM, immediately on the second; exit status 130."""
    from fedkin.network.link import Left
    from fedkin.running.loop import Stop

    flag, stop = StopFlag(), Event()

    def ask() -> None:
        stop.set()
        say("leaving after the current work; press Ctrl-C again to leave at once")

    with flag.on_signals(ask):
        try:
            yield flag, stop
        except (Left, Stop, KeyboardInterrupt):
            flag.close()
            say("left; the same command comes back")
            sys.exit(130 if flag.asked else 0)


def consenting(yes: bool, to: str) -> Consent:
    """Return a function that shows what will leave this participant, and asks for consent."""

    def ask(lines: list[str]) -> bool:
        console = make_console(stderr=True, soft_wrap=True)
        console.print(f"what leaves this participant, to {to}:")
        for line in lines:
            console.print(f"  {line}")
        if yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked whether this may leave: read it, and give --yes")
        return typer.confirm("may it leave?", err=True)

    return ask


# -- samples ------------------------------------------------------------------------------------------------------


def read_samples(
    experiment: Experiment, name: str, data: str, fraction: float | None, group: str | None = None
) -> tuple[Client, Task] | OwnTable:  # fmt: skip
    """Read a participant's data, with the settings of the experiment's source if it is a table or a folder of images.

    Raises DataError and ConfigError.
    """
    from fedkin.data.own import OwnTable, own_client, own_images
    from fedkin.data.sources.folder import Folder
    from fedkin.data.sources.tables import TableSource

    source, classes = experiment.data, experiment.network.classes
    if isinstance(source, Folder) and (Path(data).is_dir() or not (Path(data).suffix or ":" in data)):
        _check_fraction(fraction, source.test_fraction)
        return own_images(name, data, source, classes=classes, group=group)
    if not isinstance(source, TableSource):
        return own_client(
            name, data, kind=experiment.network.kind, classes=classes, group=group,
            test_fraction=0.2 if fraction is None else fraction, seed=experiment.run.seed,
            changes=experiment.network.reread,
        )  # fmt: skip
    _check_fraction(fraction, source.test_fraction)
    return OwnTable(name, data, source, group)


def own_samples(
    experiment: Experiment, name: str, data: str, fraction: float | None, group: str | None
) -> tuple[tuple[Client, Task] | OwnTable, FileWatch | None]:
    """Return a participant's data, and, with `network.reread`, a watch that reads them again after changes."""
    from fedkin.data.own import FileWatch

    read = partial(read_samples, experiment, name, data, fraction, group)
    watch = FileWatch(Path(data), read) if experiment.network.reread else None  # first, so that no change is missed
    return read(), watch


def _check_fraction(asked: float | None, given: float) -> None:
    if asked not in (None, given):
        raise ConfigError(f"--test-fraction {asked:g}: the experiment holds out {given:g}; leave the option out")
