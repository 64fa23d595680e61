"""The critical-difference diagram as lines and texts, and these as SVG."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from fedkin.analysis.ranking import Diagram

__all__ = ["Drawing", "Line", "Text", "drawing", "svg"]

_WIDTH, _EDGE = 760.0, 16.0
_LETTER, _STEP, _AXIS = 7.2, 22.0, 58.0


class Line(NamedTuple):
    """A line from (x, y) to (x2, y2), with y downwards."""

    x: float
    y: float
    x2: float
    y2: float
    width: float = 1.0


class Text(NamedTuple):
    """A text whose start, middle or end is at (x, y)."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


class Drawing(NamedTuple):
    """Lines and texts in a box of this width and height."""

    width: float
    height: float
    lines: tuple[Line, ...]
    texts: tuple[Text, ...]


def drawing(found: Diagram) -> Drawing:
    """The diagram (Demsar, 2006): ranks on an axis, 1 to the left, and a bar under methods that are not told apart."""
    count = len(found.methods)
    # Room for the longest name and its rank.
    side = _EDGE + _LETTER * (max(len(name) for name in found.methods) + 6)
    left, right = side, max(_WIDTH, side * 2 + 240) - side

    def at(rank: float) -> float:
        return left + (rank - 1) / (count - 1) * (right - left)

    lines = [Line(left, _AXIS, right, _AXIS, 1.5)]
    texts = []
    for whole in range(1, count + 1):
        lines.append(Line(at(whole), _AXIS - 7, at(whole), _AXIS))
        texts.append(Text(at(whole), _AXIS - 12, str(whole)))
    if found.difference is not None:
        end = min(at(1 + found.difference), right)
        lines += [Line(left, 18, end, 18, 1.5), Line(left, 13, left, 23), Line(end, 13, end, 23)]
        texts.append(Text(end + 8, 22, f"critical difference {found.difference:.2f}", "start"))
    below = _AXIS + 10.0
    for number, group in enumerate(found.groups):
        ranks = [found.ranks[found.methods.index(name)] for name in group]
        y = below + 8 * number
        lines.append(Line(at(min(ranks)) - 5, y, at(max(ranks)) + 5, y, 4))
    base = below + 8 * len(found.groups) + 14
    half = (count + 1) // 2
    for place, (name, rank) in enumerate(zip(found.methods, found.ranks, strict=True)):
        first = place < half
        y = base + _STEP * (place if first else count - 1 - place)
        end, anchor = (left - 8, "end") if first else (right + 8, "start")
        lines += [Line(at(rank), _AXIS, at(rank), y), Line(at(rank), y, end, y)]
        texts.append(Text(end + (-5 if first else 5), y + 4, f"{name} {rank:.2f}", anchor))
    return Drawing(left + right, base + _STEP * half, tuple(lines), tuple(texts))


def svg(made: Drawing, label: str = "", ink: str = "currentColor") -> str:
    """The drawing as an SVG element; label: what it shows, escaped."""
    parts = [
        f'<line x1="{one.x:.1f}" y1="{one.y:.1f}" x2="{one.x2:.1f}" y2="{one.y2:.1f}" stroke="{ink}" '
        f'stroke-width="{one.width:g}"/>'
        for one in made.lines
    ]
    parts += [
        f'<text x="{one.x:.1f}" y="{one.y:.1f}" text-anchor="{one.anchor}">{escape(one.text)}</text>'
        for one in made.texts
    ]
    return (
        f'<svg class="ranks" role="img" aria-label="{label}" viewBox="0 0 {made.width:.0f} {made.height:.0f}" '
        f'width="{made.width:.0f}" fill="{ink}" font-size="13">{"".join(parts)}</svg>'
    )
