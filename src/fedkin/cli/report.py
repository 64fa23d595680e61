"""`fedkin report`."""

from __future__ import annotations

from pathlib import Path

import typer

from fedkin.cli.options import BLOCKS
from fedkin.cli.output import make_console

__all__ = ["report"]

_RUNS = typer.Argument(..., help="Run folders, or folders that hold run folders.", metavar="RUN...")
_OUT = typer.Option(None, "--out", help="The file to write (default: report.html in the first folder).")
_PAPER = typer.Option(
    None, "--paper", metavar="DIR", help="In place of the page: figures (SVG, PDF) and LaTeX tables into this folder."
)
_TSNE = typer.Option(False, "--tsne", help="Pictures of features by t-SNE, which takes seconds, in place of PCA.")


def report(
    runs: list[Path] = _RUNS, out: Path | None = _OUT, blocks: str = BLOCKS, paper: Path | None = _PAPER,
    tsne: bool = _TSNE,
) -> None:  # fmt: skip
    """Write one HTML file about finished runs: every method and seed, no network needed to view it."""
    from fedkin.errors import ConfigError, RunError
    from fedkin.report import write_report
    from fedkin.report.ranks import blocks_of

    console, kind = make_console(soft_wrap=True), blocks_of(blocks)
    if paper is not None:
        from fedkin.report.paper import write_paper

        if out is not None:
            raise ConfigError("--out names the page, and --paper a folder for figures and tables: give one of them")
        for path in write_paper(runs, paper, kind):
            console.print(f"wrote {path}")
        return
    if out is not None and out.is_dir():
        raise RunError(f"--out {out}: a folder; name the file to write, for example {out / 'report.html'}")
    written = write_report(runs, out if out is not None else runs[0] / "report.html", kind, tsne)
    console.print(f"report:  {written}")
