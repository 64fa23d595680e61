"""SFMTL-Graph's Table I and Figure 4 from the records of a run: communities, weights and anchors by common classes.

    python benchmarks/sfmtl_communities.py RUN [RUN ...] [--rounds 50,100,150,200]

RUN: folder of a run on the scenario classes-per-client. Those of docs/methods/sfmtl-graph.md, for seeds 0 to 2, are of

    fedkin run cifar10-two-classes --seed 0 --set model.name=small-plain --set training.lr=0.0615 --set run.mode=fast \\
        --set method.anchor_weight= --set run.evaluate_every=50 --set run.embeddings_every=50

A line for each round: the number of communities of the sampled clients; the mean weight of pairs with 2, 1 and 0
classes in common; how many pairs with equal classes are in one community; and how many of the other pairs are. With
`run.embeddings_every` also, over all clients: the mean cosine of the anchors of one class, for pairs with 2 and with 1
class in common; that of different classes, for pairs with 1 class in common; and the correlation of the similarities of
anchors (Eq. 10) and heads (Eq. 8) over pairs.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np

from fedkin.analysis import read_features


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


def of_anchors(folder: Path, round: int) -> list[str]:
    """Return the cells of a round's line that compare anchors; none without a record of them."""
    path = folder / "features" / f"round-{round:06d}.safetensors"
    if not path.exists():
        return []
    kept = read_features(path)
    cloud, heads = kept.anchors, kept.heads
    assert cloud is not None
    assert heads is not None
    unit = cloud.points / np.linalg.norm(cloud.points, axis=1, keepdims=True)
    anchors: dict[int, dict[int, np.ndarray]] = {}
    for client, label, point in zip(cloud.client.tolist(), cloud.label.tolist(), unit, strict=True):
        anchors.setdefault(client, {})[label] = point
    same: dict[int, list[float]] = {1: [], 2: []}
    different, by_anchors, by_heads = [], [], []
    for i, j in combinations(range(len(kept.ids)), 2):
        cosine = {(a, b): float(anchors[i][a] @ anchors[j][b]) for a in anchors[i] for b in anchors[j]}
        common = [value for (a, b), value in cosine.items() if a == b]
        if common:
            same[len(common)].append(float(np.mean(common)))
        if len(common) == 1:
            different.append(np.mean([value for (a, b), value in cosine.items() if a != b]))
        by_anchors.append(sum(common) / len(anchors[i].keys() | anchors[j].keys()))
        by_heads.append(heads[i, j])
    agree = np.corrcoef(by_anchors, by_heads)[0, 1]
    return [f"{np.mean(values):.3f}" for values in (same[2], same[1], different, agree)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--rounds", default="50,100,150,200")
    given = parser.parse_args()
    print("round communities weight:2 1 0 equal-together others-together anchors:2 1 different anchors-heads")
    for folder in given.run:
        for round in map(int, given.rounds.split(",")):
            print(*of_round(folder, round), *of_anchors(folder, round), folder.name, sep="  ")


if __name__ == "__main__":
    main()
