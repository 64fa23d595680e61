"""What is printed, and the report that is written, when runs have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedkin.cli.screen import screen

if TYPE_CHECKING:
    from fedkin.report.ranks import Blocks

__all__ = ["done", "lines", "reported", "verdicts", "warnings"]


def reported(folders: list[Any], home: Path | None = None, blocks: Blocks = "auto") -> Path:
    """Write the report of these runs in their home, or else in the first one's folder; returns its path."""
    from fedkin.report import write_report

    return write_report([Path(folder) for folder in folders], (home or Path(folders[0])) / "report.html", blocks)


def lines(lines: Iterable[str]) -> None:
    """Lines for a person, cut into those of the screen."""
    console = screen(soft_wrap=True)
    for line in lines:
        console.print(fill(line, console.width, subsequent_indent="    "))


def verdicts(results: Mapping[str, Mapping[int, Any]]) -> None:
    """What tests found, for the methods whose records hold verdicts."""
    from fedkin.report.verdicts import terminal

    for method, by_seed in results.items():
        lines(terminal(method, {seed: (result.folder, result.rounds) for seed, result in by_seed.items()}))


def warnings(results: Mapping[str, Mapping[int, Any]]) -> None:
    """The warnings of all runs, as at the top of the report."""
    for method, by_seed in results.items():
        for seed, result in by_seed.items():
            lines(f"warning: {method}, seed {seed}: {text}" for text in result.summary.get("warnings") or ())


def done(folder: Path, *reports: Path) -> None:
    """Say where records and reports are."""
    console = screen(soft_wrap=True)
    console.print(f"records: {folder}")
    for report in reports:
        console.print(f"report:  {report}")
