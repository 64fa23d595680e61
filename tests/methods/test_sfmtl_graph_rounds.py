"""Two whole rounds of SFMTL-Graph against a plain loop: unequal sizes, unequal classes, a client that is not sampled.

None of the method's code is used: training, anchors, similarities (7-10), communities (12), anchors (14), heads (15).
Communities are the partition of greatest modularity among all partitions of the sampled clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.engines import LocalEngine, Setup
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.keys import rng
from fedkin.learning import Net, Training
from fedkin.methods.sfmtl_graph import SfmtlGraph
from support import stored

SEED, CLASSES, WIDTH = 3, 6, 4
ALPHA, LAM, WEIGHT, RATE = 0.4, 0.6, 0.05, 0.5
TRAINING = Training(clients_per_round=5, local_steps=6, batch_size=7, lr=0.1)
OWNED = {
    "oak": {0: 14, 1: 9}, "pine": {0: 20, 1: 31}, "rowan": {0: 8, 2: 11},
    "sorb": {3: 12, 4: 25}, "teak": {3: 30, 4: 6, 5: 9}, "yew": {4: 17, 5: 10},
}  # fmt: skip

Plain = dict[str, Tensor]


def federation() -> Federation:
    draw = np.random.default_rng(1)
    places = draw.normal(size=(CLASSES, 5)) * 3
    clients = []
    for id, counts in OWNED.items():
        y = np.repeat(list(counts), list(counts.values()))
        x = (places[y] + draw.normal(size=(len(y), 5))).astype(np.float32)
        samples = Samples(torch.from_numpy(x), torch.from_numpy(y))
        clients.append(Client(id, samples, samples))
    return Federation(clients, Task(CLASSES, (5,)), "classes")


def net() -> Net:
    def make() -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh()), nn.Linear(WIDTH, CLASSES)

    return Net.build(make, 8, torch.float64)


def features(w: Plain, x: Tensor) -> Tensor:
    return torch.tanh(x.double() @ w["body.0.weight"].T + w["body.0.bias"])


def outputs(w: Plain, z: Tensor) -> Tensor:
    return z @ w["head.weight"].T + w["head.bias"]


def trained(w: Plain, anchors: dict[int, Tensor], client: Client, number: int, kind: str) -> tuple[Plain, Any]:
    """(the model, the anchor of each class seen) after the local steps on Eq. (6)."""
    x, y, anchors = stored(client.train), client.train.y, dict(anchors)
    draw = rng(SEED, client.id, number, "train.fit0")
    draw.integers(2**63)
    for rows in TRAINING.batches(len(y), draw):
        leaf = {name: tensor.clone().requires_grad_() for name, tensor in w.items()}
        z = features(leaf, x[rows])
        total = F.cross_entropy(outputs(leaf, z), y[rows], reduction="sum")
        for feature, label in zip(z, y[rows].tolist(), strict=True):
            if label in anchors:
                total = total + WEIGHT * (feature - anchors[label]).square().sum()
        torch.autograd.backward(total / len(rows))
        if kind == "exponential":
            for label in set(y[rows].tolist()):
                mean = z.detach()[y[rows] == label].mean(0)
                anchors[label] = RATE * mean + (1 - RATE) * anchors[label] if label in anchors else mean
        w = {name: t.detach() - TRAINING.lr * t.grad for name, t in leaf.items() if t.grad is not None}
    if kind == "mean":
        z = features(w, x)
        anchors = {label: z[y == label].mean(0) for label in set(y.tolist())}
    return w, anchors


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def affinity(models: list[Plain], anchors: list[dict[int, Tensor]], match: str) -> Any:
    """Eq. (7-10), pair by pair."""
    n = len(models)
    a = np.zeros((n, n))
    for k in range(n):
        for j in range(n):
            both = set(anchors[k]) & set(anchors[j])
            classes = both if match == "shared" else set(anchors[k]) | set(anchors[j])
            if k == j or not classes:
                continue
            heads = []
            for label in sorted(classes):
                own = [side[label] for side in (anchors[k], anchors[j]) if label in side]
                heads.append(np.mean([cosine(outputs(models[k], h), outputs(models[j], h)) for h in own]))
            same = sum(cosine(anchors[k][label], anchors[j][label]) for label in both) / len(classes)
            a[k, j] = max(0.0, ALPHA * np.mean(heads) + (1 - ALPHA) * same)
    return a


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for k, group in enumerate(smaller):
            yield [*smaller[:k], [first, *group], *smaller[k + 1 :]]


def communities(a: Any) -> list[list[int]]:
    """The partition of greatest modularity, Eq. (12), which has to be greatest by far."""
    graph = nx.from_numpy_array(a)
    scored = [(nx.community.modularity(graph, map(set, groups)), groups) for groups in partitions(list(range(len(a))))]
    scored.sort(key=lambda entry: entry[0])
    assert scored[-1][0] > scored[-2][0] + 1e-3
    return scored[-1][1]


@pytest.mark.parametrize("kind", ["exponential", "mean"])
@pytest.mark.parametrize("match", ["union", "shared"])
def test_two_rounds_are_the_plain_loop(kind: str, match: str) -> None:
    data = federation()
    method = SfmtlGraph(
        alpha=ALPHA, lam=LAM, anchor_weight=WEIGHT, anchors=kind, anchor_rate=RATE, graph={"match": match}
    )
    engine = LocalEngine(Setup(method, data, net(), TRAINING, SEED))
    models = {id: dict(net().initial) for id in data}
    kept: dict[str, dict[int, Tensor]] = {id: {} for id in data}
    moved = []
    for number in (1, 2):
        outcome = engine.round(number)
        ids = sorted(outcome.sampled)
        assert len(ids) == 5
        for id in ids:
            models[id], kept[id] = trained(models[id], kept[id], data[id], number, kind)
        sent, anchors = [models[id] for id in ids], [kept[id] for id in ids]
        a = affinity(sent, anchors, match)
        groups = communities(a)
        assert sorted(map(len, groups)) == [2, 3]
        for group in groups:
            for k in group:
                other = [(a[k, j], sent[j]) for j in group]
                step = {
                    name: sum((w * (sent[k][name] - theirs[name]) for w, theirs in other), torch.zeros(()).double())
                    for name in ("head.weight", "head.bias")
                }
                rate = LAM * TRAINING.lr * 6
                models[ids[k]] = {**sent[k], **{name: sent[k][name] - rate * t for name, t in step.items()}}
                moved.append(float(step["head.weight"].norm()))
                kept[ids[k]] = {}
                for label in anchors[k]:
                    owners = [j for j in group if label in anchors[j]]
                    total = sum(data[ids[j]].size for j in owners)
                    kept[ids[k]][label] = sum(
                        (data[ids[j]].size / total * anchors[j][label] for j in owners), torch.zeros(()).double()
                    )
        graph = outcome.graph
        assert graph is not None
        assert graph.ids == tuple(ids)
        assert graph.groups is not None
        np.testing.assert_allclose(np.asarray(graph.weights), a, atol=1e-9)
        for group in groups:
            assert all(graph.groups[ids[k]] == graph.groups[ids[j]] for k, j in pairwise(group))
        assert len(set(graph.groups.values())) == len(groups)
        for id in data:
            for name, tensor in models[id].items():
                torch.testing.assert_close(engine.model(id)[name], tensor, rtol=1e-8, atol=1e-10)
    assert min(moved) > 0.01
