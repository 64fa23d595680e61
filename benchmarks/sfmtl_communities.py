"""SFMTL-Graph's Table I and Figure 4 from the records of a run: communities, and weights by classes in common.

    python benchmarks/sfmtl_communities.py RUN [RUN ...] [--rounds 50,100,150,200]

RUN: folder of a run on the scenario classes-per-client. A line for each round: the number of communities of the sampled
clients; the mean weight of pairs with 2, 1 and 0 classes in common; how many pairs with equal classes are in one
community; and how many of the other pairs are.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np


def of_round(folder: Path, round: int) -> list[str]:
    """Return the cells of a round's line."""
    clients = json.loads((folder / "federation.json").read_text())["clients"]
    with np.load(folder / "graphs" / f"round-{round:06d}.npz") as graph:
        ids, weights, groups = graph["ids"], graph["weights"], graph["groups"]
    owned = [set(clients[id]["about"]["classes"]) for id in ids]
    pairs = list(combinations(range(len(ids)), 2))
    common = np.array([len(owned[i] & owned[j]) for i, j in pairs])
    weight = np.array([weights[i, j] for i, j in pairs])
    together = np.array([groups[i] == groups[j] for i, j in pairs])
    means = [f"{weight[common == n].mean():.2f}" if (common == n).any() else "-" for n in (2, 1, 0)]
    inside = [f"{together[kind].sum()} of {kind.sum()}" for kind in (common == 2, common < 2)]
    return [str(round), str(len(set(groups.tolist()))), *means, *inside]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--rounds", default="50,100,150,200")
    given = parser.parse_args()
    print("round communities weight:2 1 0 equal-together others-together")
    for folder in given.run:
        for round in map(int, given.rounds.split(",")):
            print(*of_round(folder, round), folder.name, sep="  ")


if __name__ == "__main__":
    main()
