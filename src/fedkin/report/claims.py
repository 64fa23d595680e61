"""What the records of a table say of each claim, and the index of all claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedkin.analysis.added import Added
from fedkin.report.cells import line, number, signed_megabytes
from fedkin.report.kept import Kept, csv_rows
from fedkin.report.units import megabytes
from fedkin.running.papers import Claim, PaperTable
from fedkin.running.reproduce import Done, judged

__all__ = ["APART", "HOLDS", "Verdict", "claims_csv", "index", "table_of", "verdict_rows", "verdicts"]

APART = "How far this setting is from the paper's: "
_WORDS = {"better": "holds", "worse": "does not hold", "cannot be told apart": "cannot be told apart"}
_HEADS = ("claim", "federation", "verdict", "found", "needed", "seeds")
HOLDS = (
    "*found*: the difference between the two rows, above 0 if the first is the better one (of a variance or of bytes, "
    "the smaller one); for a claim about one row, its figure. In brackets is the 95 % interval over seeds; accuracies "
    "are in points. A claim *holds* if the interval lies above what is *needed*, and *does not hold* if it lies below."
)
_UNTESTED, _UNRUN = "not testable here", "not run yet"


class Verdict(NamedTuple):
    """What the records say of a claim on one federation; found: the difference that it is about, or the figure itself.

    share: whether the metric is a share, which is written in points.
    """

    claim: Claim
    federation: str
    word: str
    found: Added | None
    share: bool

    @property
    def cells(self) -> list[str]:
        """What was found with its interval, what it must lie above, in the unit of its figure, and the seeds."""
        if self.found is None:
            return ["", "", ""]
        ends = [end for end in (self.found.low, self.found.high) if end is not None]
        bounds = f" ({' to '.join(map(self._text, ends))})" if ends else ""
        needed = self._text(self.claim.needed) if self.claim.needed else "0"
        return [self._text(self.found.value) + bounds, f"above {needed}", str(self.found.seeds)]

    def _text(self, value: float) -> str:
        """A difference with its sign, or a figure."""
        sign = "" if self.claim.than is None else "+"
        if self.claim.figure == "bytes":
            return signed_megabytes(value) if sign else megabytes(value)
        return number(value, self.share and self.claim.figure not in ("ari", "variance"), sign)


def verdicts(table: PaperTable, done: Sequence[Done]) -> list[Verdict]:
    """Judge every claim on every federation where it is made; those that have not been run are said to be so."""
    ended = {one.part.name: one for one in done}
    made = []
    for claim in table.claim:
        if claim.untestable is not None:
            made.append(Verdict(claim, "", f"{_UNTESTED}: {claim.untestable}", None, False))
            continue
        for part in table.federation:
            if claim.on is not None and part.name not in claim.on:
                continue
            one = ended.get(part.name)
            if one is None:
                made.append(Verdict(claim, part.name, _UNRUN, None, False))
                continue
            found = judged(claim, one.results)
            made.append(Verdict(claim, part.name, _word(found, claim), found, one.share))
    return made


def _word(found: Added | None, claim: Claim) -> str:
    if found is None:
        return "a figure is not known"
    return _WORDS.get(found.against(claim.needed), "one seed: no verdict")


def verdict_rows(
    table: PaperTable, done: Sequence[Done], kept: Mapping[str, Kept] | None = None
) -> list[Sequence[str]]:
    """The cells of every claim on every federation: verdicts on those that have ended, and what is kept of others."""
    ended, rows = {one.part.name for one in done}, []
    for one in verdicts(table, done):
        made: Sequence[str] = [one.claim.text, one.federation, one.word, *one.cells]
        other = (kept or {}).get(one.federation)
        rows.append(made if other is None or one.federation in ended else other.claims.get(one.claim.text, made))
    return rows


def table_of(rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of claims."""
    lines = [line(_HEADS), line(["---"] * len(_HEADS))]
    return lines + [line([text, where, f"**{word}**", *rest]) for text, where, word, *rest in rows]


def claims_csv(rows: Iterable[Sequence[str]]) -> str:
    """A line for each claim on each federation, which `index` reads; rows: of `verdict_rows`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADS)
    writer.writerows(rows)
    return text.getvalue()


def index(tables: Mapping[str, PaperTable], kept: Mapping[str, str], others: Mapping[str, str] | None = None) -> str:
    """The index of all claims in Markdown; kept: the claims' CSV of each table that has a page.

    others: titles of tables of which only the page is known, by name.
    """
    about = (
        f"Written by `fedkin reproduce` from the pages beside it; nobody types a verdict. {HOLDS} One in twenty "
        "intervals misses the truth by chance: one that only just excludes its bound is weak evidence."
    )
    lines = ["# What the papers claim, and what is found here", "", about, ""]
    for name, table in tables.items():
        if not table.claim:
            continue
        page_of = f"[{table.title}]({name}.md)" if name in kept else table.title
        lines += [f"## {page_of}", ""]
        lines += [f"{APART}{table.apart}", ""] if table.apart else []
        rows = _rows_of(kept[name]) if name in kept else verdict_rows(table, [])
        lines += [*table_of(rows), ""]
    for name, title in (others or {}).items():
        if rows := _rows_of(kept.get(name, "")):
            lines += [f"## [{title}]({name}.md)", "", *table_of(rows), ""]
    return "\n".join(lines)


def _rows_of(text: str) -> list[Sequence[str]]:
    """The rows of a claims' CSV, without the line of names."""
    return [list(row.values()) for row in csv_rows(text)]
