"""Options that several commands share."""

from __future__ import annotations

import typer

from fedkin.cli.completion import experiment_files, method_lists

__all__ = [
    "BLOCKS", "CONTROLS", "EXPERIMENT", "JSON", "LEAVE_OUT", "METHODS", "OUT", "RESTART", "RESUME", "ROOT", "ROUNDS",
    "SEED", "SEEDS", "SET", "TABLE_CLIENT", "TABLE_DATES", "TABLE_DECIMAL", "TABLE_GROUP", "TABLE_KIND",
    "TABLE_LEAVE_OUT", "TABLE_MISSING", "TABLE_TARGET", "TABLE_THOUSANDS", "TABLE_TIME", "comma_list",
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
RESUME = typer.Option(None, "--resume", help="Continue what is in this folder.", metavar="DIR")
RESTART = typer.Option(
    False, "--restart", help="With --resume: start a run at round 0 again if it is damaged and cannot be continued."
)
JSON = typer.Option(False, "--json", help="Print the figures as JSON, and nothing else.")
ROUNDS = typer.Option(None, "--rounds", min=0, help="Rounds, in place of training.rounds.")
METHODS = typer.Option(
    None, "--methods", help="Comma-separated: local,fedavg,sfmtl-graph.", autocompletion=method_lists
)
SEED = typer.Option(None, "--seed", min=0, max=10**18 - 1, help="Seed, in place of run.seed.")
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

TABLE_TARGET = typer.Option(
    None, "--target", help="The column to predict (tables). Without it, init lists the columns.", metavar="COLUMN"
)
TABLE_CLIENT = typer.Option(
    None, "--client", help="The column of clients (tables); not needed for a folder with a file for each.",
    metavar="COLUMN",
)  # fmt: skip
TABLE_TIME = typer.Option(
    None, "--time", help="A column of dates or times: each client's latest rows are held out (tables).",
    metavar="COLUMN",
)  # fmt: skip
TABLE_GROUP = typer.Option(None, "--group", help="The column of known groups of clients (tables).", metavar="COLUMN")
TABLE_KIND = typer.Option(
    None, "--kind", help="classification, risk or regression (tables). Default: found.", metavar="KIND"
)
TABLE_LEAVE_OUT = typer.Option("", "--leave-out", help="Columns that are no inputs (tables).", metavar="COLUMN,COLUMN")
TABLE_DECIMAL = typer.Option(None, "--decimal", help="The decimal mark: . or , (CSV). Default: found.", metavar="MARK")
TABLE_THOUSANDS = typer.Option(None, "--thousands", help="The mark between thousands (CSV).", metavar="MARK")
TABLE_MISSING = typer.Option("", "--missing", help="Texts for: nothing is known (CSV).", metavar="TEXT,TEXT")
TABLE_DATES = typer.Option(None, "--dates", help="D.M.Y, D/M/Y or M/D/Y (CSV).", metavar="ORDER")


def comma_list(names: str) -> tuple[str, ...]:
    """Return the names between commas."""
    return tuple(name for name in names.split(",") if name)
