"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import typer

# The kinds of `fedkin list`.
KINDS = ("methods", "scenarios", "sources", "models", "metrics", "presets")


def comma_list(names: str) -> list[str]:
    """Return the names between commas."""
    return [name for name in names.split(",") if name]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that the user gave, by name."""
    return {name: value for name, value in options.items() if value}


EXPERIMENT = typer.Argument(None, help="Experiment file (TOML), or a preset's name; not needed with --resume.")
SET = typer.Option(
    [], "--set", help="Change a setting: section.field=value; A.B= unsets it. May be repeated.", metavar="A.B=C"
)
ROOT = typer.Option(None, help="Folder that holds the data sets (default: data, or that of a resumed run).")
OUT = typer.Option(None, help="Folder for the records (default: a new one under runs/).")
RESUME = typer.Option(None, help="Continue what is in this folder.", metavar="DIR")
JSON = typer.Option(False, "--json", help="Print the result as JSON, and nothing else.")
ROUNDS = typer.Option(None, min=0, help="Rounds, in place of training.rounds.")
METHODS = typer.Option(None, help="Comma-separated: local,fedavg,sfmtl-graph.")
SEED = typer.Option(None, min=0, max=10**18 - 1, help="Seed, in place of run.seed.")
SEEDS = typer.Option(None, help="Seeds: 0,1,2 or 0-4 (default: run.seed).")

TABLE_TARGET = typer.Option(
    None, help="The column to predict (tables). Without it, the columns are listed.", metavar="COLUMN"
)
TABLE_CLIENT = typer.Option(
    None, help="The column of clients (tables); not needed for a folder with a file for each.",
    metavar="COLUMN",
)  # fmt: skip
TABLE_TIME = typer.Option(
    None, help="A column of dates or times: each client's latest rows are held out (tables).",
    metavar="COLUMN",
)  # fmt: skip
TABLE_GROUP = typer.Option(None, help="The column of known groups of clients (tables).", metavar="COLUMN")
TABLE_PERSON = typer.Option(
    None, help="A column, such as the patient: all rows of a person are on one side of each split (tables).",
    metavar="COLUMN",
)  # fmt: skip
TABLE_KIND = typer.Option(
    None, help="classification, risk or regression (tables). Default: by the values.", metavar="KIND"
)
TABLE_LEAVE_OUT = typer.Option("", help="Columns that are no inputs (tables).", metavar="COLUMN,COLUMN")
CSV_DECIMAL = typer.Option(None, help="The decimal mark: . or , (CSV).", metavar="MARK")
CSV_THOUSANDS = typer.Option(None, help="The mark between thousands (CSV).", metavar="MARK")
CSV_MISSING = typer.Option("", help="Texts that stand for a missing value (CSV).", metavar="TEXT,TEXT")
CSV_DATES = typer.Option(None, help="D.M.Y, D/M/Y or M/D/Y (CSV).", metavar="ORDER")
