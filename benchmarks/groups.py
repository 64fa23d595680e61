"""Cost of FedAvg with one model, and in ten known groups, for 2,400 clients with parts of FashionMNIST.

    OMP_NUM_THREADS=1 python benchmarks/groups.py DATA_ROOT [--rounds 8] [--modes stacked,one-by-one]

Each client has 25 training and 4 test samples. In group g, class c has the label (c + g) mod 10. The net is an MLP
784-200-10; a fifth of the clients train in each round, for 5 epochs with batches of 10. FLT runs with the planted graph
(method.graph.control = "oracle"), and its first round also computes the signatures of all clients. Each combination
runs in a separate process like `fedkin run`, with records, a checkpoint every ten rounds, and an evaluation of all
clients in every round. Times are those of the rounds after the first; "100 rounds" is the first round plus 99 such
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment

TABLE: dict[str, Any] = {
    "name": "groups",
    "data": {"source": "fashion-mnist"},
    "scenario": {"name": "label-swap", "clients": 2400, "groups": 10, "how": "shift"},
    "model": {"name": "mlp", "hidden": [200]},
    "training": {"clients_per_round": 0.2, "local_epochs": 5, "batch_size": 10, "lr": 0.01},
}
METHODS: dict[str, dict[str, Any]] = {
    "one model": {"name": "fedavg"},
    "ten groups": {
        "name": "flt", "k": 1, "graph": {"embedding": "none", "control": "oracle", "groups": 10},
    },
}  # fmt: skip


class Clock:
    """A watcher that stores the time of each round."""

    def __init__(self) -> None:
        self.at = [(time.perf_counter(), time.process_time())]

    def started(self, rounds: int, done: int) -> None:
        """Store the time of the start."""
        self.at = [(time.perf_counter(), time.process_time())]

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Store the time of a round."""
        self.at.append((time.perf_counter(), time.process_time()))

    def stopping(self) -> bool:
        """Return False: the run is never stopped."""
        return False


def measure(method: str, mode: str, root: Path, rounds: int) -> dict[str, Any]:
    """Return the figures of a run of `rounds` rounds in this process."""
    run = {"mode": mode, "workers": 2}
    table = {**TABLE, "training": {**TABLE["training"], "rounds": rounds}, "method": METHODS[method], "run": run}
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        result = run_experiment(Experiment.of(table), root, Path(folder) / "run", watcher=clock)
    wall, cpu = ([one[k] - other[k] for one, other in zip(clock.at[1:], clock.at, strict=False)] for k in (0, 1))
    seconds = result.summary["seconds"]
    later = rounds - 1
    return {
        "first round CPU s": cpu[0],
        "CPU s a round": sum(cpu[1:]) / later,
        "wall s a round": sum(wall[1:]) / later,
        "100 rounds CPU min": (cpu[0] + 99 * sum(cpu[1:]) / later) / 60,
        "100 rounds wall min": (wall[0] + 99 * sum(wall[1:]) / later) / 60,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "groups": result.summary["groups"]["found"] or 1,
        "accuracy": result.accuracy,
        **{f"{part} %": 100 * spent / seconds["total"] for part, spent in seconds.items() if part != "total"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--modes", default="stacked")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.inside:
        print(json.dumps(measure(*asked.inside, asked.root, asked.rounds)))
        return
    for mode in asked.modes.split(","):
        for method in METHODS:
            told = subprocess.run(
                [sys.executable, *sys.argv, "--inside", method, mode], check=True, stdout=subprocess.PIPE, text=True,
                env=os.environ,
            ).stdout  # fmt: skip
            print(f"{method}, {mode}:", "  ".join(f"{k} {v:.3g}" for k, v in json.loads(told).items()), flush=True)


if __name__ == "__main__":
    main()
