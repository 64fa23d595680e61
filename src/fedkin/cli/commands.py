"""The commands and their options, as typer reads them from their functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from fedkin._version import __version__
from fedkin.cli import catalogue, experiments, names
from fedkin.cli.advise import advise
from fedkin.cli.check import check
from fedkin.cli.compare import compare
from fedkin.cli.data import data
from fedkin.cli.examples import with_examples
from fedkin.cli.export import export
from fedkin.cli.flower import flower
from fedkin.cli.graph import graph
from fedkin.cli.loading import needing
from fedkin.cli.net import net
from fedkin.cli.new import new
from fedkin.cli.report import report
from fedkin.cli.reproduce import reproduce
from fedkin.cli.runs import runs
from fedkin.cli.serve import join, peer, serve
from fedkin.cli.sweep import sweep
from fedkin.cli.tables import init, inspect
from fedkin.cli.tune import tune
from fedkin.running.new import known, spelled

__all__ = ["app"]

app = typer.Typer(
    name="fedkin", no_args_is_help=True, pretty_exceptions_enable=False,
    help="Learn who should learn with whom: collaboration-graph federated learning.",
)  # fmt: skip


_TRAINS = needing("fedkin.running.experiment")
_PLANNED = needing("fedkin.running.experiment", experiment=names.there)


def _listing(section: str, known: Callable[[str], list[str]], where: str) -> Any:
    return needing("fedkin.running.experiment", name=names.known(known, section, where))


def _version(asked: bool) -> None:
    if asked:
        print(f"fedkin {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command("run", cls=_PLANNED)(experiments.run)
app.command("compare", cls=_PLANNED)(compare)
app.command("tune", cls=_PLANNED)(tune)
app.command("sweep", cls=_PLANNED)(sweep)
app.command("advise", cls=_TRAINS)(advise)
app.command("serve", cls=_PLANNED)(serve)
app.command("join", cls=_TRAINS)(join)
app.command("peer", cls=_TRAINS)(peer)
app.command("inspect", cls=_TRAINS)(inspect)
app.command("init", cls=_TRAINS)(init)
app.command("new", cls=needing("fedkin.running.experiment", kind=known, name=spelled))(new)
app.command("check", cls=_TRAINS)(check)
app.command("report", cls=_TRAINS)(report)
app.command("graph", cls=needing("fedkin.graph"))(graph)
app.command("export", cls=_TRAINS)(export)
app.command("reproduce", cls=_TRAINS)(reproduce)
app.command("presets")(catalogue.presets)
app.add_typer(data, name="data")
app.add_typer(runs, name="runs")
app.add_typer(net, name="net")
app.add_typer(flower, name="flower")
app.command("methods", cls=_listing("method", names.method_names, "methods"))(catalogue.methods)
app.command("scenarios", cls=_listing("scenario", names.scenario_names, "scenario"))(catalogue.scenarios)
app.command("sources", cls=_listing("source", names.source_names, "source"))(catalogue.sources)
app.command("models", cls=_listing("model", names.model_names, "model"))(catalogue.models)
app.command("metrics", cls=_TRAINS)(catalogue.metrics)
with_examples(app)
