"""A self-contained page with two pictures of a graph: its matrix in the order of groups, and a force layout."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.graph._check import Array, Labels
from fedkin.graph.record import Graph

# -- one HTML file with pictures; it needs no network, because it contains the packed drawing library ------------------


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
    """A page of these plotly figures (with Cartesian axes), one below the other; text: a paragraph above them."""
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
    """The script that unpacks the library and runs the text of element "script"; on failure it shows element "old"."""
    return files("fedkin.graph").joinpath("unpack.js").read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element, whatever texts it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate({ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"})


# -- pictures of a graph -----------------------------------------------------------------------------------------------


# The colours of Okabe and Ito, which colour-blind people can distinguish too. Beyond eight groups, the marker's shape
# changes.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_SHAPES = ("circle", "square", "diamond", "cross", "triangle-up", "star", "hexagon", "pentagon")
# Limits up to which a browser draws smoothly, and a page stays below 1.5 MB.
_LARGEST_MATRIX, _LARGEST_LAYOUT, _MOST_EDGES, _MOST_LABELS = 300, 2000, 8000, 60


def draw(graph: Graph, path: str | Path, *, title: str, seed: int = 0) -> None:
    """Write the page of a graph with groups; it opens without a network, since it contains the script that draws.

    Beyond 300 clients, the matrix shows means over neighbouring rows. Beyond 2,000 clients, there is no force layout.

    >>> import tempfile
    >>> graph = Graph(("ann", "bob"), np.array([[0.0, 0.5], [0.5, 0.0]]), groups={"ann": 0, "bob": 0})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(graph, Path(folder) / "graph.html", title="Two clients")
    """
    figures = [_matrix(graph)]
    if len(graph.ids) <= _LARGEST_LAYOUT:
        figures.append(_layout(graph, seed))
    Path(path).write_text(page_of(title, figures), encoding="utf-8")


def _matrix(graph: Graph) -> Any:
    import plotly.graph_objects as go

    labels = graph.labels
    strength = np.asarray(graph.weights.sum(axis=1)).ravel()
    order = np.lexsort((-strength, labels))
    values, edge = _binned(graph.weights, order)
    names = [graph.ids[row] for row in order] if len(values) == len(order) else None
    hover = "%{y} – %{x}: %{z:.3f}<extra></extra>" if names else "mean weight %{z:.3f}<extra></extra>"
    figure = go.Figure(
        go.Heatmap(z=values.astype(np.float32), colorscale="Cividis", hovertemplate=hover, colorbar={"title": "weight"},
                   x=_safe(names), y=_safe(names))
    )  # fmt: skip
    for boundary in np.flatnonzero(np.diff(labels[order])) + 1:
        at = float(boundary) / edge - 0.5
        figure.add_vline(x=at, line_color="white", line_width=1)
        figure.add_hline(y=at, line_color="white", line_width=1)
    shown = {"showticklabels": names is not None and len(order) <= _MOST_LABELS, "constrain": "domain"}
    figure.update_xaxes(**shown, type="category" if names else "linear", title="clients, by group")
    figure.update_yaxes(**shown, type="category" if names else "linear", autorange="reversed", scaleanchor="x")
    note = "" if edge == 1 else f" (means over {edge:g} clients)"
    figure.update_layout(title=f"Weights between clients, ordered by group{note}", height=800, width=900)
    return figure


def _binned(weights: Any, order: Labels) -> tuple[Array, float]:
    """Return the reordered matrix, and the number of clients over which each of its cells is the mean."""
    n = len(order)
    if n <= _LARGEST_MATRIX:
        dense = weights if isinstance(weights, np.ndarray) else weights.toarray()
        return dense[np.ix_(order, order)], 1
    bins = _LARGEST_MATRIX // 2
    cell = np.empty(n, dtype=np.int64)
    cell[order] = np.arange(n) * bins // n
    into = sp.csr_array((np.ones(n), (cell, np.arange(n))), shape=(bins, n))
    total = (into @ sp.csr_array(weights) @ into.T).toarray()
    size = np.bincount(cell, minlength=bins)
    return total / np.outer(size, size), n / bins


def _layout(graph: Graph, seed: int) -> Any:
    import plotly.graph_objects as go

    place = places(graph.weights, seed)
    figure = go.Figure()
    upper = sp.triu(sp.csr_array(graph.weights), k=1).tocoo()
    strongest = np.argsort(-upper.data, kind="stable")[:_MOST_EDGES]
    ends = place.astype(np.float32)[np.stack([upper.row[strongest], upper.col[strongest]], axis=1)]
    # All segments are one trace, with a gap (nan) after each segment.
    line = np.concatenate([ends, np.full((len(ends), 1, 2), np.nan, np.float32)], axis=1).reshape(-1, 2)
    figure.add_scatter(
        x=line[:, 0], y=line[:, 1], mode="lines", line={"color": "rgba(110,110,110,0.35)", "width": 1},
        hoverinfo="skip", name="edges",
    )  # fmt: skip
    labelled = len(graph.ids) <= _MOST_LABELS
    size = np.bincount(graph.labels)
    lone = np.flatnonzero(size[graph.labels] == 1)
    groups = [(f"group {group} ({size[group]})", np.flatnonzero(graph.labels == group), group)
              for group in range(len(size)) if size[group] > 1]  # fmt: skip
    for name, rows, group in [*groups, (f"groups of one ({len(lone)})", lone, None)]:
        marker = {
            "color": "#999999" if group is None else _COLOURS[group % len(_COLOURS)],
            "symbol": "circle-open" if group is None else _SHAPES[group // len(_COLOURS) % len(_SHAPES)],
            "size": 11,
        }
        figure.add_scatter(
            x=place[rows, 0], y=place[rows, 1], mode="markers+text" if labelled else "markers", marker=marker,
            text=_safe([graph.ids[row] for row in rows]), textposition="top center",
            hovertemplate="%{text}<extra></extra>", name=name,
        )  # fmt: skip
    axis = {"visible": False}
    left_out = "" if upper.nnz <= _MOST_EDGES else f" ({_MOST_EDGES:,} strongest of {upper.nnz:,} edges)"
    figure.update_layout(
        title=f"Who is near whom{left_out}", height=800, xaxis=axis, yaxis=axis,
        plot_bgcolor="white",
    )  # fmt: skip
    return figure


def _safe(names: list[str] | None) -> list[str] | None:
    """Escape ids, because plotly reads markup in labels."""
    return None if names is None else [escape(name) for name in names]


def places(weights: Any, seed: int) -> Array:
    """Places [n, 2] by attraction along edges and repulsion of all pairs (Fruchterman and Reingold 1991), by rustworkx.

    Clients with edges are in the square from -1 to 1; clients without edges are in rows below.
    """
    import rustworkx as rx

    edges = sp.csr_array(weights)
    alone = np.asarray(edges.sum(axis=1)).ravel() == 0
    place = np.empty((edges.shape[0], 2))
    rank = np.arange(alone.sum())
    place[alone] = np.stack([rank % 12 / 5.5 - 1, -1.25 - 0.15 * (rank // 12)], axis=1)
    if not alone.all():
        linked = np.flatnonzero(~alone)
        upper = sp.triu(edges[linked][:, linked], k=1).tocoo()
        graph = rx.PyGraph(multigraph=False)
        graph.add_nodes_from(range(len(linked)))
        graph.add_edges_from(
            list(zip(upper.row.tolist(), upper.col.tolist(), (upper.data / upper.data.max()).tolist(), strict=True))
        )
        positions = rx.spring_layout(graph, weight_fn=float, num_iter=80, seed=seed)
        xy = np.array([positions[row] for row in range(len(linked))])
        low, high = xy.min(axis=0), xy.max(axis=0)
        place[linked] = 2 * (xy - low) / np.maximum(high - low, 1e-9) - 1
    return place
