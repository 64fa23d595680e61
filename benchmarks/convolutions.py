"""Speed of a step one by one, as times the plain loop and as GFlop/s of this core's peak, for six nets.

    OMP_NUM_THREADS=1 python benchmarks/convolutions.py [--rows lenet,cnn-cifar,leaf-cnn] [--repeats 7] [--clients 4]

Rounds of FedAvg with 300 samples a client, batches of 32, one epoch of SGD; all sides run in this process on one
thread, and take turns. "channels first" is run.channels_last = false, "bf16" is run.precision = "bf16", "kernels" is
run.kernels = "numba" (where numba is installed; it is one-by-one again for nets without such convolutions). Arithmetic
is what fedkin's records count: operations of products and convolutions, forward and backward, a multiply-add as two.
Peak: the fastest of many 1024 x 1024 products in float32. A ratio is the median over rounds of plain loop / side, with
quartiles; GFlop/s is by the side's median CPU time.
"""

from __future__ import annotations

import argparse
import time

import simulation
import torch

from fedkin.engines import LocalEngine, Setup
from fedkin.engines.accounting.operations import Operations
from fedkin.engines.executors.jobs import FitJob
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.learning import CrossEntropy, Net, Training
from fedkin.learning.computing import Computing, check_kernels, check_precision
from fedkin.learning.devices import CPU
from fedkin.methods import FedAvg

SIDES = {
    "one-by-one": Computing(),
    "channels first": Computing(channels_last=False),
    "bf16": Computing(precision="bf16"),
    "kernels": Computing(kernels="numba"),
}


def peak() -> float:
    """Return the GFlop/s of a large product."""
    a = torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(60):
        start = time.process_time()
        a @ a
        best = min(best, time.process_time() - start)
    return 2 * 1024**3 / best / 1e9


def arithmetic(net: Net, federation: Federation, training: Training) -> float:
    """Return the operations of an epoch of one client, forward and backward."""
    first = next(iter(federation))
    job = FitJob(first, net.initial, CrossEntropy(), training, {}, {}, 0)
    return Operations(net, federation).per_sample(job) * simulation.SAMPLES


def row_of(name: str, repeats: int, clients: int) -> None:
    make, task, apart = simulation.WORK[name]
    federation = simulation.make_federation(task, clients, simulation.SAMPLES, own=apart)
    training = Training(batch_size=simulation.BATCH, local_epochs=1, lr=simulation.LR)
    nets = {side: Net.build(lambda: make(task), 1, computing=how) for side, how in SIDES.items()}
    try:
        check_precision("bf16", CPU)
    except ConfigError:
        del nets["bf16"]
    try:
        check_kernels("numba")
    except ConfigError:
        del nets["kernels"]
    engines = {side: LocalEngine(Setup(FedAvg(), federation, net, training)) for side, net in nets.items()}
    sides: dict[str, simulation.Side] = {"plain loop": simulation.plain_loop(nets["one-by-one"], federation)}
    spent = simulation.timed(sides | {side: engine.round for side, engine in engines.items()}, repeats)
    work = arithmetic(nets["one-by-one"], federation, training) * clients / 1e9
    steps = clients * -(-simulation.SAMPLES // simulation.BATCH)
    print(f"\n{name}: {1e3 * work / steps:.1f} MFlop a step")
    for side, times in spent.items():
        f = simulation.figures(times, spent["plain loop"])
        speed = 1e3 * work / f["cpu ms"]
        print(
            f"  {side:16}{f['cpu ms'] / steps:8.2f} ms a step {f['cpu ratio']:7.2f} times "
            f"({f['cpu low']:.2f}-{f['cpu high']:.2f}){speed:9.1f} GFlop/s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="own-32,own-200,table,lenet,cnn-cifar,leaf-cnn")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clients", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"peak: {peak():.0f} GFlop/s in float32")
    for name in asked.rows.split(","):
        row_of(name, asked.repeats, asked.clients)
    print(f"\npeak, at the end: {peak():.0f} GFlop/s in float32")


if __name__ == "__main__":
    main()
