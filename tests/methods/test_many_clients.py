"""FedU and TFL with more clients than a matrix of all pairs is made for, on few clients with a low limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedkin import graph as g
from fedkin.errors import ConfigError
from fedkin.methods.blocks import neighbours
from fedkin.methods.blocks.mixing import laplacian_mixing, mixed
from fedkin.methods.fedu import FedU
from fedkin.methods.tfl import Tfl, Topology, learned
from methods.flt_world import engine_after, grouped, member


@pytest.fixture(autouse=True)
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.methods.blocks.neighbours.LARGEST", 8)


def vectors(n: int, seed: int = 0) -> tuple[list[Any], Any]:
    """Vectors in three groups, and these groups."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    x = rng.normal(size=(3, 12))[labels] + 0.2 * rng.normal(size=(n, 12))
    return [torch.from_numpy(row) for row in x], labels


@pytest.mark.parametrize("sparsify", ["knn:5", "mutual:5"])
def test_neighbours_are_those_of_the_matrix_of_all_pairs(sparsify: str) -> None:
    x, _ = vectors(120)
    found = neighbours.neighbour_affinity(x, sparsify)
    dense = np.asarray(g.sparsify_stage(sparsify)(g.cosine(torch.stack(x).numpy())))
    assert isinstance(found, sp.csr_array)
    same = (found.toarray() > 0) == (dense > 0)
    assert same.mean() > 0.99
    both = (found.toarray() > 0) & (dense > 0)
    np.testing.assert_allclose(found.toarray()[both], dense[both], atol=1e-5)


def test_a_threshold_holds_among_neighbours() -> None:
    x, _ = vectors(60)
    found = neighbours.neighbour_affinity(x, "epsilon:0.9")
    assert found.nnz > 0
    assert found.data.min() >= 0.9


def with_late_ones(n: int) -> Any:
    return grouped(n, extra=[member(30 + number, "abc"[number % 3], joins=3) for number in range(6)])


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (FedU(neighbours="all", graph={"source": "rbf"}), "graph.source: 'rbf' compares all pairs of 12 clients"),
        (FedU(neighbours="all", graph={"source": "cosine", "sparsify": "gamma:auto"}), "graph.sparsify: 'gamma:auto'"),
        (Tfl(), "graph.similarity: 'dot' compares all pairs of 12 clients"),
        (Tfl(graph={"similarity": "cosine"}), "graph.scale: 'raw' betweenness of 12 clients"),
        (Tfl(graph={"similarity": "cosine", "centrality": "degree"}), "graph.scale: 'raw' degree of 12 clients"),
    ],
)
def test_what_compares_all_pairs_is_refused_before_the_run_with_the_clients_that_come_later(
    method: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        method.check(with_late_ones(6))
    method.check(grouped(8))


@pytest.mark.parametrize(
    "method",
    [
        FedU(neighbours="all"), FedU(neighbours="all", graph={"source": "planted"}),
        FedU(neighbours="all", graph={"source": "cosine", "control": "oracle"}),
        Tfl(graph={"similarity": "cosine", "scale": "normalised", "control": "uniform"}),
    ],
)  # fmt: skip
def test_a_graph_of_all_pairs_of_too_many_clients_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    monkeypatch.setattr("fedkin.methods.blocks.neighbours.COMPLETE", 11)
    with pytest.raises(ConfigError, match=r"method\.graph\.\w+: '\w+' links all pairs of clients, and 12 clients"):
        method.check(with_late_ones(6))
    method.check(grouped(11))


def test_no_client_is_the_whole_prior_of_many() -> None:
    x, _ = vectors(300)
    found = learned(x, Topology(similarity="cosine", scale="normalised", epsilon=0.0), seed=1)
    prior = g.softmax(found.centrality, 1.0)
    assert prior.max() < 10 / 300
    assert prior.max() > prior.min()


def test_a_step_along_a_sparse_graph_is_that_along_the_same_dense_one() -> None:
    x, _ = vectors(30)
    weights = neighbours.neighbour_affinity(x, "knn:4")
    models = [{"w": row.float(), "seen": torch.tensor(number)} for number, row in enumerate(x)]
    one = mixed(models, laplacian_mixing(weights, None, 0.05, "models"))
    two = mixed(models, laplacian_mixing(weights.toarray(), None, 0.05, "models"))
    for left, right in zip(one, two, strict=True):
        torch.testing.assert_close(left["w"], right["w"])
        assert left["seen"] == right["seen"]


def test_fedu_goes_along_neighbours_with_all_clients_that_ever_answered() -> None:
    method = FedU(neighbours="all", graph={"source": "cosine", "sparsify": "knn:2"})
    engine = engine_after(method, grouped(12), 2, lr=0.05)
    graph = engine.server.graph
    assert len(graph.ids) == 12
    assert sp.issparse(graph.weights)
    assert sp.issparse(graph.mixing)
    truth = [engine.setup.federation[id].group for id in graph.ids]
    assert g.edge_scores(graph.weights, truth).precision > 0.8


def test_tfl_finds_who_is_central_among_neighbours_and_among_clusters() -> None:
    x, labels = vectors(60)
    found = learned(x, Topology(similarity="cosine", epsilon=0.4, centrality="degree"))
    assert isinstance(found.edges, sp.csr_array)
    assert g.edge_scores(found.edges, labels).precision > 0.95
    np.testing.assert_allclose(found.centrality, (found.edges.toarray() > 0).sum(axis=1))
    clusters = learned(x, Topology(clusters=3))
    assert g.ari(labels, clusters.clusters) == 1


def test_betweenness_of_many_is_estimated_from_some_and_from_all_it_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = vectors(60)
    how = Topology(similarity="cosine", epsilon=0.0)
    monkeypatch.setattr("fedkin.methods.tfl.LARGEST_EXACT", 59)
    for sources, exact in ((40, False), (60, True)):
        monkeypatch.setattr("fedkin.methods.tfl.SOURCES", sources)
        one, two = learned(x, how, seed=1), learned(x, how, seed=1)
        np.testing.assert_array_equal(one.centrality, two.centrality)
        assert np.allclose(one.centrality, g.betweenness(one.edges)) is exact
