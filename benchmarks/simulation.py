"""Time of a round of FedAvg in fedkin's modes, in a plain PyTorch loop, and in a loop in PFLlib's style.

    OMP_NUM_THREADS=1 python benchmarks/simulation.py [--rows mlp-32,own-32,table,lenet,idle] [--repeats 9]

There are 100 clients with 300 synthetic samples each; 20 train in each round, for one epoch of SGD with batches of 32.
The rows own-32, own-200, class, skip, skip-200 and table are written as a user writes his program: torch modules
without Flatten or a class with a forward (skip: with a skip connection), and an array of its own for each client; in
the others, all clients share one array. All sides run in this process on one thread, and alternate round by round. A
ratio is the median over rounds of (plain loop / side), so that other work on the machine slows down both. CPU time is
that of this process; worker processes are compared by wall-clock time.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedkin.engines import LocalEngine, Setup
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning import Net, Training
from fedkin.learning.models import CnnCifar, LeafCnn, LeNet, Mlp
from fedkin.methods import FedAvg

CLIENTS, SAMPLES, SAMPLED, BATCH, LR = 100, 300, 20, 32, 0.05
Pair = tuple[nn.Module, nn.Module]


def table(task: Task) -> Pair:
    """Return a net for rows of 60 numbers, with batch normalisation and dropout."""
    layers: list[nn.Module] = []
    for inside in (60, 64):
        layers += [nn.Linear(inside, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers), nn.Linear(64, 2)


def own(width: int) -> Callable[[Task], Pair]:
    """Return an MLP as a user writes it."""
    return lambda task: (nn.Sequential(nn.Linear(784, width), nn.ReLU()), nn.Linear(width, 10))


class Written(nn.Module):
    """784-width-width with a forward, as in most tutorials."""

    def __init__(self, width: int, skip: bool = False) -> None:
        super().__init__()
        self.fc1, self.fc2, self.skip = nn.Linear(784, width), nn.Linear(width, width), skip

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.fc1(torch.flatten(x, 1)))
        return x + nn.functional.relu(self.fc2(x)) if self.skip else nn.functional.relu(self.fc2(x))


# What makes the net, the task, and whether each client has an array of its own.
WORK: dict[str, tuple[Callable[[Task], Pair], Task, bool]] = {
    "mlp-32": (Mlp(hidden=(32,)).build, Task(10, (1, 28, 28)), False),
    "mlp-200": (Mlp(hidden=(200,)).build, Task(10, (1, 28, 28)), False),
    "own-32": (own(32), Task(10, (784,)), True),
    "own-200": (own(200), Task(10, (784,)), True),
    "class": (lambda task: (Written(32), nn.Linear(32, 10)), Task(10, (784,)), True),
    "skip": (lambda task: (Written(32, skip=True), nn.Linear(32, 10)), Task(10, (784,)), True),
    "skip-200": (lambda task: (Written(200, skip=True), nn.Linear(200, 10)), Task(10, (784,)), True),
    "table": (table, Task(2, (60,)), True),
    "lenet": (LeNet().build, Task(10, (3, 32, 32)), False),
    "cnn-cifar": (CnnCifar().build, Task(10, (3, 32, 32)), False),
    "leaf-cnn": (LeafCnn().build, Task(62, (1, 28, 28)), False),
}
Side = Callable[[int], object]


def make_federation(task: Task, clients: int, samples: int, test: int = 20, own: bool = False) -> Federation:
    """Return clients that share one array of noise, or have an array each."""
    draw = np.random.default_rng(0)
    each = samples + test
    x = torch.from_numpy(draw.standard_normal((clients * each, *task.shape), dtype=np.float32))
    y = torch.from_numpy(draw.integers(0, task.classes, clients * each))
    rows = torch.arange(clients * each).reshape(clients, each)
    made = [
        Client(f"c{k:05d}", Samples(x, y, here[:samples]), Samples(x, y, here[samples:])) for k, here in enumerate(rows)
    ]
    return Federation([replace(c, train=c.train.own(), test=c.test.own()) for c in made] if own else made, task)


def sampled(number: int, clients: int) -> list[int]:
    return sorted(np.random.default_rng(number).permutation(clients)[:SAMPLED].tolist())


def averaged(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    # Counters of batches are whole numbers, and equal everywhere.
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if first.is_floating_point() else first
        for name, first in states[0].items()
    }


def plain_loop(net: Net, federation: Federation) -> Side:
    """Return a plain loop: one module, the clients' tensors in memory, torch.optim, and only the average is kept."""
    module = net.scratch()
    data = [(c.train.inputs(slice(None)), c.train.labels()) for c in federation.values()]
    state: dict[str, Tensor] = {name: t.clone() for name, t in net.initial.items()}

    def round(number: int) -> None:
        nonlocal state
        made = []
        for k in sampled(number, len(data)):
            x, y = data[k]
            module.load_state_dict(state)
            optimiser = torch.optim.SGD(module.parameters(), lr=LR)
            for rows in torch.randperm(len(y)).split(BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            made.append({name: t.clone() for name, t in module.state_dict().items()})
        state = averaged(made)

    return round


def object_loop(net: Net, federation: Federation) -> Side:
    """Return a loop in PFLlib's style: each client has a model, and makes a DataLoader in each round."""
    server = net.scratch()
    models = [copy.deepcopy(server) for _ in federation]
    optimisers = [torch.optim.SGD(model.parameters(), lr=LR) for model in models]
    data = [list(zip(c.train.inputs(slice(None)), c.train.labels(), strict=True)) for c in federation.values()]

    def round(number: int) -> None:
        uploads = []
        for k in sampled(number, len(models)):
            for new, old in zip(server.parameters(), models[k].parameters(), strict=True):
                old.data = new.data.clone()
            models[k].train()
            for x, y in DataLoader(data[k], BATCH, shuffle=True):  # type: ignore[arg-type]
                optimisers[k].zero_grad()
                nn.functional.cross_entropy(models[k](x), y).backward()  # type: ignore[no-untyped-call]
                optimisers[k].step()
            uploads.append(models[k])
        for parameter in server.parameters():
            parameter.data.zero_()
        for model in uploads:
            for total, part in zip(server.parameters(), model.parameters(), strict=True):
                total.data += part.data.clone() / len(uploads)

    return round


def timed(sides: dict[str, Side], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds of CPU time and wall-clock time of each round, after a warm-up round."""
    spent: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in sides}
    for number in range(1, repeats + 2):
        for name, side in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            side(number)
            took = {"cpu": 1e3 * (time.process_time() - cpu), "wall": 1e3 * (time.perf_counter() - wall)}
            if number > 1:
                for what, value in took.items():
                    spent[name][what].append(value)
    return spent


def compare(row: str, repeats: int, wanted: list[str]) -> dict[str, dict[str, float]]:
    """Return the figures of all sides for this row of work."""
    make, task, apart = WORK[row]
    federation = make_federation(task, CLIENTS, SAMPLES, own=apart)
    net = Net.build(lambda: make(task), 1)
    training = Training(per_round=SAMPLED, batch_size=BATCH, local_epochs=1, lr=LR)
    engines = {
        mode: LocalEngine(Setup(FedAvg(), federation, net, training).having(mode=mode, workers=2))
        for mode in ("one-by-one", "stacked", "workers")
        if not wanted or mode in wanted
    }
    sides: dict[str, Side] = {"plain loop": plain_loop(net, federation)}
    if not wanted or "model objects" in wanted:
        sides["model objects"] = object_loop(net, federation)
    try:
        spent = timed(sides | {mode: engine.round for mode, engine in engines.items()}, repeats)
    finally:
        for engine in engines.values():
            engine.close()
    return {name: figures(times, spent["plain loop"]) for name, times in spent.items()}


def figures(times: dict[str, list[float]], plain: dict[str, list[float]]) -> dict[str, float]:
    """Return medians, quartiles, and the speed-up over the plain loop, paired round by round."""
    made = {}
    for what, values in times.items():
        ratios = [p / t for p, t in zip(plain[what], values, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        made |= {f"{what} ms": statistics.median(values), f"{what} ratio": middle, f"{what} low": low,
                 f"{what} high": high}  # fmt: skip
    return made


def idle(repeats: int) -> dict[str, dict[str, float]]:
    """Return the time of a round of 100 clients among 100, 1,000 and 10,000, and the cost of an idle client."""
    task = Task(4, (16,))
    net = Net.build(lambda: Mlp(hidden=(16,)).build(task), 1)
    training = Training(per_round=100, batch_size=10, local_epochs=1, lr=LR)
    counts = (100, 1_000, 10_000)
    federations = {count: make_federation(task, count, 20, 5) for count in counts}
    made: dict[int, LocalEngine] = {}
    held: dict[int, float] = {}
    for count, federation in federations.items():
        gc.collect()
        tracemalloc.start()
        made[count] = LocalEngine(Setup(FedAvg(), federation, net, training).having(mode="stacked"))
        made[count].round(1)
        made[count].evaluate()
        gc.collect()
        held[count] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        made[count].seconds.update(dict.fromkeys(made[count].seconds, 0.0))
    spent = timed({str(count): lambda n, e=engine: e.round(n + 1) for count, engine in made.items()}, repeats)  # type: ignore[misc]
    rows = {}
    for count, engine in made.items():
        row = figures(spent[str(count)], spent["100"])
        evaluated = timed({"evaluate": lambda _, e=engine: e.evaluate()}, 1)["evaluate"]["cpu"][0]  # type: ignore[misc]
        rounds = (repeats + 1) * row["wall ms"] / 1e3
        parts = {f"{name} share": engine.seconds[name] / rounds for name in ("local", "graph", "messages")}
        rows[f"{count} clients"] = row | {"bytes per idle client": (held[count] - held[100]) / max(count - 100, 1),
                                          "evaluate ms": evaluated, **parts}  # fmt: skip
    return rows


def show(row: str, sides: dict[str, dict[str, float]]) -> None:
    print(f"\n{row}")
    print(f"{'':16}{'CPU ms':>9}{'ratio':>7}{'quartiles':>14}{'wall ms':>10}{'ratio':>7}{'quartiles':>14}")
    for name, f in sides.items():
        spread = {what: f"{f[what + ' low']:.2f}-{f[what + ' high']:.2f}" for what in ("cpu", "wall")}
        extra = "  ".join(f"{key} {value:.3g}" for key, value in f.items() if key.split()[0] not in ("cpu", "wall"))
        print(
            f"{name:16}{f['cpu ms']:9.1f}{f['cpu ratio']:7.2f}{spread['cpu']:>14}"
            f"{f['wall ms']:10.1f}{f['wall ratio']:7.2f}{spread['wall']:>14}  {extra}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join([*WORK, "idle"]))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--sides", default="", help="only these beside the plain loop: model objects,stacked,...")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found, wanted = {}, [side for side in asked.sides.split(",") if side]
    for row in asked.rows.split(","):
        found[row] = idle(asked.repeats) if row == "idle" else compare(row, asked.repeats, wanted)
        show(row, found[row])
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
