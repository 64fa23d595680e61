"""`fedkin reproduce`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedkin.cli.options import JSON, comma_list
from fedkin.cli.output import print_table, printed_as_json, run_watchers, say
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.running.papers import PaperTable
    from fedkin.running.reproduce import Cells, FinishedPart, TunedRow


def reproduce(
    name: str | None = typer.Argument(
        None, help="A table, or all; without it, the tables are listed."
    ),
    quick: bool = typer.Option(False, "--quick", help="A few rounds of each, to test the command."),
    data_root: Path = typer.Option(Path("data"), help="Folder that holds the data sets."),
    out: Path = typer.Option(Path("runs/reproduce"), help="Folder for the records; continues from them."),
    pages: Path | None = typer.Option(None, help="Folder for the pages (default: OUT/pages)."),
    tables: Path | None = typer.Option(None, help="Folder of the definitions (default: presets/tables)."),
    finished: bool = typer.Option(False, "--finished", help="Run nothing: write the pages of what has ended."),
    federation: list[str] | None = typer.Option(
        None, help="Only this federation, or these; the page keeps what it says of others."
    ),
    methods: str | None = typer.Option(
        None, help="Only the rows of these methods, and Local; the page keeps what it says of others."
    ),
    seeds: str | None = typer.Option(
        None, help="Only these seeds, with the settings that the page's tuning chose; the page keeps the others."
    ),
    json: bool = JSON,
) -> None:  # fmt: skip
    """Run a table of one of the four papers, tuned equally and with controls, and write its page and CSV.

    Examples:
    fedkin reproduce
    fedkin reproduce flt-table1 --data-root data
    fedkin reproduce all --quick
    """
    from fedkin.running.papers import known_tables, table_folder

    folder = table_folder(tables)
    all_tables = known_tables(folder)
    if name is None:
        _list(all_tables, json)
        return
    from fedkin.report.results import read_rows
    from fedkin.running.grid import parse_seeds, stage_watchers
    from fedkin.running.reproduce import reproduce as parts_of

    wanted = _tables_to_run(all_tables, name)
    for option, given in {"--federation": federation, "--methods": methods, "--seeds": seeds}.items():
        if given and name == "all":
            raise ConfigError(f"{option}: give the name of one table with it, not all")
    place = out / "quick" if quick else out
    shown = pages if pages is not None else place / "pages"
    for key, table in wanted.items():
        with run_watchers(place / key, False, "the same command") as watch:
            this = table.shortened() if quick else table
            some = _select_federations(this, federation or [])
            if methods:
                some = some.only(comma_list(methods))
            if seeds:
                some = some.with_seeds(parse_seeds(seeds))
            kept = read_rows(key, this, folder, shown, quick) if finished or seeds or some != this else []
            tuned = _tuned_before(some, kept, f"{shown / key}.csv") if seeds and some.tune is not None else None
            watchers = stage_watchers(watch, key)
            parts = parts_of(some, folder, data_root, place / key, finished=finished, tuned=tuned, watch=watchers)
            _run_table(key, this, parts, kept, folder, shown, quick)
    _index(all_tables, folder, shown, quick)
    say(f"index: {shown / 'index.md'}")


def _tables_to_run(tables: Mapping[str, PaperTable], name: str) -> dict[str, PaperTable]:
    """The table of this name, or all tables that can be run; raises ConfigError."""
    from fedkin.settings import choose

    if name == "all":
        return {key: table for key, table in tables.items() if table.federation}
    choose({**tables, "all": None}, name, "NAME")
    if not tables[name].federation:
        raise ConfigError(f"{name}: a list of claims that are not tested here; there is nothing to run")
    return {name: tables[name]}


def _select_federations(table: PaperTable, names: Sequence[str]) -> PaperTable:
    """The table with the federations of these names, or with all of them if there are none."""
    from fedkin.settings import choose

    by_name = {part.name: part for part in table.federation}
    for name in names:
        choose(by_name, name, "--federation")
    parts = tuple(part for part in table.federation if part.name in names) or table.federation
    return table.model_copy(update={"federation": parts})


def _tuned_before(table: PaperTable, kept: Sequence[Cells], csv: str) -> dict[str, dict[str, TunedRow]]:
    """The settings that the page's tuning chose, by federation and row; raises ConfigError without any."""
    from fedkin.report.results import tuned_rows

    tuned = tuned_rows(table, kept)
    for part, rows in tuned.items():
        if not rows:
            raise ConfigError(f"--seeds: no figures for {part!r} in {csv}; run it without --seeds first")
    return tuned


def _run_table(
    name: str, table: PaperTable, parts: Iterable[FinishedPart], kept: Sequence[Cells], presets: Path, pages: Path,
    quick: bool,
) -> None:  # fmt: skip
    """Run `parts`, some federations and rows of a table; write its page, which says what has not been run, after each.

    kept: the rows that the page has so far.
    """
    from fedkin.records.files import csv_text, write_bytes
    from fedkin.report import results

    done: list[FinishedPart] = []

    def write() -> None:
        rows = results.merged(table, done, kept)
        pages.mkdir(parents=True, exist_ok=True)
        write_bytes(pages / f"{name}.md", results.page(name, table, rows, presets, quick).encode())
        write_bytes(pages / f"{name}.csv", csv_text(rows).encode())

    if kept:
        write()
    for one in parts:
        done.append(one)
        for row, why in one.failed.items():
            say(f"{name}, {one.part.name}: row {row} is left out, since its method failed in training: {why}")
        write()
    say(f"page:  {pages / name}.md" if done or kept else f"{name}: nothing has ended yet")


def _index(tables: Mapping[str, PaperTable], presets: Path, pages: Path, quick: bool) -> None:
    """Write the index of the pages in this folder, without those of another definition."""
    from fedkin.records.files import write_bytes
    from fedkin.report.results import index, read_rows

    every = {name: table.shortened() if quick else table for name, table in tables.items()}
    figures = {}
    for name, table in every.items():
        try:
            if (pages / f"{name}.md").exists():
                figures[name] = read_rows(name, table, presets, pages, quick)
        except ConfigError as error:
            say(f"index: left out {error}")
    pages.mkdir(parents=True, exist_ok=True)
    write_bytes(pages / "index.md", index(every, figures, presets).encode())


def _list(tables: Mapping[str, PaperTable], json: bool) -> None:
    from fedkin.running.reproduce import runs_of

    rows = [
        {"table": name, "what": table.title, "federations": len(table.federation), "runs": runs_of(table),
         "claims": len(table.claim)} for name, table in tables.items()
    ]  # fmt: skip
    if printed_as_json(json, rows):
        return
    counts = ("federations", "runs", "claims")
    print_table(("table", "what", *counts), [tuple(map(str, row.values())) for row in rows], right=counts)
