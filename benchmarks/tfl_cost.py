"""CPU time of TFL relative to FedAvg, for the topology alone, and with the evaluation after the second broadcast.

    OMP_NUM_THREADS=1 python benchmarks/tfl_cost.py presets/tfl-eicu-demo.toml --data-root ROOT [--set A.B=C]

Four sides alternate round by round in this process: FedAvg; TFL that learns its topology every `graph.every` rounds
but does not change lambda (eta_lambda = 0), and so needs no losses of clients; TFL; and TFL with ten clusters of
clients. The output has the CPU time per round, the ratio of sums to FedAvg, and the interquartile range of the ratio
round by round. This range is wide if clients have different sizes, since TFL draws other clients than FedAvg: use
`--set scenario.sizes=equal`, or all clients in every round.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.engines import LocalEngine
from fedkin.running.experiment import Experiment, load

SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "tfl, topology only": ("tfl", {"method.eta_lambda": 0.0}),
    "tfl": ("tfl", {}),
    "tfl, 10 clusters": ("tfl", {"method.graph.clusters": 10}),
}


def engine_of(experiment: Experiment, side: str, data_root: Path) -> LocalEngine:
    method, changes = SIDES[side]
    plan = experiment.for_method(method).with_changes(**changes)
    return LocalEngine(plan.setup(plan.federation(data_root), data_root))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    options = parser.parse_args()
    experiment = load(options.experiment, options.changes)
    engines = {side: engine_of(experiment, side, options.data_root) for side in SIDES}
    spent: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(1, options.rounds + 1):
        for place in range(len(SIDES)):
            side = list(SIDES)[(place + number) % len(SIDES)]
            begun = time.process_time()
            engines[side].round(number)
            spent[side].append(time.process_time() - begun)
    for engine in engines.values():
        engine.close()
    base = np.array(spent["fedavg"])
    print(f"{'':20} {'CPU ms a round':>15} {'ratio':>7}   interquartile range, {options.rounds} rounds")
    for side, seconds in spent.items():
        low, high = np.percentile(np.array(seconds) / base, [25, 75])
        print(f"{side:20} {1e3 * np.mean(seconds):15.1f} {np.sum(seconds) / base.sum():7.3f}   {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
