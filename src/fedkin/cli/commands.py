"""The commands of `fedkin`: their names, panels and examples. Their options are read from their functions."""

from __future__ import annotations

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

_START, _TRAIN, _RESULTS, _NETWORK = "Begin", "Train and compare", "Results", "Over networks"

EXAMPLES = {
    "init": (
        "fedkin init stays.csv --target died --client hospital",
        "fedkin init stays.csv --look",
        "fedkin init EXPERIMENT.toml --look",
    ),
    "advise": ("fedkin advise stays.csv --target died --client hospital",),
    "list": (
        "fedkin list methods",
        "fedkin list methods sfmtl-graph",
        "fedkin list presets digits-rotated > mine.toml",
    ),
    "data fetch": ("fedkin data fetch", "fedkin data fetch mnist --data-root data"),
    "new": ("fedkin new method my-method", "fedkin new metric recall-at-5 --out src"),
    "run": (
        "fedkin run digits-rotated --seed 1",
        "fedkin run EXPERIMENT.toml --set training.lr=0.1 --rounds 20",
        "fedkin run --resume runs/digits-rotated",
    ),
    "compare": (
        "fedkin compare digits-rotated --methods local,fedavg,kin --seeds 0-4",
        "fedkin compare EXPERIMENT.toml --methods local,mine.py:Mine --controls",
        "fedkin compare --resume runs/digits-rotated",
    ),
    "tune": (
        "fedkin tune EXPERIMENT.toml --methods fedavg,tfl --try training.lr=0.01,0.1",
        "fedkin tune EXPERIMENT.toml --methods fedavg,tfl --equal 12 --seeds 0,1",
        "fedkin tune digits-rotated --methods sfmtl-graph --grid method.lam=0.1,1 --seeds 0-4",
    ),
    "bench": ("fedkin bench mine.py:Mine", "fedkin bench ditto --set lam=0.3 --out runs/ditto"),
    "reproduce": ("fedkin reproduce", "fedkin reproduce flt-table1 --data-root data", "fedkin reproduce all --quick"),
    "report": (
        "fedkin report runs/digits-rotated",
        "fedkin report runs/A runs/B --out both.html",
        "fedkin report runs/digits-rotated --paper table,curves",
    ),
    "graph": (
        "fedkin graph signatures.csv --sparsify knn:10 --out graph",
        "fedkin graph rows.csv --groups same --client hospital --target died",
    ),
    "runs diff": ("fedkin runs diff runs/A runs/B",),
    "runs check": ("fedkin runs check runs/digits-rotated",),
    "export": ("fedkin export runs/wards --client north --to onnx",),
    "net serve": ("fedkin net serve EXPERIMENT.toml --join join.toml --key server.key",),
    "net join": ("fedkin net join join.toml --data stays.csv --key north.key",),
    "net leave": ("fedkin net leave join.toml --key north.key",),
    "net init": ("fedkin net init keys --name north",),
    "net ca": ("fedkin net ca ca", "fedkin net ca ca --sign north.csr"),
    "net invite": (
        "fedkin net invite EXPERIMENT.toml --ca ca.pem --member server=host:7447 --member north --out join.toml",
    ),
    "net router": ("fedkin net router join.toml --key router.key",),
    "net show": ("fedkin net show join.toml",),
    "net status": ("fedkin net status runs/wards",),
    "flower new": ("fedkin flower new app --experiment EXPERIMENT.toml --out /srv/runs/wards",),
    "flower node": ("fedkin flower node EXPERIMENT.toml --name a --socket a.sock --state a --data stays.csv",),
    "flower leave": ("fedkin flower leave --state a",),
}
_TO_BEGIN_WITH = """Learn who should learn with whom: collaboration-graph federated learning.

  fedkin compare digits-rotated --methods local,fedavg,kin   a first comparison
  fedkin advise TABLE.csv --target T --client C              who should train together
  fedkin init TABLE.csv --target T --client C                an experiment for your data
  fedkin report RUN                                          a page about runs
  fedkin list methods                                        what there is to compare

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
    _START: {"init": init, "advise": advise, "list": list_names, "data": data, "new": new},
    _TRAIN: {"run": run, "compare": compare, "tune": tune, "bench": bench, "reproduce": reproduce},
    _RESULTS: {"report": report, "graph": graph, "runs": runs, "export": export},
    _NETWORK: {"net": net, "flower": flower},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def _add_examples(group: typer.Typer, prefix: str = "") -> None:
    """End the help of every command with its examples; KeyError for a command without any."""
    for command in group.registered_commands:
        command.epilog = "\n\n".join(["Examples:", *EXAMPLES[f"{prefix}{command.name}"]])
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        _add_examples(inner.typer_instance, f"{prefix}{inner.name} ")


_add_examples(app)
