"""SFMTL-Graph against its equations, and its graph stages against their controls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.flow import Message
from fedkin.learning import Batch, Net
from fedkin.learning.net import head_of
from fedkin.methods.blocks.mixing import mixed
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import AnchoredCrossEntropy, SfmtlGraph, community_anchors
from fedkin.settings import parse
from support import Watched, small_federation, small_setup


def two_class_federation(sets: list[tuple[int, int]], per_class: int = 12) -> Federation:
    """One client per pair of classes, out of six; each class is a place in the plane."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(6, 8)) * 3
    clients = []
    for number, classes in enumerate(sets):
        y = np.repeat(classes, per_class)
        x = (places[y] + rng.normal(size=(len(y), 8))).astype(np.float32)
        samples = Samples(torch.from_numpy(x), torch.from_numpy(y))
        clients.append(Client(f"client-{number}", samples, samples, group="+".join(map(str, classes))))
    return Federation(clients, Task(6, (8,)))


def graph_after(method: SfmtlGraph, federation: Federation, rounds: int = 15, **training: Any) -> Any:
    engine = Watched(small_setup(method, federation, **training))
    outcome = None
    for number in range(1, rounds + 1):
        outcome = engine.round(number)
    assert outcome is not None
    return outcome.graph


@pytest.mark.parametrize("match", ["union", "shared"])
def test_weights_separate_two_one_and_no_classes_in_common(match: str) -> None:
    federation = two_class_federation([(0, 1), (0, 1), (0, 2), (3, 4), (3, 4)])
    graph = graph_after(SfmtlGraph(graph={"match": match}), federation)
    assert graph.ids == tuple(f"client-{k}" for k in range(5))
    weights = np.asarray(graph.weights)
    assert np.array_equal(weights, weights.T)
    assert (weights >= 0).all()
    assert not weights.diagonal().any()
    two, one, none = weights[0, 1], weights[0, 2], weights[0, 3]
    assert two > 0.8
    assert none < 0.25
    assert none < one < two or match == "shared"
    assert graph.groups["client-0"] == graph.groups["client-1"] != graph.groups["client-3"]
    assert graph.groups["client-3"] == graph.groups["client-4"]


def test_only_heads_anchors_owned_classes_and_counts_travel() -> None:
    federation = two_class_federation([(0, 1), (2, 5)])
    setup = small_setup(SfmtlGraph(), federation)
    engine = Watched(setup)
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


def test_the_papers_upload_is_6154_floats() -> None:
    head = Net.build(lambda: (torch.nn.Flatten(), torch.nn.Linear(512, 10)), 0).initial
    message = Message(head=head_of(head), anchors=torch.zeros(2, 512), classes=[0, 7], n=1140)
    assert message.floats == 6154


def test_lambda_zero_is_local_training() -> None:
    """Without pull and without anchors, every client is as if it were alone."""
    one = Watched(small_setup(SfmtlGraph(lam=0.0)))
    other = Watched(small_setup(Local()))
    for number in (1, 2, 3):
        one.round(number)
        other.round(number)
    for id in one.federation:
        for name, tensor in one.model(id).items():
            torch.testing.assert_close(tensor, other.model(id)[name], rtol=1e-6, atol=1e-7)


def test_an_empty_graph_moves_no_head_whatever_lambda() -> None:
    strong = SfmtlGraph(lam=5.0, anchor_weight=0.0, graph={"control": "self"})
    still = SfmtlGraph(lam=0.0, anchor_weight=0.0)
    one, other = Watched(small_setup(strong)), Watched(small_setup(still))
    for number in (1, 2):
        one.round(number)
        other.round(number)
    for id in one.federation:
        assert all(torch.equal(t, other.model(id)[name]) for name, t in one.model(id).items())


def test_a_complete_graph_of_weight_1_and_a_step_of_1_over_n_give_all_clients_the_mean_head() -> None:
    """And every body is as in local training: only heads are mixed."""
    small = small_federation()
    federation = Federation([replace(client, group="one") for client in small.values()], small.task)
    method = SfmtlGraph(
        lam=1.0, anchor_weight=0.0, tau=1 / len(federation), graph={"control": "oracle", "groups": "single"}
    )
    engine, alone = (Watched(small_setup(m, federation, dtype=torch.float64)) for m in (method, Local()))
    graph = engine.round(1).graph
    alone.round(1)
    assert graph is not None
    assert np.array_equal(np.asarray(graph.weights), 1 - np.eye(len(federation)))
    local = [alone.model(id) for id in federation]
    mean = {name: torch.stack([model[name] for model in local]).mean(0) for name in head_of(local[0])}
    for id in federation:
        for name, tensor in engine.model(id).items():
            torch.testing.assert_close(tensor, mean[name] if name in mean else alone.model(id)[name])
        assert not torch.allclose(alone.model(id)["head.weight"], mean["head.weight"], atol=1e-3)


@given(st.integers(2, 6), st.floats(0, 0.5), st.integers(0, 99))
def test_head_update_is_equation_15(count: int, rate: float, seed: int) -> None:
    from fedkin import graph

    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((count, count)), 1)
    weights, labels = upper + upper.T, rng.integers(0, 2, count)
    heads = [{"head.weight": torch.from_numpy(rng.normal(size=(3, 2)))} for _ in range(count)]
    new = mixed(heads, np.asarray(graph.laplacian_step(weights, labels, rate)))
    for k in range(count):
        want = heads[k]["head.weight"].clone()
        for other in range(count):
            if labels[other] == labels[k]:
                want -= rate * weights[k, other] * (heads[k]["head.weight"] - heads[other]["head.weight"])
        torch.testing.assert_close(new[k]["head.weight"], want)


def test_community_anchors_are_equation_14_over_the_members_that_own_the_class() -> None:
    replies = [
        Message(anchors=torch.tensor([[1.0], [2.0]]), classes=[0, 3], n=10),
        Message(anchors=torch.tensor([[5.0]]), classes=[3], n=30),
        Message(anchors=torch.tensor([[9.0]]), classes=[3], n=99),
    ]
    new = community_anchors(replies, np.array([0, 0, 1]), classes=4)
    assert new[0].tolist() == [[1.0], [(10 * 2 + 30 * 5) / 40]]
    assert new[1].tolist() == [[(10 * 2 + 30 * 5) / 40]]
    assert new[2].tolist() == [[9.0]]


def test_anchored_loss_against_a_slow_twin() -> None:
    rng = np.random.default_rng(0)
    net = Net.build(lambda: (torch.nn.Linear(5, 3), torch.nn.Linear(3, 4)), 1, torch.float64)
    model = net.scratch()
    x, y = torch.from_numpy(rng.normal(size=(6, 5))), torch.tensor([0, 0, 2, 3, 2, 0])
    anchors, known = torch.from_numpy(rng.normal(size=(4, 3))), torch.tensor([True, False, True, False])
    batch = Batch(x, y, torch.ones(6, dtype=torch.float64))
    value, carry = AnchoredCrossEntropy(0.7, 0.25)(model, batch, {}, {"anchors": anchors, "known": known})
    value = value.detach()
    with torch.no_grad():
        z = model.features(x)
        logits = model.head(z)
    total = 0.0
    for i in range(6):
        total += float(torch.nn.functional.cross_entropy(logits[i : i + 1], y[i : i + 1]))
        if known[y[i]]:
            total += 0.7 * float(((z[i] - anchors[y[i]]) ** 2).sum())
    assert float(value) == pytest.approx(total / 6)
    torch.testing.assert_close(carry["anchors"][0], 0.75 * anchors[0] + 0.25 * z[y == 0].mean(0))
    torch.testing.assert_close(carry["anchors"][3], z[3])
    assert torch.equal(carry["anchors"][1], anchors[1])
    assert carry["known"].tolist() == [True, False, True, True]


def test_exact_class_means() -> None:
    federation = two_class_federation([(0, 1), (2, 3)])
    engine = Watched(small_setup(SfmtlGraph(anchors="mean", lam=0.0, graph={"groups": "alone"}), federation))
    engine.round(1)
    for id, client in federation.items():
        module = engine.server.net.scratch()
        from fedkin.learning.sgd import infer

        z = infer(engine.server.net, module, engine.model(id), "features", client.train)
        sent = engine.replies("train")[id]
        assert sent["classes"] == sorted(set(client.train.labels().tolist()))
        for label, anchor in zip(sent["classes"], sent["anchors"], strict=True):
            torch.testing.assert_close(anchor, z[client.train.labels() == label].mean(0))


@pytest.mark.parametrize(
    ("control", "expected"),
    [("oracle", {"found": 2, "across": 0.0}), ("self", {"found": 6, "across": 0.0}), ("uniform", {"found": 1})],
)
def test_control_graphs_replace_the_graph(control: str, expected: dict[str, Any]) -> None:
    federation = small_federation()
    graph = graph_after(SfmtlGraph(graph={"control": control}), federation, rounds=2)
    assert len(set(graph.groups.values())) == expected["found"]
    if "across" in expected:
        planted = federation.planted
        assert planted is not None
        for i, one in enumerate(graph.ids):
            for j, other in enumerate(graph.ids):
                if planted[one] != planted[other]:
                    assert np.asarray(graph.weights)[i, j] == expected["across"]


@pytest.mark.parametrize("control", ["random", "uniform", "oracle", "shuffled", "self"])
def test_control_graphs_change_nothing_else(control: str) -> None:
    """Sampling and local training of the first round are those of the learned graph, bit for bit: bodies show it."""
    plain, controlled = (
        Watched(small_setup(SfmtlGraph(lam=0.4, anchor_weight=0.01, graph={"control": name}), clients_per_round=5))
        for name in ("none", control)
    )
    sampled = plain.round(1).sampled
    assert sampled == controlled.round(1).sampled
    moved = []
    for id in sampled:
        one, other = plain.model(id), controlled.model(id)
        same = {name: torch.equal(tensor, other[name]) for name, tensor in one.items()}
        assert all(same[name] for name in one if name.startswith("body."))
        moved.append(not same["head.weight"])
    assert any(moved)


def test_an_unknown_stage_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"method\.graph\.groups: .*louvian.*did you mean 'louvain'"):
        parse(SfmtlGraph, {"graph": {"groups": "louvian"}}, "method")
    with pytest.raises(ConfigError, match=r"method\.graph\.control: .*randm.*did you mean 'random'"):
        parse(SfmtlGraph, {"graph": {"control": "randm"}}, "method")
    with pytest.raises(ConfigError, match=r"method\.graph\.similarity: .*hands.*, or both, heads, anchors"):
        parse(SfmtlGraph, {"graph": {"similarity": "hands"}}, "method")
