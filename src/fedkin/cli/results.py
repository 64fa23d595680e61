"""The panel Results: `fedkin report`, `runs` and `export`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedkin.cli.options import JSON
from fedkin.cli.output import print_table, printed_as_json, say
from fedkin.report.units import figure, megabytes
from fedkin.tasks import METRICS

if TYPE_CHECKING:
    from fedkin.records.listing import Listed


# -- report ------------------------------------------------------------------------------------------------------------


def report(
    runs: list[Path] = typer.Argument(..., help="Run folders, or folders that hold run folders.", metavar="RUN..."),
    out: Path | None = typer.Option(
        None, help="The file to write (default: report.html in the first folder); with --paper a folder "
        "(default: paper in the first folder).",
    ),
    paper: str | None = typer.Option(
        None, metavar="PARTS", help="In place of the page, figures (SVG, PDF) and tables (LaTeX) for a "
        "paper: table,curves, and also gains, graph.",
    ),
) -> None:  # fmt: skip
    """Write one HTML file about finished runs: every method and seed, no network needed to view it.

    Examples:
    fedkin report runs/digits-rotated
    fedkin report runs/A runs/B --out both.html
    fedkin report runs/digits-rotated --paper table,curves
    """
    from fedkin.errors import RunError
    from fedkin.report import write_report

    if paper is not None:
        from fedkin.report.paper import write_paper

        say(*(f"wrote {path}" for path in write_paper(runs, out if out is not None else runs[0] / "paper", paper)))
        return
    if out is not None and out.is_dir():
        raise RunError(f"--out {out}: a folder; name the file to write, for example {out / 'report.html'}")
    say(f"report:  {write_report(runs, out if out is not None else runs[0] / 'report.html')}")


# -- export ------------------------------------------------------------------------------------------------------------


class ExportFormat(StrEnum):
    """The formats of an exported model."""

    torch = "torch"
    onnx = "onnx"


def export(
    run: Path = typer.Argument(..., help="The folder of a finished run.", metavar="RUN"),
    client: str | None = typer.Option(
        None, help="Whose model; may be left out if all clients have the same one.", metavar="ID"
    ),
    to: ExportFormat = typer.Option(
        ExportFormat.torch, help='torch: a program of torch.export. onnx: needs pip install "fedkin\\[onnx]".'
    ),
    out: Path | None = typer.Option(
        None, help="The file to write, .pt2 or .onnx (default: named after the client).", metavar="FILE"
    ),
) -> None:
    """Write a client's model as files that need no fedkin: a frame in, predictions out.

    Examples:
    fedkin export runs/wards --client north --to onnx
    """
    from fedkin.records.files import seal_of
    from fedkin.running.export import ENDINGS, export_model
    from fedkin.running.model_loader import load

    models = load(run)
    id = models.client_id(client)
    # A name that Python can import too.
    name = re.sub(r"\W", "_", id if client else "model")
    place = out if out is not None else Path(f"m{name}" if name[0].isdigit() else name).with_suffix(ENDINGS[to.value])
    paths = export_model(models, id, to.value, place)
    say(*(f"written: {path}" for path in paths), f"the model of {id} after round {seal_of(models.folder).round}")


# -- runs --------------------------------------------------------------------------------------------------------------

runs = typer.Typer(help="List runs with their figures, check their files, or compare two of them.")


@runs.callback(invoke_without_command=True)
def _list(
    context: typer.Context,
    folders: list[Path] = typer.Option(
        [Path("runs")], "--in", help="Folder that holds run folders, at any depth. May be repeated."
    ),
    json: bool = JSON,
) -> None:
    """List the runs in a folder with their results; exit status 1 if one cannot be read."""
    if context.invoked_subcommand is not None:
        return
    from fedkin.records.listing import listed

    listed_runs, problems = listed(folders)
    facts = [
        {"folder": str(run.folder), "method": run.method, "seed": run.seed, "rounds": run.rounds,
         "planned": run.planned, "figures": run.figures() or None} for run in listed_runs
    ]  # fmt: skip
    if not printed_as_json(json, facts):
        if listed_runs:
            columns = _columns(listed_runs, _distinct_names([run.folder for run in listed_runs], folders))
            print_table(list(columns), zip(*columns.values(), strict=True), wrapped=("run",))
        elif not problems:
            say(f"no runs in {', '.join(map(str, folders))}")
    if problems:
        say(*problems, stderr=True)
        raise typer.Exit(1)


def _columns(listed_runs: Sequence[Listed], names: Sequence[str]) -> dict[str, list[str]]:
    """A cell per run for each heading; a column that no run fills is left out."""
    figures = [run.figures() for run in listed_runs]
    metrics = {run.metric for run, each in zip(listed_runs, figures, strict=True) if f"{run.metric} mean" in each}
    mean_head = metrics.pop() if len(metrics) == 1 else "mean"
    rows = [
        {"run": name, **_cells(run, each, mean_head)}
        for name, run, each in zip(names, listed_runs, figures, strict=True)
    ]
    columns = {head: [row[head] for row in rows] for head in rows[0]}
    return {head: cells for head, cells in columns.items() if any(cells)}


def _cells(run: Listed, figures: Mapping[str, float], mean_head: str) -> dict[str, str]:
    """A run's figures by heading; the metric's name is beside its mean unless it is the heading."""
    share = METRICS[run.metric].share if run.metric else True
    mean, worst = (
        "" if value is None else figure(value, share, 4)
        for value in (figures.get(f"{run.metric} {name}") for name in ("mean", "worst10"))
    )
    if mean and run.metric != mean_head:
        mean = f"{mean} {run.metric}"
    return {
        "method": run.method, "seed": "" if run.seed is None else str(run.seed),
        "rounds": f"{run.rounds}/{run.planned}", mean_head: "not finished" if run.summary is None else mean,
        "worst 10%": worst, "ARI": f"{figures['groups ari']:.2f}" if "groups ari" in figures else "",
        "sent": megabytes(figures["bytes sent"]) if figures else "",
    }  # fmt: skip


@runs.command("check")
def _check(
    folder: Path = typer.Argument(..., help="Folder of a run, a comparison or a tuning, or a folder that holds such."),
    json: bool = JSON,
) -> None:
    """Check that no file of a folder is damaged, and say what can be continued; exit status 1 if one is.

    Examples:
    fedkin runs check runs/digits-rotated
    """
    from fedkin.records.checking import check

    reports = check(folder)
    count = sum(len(report.problems) for report in reports)
    if not printed_as_json(json, [{**vars(report), "folder": str(report.folder)} for report in reports]):
        for report in reports:
            say(*report.problems, *(f"{report.folder}: {text}" for text in (*report.notes, report.standing)))
        say("every file is as it was written" if not count else f"{count} problem{'s' if count > 1 else ''}")
    if count:
        raise typer.Exit(1)


@runs.command("diff")
def _diff(one: Path, other: Path, json: bool = JSON) -> None:
    """Show which settings of two runs differ, and the results of both.

    Examples:
    fedkin runs diff runs/A runs/B
    """
    from fedkin.records.listing import listed_difference, read_listed

    both = [read_listed(one), read_listed(other)]
    settings, figures = listed_difference(*both)
    if json:
        printed_as_json(json, {
            "runs": [str(one), str(other)],
            "settings": [dict(zip(("setting", "one", "other"), row, strict=True)) for row in settings],
            "figures": [dict(zip(("figure", "one", "other"), row, strict=True)) for row in figures],
        })  # fmt: skip
        return
    home = [place for place in one.absolute().parents if other.absolute().is_relative_to(place)][:1]
    names = _distinct_names([one, other], home)
    if settings:
        print_table(("setting", *names), [list(map(str, row)) for row in settings], wrapped=("setting", *names))
    else:
        say("no setting differs")
    if unfinished := [str(run.folder) for run in both if run.summary is None]:
        say(f"{' and '.join(dict.fromkeys(unfinished))}: not finished, so there are no figures to compare")
        return
    rows = [(name, f"{a:,.5g}", f"{b:,.5g}", f"{b - a:+,.3g}") for name, a, b in figures]
    print_table(("figure", *names, "difference"), rows, wrapped=names)


def _distinct_names(paths: Sequence[Path], homes: Sequence[Path]) -> list[str]:
    """Each path relative to its home; in full if two would be the same, or if one is the home itself."""
    short = []
    for path in paths:
        home = next((home for home in homes if path.absolute().is_relative_to(home.absolute())), None)
        short.append(str(path) if home is None else str(path.absolute().relative_to(home.absolute())))
    return short if len(set(short)) == len(set(paths)) and "." not in short else [str(path) for path in paths]
