"""The further metrics of runs (`run.metrics`) as a section of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean, stdev
from typing import Any

from fedkin.report.reading import Run

__all__ = ["measures_html"]

_MOST = 200  # clients in the table of all clients


def measures_html(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """A table of methods, and one of clients; empty if no run has further metrics."""
    found = {name: each for run in runs for name, each in (run.summary.get("metrics") or {}).items()}
    if not found:
        return ""
    heads = "".join(f"<th>{escape(each['title'])}, {_better(each)} is better</th>" for each in found.values())
    rows = "".join(
        f"<tr><th>{escape(label)}</th>{''.join(f'<td>{_over(runs, labels, label, name)}</td>' for name in found)}</tr>"
        for label in dict.fromkeys(labels)
    )
    table = f"<table><thead><tr><th>method</th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Further metrics">{table}</div>'
        '<p class="note">Mean over clients after the last round, and the mean of the worst 10 % of them; with several '
        f"seeds, the mean over seeds ± standard deviation.</p>{_clients(runs, labels, list(found))}"
    )


def _better(found: Mapping[str, Any]) -> str:
    return "higher" if found["higher"] else "lower"


def _over(runs: Sequence[Run], labels: Sequence[str], label: str, name: str) -> str:
    own = [run.summary.get("metrics") or {} for run, other in zip(runs, labels, strict=True) if other == label]
    mine = [each.get(name) for each in own]
    means = [each.get("mean") for each in mine if each is not None]
    known = [mean for mean in means if mean is not None]
    if not known or len(known) < len(mine):
        return "-"
    spread = f" ± {stdev(known):.3f}" if len(known) > 1 else ""
    worst = fmean([each["worst10"] for each in mine if each is not None])
    return f"{fmean(known):.3f}{spread} (worst 10 %: {worst:.3f})"


def _clients(runs: Sequence[Run], labels: Sequence[str], names: Sequence[str]) -> str:
    """Each client's values with the first seed."""
    first: dict[str, dict[str, Any]] = {}
    for run, label in zip(runs, labels, strict=True):
        first.setdefault(label, run.summary.get("metrics") or {})
    ids = sorted({id for found in first.values() for each in found.values() for id in each["values"]})
    heads = "".join(f"<th>{escape(label)}: {escape(name)}</th>" for label in first for name in names)
    rows = "".join(
        f"<tr><th>{escape(id)}</th>"
        + "".join(_cell(first[label].get(name, {}).get("values", {}).get(id)) for label in first for name in names)
        + "</tr>"
        for id in ids[:_MOST]
    )
    more = f"<p class='note'>The first {_MOST} of {len(ids):,} clients.</p>" if len(ids) > _MOST else ""
    return (
        f'<details><summary>Every client, first seed</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Further metrics of every client"><table><thead><tr><th>client</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}</details>"
    )


def _cell(value: float | None) -> str:
    return "<td>-</td>" if value is None else f"<td>{value:.3f}</td>"
