"""`fedkin check`."""

from __future__ import annotations

from pathlib import Path

import typer

from fedkin.cli.screen import screen

__all__ = ["check"]

_FOLDER = typer.Argument(..., help="Folder of a run, a comparison or a tuning, or a folder that holds such.")


def check(folder: Path = _FOLDER) -> None:
    """Say whether every file of a folder is as it was written, and what can be gone on from; exit status 1 if not."""
    from fedkin.records.checking import check as checked

    console = screen(soft_wrap=True)
    found = checked(folder)
    for each in found:
        for line in (*each.problems, *(f"{each.folder}: {note}" for note in each.notes)):
            console.print(line)
        console.print(f"{each.folder}: {each.standing}")
    count = sum(len(each.problems) for each in found)
    console.print("every file is as it was written" if not count else f"{count} problem{'s' if count > 1 else ''}")
    if count:
        raise typer.Exit(1)
