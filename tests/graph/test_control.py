"""Control graphs change what they should and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import affinities, both_kinds, dense, labels_for, planted

CONTROLS: dict[str, Callable[..., Any]] = {
    "random": g.random,
    "uniform": lambda a, seed=0: g.uniform(a),
    "shuffled": g.shuffled,
    "self": lambda a, seed=0: g.self_only(a),
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
    assert (c == c.T).all()
    assert (c >= 0).all()
    assert not np.diag(c).any()
    np.testing.assert_array_equal(CONTROLS[name](a, seed=seed), c)
    np.testing.assert_array_equal(a, before)


@given(affinities(), st.integers(0, 5))
def test_random_keeps_the_number_of_edges_and_their_weights(a: Any, seed: int) -> None:
    upper = np.triu_indices(len(a), 1)
    np.testing.assert_array_equal(np.sort(dense(g.random(a, seed=seed))[upper]), np.sort(a[upper]))


def test_random_draws_every_pair_alike() -> None:
    a = np.zeros((5, 5))
    a[0, 1] = a[1, 0] = a[0, 2] = a[2, 0] = 1.0
    counts = sum(dense(g.random(a, seed=seed)) for seed in range(2000))
    upper = counts[np.triu_indices(5, 1)]
    assert upper.sum() == 4000
    assert (np.abs(upper - 400) < 80).all()


def test_random_of_a_large_sparse_graph() -> None:
    sides: Any = [np.ones(4999)] * 2
    ring = sp.diags_array(sides, offsets=[1, -1], format="csr")
    drawn = g.random(ring, seed=1)
    assert isinstance(drawn, sp.csr_array)
    assert drawn.nnz == ring.nnz
    assert abs(drawn - drawn.T).nnz == 0
    assert not drawn.diagonal().any()


def test_random_destroys_the_planted_groups_and_shuffled_only_their_places() -> None:
    a, labels = planted(3, 20, inside=0.9, across=0.02)
    for control in (g.random, g.shuffled):
        assert g.edge_scores(a, labels).precision > 0.9
        assert g.edge_scores(control(a, seed=0), labels).precision < 0.45
    moved = g.shuffled(a, seed=0)
    assert g.modularity(moved, g.louvain(moved)) == pytest.approx(g.modularity(a, g.louvain(a)), abs=0.01)


@given(affinities(), st.integers(0, 5))
def test_shuffled_is_the_same_graph(a: Any, seed: int) -> None:
    c = dense(g.shuffled(a, seed=seed))
    np.testing.assert_allclose(np.linalg.eigvalsh(c), np.linalg.eigvalsh(a), atol=1e-9)
    np.testing.assert_array_equal(np.sort(c.sum(0)), np.sort(a.sum(0)))


@given(affinities(least=2))
def test_uniform_keeps_the_total_weight(a: Any) -> None:
    c = dense(g.uniform(a))
    assert c.sum() == pytest.approx(a.sum())
    assert len(np.unique(c[~np.eye(len(a), dtype=bool)])) == 1


@given(st.integers(1, 9).flatmap(labels_for))
def test_oracle_is_the_planted_groups(labels: Any) -> None:
    a = g.oracle(labels)
    scores = g.edge_scores(a, labels)
    assert scores.precision == scores.recall == 1
    assert g.across_share(a, labels) == 0
    assert g.ari(labels, g.components(a)) == 1
    np.testing.assert_array_equal(g.oracle([str(label) for label in labels], weight=0.5), a / 2)


def test_a_complete_graph_of_too_many_clients_is_refused() -> None:
    with pytest.raises(GraphError, match="complete graph of 20001 clients"):
        g.uniform(sp.csr_array((20_001, 20_001)))


@pytest.mark.parametrize("control", [g.random, g.uniform])
def test_a_directed_graph_is_refused(control: Any) -> None:
    with pytest.raises(GraphError, match="not symmetric"):
        control([[0, 1], [0, 0]])
