"""FedU and TFL with more clients than a matrix of all pairs is made for, on few clients with a low limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedkin import graph as g
from fedkin.errors import ConfigError
from fedkin.methods.blocks import crowd
from fedkin.methods.blocks.laplacian import laplacian_mixing, mixed
from fedkin.methods.fedu import FedU
from fedkin.methods.tfl.topology import Topology, learned
from methods.flt_world import engine_after, grouped


@pytest.fixture(autouse=True)
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.methods.blocks.crowd.LARGEST", 8)


def vectors(n: int, seed: int = 0) -> tuple[list[Any], Any]:
    """Vectors in three groups, and these groups."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    x = rng.normal(size=(3, 12))[labels] + 0.2 * rng.normal(size=(n, 12))
    return [torch.from_numpy(row) for row in x], labels


@pytest.mark.parametrize("sparsify", ["knn:5", "mutual:5"])
def test_neighbours_are_those_of_the_matrix_of_all_pairs(sparsify: str) -> None:
    x, _ = vectors(120)
    found = crowd.neighbour_affinity(x, "cosine", sparsify, 0)
    dense = np.asarray(g.sparsify_stage(sparsify)(g.cosine(torch.stack(x).numpy())))
    assert isinstance(found, sp.csr_array)
    same = (found.toarray() > 0) == (dense > 0)
    assert same.mean() > 0.99
    both = (found.toarray() > 0) & (dense > 0)
    np.testing.assert_allclose(found.toarray()[both], dense[both], atol=1e-5)


def test_a_threshold_holds_among_neighbours_and_other_stages_are_refused_in_words() -> None:
    x, _ = vectors(60)
    found = crowd.neighbour_affinity(x, "cosine", "epsilon:0.9", 0)
    assert found.nnz > 0
    assert found.data.min() >= 0.9
    for similarity, sparsify in (("dot", "none"), ("cosine", "gamma:auto")):
        with pytest.raises(ConfigError, match="neighbours are found by similarity 'cosine'"):
            crowd.neighbour_affinity(x, similarity, sparsify, 0)


def test_a_step_along_a_sparse_graph_is_that_along_the_same_dense_one() -> None:
    x, _ = vectors(30)
    weights = crowd.neighbour_affinity(x, "cosine", "knn:4", 0)
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
    assert g.across_share(found.edges, labels) < 0.05
    np.testing.assert_allclose(found.centrality, (found.edges.toarray() > 0).sum(axis=1))
    clusters = learned(x, Topology(clusters=3))
    assert g.ari(labels, clusters.clusters) == 1


def test_betweenness_of_many_is_estimated_from_some_and_from_all_it_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = vectors(60)
    how = Topology(similarity="cosine", epsilon=0.0)
    for sources, exact in ((40, False), (60, True)):
        monkeypatch.setattr("fedkin.methods.tfl.topology._SOURCES", sources)
        one, two = learned(x, how, seed=1), learned(x, how, seed=1)
        np.testing.assert_array_equal(one.centrality, two.centrality)
        assert np.allclose(one.centrality, g.betweenness(one.edges)) is exact
