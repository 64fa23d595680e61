"""What the pages of a table say of federations that are not run now: their sections, figures and claims, as written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.errors import ConfigError
from fedkin.running.papers import PaperTable
from fedkin.running.reproduce import Known
from fedkin.running.table_runs import Run

__all__ = ["UNRUN_LINE", "Kept", "csv_rows", "joined_csv", "kept_parts", "known_runs"]

UNRUN_LINE = "Not run yet."
_SECTION = re.compile(r"^## (.+)$", re.M)


@dataclass(frozen=True)
class Kept:
    """What was written of a federation.

    section: the lines of the page below its heading. figures: its part of the CSV of figures, with the line of names.
    claims: the cells of its claims, by the text of the claim.
    """

    section: Sequence[str]
    figures: str
    claims: Mapping[str, Sequence[str]]


def kept_parts(name: str, table: PaperTable, top: str, pages: Path, without: Sequence[str]) -> dict[str, Kept]:
    """Read the pages of a table: what they say of each federation that has been run, but for those in `without`.

    top: how the page of this definition begins. Raises ConfigError if the pages were written from another definition,
    or a file of them is missing.
    """
    page, figures, claims = (pages / f"{name}{end}" for end in (".md", ".csv", "-claims.csv"))
    if not page.exists():
        return {}
    _, *parts = _SECTION.split(text := _read(page))
    if text[: match.start() if (match := _SECTION.search(text)) else None] != top:
        raise _other(page, "its first lines are not those of this definition")
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    figure_rows, claim_rows = csv_rows(_read(figures)), csv_rows(_read(claims))
    found = {}
    for part in table.federation:
        lines = sections.get(part.name, "").strip("\n").splitlines()
        if part.name in without or not lines or lines == [UNRUN_LINE]:
            continue
        mine = [row for row in figure_rows if row["federation"] == part.name]
        rows = list(dict.fromkeys(row["row"] for row in mine))
        if rows not in (table.names(planted=True), table.names(planted=False)):
            raise _other(page, f"its rows for {part.name!r} are not those of this definition")
        about = {row["claim"]: list(row.values()) for row in claim_rows if row["federation"] == part.name}
        found[part.name] = Kept(lines, _csv_of(mine), about)
    return found


def known_runs(name: str, pages: Path) -> dict[str, dict[str, dict[int, Known]]]:
    """Read the runs of a table from its CSV: {federation: {row: {seed: run}}}. Raises ConfigError for a wrong file."""
    path = pages / f"{name}.csv"
    if not (pages / f"{name}.md").exists():
        return {}
    found: dict[str, dict[str, dict[int, Known]]] = {}
    for number, row in enumerate(csv_rows(_read(path)), 2):
        try:
            known = Known(Run.read(row), row["tuned"], int(row["failed"]))
            found.setdefault(row["federation"], {}).setdefault(row["row"], {})[int(row["seed"])] = known
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}, line {number}: no run of a table ({type(error).__name__}: {error}); --keep reads the CSV "
                "that this version of fedkin writes"
            ) from None
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file, which goes with the page beside it; move the page away, or run all federations"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _other(page: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{page}: written from another definition ({why}), so what it says of the other federations cannot be kept; "
        "run all of them (without --federation), or choose another folder with --pages"
    )


def csv_rows(text: str) -> list[dict[str, str]]:
    """The rows of a CSV file by the names in its first line."""
    return list(csv.DictReader(io.StringIO(text)))


def joined_csv(texts: Sequence[str]) -> str:
    """One CSV of several: the columns of all, in the order in which they come, and cells as they are written."""
    return _csv_of([row for text in texts for row in csv_rows(text)])


def _csv_of(rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
