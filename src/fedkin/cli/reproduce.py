"""`fedkin reproduce`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from fedkin.cli.names import table_names
from fedkin.cli.progress import Several, StopFlag, stop_on_signals
from fedkin.cli.screen import screen
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.running.papers import PaperTable

__all__ = ["reproduce"]


def reproduce(
    name: str | None = typer.Argument(
        None, help="A table, or all; without it, the tables are listed.", autocompletion=table_names
    ),
    quick: bool = typer.Option(False, "--quick", help="A few rounds of each, to test the command."),
    data_root: Path = typer.Option(Path("data"), "--data-root", help="Folder that holds the data sets."),
    out: Path = typer.Option(Path("runs/reproduce"), "--out", help="Folder for the records; goes on with them."),
    pages: Path | None = typer.Option(None, "--pages", help="Folder for the pages (default: OUT/pages)."),
    tables: Path | None = typer.Option(None, "--tables", help="Folder of the definitions (default: presets/tables)."),
    finished: bool = typer.Option(False, "--finished", help="Run nothing: write the pages of what has ended."),
    federation: list[str] | None = typer.Option(
        None, "--federation", help="Only this federation, or these; the page keeps what it says of others."
    ),
    keep: bool = typer.Option(
        False, "--keep", help="Take the runs that the CSV in --pages has; run the rows and seeds that it lacks."
    ),
    restart: bool = typer.Option(False, "--restart", help="Runs that are damaged begin anew at round 0."),
    models: bool = typer.Option(False, "--keep-models", help="Keep models and states of finished runs; needs space."),
) -> None:  # fmt: skip
    """Run a table of one of the four papers, tuned equally and with controls, and write its page and CSV."""
    from fedkin.running.papers import known_tables, table_folder, unread_tables
    from fedkin.settings import choose

    folder = table_folder(tables)
    known = known_tables(folder, lambda each: name in (each, "all"))
    others = unread_tables(folder, known)
    if name is None:
        screen().print(_list(known, others))
        return
    choose({**known, **others, "all": None}, name, "NAME")
    if federation and name == "all":
        raise ConfigError("--federation: give the name of one table with it, not all")
    wanted = {key: one for key, one in known.items() if one.federation} if name == "all" else {}
    if name != "all":
        wanted[name] = known[name]
        if not wanted[name].federation:
            raise ConfigError(f"{name}: a list of claims that are not tested here; there is nothing to run")
    place = out / "quick" if quick else out
    shown = pages if pages is not None else place / "pages"
    for key, table in wanted.items():
        with stop_on_signals(place / key, "the same command") as stop:
            this = table.shortened() if quick else table
            some = _chosen(this, federation or [])
            _one(key, this, some, folder, data_root, place / key, shown, quick, finished, restart, models, stop, keep)
    _index(known, others, shown)
    screen(soft_wrap=True).print(f"index: {shown / 'index.md'}")


def _chosen(table: PaperTable, names: Sequence[str]) -> PaperTable:
    """The table with the federations of these names, or with all of them if there are none."""
    from fedkin.settings import choose

    known = {part.name: part for part in table.federation}
    for name in names:
        choose(known, name, "--federation")
    parts = tuple(part for part in table.federation if part.name in names) or table.federation
    return table.model_copy(update={"federation": parts})


def _one(
    name: str, table: PaperTable, some: PaperTable, folder: Path, data_root: Path, out: Path, pages: Path, quick: bool,
    finished: bool, restart: bool, models: bool, stop: StopFlag, keep: bool,
) -> None:  # fmt: skip
    """Run `some` federations of a table; its page is written after each, and says which have not been run.

    Of federations that are not among `some`, what the page has said is kept. keep: and of those that are, the runs
    that it has.
    """
    from fedkin.records.files import write_bytes
    from fedkin.report.claims import claims_csv, verdict_rows
    from fedkin.report.kept import kept_parts, known_runs
    from fedkin.report.reproduced import figures_csv, page, top
    from fedkin.running.reproduce import Done, reproduce

    done: list[Done] = []
    mine = [part.name for part in some.federation]
    whole = len(mine) == len(table.federation)
    kept = {} if whole else kept_parts(name, table, top(name, table, quick), pages, mine)
    shown = Several(stop, quiet=False)
    for one in reproduce(
        some, folder, data_root, out, restart=restart, finished=finished, models=models,
        hears=lambda what, number, of: shown.next(f"{name}, {what}", number, of),
        known=known_runs(name, pages) if keep else None,
    ):  # fmt: skip
        done.append(one)
        pages.mkdir(parents=True, exist_ok=True)
        texts = {
            f"{name}.md": page(name, table, done, quick, kept),
            f"{name}.csv": figures_csv(table, done, kept),
            f"{name}-claims.csv": claims_csv(verdict_rows(table, done, kept)),
        }
        for file, text in texts.items():
            write_bytes(pages / file, text.encode())
    screen(soft_wrap=True).print(f"page:  {pages / name}.md" if done else f"{name}: nothing has ended yet")


def _index(tables: Mapping[str, PaperTable], others: Mapping[str, str], pages: Path) -> None:
    """Write the index of all claims from the pages in this folder."""
    from fedkin.records.files import write_bytes
    from fedkin.report.claims import index

    kept = {
        name: path.read_text(encoding="utf-8")
        for name in (*tables, *others) if (path := pages / f"{name}-claims.csv").is_file()
    }  # fmt: skip
    pages.mkdir(parents=True, exist_ok=True)
    write_bytes(pages / "index.md", index(tables, kept, others).encode())


def _list(tables: Mapping[str, PaperTable], others: Mapping[str, str]) -> Table:
    from fedkin.running.reproduce import runs_of

    shown = Table("table", "what", "federations", "runs", "claims", box=None)
    for name, table in tables.items():
        shown.add_row(name, table.title, str(len(table.federation)), str(runs_of(table)), str(len(table.claim)))
    for name, title in others.items():
        shown.add_row(name, f"{title} (names Python files, which only its run reads)")
    return shown
