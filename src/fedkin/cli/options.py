"""Options that several commands share, what a shell completes, and values that are refused before slow imports."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

import typer

from fedkin.errors import ConfigError, nearest
from fedkin.running import presets

_PACKAGE = Path(__file__).parents[1]
# The kinds of `fedkin list`: the folder of their classes and the field with a class's name.
_CLASSES = {
    "methods": ("methods", "name"), "scenarios": ("data/scenarios", "name"), "sources": ("data/sources", "source"),
    "models": ("learning/models", "name"),
}  # fmt: skip
KINDS = (*_CLASSES, "metrics", "presets")


# -- names, read from the package's files ------------------------------------------------------------------------------


def names_of_kind(kind: str) -> list[str]:
    """Return the built-in names of a kind, sorted; none for metrics, which are functions."""
    if kind == "presets":
        return presets.preset_names()
    if kind not in _CLASSES:
        return []
    folder, field = _CLASSES[kind]
    pattern = re.compile(rf'^    {field}: (?:ClassVar\[str\]|Literal\["[^"]+"\]) = "([^"]+)"', re.MULTILINE)
    files = (_PACKAGE / folder).rglob("*.py")
    return sorted({name for path in files for name in pattern.findall(path.read_text(encoding="utf-8"))})


def check_experiment(path: Path | None) -> None:
    """Raise ConfigError for an experiment file or preset that does not exist."""
    try:
        if path is not None:
            presets.preset_or_file(path).stat()
    except FileNotFoundError:
        raise presets.missing(path or Path()) from None
    except (OSError, ValueError):
        pass  # the reader of the file reports what is wrong with it


def check_kind(kind: str) -> None:
    """Raise ConfigError for a word that is no kind of `fedkin list`."""
    if kind not in KINDS:
        raise ConfigError(f"list: no kind {kind!r}; {nearest(kind, KINDS)}")


def check_name(kind: str, name: str) -> None:
    """Raise ConfigError for a name that neither fedkin nor an installed package can have."""
    names = names_of_kind(kind)
    if name in names or ":" in name or not names or "fedkin.methods" in sys.modules:
        return
    if not entry_points(group=f"fedkin.{kind}"):
        raise ConfigError(f"{kind.removesuffix('s')}: no {name!r}; {nearest(name, names)}")


def comma_list(names: str) -> tuple[str, ...]:
    """Return the names between commas."""
    return tuple(name for name in names.split(",") if name)


# -- completion --------------------------------------------------------------------------------------------------------


def _starting_with(start: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(start)]


def kind_names(incomplete: str) -> list[str]:
    """Complete a kind of `fedkin list`."""
    return _starting_with(incomplete, KINDS)


def table_names(incomplete: str) -> list[str]:
    """Complete the name of a paper's table."""
    stems = sorted(path.stem for path in (presets.preset_folder() / "tables").glob("*.toml"))
    return _starting_with(incomplete, ["all", *stems])


def method_lists(incomplete: str) -> list[str]:
    """Complete the last of several method names separated by commas; no method is offered twice."""
    before, comma, last = incomplete.rpartition(",")
    names = _starting_with(last, names_of_kind("methods"))
    return [f"{before}{comma}{name}" for name in names if name not in before.split(",")]


def experiment_files(incomplete: str) -> list[str]:
    """Complete the name of a preset, an experiment file or a folder."""
    head, _, last = incomplete.rpartition("/")
    folder = Path(head or ("/" if incomplete.startswith("/") else "."))
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    paths = [
        f"{incomplete.removesuffix(last)}{path.name}{'/' if path.is_dir() else ''}"
        for path in entries
        if path.name.startswith(last) and not path.name.startswith(".") and (path.suffix == ".toml" or path.is_dir())
    ]
    return [*_starting_with(incomplete, presets.preset_names()), *paths]


def data_set_names(incomplete: str) -> list[str]:
    """Complete the name of a data set that `fedkin data fetch` knows."""
    return _starting_with(incomplete, tomllib.loads((_PACKAGE / "data/origins.toml").read_text(encoding="utf-8")))


# -- options -----------------------------------------------------------------------------------------------------------

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
    None, "--kind", help="classification, risk or regression (tables). Default: by the values.", metavar="KIND"
)
TABLE_LEAVE_OUT = typer.Option("", "--leave-out", help="Columns that are no inputs (tables).", metavar="COLUMN,COLUMN")
