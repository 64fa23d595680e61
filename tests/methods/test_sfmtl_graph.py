"""SFMTL-Graph against its equations, and its graph stages against their controls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.flow import Message
from fedkin.learning import Net
from fedkin.learning.net import head_of
from fedkin.methods.sfmtl_graph import SfmtlGraph
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


def test_an_empty_graph_moves_no_head_whatever_lambda() -> None:
    strong = SfmtlGraph(lam=5.0, anchor_weight=0.0, graph={"control": "self"})
    still = SfmtlGraph(lam=0.0, anchor_weight=0.0)
    one, other = Watched(small_setup(strong)), Watched(small_setup(still))
    for number in (1, 2):
        one.round(number)
        other.round(number)
    for id in one.federation:
        assert all(torch.equal(t, other.model(id)[name]) for name, t in one.model(id).items())


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
