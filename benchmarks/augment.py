"""CPU time of two random views of a batch, and of a whole step of MAPL: views, losses, gradients, Adam.

    OMP_NUM_THREADS=1 python benchmarks/augment.py [--repeats 20]

Batches have 64 samples (128 views); the nets are the four small ones; images are 28x28 in grey and 32x32 in colour. CPU
milliseconds are medians over repeats, in which views and steps alternate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from fedkin.federation import Task
from fedkin.learning import Batch, Net, Training
from fedkin.learning.models import MODELS
from fedkin.methods import METHODS

SMALL = ("small-plain", "small-residual", "small-separable", "small-wide")
SHAPES = ((1, 28, 28), (3, 32, 32))


def milliseconds(call: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    start = time.process_time()
    call()
    return 1000 * (time.process_time() - start)


def cost(name: str, shape: tuple[int, ...], repeats: int) -> tuple[float, float]:
    """Return the milliseconds of (the views, a whole step)."""
    task = Task(10, shape)
    method = METHODS["mapl"]()
    net = method.equip(Net.build(lambda: MODELS[name]().build(task), 0), task, 1)
    model = net.scratch().train()
    optimiser = Training(optimiser="adam", lr=0.001).build(model.parameters())
    x, y = torch.randn(64, *shape), torch.randint(0, 10, (64,))
    twice, batch = torch.cat([x, x]), Batch(x, y, torch.ones(64), True)

    def step() -> None:
        method.loss(model, batch, {}, {}).backward()
        optimiser.step()
        optimiser.zero_grad()

    pairs = [(milliseconds(lambda: method.augment(twice)), milliseconds(step)) for _ in range(repeats + 3)][3:]
    views, steps = (statistics.median(column) for column in zip(*pairs, strict=True))
    return views, steps


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    for shape in SHAPES:
        total = [0.0, 0.0]
        for name in SMALL:
            views, step = cost(name, shape, repeats)
            total = [total[0] + views, total[1] + step]
            print(f"{'x'.join(map(str, shape)):>8} {name:16} views {views:5.1f} of {step:5.1f} ms, {views / step:.0%}")
        print(f"{'x'.join(map(str, shape)):>8} {'all four':16} views {total[0] / total[1]:.0%}")


if __name__ == "__main__":
    main()
