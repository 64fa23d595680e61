"""Accuracy of run.precision = "bf16" beside float32, paired by seed.

    OMP_NUM_THREADS=1 python benchmarks/precision.py DATA_ROOT [--rows lenet:cifar10,..] [--seeds 0,1,2]
        [--rounds 12]

FedAvg with 10 clients that have 300 training and 200 test samples of the data set each, drawn by the seed; batches of
32, one epoch a round, SGD at .05. Both runs of a seed have the same samples, initial values and batches. Printed: the
accuracy over all test samples, mean and standard deviation over seeds, and the mean of the differences bf16 - float32
with its standard error.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
import torch

import fedkin
from fedkin.data import SOURCES
from fedkin.federation import Client, Federation, Samples

CLIENTS, TRAIN, TEST = 10, 300, 200


def federation_of(source: str, root: Path, seed: int) -> Federation:
    """Return clients with samples that the seed draws."""
    dataset = SOURCES[source]().load(root)
    draw = np.random.default_rng(seed)
    train, test = (
        Samples(part.x, part.y, torch.from_numpy(draw.permutation(len(part.y))[: CLIENTS * each]), dataset.scale).own()
        for part, each in ((dataset.train, TRAIN), (dataset.test, TEST))
    )
    clients = [
        Client(f"c{k}", train.take(range(k * TRAIN, (k + 1) * TRAIN)), test.take(range(k * TEST, (k + 1) * TEST)))
        for k in range(CLIENTS)
    ]
    return Federation(clients, dataset.task)


def accuracy(model: str, federation: Federation, seed: int, rounds: int, precision: str) -> float:
    """Return the accuracy over the test samples of all clients after the last round."""
    result = fedkin.run(
        "fedavg", federation, rounds=rounds, seed=seed, model=model, training={"batch_size": 32, "lr": 0.05},
        settings={"precision": precision, "evaluate_every": rounds},
    )  # fmt: skip
    return float(result.summary["accuracy"]["pooled"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--rows", default="lenet:cifar10,cnn-cifar:cifar10,leaf-cnn:fashion-mnist")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for row in asked.rows.split(","):
        model, _, source = row.partition(":")
        found: dict[str, list[float]] = {"float32": [], "bf16": []}
        for seed in map(int, asked.seeds.split(",")):
            federation = federation_of(source, asked.root, seed)
            for precision, values in found.items():
                values.append(accuracy(model, federation, seed, asked.rounds, precision))
        gaps = [half - full for full, half in zip(found["float32"], found["bf16"], strict=True)]
        each = "  ".join(f"{name} {statistics.mean(v):.4f} (sd {statistics.stdev(v):.4f})" for name, v in found.items())
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        print(f"{model} on {source}: {each}  difference {statistics.mean(gaps):+.4f} +- {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
