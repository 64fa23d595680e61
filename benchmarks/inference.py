"""CPU time of inference by rows per pass: 2,048 samples on one thread, channels last, best of three.

OMP_NUM_THREADS=1 python benchmarks/inference.py
"""

from __future__ import annotations

import time

import torch

from fedkin.federation import Task
from fedkin.learning import Net
from fedkin.learning.models import CnnFedAvg, LeafCnn, LeNet, Mlp
from fedkin.learning.sgd import arranged, load

SAMPLES, ROWS = 2048, (32, 64, 128, 256, 512, 1024)
NETS = {
    "mlp": (Mlp(), (1, 28, 28)),
    "lenet": (LeNet(), (3, 32, 32)),
    "cnn-fedavg": (CnnFedAvg(), (3, 32, 32)),
    "leaf-cnn": (LeafCnn(), (1, 28, 28)),
}


def main() -> None:
    """Print milliseconds per net and number of rows."""
    torch.set_num_threads(1)
    print(f"{'ms':12}" + "".join(f"{rows:8}" for rows in ROWS))
    for name, (model, shape) in NETS.items():
        net = Net.build(lambda model=model, shape=shape: model.build(Task(10, shape)), 0)
        module, x = net.scratch().eval(), arranged(torch.randn(SAMPLES, *shape))
        load(module, net.initial)
        found = []
        for rows in ROWS:
            times = []
            for _ in range(3):
                begun = time.process_time()
                with torch.no_grad():
                    for start in range(0, SAMPLES, rows):
                        module(x[start : start + rows])
                times.append(1e3 * (time.process_time() - begun))
            found.append(min(times))
        print(f"{name:12}" + "".join(f"{spent:8.0f}" for spent in found))


if __name__ == "__main__":
    main()
