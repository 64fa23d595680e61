"""The report's tables of messages that were lost, refused or never made, and of the clients whose they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedkin.records.metrics import MISSING
from fedkin.report.reading import Run

__all__ = ["missing_of", "missing_tables"]

_ROWS = 200  # clients in the table; a report of more would be long


def missing_of(runs: Sequence[Run], labels: Sequence[str]) -> list[dict[str, Any]]:
    """What is missing in each run that lacks something."""
    return [
        {"label": label, "seed": run.seed, **run.summary["missing"]}
        for run, label in zip(runs, labels, strict=True)
        if run.summary.get("missing")
    ]


def missing_tables(missing: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> tuple[Any, Any]:
    """(heads, rows of HTML) of the numbers of each kind, and of clients that failed or whose messages were refused."""
    shown = [kind for kind in MISSING if any(kind in one["kinds"] for one in missing)]
    counts = [
        [titles[one["label"]], str(one["seed"]), *(f"{one['kinds'].get(kind, 0):,}" for kind in shown)]
        for one in missing
    ]  # fmt: skip
    heads = [("method", ""), ("seed", ""), *((kind, f"messages {MISSING[kind]}") for kind in shown)]
    clients = [
        [
            titles[one["label"]], str(one["seed"]), escape(id), f"{first['count']:,}", f"{first['round']:,}",
            escape(first["phase"]), escape(first["reason"]),
        ]
        for one in missing for id, first in one["clients"].items()
    ]  # fmt: skip
    names = ("method", "seed", "client", "messages", "first in round", "phase", "reason")
    return (heads, counts), ([(name, "") for name in names], clients[:_ROWS])
