"""SFMTL-Graph against its equations, and its graph stages against their controls."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.engines import LocalEngine, Setup
from fedkin.errors import ConfigError
from fedkin.federation import Change, Client, Federation, Task
from fedkin.keys import rng
from fedkin.learning import Net, Training
from fedkin.learning.net import body_of, head_of
from fedkin.methods.sfmtl_graph import SfmtlGraph, community_bodies
from methods.plain_loops import classes_federation, cosine, partitions
from support import Watched, after, present, same, samples_of, small_setup, stored


def test_only_heads_anchors_owned_classes_and_counts_travel() -> None:
    federation = classes_federation([(0, 1), (2, 5)], [12] * 2)
    engine = Watched(small_setup(SfmtlGraph(), federation))
    outcome = engine.round(1)
    up = list(engine.replies("train").values())
    assert len(up) == 2
    for message in up:
        assert set(message) == {"head", "anchors", "classes", "n"}
        assert set(message["head"]) == {"head.weight", "head.bias"}
        assert message["anchors"].shape == (2, 7)
        assert message.floats == 6 * 7 + 6 + 2 * 7
    assert sorted(tuple(message["classes"]) for message in up) == [(0, 1), (2, 5)]
    assert {m.phase for m in outcome.traffic if m.receiver == "server"} == {"train"}
    assert {m.phase for m in outcome.traffic if m.sender == "server"} == {"update"}


@pytest.mark.parametrize("anchors", ["exponential", "mean"])
def test_a_client_whose_classes_changed_sends_the_anchors_of_its_new_ones(anchors: str) -> None:
    before, after_change = (
        classes_federation([(0, 1), (2, 5)], [12] * 2),
        classes_federation([(1, 3), (2, 5)], [12] * 2),
    )
    id = min(before)
    moved = replace(before[id], changes=(Change(2, after_change[id].train, after_change[id].test),))
    engine = Watched(small_setup(SfmtlGraph(anchors=anchors), Federation([moved, before[max(before)]], before.task)))
    for round, classes in ((1, (0, 1)), (2, (1, 3))):
        engine.round(round)
        sent = engine.replies("train")[id]
        assert tuple(sent["classes"]) == classes
        assert len(sent["anchors"]) == len(classes)


def test_an_empty_graph_moves_no_head_whatever_lambda() -> None:
    strong = SfmtlGraph(lam=5.0, anchor_weight=0.0, graph={"control": "self"})
    still = SfmtlGraph(lam=0.0, anchor_weight=0.0)
    assert same(*(after(method, 2)[0].models() for method in (strong, still)))


# -- two whole rounds against a plain loop: unequal sizes and classes, a client that is not sampled ---


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
        samples = samples_of(places[y] + draw.normal(size=(len(y), 5)), y)
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
                heads.append(np.mean([float(cosine(outputs(models[k], h), outputs(models[j], h))) for h in own]))
            same = sum(float(cosine(anchors[k][label], anchors[j][label])) for label in both) / len(classes)
            a[k, j] = max(0.0, ALPHA * np.mean(heads) + (1 - ALPHA) * same)
    return a


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
        graph = present(outcome.graph)
        assert graph.ids == tuple(ids)
        np.testing.assert_allclose(np.asarray(graph.weights), a, atol=1e-9)
        found = present(graph.groups)
        for group in groups:
            assert all(found[ids[k]] == found[ids[j]] for k, j in pairwise(group))
        assert len(set(found.values())) == len(groups)
        for id in data:
            torch.testing.assert_close(dict(engine.model(id)), models[id], rtol=1e-8, atol=1e-10)
    assert min(moved) > 0.01


# -- SFMTL-Graph's `share`: bodies along the graph, as means inside communities ---


ORACLE = {"control": "oracle", "groups": "components"}


def watched(share: str, rounds: int = 3, federation: Any = None, graph: Any = None, **settings: Any) -> Watched:
    method = SfmtlGraph(lam=0.3, anchor_weight=0.01, share=share, graph=graph or {})
    return Watched(small_setup(method, federation, **settings)).rounds(rounds)


def test_bodies_are_the_communitys_mean_weighted_by_samples() -> None:
    run = watched("model", graph=ORACLE)
    replies = run.replies("train")
    planted = present(run.federation.planted)
    for id in run.federation:
        members = sorted(other for other in replies if planted[other] == planted[id])
        n = sum(replies[other]["n"] for other in members)
        for name, tensor in body_of(run.model(id)).items():
            mean = sum(
                (replies[o]["body"][name].double() * replies[o]["n"] / n for o in members), torch.zeros(()).double()
            )
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)


def test_sharing_the_head_leaves_bodies_and_sharing_the_body_leaves_heads() -> None:
    head, body, model = (watched(share, 1, graph=ORACLE) for share in ("head", "body", "model"))
    for id in head.federation:
        sent = body.replies("train")[id]
        assert same(head_of(body.model(id)), sent["head"])
        assert same(body_of(head.model(id)), sent["body"])
        assert "body" not in head.replies("train")[id]
        # After one round the model is the body of one and the head of the other.
        both = {**head_of(head.model(id)), **body_of(body.model(id))}
        assert same(model.model(id), both)


@pytest.mark.parametrize("share", ["head", "body", "model"])
def test_without_edges_all_three_are_the_same(share: str) -> None:
    assert same(*(watched(each, graph={"control": "self"}).engine.models() for each in (share, "head")))


@pytest.mark.parametrize("share", ["body", "model"])
def test_a_dropped_client_keeps_its_body_and_is_in_no_mean(share: str) -> None:
    run = watched(share, 1, graph=ORACLE)
    lost = sorted(run.federation)[0]
    before = dict(run.model(lost))
    run.lose = lambda phase, id: phase == "train" and id == lost
    run.round(2)
    replies, planted = run.replies("train"), present(run.federation.planted)
    assert lost not in replies
    members = [id for id in replies if planted[id] == planted[lost]]
    means = community_bodies({id: replies[id] for id in members}, np.zeros(len(members), dtype=np.int64))
    for id, mean in zip(members, means, strict=True):
        assert same(mean, body_of(run.model(id)))
    # It trained, and took nothing from others.
    assert not same(run.model(lost), before)


# -- SFMTL-Graph with more clients than a matrix of all pairs is made for, on few clients with a low limit ---


LARGEST = "fedkin.methods.blocks.stage_settings.LARGEST"


def in_groups(clients: int, seed: int = 0, classes: int = 4) -> Federation:
    """Clients of three groups, which have other places for the same classes; some clients lack a class."""
    rng = np.random.default_rng(seed)
    places = 2 * rng.normal(size=(3, classes, 6))
    made = []
    for number in range(clients):
        group = int(rng.integers(3))
        y = np.concatenate([np.arange(classes - int(rng.integers(2))), rng.integers(classes - 1, size=8)])
        samples = samples_of(places[group, y] + 0.4 * rng.normal(size=(len(y), 6)), y)
        made.append(Client(f"client-{number:03d}", samples, samples, group=f"g{group}"))
    return Federation(made, Task(classes, (6,)))


@pytest.mark.slow
@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(
    clients=st.integers(3, 14),
    seed=st.integers(0, 5),
    similarity=st.sampled_from(["both", "heads", "anchors"]),
    match=st.sampled_from(["union", "shared", "rows"]),
    sparsify=st.sampled_from(["none", "knn:3", "mutual:3", "epsilon:0.5"]),
)
def test_with_complete_neighbours_it_is_the_matrix_of_all_pairs(
    clients: int, seed: int, similarity: str, match: str, sparsify: str
) -> None:
    federation = in_groups(clients, seed)
    method = SfmtlGraph(lam=0.3, graph={"similarity": similarity, "match": match, "sparsify": sparsify})
    one, dense = after(method, 1, federation, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LARGEST, 2)
        other, sparse = after(method, 1, federation, dtype=torch.float64)
    assert isinstance(sparse.graph.weights, sp.csr_array)
    np.testing.assert_allclose(sparse.graph.weights.toarray(), np.asarray(dense.graph.weights), atol=1e-12)
    assert sparse.graph.groups == dense.graph.groups
    for id in federation:
        torch.testing.assert_close(dict(one.model(id)), dict(other.model(id)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("stage", "kind"), [("groups", "hierarchical:2"), ("similarity", "rbf"), ("sparsify", "gamma:auto")]
)
def test_what_compares_all_pairs_is_refused(stage: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LARGEST, 8)
    engine = Watched(small_setup(SfmtlGraph(graph={stage: kind}), in_groups(12)))
    with pytest.raises(ConfigError, match=f"method.graph.{stage}: 12 clients in a round"):
        engine.round(1)
    assert not engine.asks  # nobody trained for nothing
