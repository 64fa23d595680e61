"""The page: static parts as HTML, the data as JSON, and the scripts that draw, in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from fedkin._version import __version__
from fedkin.graph._page import embedded, library, unpacking
from fedkin.report.answer import answer_html
from fedkin.report.sections import section, sections

__all__ = ["page"]

_SCRIPTS = (
    "page.js", "curves.js", "clients.js", "risks.js", "graph.js", "tests.js", "groups.js", "matrix.js", "sharing.js",
    "influence.js", "features.js", "start.js",
)  # fmt: skip


def page(data: Mapping[str, Any], answer: dict[str, Any] | None = None) -> str:
    """The whole report as HTML text, from the data of `collect`, and an advice to begin with (`answer_in`)."""
    parts = sections(data)
    if answer is not None:
        parts.insert(0, section("answer", "Answer", "Who should train with whom", answer_html(answer)))
    return Template(_part("page.html")).substitute(
        version=escape(__version__),
        title=escape(data["title"]),
        sentence=escape(data["sentence"]),
        context=escape(_context(data)),
        warning=_warning(data["unfinished"]) + _cautions(data["warnings"]),
        css=_part("page.css"),
        nav="".join(f'<a href="#{part.id}">{escape(part.nav)}</a>' for part in parts),
        sections="\n".join(part.html for part in parts),
        runs="1 run" if len(data["runs"]) == 1 else f"{len(data['runs'])} runs",
        data=embedded(data),
        plotly=library(),
        unpack=unpacking(),
        script="\n".join(_part(name) for name in _SCRIPTS),
    )


def _part(name: str) -> str:
    return files("fedkin.report").joinpath(name).read_text(encoding="utf-8")


def _context(data: Mapping[str, Any]) -> str:
    clients = sorted({len(federation["ids"]) for federation in data["federations"]})
    rounds = sorted({run["rounds"] for run in data["rerun"]["runs"]})
    seeds = data["seeds"]
    parts = [
        f"{_range(clients)} client{'' if clients == [1] else 's'}",
        f"{_range(rounds)} round{'' if rounds == [1] else 's'}",
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}",
        "methods " + ", ".join(method["title"] for method in data["methods"]),
    ]
    if data["scenario"]:
        parts.insert(0, f"scenario {data['scenario']}")
    return " · ".join(parts)


def _warning(unfinished: Sequence[str]) -> str:
    if not unfinished:
        return ""
    return f'<p class="note">Not finished, and therefore not on this page: {escape(", ".join(unfinished))}.</p>'


def _cautions(warnings: Sequence[str]) -> str:
    return "".join(f'<p class="note">Warning: {escape(text)}.</p>' for text in warnings)


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
