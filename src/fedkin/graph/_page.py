"""One HTML file with pictures in it, which needs no network: the drawing library is inside, packed."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

__all__ = ["OLD", "embedded", "library", "page_of", "unpacking"]

# plotly.js-cartesian-dist-min 4.1.1 from npm, MIT (plotly-LICENSE.txt beside it), packed by gzip.
_PLOTLY = "plotly-cartesian.min.js.gz"
OLD = "The charts of this page need a browser of 2023 or later, which can unpack them."
_DRAW = """const figures = JSON.parse(document.getElementById("data").textContent);
Promise.all(figures.map(({ data, layout }, at) =>
  Plotly.newPlot(`figure-${at}`, data, layout, { displaylogo: false, responsive: true })
)).then(() => { document.documentElement.dataset.drawn = "yes"; });"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>body {{ font: 16px/1.4 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }}</style>
</head><body><h1>{title}</h1>{text}
<p id="old" hidden>{old}</p>
{places}
<script type="application/json" id="data">{data}</script>
<script type="application/octet-stream" id="plotly">{library}</script>
<script type="text/plain" id="script">{draw}</script>
<script>
{unpack}</script>
</body></html>
"""  # noqa: E501


def page_of(title: str, figures: Sequence[Any], text: str = "") -> str:
    """The page of these figures of plotly (with Cartesian axes), one below the other; text: a paragraph above them."""
    return _PAGE.format(
        title=escape(title), text=f"<p>{escape(text)}</p>" if text else "", old=OLD,
        places="\n".join(f'<div id="figure-{at}"></div>' for at in range(len(figures))),
        data=embedded([json.loads(figure.to_json()) for figure in figures]), library=library(), draw=_DRAW,
        unpack=unpacking(),
    )  # fmt: skip


def library() -> str:
    """The packed library as base64, for an element of the id "plotly"."""
    return base64.b64encode(files("fedkin.graph").joinpath(_PLOTLY).read_bytes()).decode()


def unpacking() -> str:
    """The script that unpacks it and then runs the text of the element "script", or else shows the element "old"."""
    return files("fedkin.graph").joinpath("unpack.js").read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element, whatever texts it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
