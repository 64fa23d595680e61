"""Peak memory of methods with 600 clients and a net of 6.6 million parameters, 120 clients per round.

    OMP_NUM_THREADS=1 python benchmarks/memory.py [--clients 600] [--a-round 120] [--rounds 6] [--limit-mb 1024]

The net is LEAF's CNN for 28x28 images and 62 classes, with 26 MB per model. Each method runs in a separate process.
Clients are sampled in turns, so that all have trained after five rounds. They have few samples and take one step,
because only memory is measured. FedAvg has one model. In local training 600 models take 15 GB, and those above the
limit go to the folder for temporary files. The peak is the largest resident set, with resident pages of mapped files.
"on disk" is the size of the files without a name at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
from simulation import make_federation

from fedkin.engines import LocalEngine, Setup
from fedkin.federation import Task
from fedkin.learning import Net, Training
from fedkin.learning.models import LeafCnn
from fedkin.methods import FedAvg, Local
from fedkin.views import ServerView


def in_turns(server: ServerView) -> list[str]:
    """Return the next `per_round` clients of the federation in each round."""
    ids: Sequence[str] = server.clients
    count = server.training.count(len(ids))
    return sorted(ids[((server.round - 1) * count + k) % len(ids)] for k in range(count))


class FedAvgInTurns(FedAvg):
    """FedAvg with clients sampled in turns."""

    def sample(self, server: ServerView) -> list[str]:
        return in_turns(server)


class LocalInTurns(Local):
    """Local training with clients sampled in turns."""

    def sample(self, server: ServerView) -> list[str]:
        return in_turns(server)


METHODS = {"fedavg": FedAvgInTurns, "local": LocalInTurns}


def gigabytes(what: str) -> float:
    """Return a line of this process's status, in GB (2^30 bytes)."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what + ":")) / 2**20


def measure(method: str, clients: int, a_round: int, rounds: int, limit: float) -> dict[str, float]:
    """Run the rounds in this process, each with an evaluation, and return the figures."""
    task = Task(62, (1, 28, 28))
    federation = make_federation(task, clients, 4, 2)
    net = Net.build(lambda: LeafCnn().build(task), 1)
    training = Training(per_round=a_round, batch_size=4, local_steps=1, lr=0.01)
    before = gigabytes("VmRSS")
    engine = LocalEngine(Setup(METHODS[method](), federation, net, training).having(state_limit_mb=limit))
    start = time.perf_counter()
    for number in range(1, rounds + 1):
        engine.round(number)
        engine.evaluate()
    wall = time.perf_counter() - start
    made = {
        "parameters": net.parameters(),
        "start GB": before,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "anonymous GB at the end": gigabytes("RssAnon"),
        "on disk GB": engine.site.states.on_disk / 2**30,
        "wall s a round": wall / rounds,
        "CPU s a round": time.process_time() / rounds,
    }
    engine.close()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg,local")
    parser.add_argument("--clients", type=int, default=600)
    parser.add_argument("--a-round", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--limit-mb", type=float, default=1024.0)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.inside:
        print(json.dumps(measure(asked.inside, asked.clients, asked.a_round, asked.rounds, asked.limit_mb)))
        return
    for method in asked.methods.split(","):
        told = subprocess.run(
            [sys.executable, *sys.argv, "--inside", method], check=True, capture_output=True, text=True, env=os.environ
        ).stdout
        print(method, "  ".join(f"{name} {value:.4g}" for name, value in json.loads(told).items()), flush=True)


if __name__ == "__main__":
    main()
