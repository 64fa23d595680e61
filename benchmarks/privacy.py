"""Accuracy against epsilon: what clipping and noise on uploads do to FedAvg, SFMTL-Graph and FLT. See docs/privacy.md.

python benchmarks/privacy.py [--seeds 0,1,2] [--out docs/results/privacy.csv]

20 clients with about 70 handwritten digits each in four groups (scenario rotated-masked), all of them in each of 30
rounds; the embedded data set, so that nothing needs to be downloaded. Prints a table, and writes a line for each run.
The bounds are near the median norms of what clients send without noise; no epsilon includes this look at the data.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedkin
from fedkin.learning.models import MODELS

ROOT = Path(__file__).parents[1]
NOISES: Sequence[float | None] = (None, 0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0)
# Centres of four groups: no UMAP, which noise on centres would rescale.
FLT_GRAPH = {
    "groups": 4, "embedding": "none", "distance": "matching", "gamma": "groups", "cluster": "distances",
}  # fmt: skip
METHODS: dict[str, tuple[dict[str, Any], Any]] = {
    "local": ({}, 1.0),
    "fedavg": ({}, 1.0),
    "sfmtl-graph": ({"anchors": "mean"}, {"head": 0.5, "anchors": 10.0}),
    "flt": ({"graph": FLT_GRAPH, "encoder": {"kind": "grey", "fine_tune": 0}}, {"centres": 3.5, "params": 1.0}),
}
TRAINING = {"lr": 0.3, "local_epochs": 2, "batch_size": 16}
SETTINGS = {"evaluate_every": 30, "mode": "fast"}


def accuracy(method: str, noise: float | None, seed: int) -> tuple[float, float | None]:
    """(mean test accuracy over clients after 30 rounds, largest epsilon) of one run."""
    options, clip = METHODS[method]
    federation = fedkin.federate("digits", "rotated-masked", clients=20, seed=seed)
    result = fedkin.run(
        method, federation, rounds=30, seed=seed, model=MODELS["mlp"].model_validate({"name": "mlp", "hidden": [16]}),
        training=TRAINING, settings=SETTINGS, privacy=None if noise is None else {"clip": clip, "noise": noise},
        **options,
    )  # fmt: skip
    told = result.summary.get("privacy")
    return result.accuracy, None if told is None else told["epsilon"]["max"]


def cell(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {spread:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/privacy.csv")
    options = parser.parse_args()
    seeds, began = [int(seed) for seed in options.seeds.split(",")], time.perf_counter()
    lines: list[dict[str, Any]] = []
    for method in METHODS:
        for noise in NOISES if method != "local" else NOISES[:1]:
            for seed in seeds:
                mean, epsilon = accuracy(method, noise, seed)
                lines.append({"method": method, "noise": noise, "seed": seed, "epsilon": epsilon, "accuracy": mean})
                print(*lines[-1].values(), flush=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print("\n| noise | " + " | ".join(f"{name} | epsilon" for name in METHODS if name != "local") + " |")
    print("|---|" + "---|" * 2 * (len(METHODS) - 1))
    for noise in NOISES:
        cells = ["none, no clipping" if noise is None else f"{noise:g}"]
        for method in list(METHODS)[1:]:
            mine = [line for line in lines if (line["method"], line["noise"]) == (method, noise)]
            (epsilon,) = {line["epsilon"] for line in mine}
            cells += [cell([line["accuracy"] for line in mine]), "-" if epsilon is None else f"{epsilon:,.3g}"]
        print(f"| {' | '.join(cells)} |")
    print(f"\nlocal, which sends nothing: {cell([line['accuracy'] for line in lines if line['method'] == 'local'])}")
    print(f"{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
