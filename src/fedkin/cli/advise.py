"""`fedkin advise`: from data to a recommendation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fedkin.cli.data import print_findings
from fedkin.cli.options import (
    JSON,
    ROOT,
    SEED,
    SET,
    TABLE_CLIENT,
    TABLE_GROUP,
    TABLE_KIND,
    TABLE_LEAVE_OUT,
    TABLE_TARGET,
    TABLE_TIME,
    comma_list,
)  # fmt: skip
from fedkin.cli.output import as_json, make_console
from fedkin.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedkin.advice import Advice
    from fedkin.running.experiment import Experiment

__all__ = ["advise"]

# As `fedkin init` writes it, with the same number of steps in half of the rounds.
_TRAINING = {"rounds": 20, "local_steps": 10}


def advise(
    data: Path = typer.Argument(
        ...,
        help="As of fedkin init: tables, a .npz file, images, a saved dataset; or an experiment file.",
        metavar="DATA",
    ),
    target: str | None = TABLE_TARGET,
    client: str | None = TABLE_CLIENT,
    time: str | None = TABLE_TIME,
    group: str | None = TABLE_GROUP,
    kind: str | None = TABLE_KIND,
    leave_out: str = TABLE_LEAVE_OUT,
    together: str | None = typer.Option(
        None, help="A column, such as the patient: rows with one value are never split.", metavar="COLUMN"
    ),
    budget: float | None = typer.Option(
        None,
        help="Minutes from the start to the report: fewer folds, rates and rounds are tried to keep to them.",
        metavar="MINUTES",
    ),
    seed: int | None = SEED,
    changes: list[str] = SET,
    data_root: Path | None = ROOT,
    out: Path | None = typer.Option(
        None, help="Folder for the advice (default: runs/advice-NAME). The same command goes on with it.", metavar="DIR"
    ),
    json: bool = JSON,
) -> None:
    """Who should train with whom, and how sure is that? Judged on held-out training rows; writes an experiment file."""
    begun = perf_counter()  # before imports, which take seconds
    from fedkin.advice.advising import RECOMMENDED, Budget, recommend
    from fedkin.folders import held
    from fedkin.report import write_report

    limit = None if budget is None else Budget(budget, begun=begun)
    told = {"target": target, "client": client, "time": time, "group": group, "kind": kind, "leave_out": leave_out}
    plan = _experiment(data, told, changes, seed)
    folder = out if out is not None else Path("runs") / f"advice-{plan.name}"
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--out {folder}: a file; name a folder")
    root = data_root if data_root is not None else Path("data")
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder), _progress(json, folder) as step:
        found = recommend(plan, root, folder, budget=limit, together=together, told=step)
        report = write_report([folder], folder / "report.html")
    if limit is not None and limit.spent > 60 * limit.minutes:
        late = f"took {limit.spent / 60:.1f} minutes, more than the budget of {limit.minutes:g}"
        make_console(stderr=True, soft_wrap=True).print(f"{late}; the advice is complete")
    if json:
        print(as_json(found.to_json()))
        return
    _print(found)
    console = make_console(soft_wrap=True)
    console.print(f"experiment: {folder / RECOMMENDED}; run it with: fedkin run {folder / RECOMMENDED}")
    console.print(f"report:  {report}")


def _experiment(data: Path, told: dict[str, Any], changes: list[str], seed: int | None) -> Experiment:
    from fedkin.running.experiment import Experiment, changed, load

    more = [*changes, *([f"run.seed={seed}"] if seed is not None else [])]
    if data.suffix == ".toml":
        given = [f"--{name.replace('_', '-')}" for name, value in told.items() if value]
        if given:
            raise ConfigError(f"{given[0]}: for tables; {data} is an experiment file, which says this in [data]")
        return load(data, more)
    from fedkin.running.init_experiment import Asked, first_experiment

    first = first_experiment(data, Asked(**{**told, "leave_out": comma_list(told["leave_out"])}))
    table = {**first.table, "training": {**first.table["training"], **_TRAINING}}
    print_findings(make_console(stderr=True, soft_wrap=True), first.findings)
    return changed(table, more, Experiment.of, str(data))


def _print(found: Advice) -> None:
    console = make_console(soft_wrap=True)
    console.print(found.sentence)
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(found.heads):
        table.add_column(head, justify="left" if place in (0, 2) else "right")
    for row in found.rows():
        table.add_row(*row)
    make_console().print(table)
    console.print(found.why)
    for line in found.notes:
        console.print(line)


@contextmanager
def _progress(quiet: bool, folder: Path) -> Iterator[Any]:
    """What is told of the progress: a bar on a terminal. Ctrl-C leaves what was done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    console = make_console(stderr=True, soft_wrap=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console,
        transient=True, disable=quiet or not sys.stderr.isatty(),
    )  # fmt: skip
    tasks: dict[str, TaskID] = {}

    def step(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=total)
        bar.update(tasks[name], completed=done, total=total)

    try:
        with bar:
            yield step
    except KeyboardInterrupt:
        console.print(f"stopped; what was done is in {folder}, and the same command goes on with it")
        raise
