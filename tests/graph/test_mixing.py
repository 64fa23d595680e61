from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import affinities, affinities_with_labels, both_kinds, dense, kept_dense, reordered

OF_AFFINITY: dict[str, Callable[[Any], Any]] = {
    "row_normalise": g.row_normalise,
    "metropolis": g.metropolis,
    "laplacian_step": lambda a: g.laplacian_step(a, None, 0.01),
}
NONNEGATIVE = sorted(OF_AFFINITY)


@pytest.mark.parametrize("name", OF_AFFINITY)
@given(a=affinities(), data=st.data())
def test_rows_sum_to_one_dense_and_sparse(name: str, a: Any, data: Any) -> None:
    mix = OF_AFFINITY[name]
    found = [mix(kind) for kind in both_kinds(a)]
    assert isinstance(found[0], np.ndarray)
    assert isinstance(found[1], sp.csr_array)
    np.testing.assert_allclose(found[1].toarray(), found[0], atol=1e-15)
    w = found[0]
    np.testing.assert_allclose(w.sum(axis=1), 1.0, atol=1e-12)
    assert (w >= 0).all()
    alone = ~a.any(axis=1)
    np.testing.assert_array_equal(w[alone], np.eye(len(a))[alone])
    assert not w[(a == 0) & ~np.eye(len(a), dtype=bool)].any()
    order = np.array(data.draw(st.permutations(range(len(a)))))
    np.testing.assert_allclose(mix(reordered(a, order)), reordered(w, order), atol=1e-12)


@given(affinities_with_labels())
def test_laplacian_is_networkx_inside_groups_and_rows_sum_to_zero(case: Any) -> None:
    a, labels = case
    inside = a * (labels[:, None] == labels)
    expected = nx.laplacian_matrix(nx.from_numpy_array(inside)).toarray()
    for kind in both_kinds(a):
        found = g.laplacian(kind, labels)
        np.testing.assert_allclose(dense(found), expected)
        np.testing.assert_allclose(dense(found).sum(axis=1), 0.0, atol=1e-12)
        assert np.linalg.eigvalsh(dense(found)).min() > -1e-9
    np.testing.assert_array_equal(dense(g.laplacian(a + np.eye(len(a)), labels)), dense(g.laplacian(a, labels)))


@given(affinities_with_labels(), st.floats(0, 2))
def test_laplacian_step_is_the_papers_update(case: Any, rate: float) -> None:
    a, labels = case
    x = np.random.default_rng(0).normal(size=(len(a), 3))
    w = dense(g.laplacian_step(a, labels, rate))
    for k in range(len(a)):
        pull = sum((a[k, j] * (x[k] - x[j]) for j in range(len(a)) if labels[j] == labels[k]), np.zeros(3))
        np.testing.assert_allclose(w[k] @ x, x[k] - rate * pull, atol=1e-9)
    np.testing.assert_allclose(w.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_array_equal(dense(g.laplacian_step(a, labels, 0.0)), np.eye(len(a)))
    if rate * g.laplacian(a, labels).diagonal().max() <= 1:
        assert (w >= 0).all()


@given(affinities())
def test_undirected_networks_mix_both_ways(a: Any) -> None:
    w = dense(g.metropolis(a))
    np.testing.assert_allclose(w, w.T)
    np.testing.assert_allclose(w.sum(axis=0), 1.0)
    np.testing.assert_allclose(dense(g.metropolis((a > 0).astype(float))), w)


@given(affinities(least=2))
def test_metropolis_is_its_formula(a: Any) -> None:
    degree = (a > 0).sum(axis=1)
    w = dense(g.metropolis(a))
    for i, j in zip(*np.nonzero(a), strict=True):
        assert w[i, j] == pytest.approx(1 / (1 + max(degree[i], degree[j])))


def test_repeated_mixing_reaches_the_mean() -> None:
    ring = np.roll(np.eye(7), 1, axis=1)
    x = np.arange(7.0)
    w = np.linalg.matrix_power(dense(g.metropolis(ring + ring.T)), 200)
    np.testing.assert_allclose(w @ x, x.mean(), atol=1e-6)


@given(hnp.arrays(np.float64, (4, 4), elements=st.floats(0, 1e300)))
@example(np.full((4, 4), 5e-324))
def test_row_normalise_of_any_size_of_weight(a: Any) -> None:
    np.testing.assert_allclose(dense(g.row_normalise(a)).sum(axis=1), 1.0)
    np.testing.assert_allclose(dense(g.row_normalise(sp.csr_array(a))), kept_dense(g.row_normalise(a)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.row_normalise([[0, -1], [0, 0]]), "row 0, column 1 is negative"),
        (lambda: g.laplacian_step(np.eye(2), None, -0.1), "rate: expected a number of at least 0"),
        (lambda: g.laplacian_step(np.eye(2), [0], 0.1), "groups: expected 2 labels"),
        (lambda: g.metropolis([[0, 1], [0, 0]]), "not symmetric"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
