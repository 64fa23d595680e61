"""`fedkin data`: data sets of others, and where to get them."""

from __future__ import annotations

from pathlib import Path

import typer

from fedkin.cli.loading import needing
from fedkin.cli.names import fetched_names
from fedkin.cli.screen import screen

__all__ = ["data"]

data = typer.Typer(no_args_is_help=True, help="Data sets that others publish: fetch one, or see where to get it.")


@data.command("fetch", cls=needing("fedkin.data.fetching"))
def _fetch(
    name: str | None = typer.Argument(
        None, help="A data set; without it, all are listed.", autocompletion=fetched_names
    ),
    root: Path = typer.Option(Path("data"), "--data-root", help="Folder that holds the data sets."),
) -> None:
    """Fetch an open data set below the data root and check its checksum; a download that was cut goes on."""
    from rich.table import Table

    from fedkin.data.fetching import fetch
    from fedkin.data.origins import ORIGINS

    if name is not None:
        fetch(name, root, screen(soft_wrap=True).print)
        return
    table = Table("source", "folder below the data root", "how", "what", box=None, pad_edge=False)
    for known, origin in ORIGINS.items():
        table.add_row(known, origin.folder, "fetch" if origin.files else "by hand", origin.where)
    screen().print(table)
