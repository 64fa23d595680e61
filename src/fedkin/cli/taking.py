"""What the commands of those who take part with samples of their own share: options, consent, leaving."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import typer

from fedkin.cli.output import make_console
from fedkin.cli.progress import StopFlag
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.network.ledger import Ledger
    from fedkin.running.experiment import Experiment

__all__ = [
    "DATA", "DEVICE", "EPSILON", "GROUP", "HELD", "LABELS", "METRIC", "STATE", "TARGET", "YES", "consenting", "leaving",
    "ledger_in",
]  # fmt: skip

DATA = typer.Option(
    ..., "--data", help="Its samples: a .csv, .parquet or .npz file, a folder of images, or MODULE:FUNCTION."
)
TARGET = typer.Option(None, "--target", help="The column to learn, in a table, if the experiment names none.")
GROUP = typer.Option(None, "--group", help="A group that it tells the server, for the records.")
HELD = typer.Option(
    None, "--test-fraction", min=0, max=0.9,
    help="Share of the samples held out, if they have no split and the experiment does not say it (default: 0.2).",
)  # fmt: skip
STATE = typer.Option(None, "--state", help="Folder of its states (default: NAME-state beside the join file).")
YES = typer.Option(False, "--yes", help="Do not ask before what is listed leaves this participant.")
LABELS = typer.Option(False, "--tell-labels", help="Tell the number of samples of each class, for the report.")
METRIC = typer.Option(
    [], "--metric", metavar="FILE.py:NAME", help="This participant's own file of a metric that the experiment names."
)
EPSILON = typer.Option(
    None, "--max-epsilon", min=0, help="With [privacy]: release nothing more above this epsilon, over all runs here."
)
DEVICE = typer.Option("cpu", "--device", help="Where to train: cpu, cuda, cuda:1.")


@contextmanager
def ledger_in(plan: Experiment, state: Path, name: str, limit: float | None) -> Iterator[Ledger]:
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


@contextmanager
def leaving(say: Callable[[str], None]) -> Iterator[tuple[StopFlag, Event]]:
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


def consenting(yes: bool, to: str) -> Callable[[list[str]], bool]:
    """Show what will leave this participant, and ask once."""

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
