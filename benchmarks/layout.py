"""CPU time of channels last and channels first on one thread, for the convolution nets of the presets.

python benchmarks/layout.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from fedkin.federation import Task
from fedkin.learning import Net
from fedkin.learning.models import CnnCifar, CnnMnist

REPEATS = 12


def spent(work: Callable[[], object]) -> float:
    """Return the median CPU time in milliseconds, after three warm-up runs."""
    times = []
    for _ in range(REPEATS + 3):
        start = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times[3:])


def main() -> None:
    """Print training and inference times of both layouts, and their ratios."""
    torch.set_num_threads(1)
    for model, shape in ((CnnMnist(), (1, 28, 28)), (CnnCifar(), (3, 32, 32))):
        net = Net.build(lambda model=model, shape=shape: model.build(Task(10, shape)), 0)
        x, y, many = torch.randn(32, *shape), torch.randint(0, 10, (32,)), torch.randn(256, *shape)
        figures = []
        for layout in (torch.contiguous_format, torch.channels_last):
            module = net.scratch().to(memory_format=layout)
            own, rest = x.to(memory_format=layout), many.to(memory_format=layout)
            train = spent(lambda m=module, x=own, y=y: F.cross_entropy(m(x), y).backward())
            with torch.no_grad():
                figures.append((train, spent(lambda m=module, x=rest: m(x))))
        (first, first_infer), (last, last_infer) = figures
        print(
            f"{model.name}: a training step of 32 {first:.1f} -> {last:.1f} ms ({first / last:.2f} times), "
            f"inference of 256 {first_infer:.1f} -> {last_infer:.1f} ms ({first_infer / last_infer:.2f} times)"
        )


if __name__ == "__main__":
    main()
