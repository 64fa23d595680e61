"""What the checks at the door cost: their share of the CPU time of rounds of FedAvg.

    OMP_NUM_THREADS=1 python benchmarks/door.py [--repeats 15]

The rows are those of benchmarks/simulation.py (100 clients, of which 20 train in a round with 300 samples each), and
600 clients with 100 samples that all train. CPU time is that of this process, on one thread. The cost is the time at
the door over the rest of the round: the median over rounds, with quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from simulation import BATCH, CLIENTS, LR, SAMPLED, SAMPLES, WORK, make_federation

from fedkin.engines import LocalEngine, Setup
from fedkin.learning import Net, Training
from fedkin.methods import FedAvg

ROWS = {name: (name, CLIENTS, SAMPLES, SAMPLED) for name in WORK} | {"600 clients, mlp-200": ("mlp-200", 600, 100, 600)}


def engine(row: str, mode: str) -> LocalEngine:
    """Return an engine for a row."""
    work, clients, samples, sampled = ROWS[row]
    make, task, own = WORK[work]
    net = Net.build(lambda: make(task), 1)
    training = Training(per_round=sampled, batch_size=BATCH, local_epochs=1, lr=LR)
    federation = make_federation(task, clients, samples, own=own)
    return LocalEngine(Setup(FedAvg(), federation, net, training).having(mode=mode))


class Timed:
    """A door whose time is taken: seconds of this process, since it was last asked."""

    def __init__(self, engine: LocalEngine) -> None:
        self.real, self.seconds = engine.exchange.door.look, 0.0
        engine.exchange.door.look = self  # type: ignore[assignment, method-assign]

    def __call__(self, envelopes: Any, awaited: Any) -> Iterator[Any]:
        begun = time.process_time()
        looked = list(self.real(envelopes, awaited))
        self.seconds += time.process_time() - begun
        return iter(looked)

    def taken(self) -> float:
        """Return the seconds, and start anew."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rows", default=";".join(ROWS), help="separated by ;")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':22}{'mode':12}{'ms a round':>12}{'at the door':>13}{'us a reply':>12}{'cost':>8}{'quartiles':>18}")
    for row in asked.rows.split(";"):
        for mode in ("one-by-one", "stacked"):
            made = engine(row, mode)
            door, rounds, doors = Timed(made), [], []
            for number in range(1, asked.repeats + 2):
                begun = time.process_time()
                made.round(number)
                if number > 1:
                    rounds.append(time.process_time() - begun)
                    doors.append(door.taken())
                door.taken()
            costs = [100 * own / (whole - own) for own, whole in zip(doors, rounds, strict=True)]
            low, middle, high = statistics.quantiles(costs, n=4)
            own, whole = statistics.median(doors), statistics.median(rounds)
            print(
                f"{row:22}{mode:12}{1e3 * whole:12.1f}{1e3 * own:13.2f}{1e6 * own / ROWS[row][3]:12.0f}{middle:7.2f}%"
                f"{f'{low:.2f}% to {high:.2f}%':>18}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
