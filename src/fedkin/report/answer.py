"""The answer of `fedkin advise`, first on the page: who should train with whom, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedkin.errors import RunError
from fedkin.records.files import read_json

__all__ = ["ADVICE", "answer_html", "answer_in"]

ADVICE = "advice.json"


def answer_in(places: Sequence[Path]) -> dict[str, Any] | None:
    """The advice that lies beside these runs: in one of these folders; None if there is none, or more than one."""
    found = [place / ADVICE for place in dict.fromkeys(places) if (place / ADVICE).is_file()]
    if len(found) != 1:
        return None
    told = read_json(found[0])
    texts = isinstance(told, dict) and all(isinstance(told.get(name), str) for name in ("sentence", "why"))
    lists = texts and all(isinstance(told.get(name), list) for name in ("notes", "heads", "rows"))
    if not lists or any(not isinstance(row, list) or len(row) != len(told["heads"]) for row in told["rows"]):
        raise RunError(f"{found[0]}: is no advice of this version; the command `fedkin advise` writes it anew")
    return {name: told[name] for name in ("sentence", "why", "notes", "heads", "rows")}


def answer_html(answer: dict[str, Any]) -> str:
    """The body of the section: the sentence, a row for each client, and what it rests on."""
    head = "".join(f'<th scope="col">{_text(each)}</th>' for each in answer["heads"])
    rows = "".join(
        f'<tr><th scope="row">{_text(row[0])}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in answer["rows"]
    )
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in (answer["why"], *answer["notes"]))
    region = '<div class="scroll" tabindex="0" role="region" aria-label="The advice, client by client">'
    table = f"{region}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    return f"<p><strong>{_text(answer['sentence'])}</strong></p>\n{table}\n{notes}"


def _text(value: Any) -> str:
    return escape(str(value))
