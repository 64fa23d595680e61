"""What partners add, on planted federations: is the order of a useful, a useless and a harmful partner right?

    OMP_NUM_THREADS=1 python benchmarks/partners.py [--federations 100] [--first 0] [--seconds 500]

Each federation has two clients of 120 rows; a useful partner of 500 rows of the same distribution, and its copy; a
useless one of 200 rows whose labels are independent of the inputs; and a harmful one of 300 rows whose labels depend on
the inputs in the opposite way. It prints a table of how often the order is right, of verdicts, and of means.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from fedkin.advice import Bench, PartnerValues, Plan, advise
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning.models import Mlp
from fedkin.learning.training import Training
from fedkin.running.experiment import RunSettings

WIDTH = 8
KINDS = ("useful", "copy", "useless", "harmful")
CLIENTS = ("first", "second")


def planted(seed: int) -> Federation:
    """A federation with one partner of each kind."""
    rng = np.random.default_rng([20261126, seed])
    slopes = rng.normal(size=WIDTH)
    slopes *= 2 / np.linalg.norm(slopes)

    def drawn(count: int, times: float) -> Samples:
        x = rng.normal(size=(count, WIDTH))
        y = rng.random(count) < 1 / (1 + np.exp(-times * x @ slopes))
        return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))

    train = {"first": drawn(120, 1), "second": drawn(120, 1), "useful": drawn(500, 1)}
    train |= {"copy": train["useful"], "useless": drawn(200, 0), "harmful": drawn(300, -1)}
    clients = [Client(id, samples, samples.take([])) for id, samples in train.items()]
    return Federation(clients, Task(2, (WIDTH,), "risk"), "planted")


def worth(seed: int) -> PartnerValues:
    """What each partner adds in the federation of this seed."""
    training = Training(rounds=5, local_steps=20, batch_size=32, lr=0.1)
    bench = Bench(Mlp(hidden=(16,)), training, RunSettings(mode="fast"), seed)
    found = advise(planted(seed), bench, Plan(folds=3, rates=(1.0,)), partners=6).worth
    assert found is not None
    return found


def right(found: PartnerValues, client: str) -> bool:
    """Whether the useful partner and its copy add more than the useless one, and that more than the harmful one."""
    useful, copy, useless, harmful = (found.adds[client][kind].value for kind in KINDS)
    return min(useful, copy) > useless > harmful


def main() -> None:
    """Print how often the order is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--federations", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=500)
    arguments = parser.parse_args()
    begun, spent = time.monotonic(), time.process_time()
    every: list[PartnerValues] = []
    for seed in range(arguments.first, arguments.first + arguments.federations):
        if time.monotonic() - begun > arguments.seconds:
            break
        every.append(worth(seed))
        print(f"federation {seed}: {[right(every[-1], client) for client in CLIENTS]}", file=sys.stderr, flush=True)
    print(f"| federations {arguments.first} to {arguments.first + len(every) - 1} | |\n|---|---:|")
    for client in CLIENTS:
        print(f"| order right, for the {client} client | {sum(right(one, client) for one in every)} of {len(every)} |")
    for kind in KINDS:
        edges = [(one, client) for one in every for client in CLIENTS]
        values = [100 * one.adds[client][kind].value for one, client in edges]
        last = [100 * one.last[client][kind].value for one, client in edges]
        print(f"| {kind}: mean added, points | {np.mean(values):+.2f} |")
        print(f"| {kind}: mean added last | {np.mean(last):+.2f} |")
        verdicts = [one.verdict(client, kind) for one, client in edges]
        counts = f"{verdicts.count('helps')} / {verdicts.count('hurts')} of {len(edges)}"
        print(f"| {kind}: significantly helps / hurts | {counts} |")
    print(f"| seconds of one core for each | {(time.process_time() - spent) / max(len(every), 1):.1f} |")


if __name__ == "__main__":
    main()
