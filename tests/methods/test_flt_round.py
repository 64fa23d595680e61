"""Whole rounds of FLT against loops that a person would write from the paper, with nothing of fedkin's method in them.

Shared with the library: the federation, the initial parameters, and which batches a client draws.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.cluster import KMeans

from fedkin.engines import LocalEngine, Setup
from methods.flt_world import grouped, raw, score
from methods.plain_loops import Plain, entropy, initial, logits, plain_training
from support import small_setup, stored

K, GROUPS = 2, 3


def signatures(setup: Setup) -> dict[str, Any]:
    """Algorithm 2, lines 2 to 11, where the encoder only standardises the features: k-means centres of each client."""
    data = {id: stored(client.train).double().numpy() for id, client in setup.federation.items()}
    pooled = np.concatenate(list(data.values()))
    middle, spread = pooled.mean(0), pooled.std(0)
    return {
        id: KMeans(K, n_init=20, random_state=0).fit((x - middle) / spread).cluster_centers_ for id, x in data.items()
    }


def relatedness(centres: dict[str, Any], distance: str, soft: bool) -> tuple[dict[Any, float], dict[str, int]]:
    """Lines 15 to 19: the weight of every pair, and groups by Ward's hierarchy. soft: exp(-(d / gamma)^2), ours."""
    ids = sorted(centres)
    apart = {}
    for one in ids:
        for other in ids:
            u, v = centres[one], centres[other]
            if one == other:
                apart[one, other] = 0.0
            elif distance == "min":
                apart[one, other] = min(float(np.linalg.norm(a - b)) for a in u for b in v)
            else:
                totals = [
                    sum(float(((u[r] - v[s]) ** 2).sum()) for r, s in enumerate(pi)) for pi in permutations(range(K))
                ]
                apart[one, other] = np.sqrt(min(totals)) / K
    table = np.array([[apart[one, other] for other in ids] for one in ids])
    labels = hierarchy.cut_tree(hierarchy.linkage(squareform(table, checks=False), "ward"), [GROUPS]).ravel()
    group = dict(zip(ids, labels.tolist(), strict=True))
    # gamma = "groups": halfway between the mean distance inside groups and the mean distance to the nearest other one.
    inside = [apart[a, b] for a in ids for b in ids if a != b and group[a] == group[b]]
    outside = []
    for id in ids:
        own = [other for other in ids if group[other] == group[id]]
        means = []
        for number in set(group.values()) - {group[id]}:
            members = [other for other in ids if group[other] == number]
            means.append(np.mean([apart[a, b] for a in own for b in members]))
        outside.append(min(means))
    gamma = (np.mean(inside) + np.mean(outside)) / 2
    weight = {pair: np.exp(-((d / gamma) ** 2)) if soft else float(d < gamma) for pair, d in apart.items()}
    return weight, group


def mean(models: list[Plain], weights: list[float]) -> Plain:
    """sum of weights times models over the sum of weights, in double precision."""
    made: Plain = {}
    for name in models[0]:
        total = torch.zeros_like(models[0][name], dtype=torch.float64)
        for model, weight in zip(models, weights, strict=True):
            total = total + weight * model[name].double()
        made[name] = (total / sum(weights)).to(models[0][name].dtype)
    return made


def round_by_hand(
    setup: Setup, number: int, sampled: list[str], held: dict[str, Plain], case: str, stale: bool, distance: str
) -> dict[str, Plain]:
    """Algorithm 3, lines 4 to 20: every client's model after the round."""
    weight, group = relatedness(signatures(setup), distance, case == "soft")
    came = {
        id: plain_training(setup, id, number, held[id], lambda p, x, y: entropy(logits(p, x.double()), y))
        for id in sampled
    }
    new = {}
    for m in held:
        models, weights = [], []
        for j in held:
            a_mj = float(group[m] == group[j]) if case == "groups" else weight[m, j]
            if j == m:
                a_mj = 1.0
            if (j in came or stale) and a_mj > 0:
                models.append(came.get(j, held[j]))
                weights.append(a_mj * setup.federation[j].size)
        new[m] = mean(models, weights) if models else held[m]
    return new


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("distance", ["matching", "min"])
@pytest.mark.parametrize("case", ["groups", "hard", "soft"])
@pytest.mark.parametrize("seed", [0])
def test_two_rounds_are_the_papers(case: str, distance: str, stale: bool, seed: int) -> None:
    federation = grouped(11)
    method = raw(
        GROUPS, k=K, average="groups" if case == "groups" else "neighbours", stale=stale,
        graph={"distance": distance, "adjacency": "soft" if case == "soft" else "hard"},
    )  # fmt: skip
    setup = small_setup(method, federation, torch.float64, seed=seed, clients_per_round=4)
    engine = LocalEngine(setup)
    held = {id: initial(setup) for id in federation}
    for number in (1, 2):
        outcome = engine.round(number)
        assert 0 < len(outcome.sampled) < len(federation)
        held = round_by_hand(setup, number, list(outcome.sampled), held, case, stale, distance)
        for id, expected in held.items():
            found = engine.model(id)
            for name, tensor in expected.items():
                torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)
        if outcome.graph is not None:
            assert score(dict(outcome.graph.groups or {}), federation) == 1.0
    assert any(not torch.equal(held[id]["head.bias"], initial(setup)["head.bias"]) for id in held)
