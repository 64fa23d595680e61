"""A self-contained page with two pictures of a graph: its matrix in the order of groups, and a force layout."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.graph._check import Array, Labels
from fedkin.graph._page import page_of
from fedkin.graph.record import Graph

__all__ = ["draw", "force_layout"]

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

    place = force_layout(graph.weights, graph.labels, seed=seed)
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


def force_layout(weights: Any, labels: Labels, *, seed: int = 0, steps: int = 80) -> Array:
    """Return places [n, 2] by attraction along edges and repulsion of all pairs (Fruchterman and Reingold 1991).

    Clients with edges are in the square from -1 to 1; at the start, their groups are on a circle. Clients without
    edges are in rows below. Time and memory are of order n^2.

    >>> force_layout(np.zeros((3, 3)), np.arange(3)).shape
    (3, 2)
    """
    edges = sp.csr_array(weights)
    alone = np.asarray(edges.sum(axis=1)).ravel() == 0
    place = np.empty((len(labels), 2))
    rank = np.arange(alone.sum())
    place[alone] = np.stack([rank % 12 / 5.5 - 1, -1.25 - 0.15 * (rank // 12)], axis=1)
    if not alone.all():
        linked = np.flatnonzero(~alone)
        place[linked] = _by_forces(edges[linked][:, linked].tocoo(), labels[linked], seed, steps)
    return place


def _by_forces(edges: Any, labels: Labels, seed: int, steps: int) -> Array:
    n = len(labels)
    angle = 2 * np.pi * labels / (labels.max() + 1)
    rng = np.random.default_rng(seed)
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.1 * rng.normal(size=(n, 2))
    pull = edges.data / edges.data.max()
    apart = 1.0 / np.sqrt(n)
    for step in range(steps):
        force = np.zeros_like(place)
        near = _inverse_square(place)
        way = place[edges.col] - place[edges.row]
        drawn = way * (pull * np.linalg.norm(way, axis=1) / apart)[:, None]
        for axis in (0, 1):
            gap = place[:, axis, None] - place[None, :, axis]
            force[:, axis] = (gap * near).sum(axis=1) * apart**2
            force[:, axis] += np.bincount(edges.row, weights=drawn[:, axis], minlength=n)
        # A weak pull to the middle keeps parts without common edges from drifting apart for ever.
        force -= 0.5 * place
        length = np.maximum(np.linalg.norm(force, axis=1), 1e-12)
        longest = 0.15 * (1 - step / steps)
        place = place + force * (np.minimum(length, longest) / length)[:, None]
    low, high = place.min(axis=0), place.max(axis=0)
    return np.asarray(2 * (place - low) / np.maximum(high - low, 1e-9) - 1)


def _inverse_square(place: Array) -> Array:
    x, y = place.T
    square = np.square(x[:, None] - x) + np.square(y[:, None] - y)
    return np.asarray(1.0 / np.maximum(square, 1e-6))
