"""A tiny experiment on embedded data, a watcher that cuts it, and what is equal in a run that was cut."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedkin.records.files import read_seal, stamp_of, write_seal
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment

TABLE: dict[str, Any] = {
    "name": "small",
    "data": {"source": "digits"},
    "scenario": {"name": "rotated-masked", "clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 7, "clients_per_round": 4, "local_steps": 2, "lr": 0.1},
    "method": {"name": "sfmtl-graph", "lam": 0.5},
    "run": {"checkpoint_every": 2, "mode": "one-by-one"},
}


def written(path: Path, **sections: Any) -> Path:
    """An experiment file: TABLE with these sections in place of its own."""
    path.write_text(tomli_w.dumps(TABLE | sections))
    return path


class CutAt:
    """A watcher that ends a run after a round: by an exception ("raise"), Ctrl-C, a kill, or a stop."""

    def __init__(self, round: int, how: str = "raise") -> None:
        self.round, self.how, self.now = round, how, 0

    def started(self, rounds: int, done: int) -> None:
        pass

    def round_done(self, row: Mapping[str, Any]) -> None:
        self.now = row["round"]
        if self.now == self.round and self.how == "raise":
            raise RuntimeError("cut")
        if self.now == self.round and self.how == "ctrl-c":
            raise KeyboardInterrupt
        if self.now == self.round and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def stopping(self) -> bool:
        return self.how == "stop" and self.now == self.round


def cut(experiment: Experiment, folder: Path, round: int) -> None:
    """A run that breaks off after a round."""
    with pytest.raises(RuntimeError, match="cut"):
        run_experiment(experiment, Path(), folder, watcher=CutAt(round))


def reseal(folder: Path) -> None:
    """Write the seals of a run anew, as if its files had always been as they are now."""
    for path in (folder / "seal.json", *(folder / "checkpoint").glob("*.json")):
        seal = read_seal(path)
        files = {name: stamp_of(folder / name)._replace(rows=stamp.rows) for name, stamp in seal.files.items()}
        write_seal(path, files, seal.round)


def assert_equal_runs(one: Path, other: Path) -> None:
    """Every file but those that hold times is the same byte for byte."""
    names = sorted(str(p.relative_to(one)) for p in one.rglob("*") if p.is_file())
    assert names == sorted(str(p.relative_to(other)) for p in other.rglob("*") if p.is_file())
    for name in names:
        if name == "timing.jsonl" or name.startswith("checkpoint"):
            continue
        a, b = (_without_times(name, (folder / name).read_bytes()) for folder in (one, other))
        assert a == b, f"{name} differs"


def _without_times(name: str, content: bytes) -> Any:
    if name == "summary.json":
        return {**json.loads(content), "seconds": 0}
    if name == "seal.json":  # which has the hashes of those files
        files = json.loads(content)["of"]["files"]
        return [(key, stamp if "timing summary checkpoint".find(key[:6]) < 0 else 0) for key, stamp in files.items()]
    return content
