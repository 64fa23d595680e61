"""Time of a round of FedAvg on a GPU, one by one and stacked in turns, and its share of the GPU's limits.

    OMP_NUM_THREADS=1 python benchmarks/gpu.py [--device cuda] [--rows lenet,mlp-200] [--repeats 9]

There are 100 clients with 300 samples each; 20 of them train in each round, with 20 steps of 32 samples. A round ends
when its models are back in main memory. The limits are measured: a matrix product in float32, and a copy inside the
GPU's memory. The memory traffic is the least possible: each step reads the weights twice (forward, backward) and
writes them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from simulation import SAMPLED, SAMPLES, WORK, Side, figures, make_federation, show, timed

from fedkin.engines import LocalEngine, Setup
from fedkin.learning import Net, Training
from fedkin.learning.devices import opened
from fedkin.methods import FedAvg

CLIENTS, STEPS, BATCH = 100, 20, 32
FLOAT = 4  # bytes


def best(work: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """Return the least time of `work` in seconds."""
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent.append(time.perf_counter() - start)
    return min(spent)


def limits(device: torch.device) -> tuple[float, float]:
    """Return (operations per second in float32, bytes per second read and written) of the device."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = torch.rand(2, size, size, device=device)
    out = torch.empty_like(a)
    rate = 2 * size**3 / best(lambda: torch.mm(a, b, out=out), device)
    return rate, 2 * a.nbytes / best(lambda: out.copy_(a), device)


def compare(row: str, device: str, repeats: int, limit: tuple[float, float]) -> None:
    """Print the times of both modes for this row, and their shares of the limits."""
    make, task, own = WORK[row]
    federation = make_federation(task, CLIENTS, SAMPLES, own=own)
    net = Net.build(lambda: make(task), 1)
    training = Training(per_round=SAMPLED, batch_size=BATCH, local_steps=STEPS, lr=0.05)
    engines = {
        mode: LocalEngine(Setup(FedAvg(), federation, net, training).having(mode=mode, device=device))
        for mode in ("one-by-one", "stacked")
    }
    sides: dict[str, Side] = {mode: engine.round for mode, engine in engines.items()}
    spent = timed(sides, repeats)
    show(f"{row} on {device}", {mode: figures(times, spent["one-by-one"]) for mode, times in spent.items()})
    operations = engines["stacked"].round(repeats + 2).flops
    moved = 4 * FLOAT * net.parameters() * SAMPLED * STEPS
    for mode, times in spent.items():
        seconds = statistics.median(times["wall"]) / 1e3
        print(
            f"{mode:16}{operations / seconds / limit[0]:8.1%} of the arithmetic, "
            f"{moved / seconds / limit[1]:.1%} of the bandwidth"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", default="lenet,mlp-200")
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    limit = limits(opened(asked.device))
    print(f"{asked.device}: {limit[0] / 1e12:.3g} TFlop/s, {limit[1] / 1e9:.3g} GB/s")
    for row in asked.rows.split(","):
        compare(row, asked.device, asked.repeats, limit)


if __name__ == "__main__":
    main()
