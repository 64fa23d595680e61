"""`fedkin net status`: who is there, rounds, bytes, what was refused, and what was learned."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from fedkin.cli.output import as_json, make_console
from fedkin.errors import RunError
from fedkin.report.units import megabytes
from fedkin.untrusted import shown

if TYPE_CHECKING:
    from fedkin.network.status import Other, Status

__all__ = ["status"]

_EVERY = 1.0  # seconds


def status(
    path: Path = typer.Argument(
        ..., metavar="FOLDER", help="The server's run, a participant's state folder, a folder of these, or a join file."
    ),
    watch: bool = typer.Option(False, "--watch", help="Print it again each second, until all have ended."),
    json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """Say how a federation goes, as its participants on this machine see it: it needs no network."""
    files, pause = _files(path), Event()
    while True:
        found = _read(files)
        if json:
            print(as_json({str(file): each.model_dump() for file, each in found.items()}))
        else:
            console = make_console()
            if watch:
                console.clear()
            for file, each in found.items():
                _print(file, each)
        if not watch or all(each.state != "running" for each in found.values()):
            return
        pause.wait(_EVERY)


def _files(path: Path) -> list[Path]:
    """Return the status files of a folder, or of the folders in it; raises RunError if there is none."""
    from fedkin.network.status import FILE

    folder = path.parent if path.suffix == ".toml" else path
    if path.name == FILE:
        return [path]
    found = [folder / FILE] if (folder / FILE).exists() else sorted(folder.glob(f"*/{FILE}"))
    if not found:
        raise RunError(
            f"{path}: no {FILE} here or in its folders; name the folder of a participant: that of --out of fedkin "
            "serve, or NAME-state beside the join file"
        )
    return found


def _read(files: list[Path]) -> dict[Path, Status]:
    from fedkin.network.status import read_status

    return {file: read_status(file) for file in files}


def _print(file: Path, status: Status) -> None:
    console, now = make_console(soft_wrap=True), time.time()
    round = f"round {status.round} of {status.rounds}" if status.rounds else "not begun"
    console.print(f"{status.federation or 'federation'}: {status.name} ({status.role}), {round}, {_state(status, now)}")
    if late := status.late(now):
        console.print(f"it has written nothing for {_ago(late)}: its process was killed or is stopped ({file.parent})")
    if status.weights:
        console.print(f"learned weights: {_weights(status.weights)}")
    if status.epsilon is not None:
        console.print(f"released so far in this run: epsilon {status.epsilon:.2f}")
    others = status.others
    learned = any(each.weights or each.group is not None for each in others.values())
    noised = any(each.epsilon is not None for each in others.values())
    heads = ("name", "here", "round", "last seen", "from it", "to it", "refused")
    table = Table(*heads, *(["epsilon"] * noised), *(["learned"] * learned))
    for name, other in others.items():
        cells = [
            name,
            "yes" if other.here else "no",
            "" if other.round is None else str(other.round),
            _seen(other, now),
        ]
        cells += [megabytes(other.bytes_in), megabytes(other.bytes_out), str(other.refused or "")]
        if noised:
            cells.append("" if other.epsilon is None else f"{other.epsilon:.2f}")
        table.add_row(*map(shown, cells), *([shown(_learned(other))] * learned))
    console.print(table)
    for name, other in others.items():
        if other.why:
            console.print(f"refused of {name}, the last: {shown(other.why)}")
    if status.nameless:
        console.print(f"refused, and nobody knows whose: {status.nameless}")


def _state(status: Status, now: float) -> str:
    if status.late(now):
        return "silent"
    return {"running": "running", "ended": "ended", "left": "left; the same command comes back"}[status.state]


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
