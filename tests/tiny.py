"""A tiny experiment on embedded data, and a watcher that cuts it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
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


class CutAt:
    """A watcher that ends a run after a round: by an exception ("raise"), a kill, or a stop."""

    def __init__(self, round: int, how: str = "raise") -> None:
        self.round, self.how, self.now = round, how, 0

    def started(self, rounds: int, done: int) -> None:
        pass

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.now = row["round"]
        if self.now == self.round and self.how == "raise":
            raise RuntimeError("cut")
        if self.now == self.round and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def stopping(self) -> bool:
        return self.how == "stop" and self.now == self.round
