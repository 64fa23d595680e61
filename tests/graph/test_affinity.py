"""From similarity to affinity, and control graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import kneighbors_graph

from fedkin import graph as g
from fedkin.errors import GraphError
from fedkin.graph import affinity
from graph.strategies import (
    affinities,
    assert_affinity,
    both_kinds,
    dense,
    distances,
    planted,
    reordered,
    symmetric,
)

OF_SIMILARITY: dict[str, Callable[..., Any]] = {
    "epsilon": lambda s: g.epsilon(s, 0.4),
    "nonnegative": g.nonnegative,
    "knn": lambda s: g.knn(s, 2),
    "mutual": lambda s: g.knn(s, 2, mutual=True),
}
OF_DISTANCE: dict[str, Callable[..., Any]] = {"gamma": g.gamma, "gamma 1": lambda d: g.gamma(d, 1.0)}


@pytest.mark.parametrize("name", OF_SIMILARITY)
@given(s=symmetric())
def test_symmetric_nonnegative_zero_diagonal_and_alike_when_sparse(name: str, s: Any) -> None:
    before = s.copy()
    stage = OF_SIMILARITY[name]
    found = [stage(one) for one in both_kinds(s)]
    assert isinstance(found[0], np.ndarray)
    assert isinstance(found[1], sp.csr_array)
    assert (found[1].data != 0).all()
    a = found[0]
    np.testing.assert_array_equal(found[1].toarray(), a)
    assert_affinity(a)
    assert ((a == 0) | (a == s)).all()
    np.testing.assert_array_equal(s, before)


@given(st.integers(2, 12), st.integers(1, 11), st.integers(0, 99))
def test_knn_is_sklearns(n: int, k: int, seed: int) -> None:
    k = min(k, n - 1)
    x = np.random.default_rng(seed).normal(size=(n, 3))
    chosen = kneighbors_graph(x, k, metric="cosine").toarray() > 0
    s = g.cosine(x)
    np.testing.assert_array_equal(g.knn(s, k) > 0, (chosen | chosen.T) & (s > 0))
    np.testing.assert_array_equal(g.knn(s, k, mutual=True) > 0, chosen & chosen.T & (s > 0))


@pytest.mark.parametrize("name", OF_DISTANCE)
@given(d=distances())
def test_of_distances(name: str, d: Any) -> None:
    a = OF_DISTANCE[name](d)
    assert_affinity(a)
    assert (a <= 1).all()
    order = np.arange(len(d))[::-1]
    np.testing.assert_array_equal(OF_DISTANCE[name](reordered(d, order)), reordered(a, order))


@given(distances(least=2))
def test_gap_threshold_lies_in_the_largest_gap(d: Any) -> None:
    values = np.unique(d[np.triu_indices(len(d), 1)])
    threshold = g.gap_threshold(d)
    if len(values) == 1:
        assert threshold > values[0]
        assert threshold == pytest.approx(values[0])
    else:
        below, above = values[values < threshold].max(), values[values > threshold].min()
        assert above - below == np.diff(values).max()
        assert threshold == pytest.approx((below + above) / 2)


@given(st.integers(1, 40), st.integers(1, 45), st.booleans(), st.integers(0, 9))
def test_the_same_graph_as_from_the_full_matrix(n: int, k: int, mutual: bool, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, 4))
    found = g.knn_graph(x, k, mutual=mutual)
    np.testing.assert_allclose(found.toarray(), dense(g.knn(g.cosine(x), k, mutual=mutual)), atol=1e-12)
    assert abs(found - found.T).nnz == 0


def test_rows_of_zeros_and_opposite_rows_are_alone() -> None:
    found = g.knn_graph([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], 2).toarray()
    assert found.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_equal_rows_are_not_their_own_neighbours_and_the_same_bits_come_twice() -> None:
    x = np.random.default_rng(0).normal(size=(1500, 8))
    x[:800] = x[0]
    one, two = (g.knn_graph(x, 4) for _ in range(2))
    assert not one.diagonal().any()
    np.testing.assert_array_equal(one.toarray(), two.toarray())


# -- control -----------------------------------------------------------------------------------------------------------


CONTROLS: dict[str, Callable[..., Any]] = {
    "random": affinity.random,
    "uniform": lambda a, seed=0: affinity.uniform(a),
    "shuffled": affinity.shuffled,
    "self": lambda a, seed=0: affinity.self_only(a),
}


@pytest.mark.parametrize("name", CONTROLS)
@given(a=affinities(), seed=st.integers(0, 5))
def test_shape_kind_symmetry_and_seed(name: str, a: Any, seed: int) -> None:
    before = a.copy()
    found = [CONTROLS[name](kind, seed=seed) for kind in both_kinds(a)]
    assert isinstance(found[0], np.ndarray)
    assert isinstance(found[1], sp.csr_array)
    c = found[0]
    np.testing.assert_array_equal(found[1].toarray(), c)
    assert c.shape == a.shape
    assert_affinity(c)
    np.testing.assert_array_equal(CONTROLS[name](a, seed=seed), c)
    np.testing.assert_array_equal(a, before)


@pytest.mark.slow
def test_random_draws_every_pair_alike() -> None:
    a = np.zeros((5, 5))
    a[0, 1] = a[1, 0] = a[0, 2] = a[2, 0] = 1.0
    counts = sum(dense(affinity.random(a, seed=seed)) for seed in range(2000))
    upper = counts[np.triu_indices(5, 1)]
    assert upper.sum() == 4000
    assert (np.abs(upper - 400) < 80).all()


def test_random_of_a_large_sparse_graph() -> None:
    sides: Any = [np.ones(4999)] * 2
    ring = sp.diags_array(sides, offsets=[1, -1], format="csr")
    drawn = affinity.random(ring, seed=1)
    assert isinstance(drawn, sp.csr_array)
    assert drawn.nnz == ring.nnz
    assert abs(drawn - drawn.T).nnz == 0
    assert not drawn.diagonal().any()


def test_random_destroys_the_planted_groups_and_shuffled_only_their_places() -> None:
    a, labels = planted(3, 20, inside=0.9, across=0.02)
    same = labels[:, None] == labels
    for control in (affinity.random, affinity.shuffled):
        assert a[same].sum() > 0.9 * a.sum()
        drawn = dense(control(a, seed=0))
        assert drawn[same].sum() < 0.45 * drawn.sum()
    moved = affinity.shuffled(a, seed=0)
    assert g.modularity(moved, g.louvain(moved)) == pytest.approx(g.modularity(a, g.louvain(a)), abs=0.01)


@given(affinities(), st.integers(0, 5))
def test_shuffled_is_the_same_graph(a: Any, seed: int) -> None:
    c = dense(affinity.shuffled(a, seed=seed))
    np.testing.assert_allclose(np.linalg.eigvalsh(c), np.linalg.eigvalsh(a), atol=1e-9)
    np.testing.assert_array_equal(np.sort(c.sum(0)), np.sort(a.sum(0)))


@given(affinities(least=2))
def test_uniform_keeps_the_total_weight(a: Any) -> None:
    c = dense(affinity.uniform(a))
    assert c.sum() == pytest.approx(a.sum())
    np.testing.assert_allclose(dense(affinity.uniform(a + np.eye(len(a)))), c)
    assert len(np.unique(c[~np.eye(len(a), dtype=bool)])) == 1


def test_a_complete_graph_of_too_many_clients_is_refused() -> None:
    with pytest.raises(GraphError, match="complete graph of 20001 clients"):
        affinity.uniform(sp.csr_array((20_001, 20_001)))
