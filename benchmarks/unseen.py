"""How good are kin's models for clients that never took part? Where clients differ by degrees, a quarter are left out.

    OMP_NUM_THREADS=1 FEDKIN_DATA=DATA python benchmarks/unseen.py unseen.jsonl    half an hour of one core

Each run has the rate that was tuned for its method on the federation (stored with the suite), but for RATES. A run is
one line of the file, so that a stopped command can be continued. The table has kin's mean over unseen clients in the
suite's points, and by how much it is above each other method: the mean over seeds ± half of the paired 95 % interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from full_suite import SUITE
from nothing_told import DEGREES

import fedkin
from fedkin.analysis.intervals import over
from fedkin.federation import Federation
from fedkin.keys import rng
from fedkin.running.bench import points, read_lines

METHODS, SEEDS, SHARE = ("kin", "fedavg", "fedavg-ft", "flt-same"), SUITE.seeds, 0.25
RATES = {"schools": 0.01}  # at the tuned rates, runs on three quarters of the schools diverge
Means = Mapping[tuple[str, str, int], float]


def with_unseen(federation: Federation, seed: int) -> Federation:
    """Take this share of the clients out of training, drawn by the seed."""
    ids = list(federation)
    left_out = set(rng(seed, "unseen").permutation(ids)[: round(SHARE * len(ids))])
    return Federation(
        [replace(client, seen=id not in left_out) for id, client in federation.items()], federation.task, "unseen"
    )


def run(name: str, method: str, seed: int, rate: float) -> dict[str, Any]:
    """Run a method; return the line of the file."""
    entry = SUITE.federations[name]
    federation = with_unseen(entry.make(seed), seed)
    result = fedkin.run(
        method, federation, rounds=SUITE.rounds, seed=seed, model=entry.model,
        training={"lr": rate, "local_steps": SUITE.local_steps, "batch_size": SUITE.batch_size},
        settings={"evaluate_every": SUITE.rounds},
    )  # fmt: skip
    values = [value for id, value in points(federation, result).items() if id in result.unseen and value is not None]
    return {"federation": name, "method": method, "seed": seed, "unseen": float(np.mean(values))}


def lead(difference: Any) -> str:
    """The mean over seeds ± half of its 95 % interval."""
    interval = over(difference)
    assert interval is not None
    return f"{difference.mean():+.1f}±{interval.high - difference.mean():.1f}"


def table(means: Means) -> str:
    """A row for each federation."""
    rows = [
        "| federation | kin | " + " | ".join(f"minus {name}" for name in METHODS[1:]) + " |",
        "| --- |" + " ---: |" * len(METHODS),
    ]
    for name in DEGREES:
        kin, *others = (np.array([means[name, method, seed] for seed in SEEDS]) for method in METHODS)
        rows.append(f"| {name} | {kin.mean():.1f} | " + " | ".join(lead(kin - other) for other in others) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    torch.set_num_threads(1)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    means = {
        (line["federation"], line["method"], line["seed"]): line["unseen"]
        for line in map(json.loads, text.splitlines())
    }
    stored = [line for line in read_lines(SUITE.stored) if line["stage"] == "run"]
    rates = {(line["federation"], line["method"], line["seed"]): line["lr"] for line in stored}
    for key in ((name, method, seed) for name in DEGREES for seed in SEEDS for method in METHODS):
        if key not in means:
            line = run(*key, RATES.get(key[0], rates[key]))
            means[key] = line["unseen"]
            with file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(line) + "\n")
    print(table(means))


if __name__ == "__main__":
    main()
