"""The page of a sweep: the metric against the values of a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedkin.graph.picture import page_of
from fedkin.records.files import write_bytes
from fedkin.tasks import METRICS


def draw(rows: Sequence[Mapping[str, Any]], settings: Sequence[str], path: Path, *, title: str) -> None:
    """Write a page with a plot: one line for each method and combination of all settings except the first.

    rows: from `fedkin.running.grid.rows`. settings: paths of the settings; the first one is the horizontal axis. Bars
    are the sample standard deviation over seeds.
    """
    import plotly.graph_objects as go

    metric = METRICS[rows[0].get("metric", "accuracy")]
    across = settings[0]
    figure = go.Figure()
    for name, mine in _lines(rows, settings).items():
        figure.add_scatter(
            x=[str(row.get(across, "as it is")) for row in mine], y=[row["mean"][0] for row in mine], name=escape(name),
            error_y={"type": "data", "array": [row["mean"][1] for row in mine], "visible": True}, mode="lines+markers",
        )  # fmt: skip
    order = list(dict.fromkeys(str(row.get(across, "as it is")) for row in rows))
    figure.update_layout(
        xaxis={"title": escape(across), "type": "category", "categoryorder": "array", "categoryarray": order},
        yaxis={"title": f"test {metric.title}, mean over clients"}, height=560, plot_bgcolor="white",
    )  # fmt: skip
    seeds = ", ".join(map(str, rows[0]["seeds"]))
    text = (
        f"Means over clients and seeds {seeds}; bars are the sample standard deviation over seeds. These are "
        "figures on test samples: to choose a setting, use fedkin tune."
    )
    write_bytes(path, page_of(title, [figure], text).encode())


def _lines(rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows with a known mean, by the name of their line in the plot."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["mean"] is not None:
            others = ", ".join(f"{path.rpartition('.')[2]}={row[path]}" for path in settings[1:] if path in row)
            lines.setdefault(f"{row['method']} {others}".strip(), []).append(row)
    return lines
