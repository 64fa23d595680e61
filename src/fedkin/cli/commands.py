"""The commands of `fedkin`: their names, panels and examples. Their options are read from their functions."""

from __future__ import annotations

import typer

from fedkin._version import __version__
from fedkin.cli.advise import advise
from fedkin.cli.catalogue import list_names
from fedkin.cli.completion import check_experiment, check_kind
from fedkin.cli.data import data, init
from fedkin.cli.experiments import compare, run, tune
from fedkin.cli.export import export
from fedkin.cli.flower import flower
from fedkin.cli.graph import graph
from fedkin.cli.lazy import command_after_import
from fedkin.cli.net import net
from fedkin.cli.new import new
from fedkin.cli.report import report
from fedkin.cli.reproduce import reproduce
from fedkin.cli.runs import runs
from fedkin.running.new import known, spelled

__all__ = ["EXAMPLES", "app"]

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
    "reproduce": ("fedkin reproduce", "fedkin reproduce flt-table1 --data-root data", "fedkin reproduce all --quick"),
    "report": ("fedkin report runs/digits-rotated", "fedkin report runs/A runs/B --out both.html"),
    "graph": (
        "fedkin graph signatures.csv --sparsify knn:10 --out graph",
        "fedkin graph rows.csv --groups same --client hospital --target died",
    ),
    "runs diff": ("fedkin runs diff runs/A runs/B",),
    "runs check": ("fedkin runs check runs/digits-rotated",),
    "export": ("fedkin export runs/wards --client north --to onnx",),
    "net serve": ("fedkin net serve EXPERIMENT.toml --join join.toml --key server.key",),
    "net join": ("fedkin net join join.toml --data stays.csv --target died --key north.key",),
    "net peer": ("fedkin net peer join.toml --data stays.csv --target died --key north.key",),
    "net init": ("fedkin net init keys --name north",),
    "net ca": ("fedkin net ca ca", "fedkin net ca ca --sign north.csr"),
    "net invite": (
        "fedkin net invite EXPERIMENT.toml --ca ca.pem --member server=host:7447 --member north --out join.toml",
    ),
    "net router": ("fedkin net router join.toml --key router.key",),
    "net show": ("fedkin net show join.toml",),
    "net status": ("fedkin net status runs/wards",),
    "flower new": ("fedkin flower new app --experiment EXPERIMENT.toml --out /srv/runs/wards",),
    "flower node": (
        "fedkin flower node EXPERIMENT.toml --name a --socket a.sock --state a --data stays.csv --target died",
    ),
}

app = typer.Typer(
    name="fedkin", no_args_is_help=True, pretty_exceptions_enable=False,
    help="Learn who should learn with whom: collaboration-graph federated learning.",
)  # fmt: skip


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedkin {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


_imports = command_after_import("fedkin.running.experiment")
_reads_experiment = command_after_import("fedkin.running.experiment", experiment=check_experiment)

app.command("init", cls=_imports, rich_help_panel=_START)(init)
app.command("advise", cls=_imports, rich_help_panel=_START)(advise)
app.command("list", cls=command_after_import(None, kind=check_kind), rich_help_panel=_START)(list_names)
app.add_typer(data, name="data", rich_help_panel=_START)
app.command("new", cls=command_after_import("fedkin.running.experiment", kind=known, name=spelled),
            rich_help_panel=_START)(new)  # fmt: skip
app.command("run", cls=_reads_experiment, rich_help_panel=_TRAIN)(run)
app.command("compare", cls=_reads_experiment, rich_help_panel=_TRAIN)(compare)
app.command("tune", cls=_reads_experiment, rich_help_panel=_TRAIN)(tune)
app.command("reproduce", cls=_imports, rich_help_panel=_TRAIN)(reproduce)
app.command("report", cls=_imports, rich_help_panel=_RESULTS)(report)
app.command("graph", cls=command_after_import("fedkin.graph"), rich_help_panel=_RESULTS)(graph)
app.add_typer(runs, name="runs", rich_help_panel=_RESULTS)
app.command("export", cls=_imports, rich_help_panel=_RESULTS)(export)
app.add_typer(net, name="net", rich_help_panel=_NETWORK)
app.add_typer(flower, name="flower", rich_help_panel=_NETWORK)


def _add_examples(group: typer.Typer, prefix: str = "") -> None:
    """End the help of every command with its examples; KeyError for a command without any."""
    for command in group.registered_commands:
        command.epilog = "\n\n".join(["Examples:", *EXAMPLES[f"{prefix}{command.name}"]])
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        _add_examples(inner.typer_instance, f"{prefix}{inner.name} ")


_add_examples(app)
