"""CPU time of a round of a method in fedkin's modes, and of FedAvg in a plain PyTorch loop, paired by round.

    OMP_NUM_THREADS=1 python benchmarks/race.py [--nets mlp-32,mlp-200,table,lenet] [--method fedavg] [--rounds 25]
        [--device cuda]

There are 100 clients with 300 samples in an array each; 20 train in each round, for one epoch of SGD in batches of 32.
Nets are those of benchmarks/peers, written as a user writes them. The sides alternate round by round in this process,
on one thread. A ratio is the median over rounds of (side / plain loop), with quartiles; below 1 is faster. With a GPU
the samples are in its memory, elapsed time counts instead of CPU time, and a plain loop on the CPU is one more side. A
mode may name a precision: fast/bf16.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from common import BATCH, CLASSES, CLIENTS, LR, SAMPLED, SAMPLES, SHAPES, build

from fedkin.engines import EngineSettings, LocalEngine, Setup
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning import Net, Training
from fedkin.methods import METHODS


def plain_loop(net: str, data: list[tuple[Tensor, Tensor]], device: str = "cpu") -> Callable[[], None]:
    """Return a function that does a round with one module and torch.optim, and averages the models."""
    server = build(net).to(device)
    data = [(x.to(device), y.to(device)) for x, y in data]

    def a_round() -> None:
        start = {name: tensor.clone() for name, tensor in server.state_dict().items()}
        trained = []
        for k in torch.randperm(CLIENTS)[:SAMPLED].tolist():
            x, y = data[k]
            server.load_state_dict(start)
            optimiser = torch.optim.SGD(server.parameters(), lr=LR[net])
            for rows in torch.randperm(SAMPLES).split(BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(server(x[rows]), y[rows]).backward()
                optimiser.step()
            trained.append({name: tensor.clone() for name, tensor in server.state_dict().items()})
        floats = [name for name, tensor in start.items() if tensor.is_floating_point()]
        mean = {name: torch.stack([one[name] for one in trained]).mean(0) for name in floats}
        server.load_state_dict({**trained[0], **mean})

    return a_round


def fedkin_round(
    net: str, data: list[tuple[Tensor, Tensor]], mode: str, method: str = "fedavg", device: str = "cpu"
) -> Callable[[], None]:
    """Return a function that does a round of fedkin's local engine."""
    clients = [Client(f"c{k:03d}", Samples(x, y), Samples(x[:20], y[:20])) for k, (x, y) in enumerate(data)]
    module = build(net)
    training = Training(clients_per_round=SAMPLED, batch_size=BATCH, local_epochs=1, lr=LR[net])
    federation = Federation(clients, Task(CLASSES[net], SHAPES[net]))
    mode, _, precision = mode.partition("/")
    model = Net(module.body, module.head, precision=cast(Any, precision or "float32"))
    setup = Setup(METHODS[method](), federation, model, training)
    engine = LocalEngine(replace(setup, engine=EngineSettings(mode=cast(Any, mode), device=device)))
    done = 0

    def a_round() -> None:
        nonlocal done
        done += 1
        engine.round(done)

    return a_round


def race(net: str, modes: list[str], rounds: int, method: str, device: str) -> dict[str, list[float]]:
    """Return the CPU seconds of each side's rounds; with a GPU, the elapsed ones."""
    torch.manual_seed(0)
    data = [(torch.randn(SAMPLES, *SHAPES[net]), torch.randint(0, CLASSES[net], (SAMPLES,))) for _ in range(CLIENTS)]
    sides = {"plain loop": plain_loop(net, data, device)}
    sides |= {mode: fedkin_round(net, data, mode, method, device) for mode in modes}
    if device != "cpu":
        sides["plain loop on the CPU"] = plain_loop(net, data)
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 2):  # two to warm up
        for name, a_round in sides.items():
            start = clock(device)
            a_round()
            if number >= 2:
                spent[name].append(clock(device) - start)
    return spent


def clock(device: str) -> float:
    """Return the CPU time of this process; with a GPU, wait for it and return the elapsed time."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="mlp-32,mlp-200,table,lenet")
    parser.add_argument("--modes", default="one-by-one,fast")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for net in asked.nets.split(","):
        spent = race(net, asked.modes.split(","), asked.rounds, asked.method, asked.device)
        plain = spent.pop("plain loop")
        print(f"{net}: plain loop {1e3 * statistics.median(plain):.1f} ms")
        for mode, seconds in spent.items():
            ratios = [mine / loop for mine, loop in zip(seconds, plain, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"  {mode}: {middle:.2f} ({low:.2f}-{high:.2f})", flush=True)


if __name__ == "__main__":
    main()
