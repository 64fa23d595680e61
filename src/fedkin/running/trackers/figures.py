"""The figures of a round and of a whole run, as trackers log them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedkin.records.files import flat
from fedkin.records.metrics import metric_of

__all__ = ["figures_of", "totals_of"]


def figures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a line of rounds.jsonl that trackers log; unknown figures are left out.

    They are NAME/mean and NAME/worst10 of the task's metric, the mean of the task's further metrics, metrics/NAME with
    the mean of each in `run.metrics`, loss (on test samples), unseen/mean, gap; groups/found, /ari, /nmi, /modularity;
    bytes/up and /down of this round; and method/... with the figures of the method.
    """
    metric = metric_of(row).name
    scored = row[metric] or {}
    found: dict[str, Any] = {f"{metric}/{name}": scored.get(name) for name in ("mean", "worst10")}
    for name, value in scored.items():
        if isinstance(value, Mapping):
            found[f"{name}/mean"] = value.get("mean")
    found |= {f"metrics/{name}": each.get("mean") for name, each in (row.get("metrics") or {}).items()}
    found |= {"loss": scored.get("loss"), "unseen/mean": (row.get("unseen") or {}).get("mean"), "gap": row.get("gap")}
    found |= {f"groups/{name}": (row["groups"] or {}).get(name) for name in ("found", "ari", "nmi", "modularity")}
    found |= {f"bytes/{way}": row["bytes"][way] for way in ("up", "down")}
    found |= {f"method/{name}": value for name, value in flat(row.get("figures") or {}).items()}
    return {name: float(value) for name, value in found.items() if _finite(value)}


def totals_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a whole run that the built-in trackers log.

    They are total/seconds, /bytes_up, /bytes_down, /flops, /parameters and /ari_mean.
    """
    found = {
        "seconds": summary["seconds"]["total"],
        "bytes_up": summary["bytes"]["up"],
        "bytes_down": summary["bytes"]["down"],
        "flops": summary["flops"]["local_training"],
        "parameters": summary["parameters"],
        "ari_mean": summary["groups"].get("ari_mean"),
    }
    return {f"total/{name}": float(value) for name, value in found.items() if _finite(value)}


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
