"""Options that several commands share."""

from __future__ import annotations

import typer

from fedkin.cli.names import experiment_files, methods_listed

__all__ = [
    "BLOCKS", "CONTROLS", "EXPERIMENT", "JSON", "LEAVE_OUT", "METHODS", "OUT", "RESTART", "RESUME", "ROOT", "ROUNDS",
    "SEEDS", "SET",
]  # fmt: skip

EXPERIMENT = typer.Argument(
    None, help="Experiment file (TOML), or a preset's name; not needed with --resume.", autocompletion=experiment_files
)
SET = typer.Option(
    [], "--set", help="Change a setting: section.field=value; none unsets it. May be repeated.", metavar="A.B=C"
)
ROOT = typer.Option(
    None, "--data-root", help="Folder that holds the data sets (default: data; with --resume, as before)."
)
OUT = typer.Option(None, "--out", help="Folder for the records (default: a new one under runs/).")
RESUME = typer.Option(None, "--resume", help="Go on with what is in this folder.", metavar="DIR")
RESTART = typer.Option(
    False, "--restart", help="With --resume: a run that is damaged and cannot be gone on with begins anew at round 0."
)
JSON = typer.Option(False, "--json", help="Print the figures as JSON, and nothing else.")
ROUNDS = typer.Option(None, "--rounds", min=0, help="Rounds, in place of training.rounds.")
METHODS = typer.Option(
    None, "--methods", help="Comma-separated: local,fedavg,sfmtl-graph.", autocompletion=methods_listed
)
SEEDS = typer.Option(None, "--seeds", help="Seeds: 0,1,2 or 0-4 (default: run.seed).")
CONTROLS = typer.Option(
    False, "--controls", help="Run each method's controls too: without exchange (NAME@self), one group, random and "
    "true groups; shows what communication adds.",
)  # fmt: skip
BLOCKS = typer.Option(
    "auto", "--blocks", metavar="KIND", help="Over what methods are tested: federations, seeds, or clients (which are "
    "not independent). Default: federations if there are several, else seeds.",
)  # fmt: skip
LEAVE_OUT = typer.Option(
    None, "--leave-out", metavar="each|GROUPS",
    help="Leave out one group of clients (domain, region) after another as unseen: each, or a,b,c.",
)  # fmt: skip
