"""`fedkin net status`: how a federation stands, from the files of its participants on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import typer

from fedkin.cli.output import print_table, printed_as_json, say
from fedkin.errors import RunError
from fedkin.report.units import megabytes
from fedkin.running.progress import make_console
from fedkin.untrusted import escaped

if TYPE_CHECKING:
    from fedkin.network.status import Other, Status

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
    from fedkin.network.status import read_status

    files, pause = _status_files(path), Event()
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


def _status_files(path: Path) -> list[Path]:
    """Return the status files of a folder, or of the folders in it; raises RunError if there is none."""
    from fedkin.network.status import FILE

    folder = path.parent if path.suffix == ".toml" else path
    files = [folder / FILE] if (folder / FILE).exists() else sorted(folder.glob(f"*/{FILE}"))
    if not files:
        raise RunError(
            f"{path}: no {FILE} here or in its folders; name the folder of a participant: that of --out of fedkin net "
            "serve, or NAME-state beside the join file"
        )
    return files


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
