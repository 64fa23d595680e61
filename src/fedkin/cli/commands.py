"""The commands and their options, as typer reads them from their functions."""

from __future__ import annotations

import typer

from fedkin._version import __version__
from fedkin.cli import catalogue, experiments
from fedkin.cli.advise import advise
from fedkin.cli.check import check
from fedkin.cli.graph import graph
from fedkin.cli.net import net
from fedkin.cli.report import report
from fedkin.cli.runs import runs
from fedkin.cli.serve import join, peer, serve
from fedkin.cli.sweep import sweep
from fedkin.cli.tables import init, inspect
from fedkin.cli.tune import tune

__all__ = ["app"]

app = typer.Typer(
    name="fedkin", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Learn who should learn with whom: collaboration-graph federated learning.",
)  # fmt: skip


def _version(asked: bool) -> None:
    if asked:
        print(f"fedkin {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command("run")(experiments.run)
app.command("compare")(experiments.compare)
app.command("tune")(tune)
app.command("sweep")(sweep)
app.command("advise")(advise)
app.command("serve")(serve)
app.command("join")(join)
app.command("peer")(peer)
app.command("inspect")(inspect)
app.command("init")(init)
app.command("check")(check)
app.command("report")(report)
app.command("graph")(graph)
app.add_typer(runs, name="runs")
app.add_typer(net, name="net")
app.command("methods")(catalogue.methods)
app.command("scenarios")(catalogue.scenarios)
app.command("sources")(catalogue.sources)
app.command("models")(catalogue.models)
