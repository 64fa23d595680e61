"""What a round of FedAvg costs beside its training: the evaluation of all clients, and all that is left, in CPU time.

    OMP_NUM_THREADS=1 python benchmarks/rest.py [--rows mlp-32,mlp-200,tiny,mixed] [--repeats 25] [--mode stacked]

mlp-32, mlp-200: 784-32-10 and 784-200-10, 100 clients x 300 training and 20 test samples, 20 a round, batches of 32.
tiny: 16-16-4, 100 clients x 20 training and 5 test samples, all 100 in a round, batches of 10. mixed: mlp-32 with all
100 in a round. Training is the time of the executor. The rest is that of the round without it: sampling, messages,
flows, the server's mean. A message costs rest / (2 x clients of the round). Shares are paired: the median over rounds
of (evaluation / training) and of (rest / round), with their quartiles.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from simulation import make_federation

from fedkin.engines import LocalEngine, Setup
from fedkin.federation import Task
from fedkin.learning import Net, Training
from fedkin.learning.models import Mlp
from fedkin.methods import FedAvg

IMAGE, TINY = Task(10, (1, 28, 28)), Task(4, (16,))
# Model, task, training and test samples of a client, clients a round, batch.
ROWS: dict[str, tuple[Mlp, Task, int, int, int, int]] = {
    "mlp-32": (Mlp(hidden=(32,)), IMAGE, 300, 20, 20, 32),
    "mlp-200": (Mlp(hidden=(200,)), IMAGE, 300, 20, 20, 32),
    "mixed": (Mlp(hidden=(32,)), IMAGE, 300, 20, 100, 32),
    "tiny": (Mlp(hidden=(16,)), TINY, 20, 5, 100, 10),
}


def engine_of(row: str, mode: str) -> LocalEngine:
    model, task, samples, test, a_round, batch = ROWS[row]
    federation = make_federation(task, 100, samples, test)
    net = Net.build(lambda: model.build(task), 1)
    training = Training(per_round=a_round, batch_size=batch, local_epochs=1, lr=0.05)
    return LocalEngine(Setup(FedAvg(), federation, net, training).having(mode=mode))


def watched(engine: LocalEngine) -> Callable[[], float]:
    """Add up the CPU time of the executor; the function returned tells it, and begins again at 0."""
    spent, executor = [0.0], engine.site.executor  # type: ignore[attr-defined]

    def timed(do: Callable[[], Any]) -> Callable[[], Any]:
        def collect() -> Any:
            begun = time.process_time()
            done = do()
            spent[0] += time.process_time() - begun
            return done

        return collect

    executor.collect = timed(executor.collect)

    def taken() -> float:
        was, spent[0] = spent[0], 0.0
        return was

    return taken


def measure(row: str, mode: str, repeats: int) -> dict[str, list[float]]:
    """Return CPU milliseconds of each round by kind of work, after two rounds to warm up."""
    engine = engine_of(row, mode)
    taken = watched(engine)
    found: dict[str, list[float]] = {"train": [], "rest": [], "evaluate": []}
    gc.collect()
    for number in range(1, repeats + 3):
        taken()
        begun = time.process_time()
        engine.round(number)
        whole, train = time.process_time() - begun, taken()
        begun = time.process_time()
        engine.evaluate()
        evaluate = time.process_time() - begun
        if number > 2:
            for name, value in (("train", train), ("rest", whole - train), ("evaluate", evaluate)):
                found[name].append(1e3 * value)
    engine.close()
    return found


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--mode", default="stacked")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for row in asked.rows.split(","):
        found = measure(row, asked.mode, asked.repeats)
        train, rest, evaluate = (found[name] for name in ("train", "rest", "evaluate"))
        middle = {name: statistics.median(values) for name, values in found.items()}
        share = spread([e / t for e, t in zip(evaluate, train, strict=True)])
        rests = spread([r / (r + t) for r, t in zip(rest, train, strict=True)])
        print(
            f"{row:8} CPU ms: training {middle['train']:.2f}, evaluation {middle['evaluate']:.2f}, rest "
            f"{middle['rest']:.2f}; evaluation / training {share}; rest / round {rests}; us a message "
            f"{1e3 * middle['rest'] / (2 * ROWS[row][4]):.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
