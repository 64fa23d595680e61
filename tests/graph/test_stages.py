from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedkin import graph as g
from fedkin.errors import ConfigError, GraphError
from graph.strategies import dense, kept_dense, planted, same_partition

SIMILARITY = ["cosine", "dot", "l1", "l2", "rbf", "rbf:0.5"]
OF_SETS = ["matching", "minimum", "hausdorff"]
SPARSIFY = ["none", "epsilon:0.4", "knn:3", "mutual:3", "gamma:auto", "gamma:0.5", "soft:auto", "soft:0.3"]
GROUPS = ["louvain", "leiden", "components", "hierarchical", "hierarchical:silhouette", "hierarchical:3",
          "kmeans:3", "bipartition:0.2", "single", "alone", "planted"]  # fmt: skip
CONTROL = ["none", "random", "uniform", "oracle", "shuffled", "self"]


@pytest.fixture
def clients() -> Any:
    """Vectors of 24 clients in three groups, in shuffled order, and the groups' names."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(["x", "y", "z"], 8))
    centre = {"x": [9.0, 0, 0, 1], "y": [0, 9.0, 0, 1], "z": [0, 0, 9.0, 1]}
    return np.array([centre[name] for name in truth]) + rng.normal(size=(24, 4)), truth


@pytest.mark.parametrize("similarity", SIMILARITY)
@pytest.mark.parametrize("sparsify", SPARSIFY)
def test_any_similarity_with_any_sparsifier(similarity: str, sparsify: str, clients: Any) -> None:
    s = g.similarity_stage(similarity)(clients[0])
    assert s.max() <= 1 + 1e-12
    a = kept_dense(g.sparsify_stage(sparsify)(s))
    assert (a == a.T).all()
    assert (a >= 0).all()
    assert not np.diag(a).any()
    labels = g.groups_stage("louvain")(a, seed=1)
    # Of RBF's median scale, thresholds on 1 - S alone may be too narrow to link anyone.
    if not (similarity == "rbf:0.5" or (similarity == "dot" and sparsify == "soft:auto")):
        assert g.ari(clients[1], labels) > 0.2


@pytest.mark.parametrize("groups", GROUPS)
def test_groups_by_name(groups: str, clients: Any) -> None:
    x, truth = clients
    a = g.sparsify_stage("epsilon:0.4")(g.similarity_stage("cosine")(x))
    for kind in (a, sp.csr_array(a)):
        labels = g.groups_stage(groups)(kind, seed=3, resolution=1.0, planted=truth)
        np.testing.assert_array_equal(labels, g.canonical(labels))
        if groups not in ("single", "alone"):
            assert g.ari(truth, labels) == 1
    assert g.groups_stage("single")(a).max() == 0
    assert g.groups_stage("alone")(a).max() == 23


def test_groups_read_distances_and_vectors_when_given(clients: Any) -> None:
    x, truth = clients
    nothing = np.zeros((24, 24))
    d = -g.negative_l2(x)
    assert same_partition(
        g.groups_stage("hierarchical")(nothing, distances=d), g.groups_stage("planted")(nothing, planted=truth)
    )
    assert g.ari(truth, g.groups_stage("kmeans:3")(nothing, vectors=x)) == 1


def test_arguments_reach_the_stage(clients: Any) -> None:
    a, _ = planted(3, 60, inside=0.12, across=0.1)
    louvain = g.groups_stage("louvain")
    np.testing.assert_array_equal(louvain(a, seed=5, resolution=2.0), g.louvain(a, seed=5, resolution=2.0))
    np.testing.assert_array_equal(g.groups_stage("leiden")(a, seed=2), g.leiden(a, seed=2))
    s = g.cosine(clients[0])
    np.testing.assert_array_equal(g.sparsify_stage("knn:2")(s), g.knn(s, 2))
    np.testing.assert_array_equal(g.sparsify_stage("mutual:2")(s), g.knn(s, 2, mutual=True))
    np.testing.assert_array_equal(g.similarity_stage("rbf:0.5")(clients[0]), g.rbf(clients[0], 0.5))
    d = -g.negative_l2(clients[0])
    np.testing.assert_array_equal(g.sparsify_stage("gamma:4")(s, distances=d), g.gamma(d, 4.0))
    np.testing.assert_array_equal(g.sparsify_stage("gamma:auto")(s, distances=d), g.gamma(d))
    np.testing.assert_array_equal(g.sparsify_stage("soft:2")(s, distances=d), g.soft(d, 2.0))


def test_no_similarity_links_no_one_whatever_the_gap() -> None:
    for spec in ("gamma:auto", "soft:auto", "gamma:5"):
        assert not dense(g.sparsify_stage(spec)(np.zeros((3, 3)))).any()


@pytest.mark.parametrize("name", OF_SETS)
def test_sets_of_centres(name: str) -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(12) % 3
    centres = 20 * np.eye(3)[truth][:, None] + rng.normal(size=(12, 4, 3))
    s = g.similarity_stage(name)(centres)
    assert s.min() == 0
    assert s.max() == 1
    d = g.distance_stage(name)(centres)
    np.testing.assert_array_equal(d, getattr(g, name)(centres))
    assert g.ari(truth, g.components(g.sparsify_stage("gamma:auto")(s, distances=d))) == 1


@pytest.mark.parametrize("name", CONTROL)
def test_control_by_name(name: str, clients: Any) -> None:
    x, truth = clients
    a = g.knn(g.cosine(x), 3)
    c = g.control_stage(name)(a, seed=7, planted=truth)
    expected: dict[str, Callable[[], Any]] = {
        "none": lambda: a,
        "random": lambda: g.random(a, seed=7),
        "uniform": lambda: g.uniform(a),
        "oracle": lambda: g.oracle(truth),
        "shuffled": lambda: g.shuffled(a, seed=7),
        "self": lambda: 0 * a,
    }
    np.testing.assert_array_equal(c, expected[name]())


@pytest.mark.parametrize("spec", ["oracle", "planted"])
def test_planted_groups_must_be_known(spec: str) -> None:
    stage: Any = g.control_stage(spec) if spec == "oracle" else g.groups_stage(spec)
    with pytest.raises(GraphError, match="needs the planted groups"):
        stage(np.eye(3))
    with pytest.raises(GraphError, match="planted: expected 3 labels"):
        stage(np.eye(3), planted=[0, 1])


@pytest.mark.parametrize(
    ("make", "spec", "says"),
    [
        (g.similarity_stage, "cosin", "unknown similarity 'cosin'.*did you mean 'cosine'"),
        (g.similarity_stage, "cosine:3", "'cosine' takes no argument"),
        (g.similarity_stage, "rbf:-1", "expected a number above 0"),
        (g.similarity_stage, "", "unknown similarity ''"),
        (g.distance_stage, "cosine", "unknown distance 'cosine'"),
        (g.sparsify_stage, "knn", "expected knn:K"),
        (g.sparsify_stage, "knn:", "expected knn:K"),
        (g.sparsify_stage, "knn:0", "whole number of at least 1 after the colon, got '0'"),
        (g.sparsify_stage, "knn:ten", "whole number of at least 1 after the colon, got 'ten'"),
        (g.sparsify_stage, "knn:1.5", "whole number"),
        (g.sparsify_stage, "epsilon:-1", "expected a number of at least 0"),
        (g.sparsify_stage, "epsilon:nan", "expected a number of at least 0"),
        (g.sparsify_stage, "gamma", "expected gamma:auto or gamma:DISTANCE"),
        (g.sparsify_stage, "kn:5", "did you mean 'knn'"),
        (g.groups_stage, "louvian", "did you mean 'louvain'"),
        (g.groups_stage, "kmeans", "expected kmeans:N"),
        (g.groups_stage, "kmeans:auto", "whole number"),
        (g.groups_stage, "hierarchical:", "nothing after the colon"),
        (g.groups_stage, "hierarchical:two", "whole number"),
        (g.groups_stage, "bipartition:-3", "expected a number of at least -1"),
        (g.control_stage, "rand", "did you mean 'random'"),
        (g.control_stage, "random:1", "takes no argument"),
    ],
)
def test_a_spec_that_cannot_be_read_says_why(make: Any, spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(spec)
