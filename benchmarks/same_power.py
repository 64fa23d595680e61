"""Recovery of planted groups: power by distance and samples, the study's federations, and time by clients.

OMP_NUM_THREADS=1 python benchmarks/same_power.py real --data-root DATA     federations of MNIST, FashionMNIST
OMP_NUM_THREADS=1 python benchmarks/same_power.py power                     two and four groups, distance by samples
OMP_NUM_THREADS=1 python benchmarks/same_power.py private                   two groups, rows by epsilon, as CSV
OMP_NUM_THREADS=1 python benchmarks/same_power.py speed                     2 to 10,000 clients
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from same_federations import by_class, deal, dirichlet, mixture, rotated, shifted, signed, swapped

from fedkin.graph import Verdicts, ari, find

PAIRS = ((3, 5), (7, 9), (2, 6), (0, 1), (4, 8))
RING = ((3, 5, 7), (6, 7, 9), (0, 2, 6), (0, 1, 8), (4, 5, 8))


def run(data: Any, seed: int) -> tuple[Verdicts, float, float]:
    begun = time.perf_counter()
    found = signed(data, seed)
    after = time.perf_counter()
    verdicts = find(found, seed=seed)
    return verdicts, (after - begun) / len(data), time.perf_counter() - after


def real(root: str, seeds: int) -> None:
    def one(sizes: Any, name: str) -> Callable[[Any], Any]:
        return lambda rng: (deal(rng, root, sizes, name), np.zeros(len(sizes), dtype=int))

    federations: dict[str, Callable[[Any], Any]] = {
        "MNIST, 4 rotations, 40 x 100": lambda r: rotated(r, root, 40, 100),
        "MNIST, 4 rotations, 40 x 30": lambda r: rotated(r, root, 40, 30),
        "MNIST, 4 rotations, own mask each, 40 x 100": lambda r: rotated(r, root, 40, 100, mask=0.15),
        "MNIST, 2 rotations, 8 x 100": lambda r: rotated(r, root, 8, 100, turns=2),
        "MNIST, labels swapped, 4 groups, 40 x 100": lambda r: swapped(r, root, 40, 100),
        "FashionMNIST, 5 pairs of classes, 100 x 100": lambda r: by_class(r, root, 100, 100, PAIRS, "FashionMNIST"),
        "MNIST, 5 triples of classes in a ring, 100 x 100": lambda r: by_class(r, root, 100, 100, RING),
        "MNIST, Dirichlet .3, 40 x 100": lambda r: dirichlet(r, root, 40, 100, 0.3),
        "MNIST, Dirichlet .1, 40 x 100": lambda r: dirichlet(r, root, 40, 100, 0.1),
        "MNIST, iid, 40 x 100": one([100] * 40, "MNIST"),
        "FashionMNIST, iid, 400 x 50": one([50] * 400, "FashionMNIST"),
    }
    print(f"| federation | ARI, {seeds} seeds | groups | verdicts of clients | ms to sign | s to find |")
    print("|---|---|---|---|---:|---:|")
    for name, make in federations.items():
        scores, counts, kinds, times = [], [], Counter[str](), []
        for seed in range(seeds):
            data, truth = make(np.random.default_rng(seed))
            verdicts, signing, finding = run(data, seed)
            scores.append(
                float(ari(truth, verdicts.labels)) if len(set(truth)) > 1 else float(max(verdicts.labels) == 0)
            )
            counts.append(len(verdicts.verdicts))
            kinds.update(verdicts.verdicts[g] for g in verdicts.labels)
            times.append((1e3 * signing, finding))
        total = sum(kinds.values())
        words = ", ".join(f"{kind} {100 * n / total:.0f} %" for kind, n in kinds.most_common())
        spent = np.mean(times, axis=0)
        listed = " ".join(f"{score:.2f}" for score in scores)
        print(
            f"| {name} | {listed} | {' '.join(map(str, counts))} | {words} | {spent[0]:.1f} | {spent[1]:.2f} |",
            flush=True,
        )


def power(seeds: int) -> None:
    print(f"share of {seeds} federations of 10 clients in which the two planted groups are found exactly (mean ARI)")
    distances = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
    print("| samples | " + " | ".join(f"{d:g}" for d in distances) + " |")
    print("|---:|" + "---|" * len(distances))
    for n in (10, 20, 50, 200, 1000):
        cells = []
        for distance in distances:
            scores = []
            for seed in range(seeds):
                data, truth = shifted(np.random.default_rng([seed, n]), 10, n, distance)
                verdicts = run(data, seed)[0]
                scores.append(float(ari(truth, verdicts.labels)) if distance else float(max(verdicts.labels) == 0))
            cells.append(f"{np.mean(np.array(scores) == 1):.2f} ({np.mean(scores):.2f})")
        print(f"| {n} | " + " | ".join(cells) + " |", flush=True)


def private(seeds: int) -> None:
    """Print rows per client, distance, epsilon (empty: no noise), and the share of federations found exactly."""
    print("rows,distance,epsilon,found,mean_ari,federations")
    for n in (30, 50, 100, 200, 300, 500, 1000, 2000, 5000):
        for distance in (0.2, 0.4, 0.8):
            scores: dict[float | None, list[float]] = {None: [], 16.0: [], 4.0: [], 1.0: []}
            for seed in range(seeds):
                data, truth = shifted(np.random.default_rng([seed, n]), 10, n, distance)
                for epsilon, mine in scores.items():
                    mine.append(float(ari(truth, find(signed(data, seed, epsilon), seed=seed).labels)))
            for epsilon, mine in scores.items():
                share = np.mean(np.array(mine) == 1)
                shown = "" if epsilon is None else f"{epsilon:g}"
                print(f"{n},{distance:g},{shown},{share:.2f},{np.mean(mine):.2f},{seeds}", flush=True)


def speed() -> None:
    print("| clients | samples | planted | groups | ARI | ms to sign | s to find |")
    print("|---:|---|---|---|---|---:|---:|")
    for clients in (2, 10, 100, 1000, 10_000):
        for groups in (1, 10):
            if groups > 1 and clients < 10 * groups:
                continue
            rng = np.random.default_rng(clients)
            data, truth = (
                shifted(rng, clients, 50, 1.5, groups) if groups > 1 else (mixture(rng, [50] * clients), [0] * clients)
            )
            verdicts, signing, finding = run(data, 0)
            score = ari(truth, verdicts.labels)
            print(
                f"| {clients:,} | 50 | {groups} | {len(verdicts.verdicts)} | {score:.3f} | {1e3 * signing:.1f} | "
                f"{finding:.1f} |", flush=True,
            )  # fmt: skip
    sizes = np.exp(np.random.default_rng(0).uniform(np.log(10), np.log(10_000), 300)).astype(int)
    verdicts, signing, finding = run(mixture(np.random.default_rng(0), sizes), 0)
    print(f"| 300 | 10..10,000 | 1 | {len(verdicts.verdicts)} | - | {1e3 * signing:.1f} | {finding:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["real", "power", "private", "speed"])
    parser.add_argument("--data-root")
    parser.add_argument("--seeds", type=int)
    args = parser.parse_args()
    if args.what == "real":
        if args.data_root is None:
            parser.error("real: --data-root: expected the folder of MNIST/raw and FashionMNIST/raw")
        real(args.data_root, args.seeds or 3)
    elif args.what == "power":
        power(args.seeds or 20)
    elif args.what == "private":
        private(args.seeds or 20)
    else:
        speed()


if __name__ == "__main__":
    main()
