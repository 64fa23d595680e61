"""`fedkin runs`: list runs, check their files, or compare two of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedkin.cli.lazy import command_after_import
from fedkin.cli.output import make_console
from fedkin.report.units import megabytes
from fedkin.untrusted import shown

if TYPE_CHECKING:
    from fedkin.records.run import Listed

__all__ = ["runs"]

runs = typer.Typer(
    cls=command_after_import("fedkin.records.run", group=True), no_args_is_help=False,
    help="List runs with their figures, check their files, or compare two of them.",
)  # fmt: skip

_FOLDERS = typer.Option([Path("runs")], "--in", help="Folder that holds run folders, at any depth. May be repeated.")
_WIDE = 10_000  # columns: more than any line has
# Columns that may be left out on a narrow terminal, in this order.
_SPARE = ("seconds", "worst 10%", "ARI", "sent")


@runs.callback(invoke_without_command=True)
def _list(context: typer.Context, folders: list[Path] = _FOLDERS) -> None:
    """List the runs in a folder with their results."""
    if context.invoked_subcommand is not None:
        return
    from fedkin.records.run import listed

    found = listed(folders)
    if not found:
        _console().print(f"no runs in {', '.join(map(str, folders))}")
        return
    columns = _columns(found, _told_apart([run.folder for run in found], folders))
    left = _left_out(columns)
    _print(_listing({head: cells for head, cells in columns.items() if head not in left}))
    if left:
        _console().print(f"no room for: {', '.join(left)}; a wider terminal has them")


def _left_out(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The fewest columns to leave out so that each run fits a line; none if this is impossible and lines must wrap."""
    console, spare = _console(), [head for head in _SPARE if head in columns]
    if not _edged(console):
        return []
    for count in range(len(spare) + 1):
        kept = {head: cells for head, cells in columns.items() if head not in spare[:count]}
        if _width(console, _listing(kept)) <= console.width:
            return spare[:count]
    return []


def _columns(found: Sequence[Listed], names: Sequence[str]) -> dict[str, Sequence[str]]:
    """A cell per run for each heading; a column that no run fills is left out."""
    every = [run.figures() for run in found]
    metrics = [_metric(figures) for figures in every]
    one = len({metric for metric in metrics if metric}) == 1
    columns: dict[str, Sequence[str]] = {
        "run": names,
        "method": [run.method for run in found],
        "seed": ["" if run.seed is None else str(run.seed) for run in found],
        "rounds": [f"{run.rounds}/{run.planned}" for run in found],
        (max(metrics) if one else "mean"): [
            _reached(run, figures, metric, one) for run, figures, metric in zip(found, every, metrics, strict=True)
        ],
        "worst 10%": [_shown(figures.get(f"{metric} worst10")) for figures, metric in zip(every, metrics, strict=True)],
        "ARI": [_shown(figures.get("groups ari"), ".2f") for figures in every],
        "sent": [megabytes(figures["bytes sent"]) if figures else "" for figures in every],
        "seconds": [_shown(figures.get("seconds"), ",.0f") for figures in every],
    }
    return {head: cells for head, cells in columns.items() if any(cells)}


def _listing(columns: Mapping[str, Sequence[str]]) -> Table:
    return _table(list(columns), list(zip(*columns.values(), strict=True)), folded=("run",))


def _metric(figures: Mapping[str, float]) -> str:
    """The metric by which the run's clients are compared; empty while no mean is known."""
    return next((name.removesuffix(" mean") for name in figures if name.endswith(" mean")), "")


def _reached(run: Listed, figures: Mapping[str, float], metric: str, one: bool) -> str:
    """The mean over clients, with the metric's name unless the column's head has it."""
    if run.summary is None:
        return "not finished"
    return f"{_shown(figures.get(f'{metric} mean'))} {'' if one else metric}".strip()


@runs.command("check", cls=command_after_import("fedkin.records.checking"))
def _check(
    folder: Path = typer.Argument(..., help="Folder of a run, a comparison or a tuning, or a folder that holds such."),
) -> None:
    """Say whether every file of a folder is as it was written, and what can be continued; exit status 1 if not."""
    from fedkin.records.checking import check

    console = _console()
    reports = check(folder)
    for report in reports:
        for line in (*report.problems, *(f"{report.folder}: {note}" for note in report.notes)):
            console.print(line)
        console.print(f"{report.folder}: {report.standing}")
    count = sum(len(report.problems) for report in reports)
    console.print("every file is as it was written" if not count else f"{count} problem{'s' if count > 1 else ''}")
    if count:
        raise typer.Exit(1)


@runs.command("diff")
def diff(one: Path, other: Path) -> None:
    """Show which settings of two runs differ, and the results of both."""
    from fedkin.records.run import listed_difference, read_listed

    both = [read_listed(one), read_listed(other)]
    changed, figures = listed_difference(*both)
    home = [place for place in one.absolute().parents if other.absolute().is_relative_to(place)][:1]
    first, second = _told_apart([one, other], home)
    heads = ("setting", first, second)
    if changed:
        _print(_table(heads, [(name, _setting(mine), _setting(theirs)) for name, mine, theirs in changed], heads))
    else:
        _console().print("no setting differs")
    if open := [run.folder for run in both if run.summary is None]:
        text = f"{' and '.join(dict.fromkeys(map(str, open)))}: not finished, so there are no figures to compare"
        _console().print(text)
        return
    rows = [(name, f"{a:,.5g}", f"{b:,.5g}", f"{b - a:+,.3g}") for name, a, b in figures]
    _print(_table(("figure", first, second, "difference"), rows, (first, second)))


def _told_apart(paths: Sequence[Path], homes: Sequence[Path]) -> list[str]:
    """Each path relative to its home; in full if two would be the same, or if one is the home itself."""
    short = []
    for path in paths:
        home = next((home for home in homes if path.absolute().is_relative_to(home.absolute())), None)
        short.append(str(path) if home is None else str(path.absolute().relative_to(home.absolute())))
    return short if len(set(short)) == len(set(paths)) and "." not in short else [str(path) for path in paths]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], folded: Sequence[str]) -> Table:
    """Cells are shown literally, brackets included; the `folded` columns wrap if there is not enough room."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for head in heads:
        table.add_column(Text(shown(head)), no_wrap=head not in folded, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def _console() -> Console:
    return make_console(soft_wrap=True)


def _edged(console: Console) -> bool:
    """Whether output has an edge: a file or a pipe has none, and its readers expect one line per run."""
    return console.is_terminal or "COLUMNS" in os.environ


def _width(console: Console, table: Table) -> int:
    """Columns that the table takes without wrapping."""
    return Measurement.get(console, console.options.update_width(_WIDE), table).maximum


def _print(table: Table) -> None:
    console = _console()
    if not _edged(console):
        console.width = max(console.width, _width(console, table))
    console.print(table)


def _shown(value: float | None, form: str = ".4f") -> str:
    return "" if value is None else format(value, form)


def _setting(value: Any) -> str:
    return "(not set)" if value is None else str(value)
