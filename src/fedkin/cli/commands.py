"""The commands of `fedkin`: their names and panels. Help, examples and options are read from their functions."""

from __future__ import annotations

from inspect import getdoc
from typing import Any

import typer

from fedkin._version import __version__
from fedkin.cli.begin import advise, data, init, new
from fedkin.cli.experiments import bench, compare, run, tune
from fedkin.cli.flower import flower
from fedkin.cli.graph import graph
from fedkin.cli.listing import list_names
from fedkin.cli.net import net
from fedkin.cli.reproduce import reproduce
from fedkin.cli.results import export, report, runs

_TO_BEGIN_WITH = """Learn who should learn with whom: collaboration-graph federated learning.

  fedkin compare digits-rotated --methods local,fedavg,kin   a first comparison
  fedkin advise TABLE.csv --target T --client C              who should train together
  fedkin init TABLE.csv --target T --client C                an experiment for your data
  fedkin report RUN                                          a page about runs
  fedkin list methods                                        the methods, with a line for each

All commands: fedkin --help"""

app = typer.Typer(
    name="fedkin", pretty_exceptions_enable=False,
    help="Learn who should learn with whom: collaboration-graph federated learning.",
)  # fmt: skip


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedkin {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    if context.invoked_subcommand is None:
        print(_TO_BEGIN_WITH)


_PANELS: dict[str, dict[str, Any]] = {
    "Begin": {"init": init, "advise": advise, "list": list_names, "data": data, "new": new},
    "Train and compare": {"run": run, "compare": compare, "tune": tune, "bench": bench, "reproduce": reproduce},
    "Results": {"report": report, "graph": graph, "runs": runs, "export": export},
    "Over networks": {"net": net, "flower": flower},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def _add_examples(group: typer.Typer) -> None:
    """End the help of every command with the examples of its docstring."""
    for command in group.registered_commands:
        command.help, _, examples = (getdoc(command.callback) or "").partition("\n\nExamples:\n")
        command.epilog = "\n\n".join(["Examples:", *examples.splitlines()])
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        _add_examples(inner.typer_instance)


_add_examples(app)
