"""A tiny experiment on embedded data."""

from __future__ import annotations

from typing import Any

TABLE: dict[str, Any] = {
    "name": "small",
    "data": {"source": "digits"},
    "scenario": {"name": "rotated-masked", "clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 7, "per_round": 4, "local_steps": 2, "lr": 0.1},
    "method": {"name": "sfmtl-graph", "lam": 0.5},
    "run": {"checkpoint_every": 2, "mode": "one-by-one"},
}
