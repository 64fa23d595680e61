"""`fedkin report`."""

from __future__ import annotations

from pathlib import Path

import typer

from fedkin.cli.options import BLOCKS
from fedkin.cli.screen import screen

__all__ = ["report"]

_RUNS = typer.Argument(..., help="Run folders, or folders that hold run folders.", metavar="RUN...")
_OUT = typer.Option(None, "--out", help="The file to write (default: report.html in the first folder).")


def report(runs: list[Path] = _RUNS, out: Path | None = _OUT, blocks: str = BLOCKS) -> None:
    """Write one HTML file about finished runs: every method and seed, no network needed to view it."""
    from fedkin.errors import RunError
    from fedkin.report import write_report
    from fedkin.report.ranks import blocks_of

    if out is not None and out.is_dir():
        raise RunError(f"--out {out}: a folder; name the file to write, for example {out / 'report.html'}")
    written = write_report(runs, out if out is not None else runs[0] / "report.html", blocks_of(blocks))
    screen(soft_wrap=True).print(f"report:  {written}")
