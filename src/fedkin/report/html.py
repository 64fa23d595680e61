"""Tables and folded parts of a page as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

NONE = '<span class="quiet">–</span>'


def table(heads: Iterable[str | tuple[str, str]], rows: Iterable[Sequence[str]], label: str) -> str:
    """A table in a region of its own. heads: texts, or (text, explanation). rows: HTML; a row begins with its heading.

    >>> table(["a"], [["b"]], "c")[-60:]
    '<tbody><tr><th scope="row">b</th></tr></tbody></table></div>'
    """
    pairs = [(head, "") if isinstance(head, str) else head for head in heads]
    head = "".join(f'<th scope="col" title="{escape(about)}">{escape(text)}</th>' for text, about in pairs)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    region = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{region}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def details(summary: str, body: str) -> str:
    """A part that is opened by a click."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
