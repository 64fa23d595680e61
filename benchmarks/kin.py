"""Kin beside local training, FedAvg, FLT and kin without degrees, on small federations.

    OMP_NUM_THREADS=1 python benchmarks/kin.py [NAME ..] [--data-root DATA] [--seeds 0,1] [--methods 'kin;flt-same']

One line for each federation and method: mean accuracy and that of the worst tenth of the clients (mean and standard
deviation over seeds), clients below local training, groups found, clients alone, clients that keep their own model,
seconds. 20 clients of 150 training and 100 test images (12 clients of 60 in "few"), 50 rounds of 5 steps, all clients,
batches of 32, rate .1, MLP of the default width.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedkin
from fedkin.data import federate
from fedkin.federation import Federation, Samples
from fedkin.keys import rng
from fedkin.methods import METHODS

PLAN = {"local_steps": 5, "batch_size": 32, "lr": 0.1}
METHODS_RUN: dict[str, Any] = {
    "local": METHODS["local"](),
    "fedavg": METHODS["fedavg"](),
    "flt, ratio": METHODS["flt"](graph={"groups": "ratio", "embedding": "none", "gamma": "groups"}),
    "flt-same": METHODS["flt-same"](),
    "kin, groups": METHODS["kin"](degrees="groups"),
    "kin": METHODS["kin"](),
}


def cut(federation: Federation, n: int, seed: int) -> Federation:
    """At most n training and 100 test samples of each client, drawn by its id."""
    made = []
    for id, client in federation.items():
        draw = rng(seed, id, "cut")
        train, test = (
            part.take(np.sort(draw.permutation(len(part))[:most]))
            for part, most in ((client.train, n), (client.test, 100))
        )
        made.append(replace(client, train=train, test=test))
    return Federation(made, federation.task, federation.name)


def patterned(federation: Federation, seed: int, deviation: float = 1.0) -> Federation:
    """Each client adds a pattern of its own, N(0, deviation^2) per pixel, to all its images."""
    made = []
    for id, client in federation.items():
        drawn = rng(seed, id, "pattern").normal(size=federation.task.shape)
        pattern = (deviation * drawn).astype(np.float32)
        train, test = (
            Samples(part.inputs(slice(None)) + torch.from_numpy(pattern), part.labels().clone())
            for part in (client.train, client.test)
        )
        made.append(replace(client, train=train, test=test))
    return Federation(made, federation.task, federation.name)


def federations(root: Path) -> dict[str, Callable[[int], Federation]]:
    """{name: federation of a seed}."""

    def mnist(scenario: str, n: int = 150, source: str = "mnist", **options: Any) -> Callable[[int], Federation]:
        settings = {"clients": 20, **options}
        return lambda seed: cut(federate(source, scenario, seed=seed, data_root=root, **settings), n, seed)

    iid, swap = mnist("iid"), mnist("label-swap", groups=4)
    return {
        "iid": iid,
        "dirichlet .3": mnist("dirichlet", alpha=0.3, sizes="equal"),
        "dirichlet .1": mnist("dirichlet", alpha=0.1, sizes="equal"),
        "few": mnist("dirichlet", 60, alpha=1.0, sizes="equal", clients=12),
        "ring": mnist("grouped-classes", source="fashion-mnist", classes="ring"),
        "rotated": mnist("rotated-masked", mask_rate=0.0),
        "swap": swap,
        "patterns": lambda seed: patterned(iid(seed), seed),
        "masks": mnist("rotated-masked", rotations=(0,), mask_rate=0.15, mask_size=4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--methods", default=";".join(METHODS_RUN), help="of these, beside local training")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = federations(given.data_root)
    methods = {title: METHODS_RUN[title] for title in ["local", *given.methods.split(";")]}
    for name in given.names or known:
        rows: dict[str, list[Any]] = {}
        for seed in map(int, given.seeds.split(",")):
            federation, local = known[name](seed), None
            for title, method in methods.items():
                start = time.perf_counter()
                result = fedkin.run(method, federation, rounds=50, seed=seed, model="mlp", training=PLAN)
                accuracy = {id: score.right / score.n for id, score in result.scores.items()}
                local = local or accuracy
                worst = np.mean(sorted(accuracy.values())[: max(1, len(accuracy) // 10)])
                hurt = np.mean([accuracy[id] < local[id] for id in accuracy])
                figures = result.rounds[-1].get("figures", {})
                found = [figures.get(key) for key in ("groups", "alone", "level")]
                spent = time.perf_counter() - start
                rows.setdefault(title, []).append((np.mean(list(accuracy.values())), worst, hurt, found, spent))
        for title, each in rows.items():
            mean, low, hurt, found, spent = zip(*each, strict=True)
            print(
                f"{name:13s} {title:15s} {np.mean(mean):.3f}±{np.std(mean):.3f}  worst {np.mean(low):.3f}  "
                f"hurt {np.mean(hurt):3.0%}  groups, alone, level {list(found)}  {np.mean(spent):.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
