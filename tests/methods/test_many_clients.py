"""FedU and TFL with more clients than a matrix of all pairs is made for, on few clients with a low limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin import graph as g
from fedkin.errors import ConfigError
from fedkin.methods.fedu import FedU
from fedkin.methods.flt_same import FltSame
from fedkin.methods.tfl import Tfl, Topology, learned
from methods.flt_world import grouped, member, raw
from support import after


@pytest.fixture(autouse=True)
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.methods.blocks.stage_settings.LARGEST", 8)


def vectors(n: int, seed: int = 0) -> tuple[list[Any], Any]:
    """Vectors in three groups, and these groups."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    x = rng.normal(size=(3, 12))[labels] + 0.2 * rng.normal(size=(n, 12))
    return [torch.from_numpy(row) for row in x], labels


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (FedU(neighbours="all"), "method.neighbours: 'all' compares all pairs of 12 clients.*take 'answered'"),
        (Tfl(), "method.graph compares all pairs of 12 clients.*set method.graph.clusters"),
        (FltSame(average="neighbours"), "method.average: 'neighbours' compares all pairs of 12 clients"),
        (raw(graph={"control": "random"}), "method.graph.control: 'random' compares all pairs of 12 clients"),
    ],
)
def test_all_pairs_of_too_many_are_refused_before_the_run_with_the_clients_that_come_later(
    method: Any, said: str
) -> None:
    late = [member(30 + number, "abc"[number % 3], joins=3) for number in range(6)]
    with pytest.raises(ConfigError, match=said):
        method.check(grouped(6, extra=late))
    method.check(grouped(8))


def test_too_many_answers_of_a_round_are_refused() -> None:
    with pytest.raises(ConfigError, match="let fewer clients take part in a round"):
        after(FedU(), 1, grouped(12))
    after(FedU(), 1, grouped(12), clients_per_round=8)


def test_tfl_joins_clusters_of_very_many_clients() -> None:
    x, labels = vectors(60)
    clusters = learned(x, Topology(clusters=3))
    assert g.ari(labels, clusters.clusters) == 1
    Tfl(graph={"clusters": 3}).check(grouped(12))


def test_betweenness_of_many_is_estimated_from_some_and_from_all_it_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = vectors(60)
    how = Topology(similarity="cosine", epsilon=0.0)
    monkeypatch.setattr("fedkin.methods.tfl.LARGEST_EXACT", 59)
    for sources, exact in ((40, False), (60, True)):
        monkeypatch.setattr("fedkin.methods.tfl.SOURCES", sources)
        one, two = learned(x, how, seed=1), learned(x, how, seed=1)
        np.testing.assert_array_equal(one.centrality, two.centrality)
        assert np.allclose(one.centrality, g.betweenness(one.edges)) is exact
