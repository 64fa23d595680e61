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
from graph.strategies import affinities, affinities_with_labels, both_kinds, dense, kept_dense, reordered, symmetric

OF_AFFINITY: dict[str, Callable[[Any], Any]] = {
    "row_normalise": g.row_normalise,
    "neighbour_average": g.neighbour_average,
    "keeps diagonal": lambda a: g.neighbour_average(a, own=None),
    "counts": lambda a: g.neighbour_average(a, counts=np.arange(a.shape[0])),
    "metropolis": g.metropolis,
    "max_degree": g.max_degree,
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
    if name != "counts":
        order = np.array(data.draw(st.permutations(range(len(a)))))
        np.testing.assert_allclose(mix(reordered(a, order)), reordered(w, order), atol=1e-12)


@given(affinities(), st.data())
def test_neighbour_average_is_the_normalised_sum(a: Any, data: Any) -> None:
    n = len(a)
    counts = np.array(data.draw(st.lists(st.integers(1, 500), min_size=n, max_size=n)))
    w = dense(g.neighbour_average(a, counts))
    x = np.random.default_rng(0).normal(size=(n, 2))
    for k in range(n):
        weight = (a[k] + np.eye(n)[k]) * counts
        np.testing.assert_allclose(w[k] @ x, weight @ x / weight.sum(), rtol=1e-9, atol=1e-12)


def test_flt_averages_at_once_not_one_after_another() -> None:
    """The released code averages in place: [0, 1, 2, 3, 10] gives 3.2, 3.84, 4.41, ...; right is 3.2 for all."""
    w = dense(g.neighbour_average(np.ones((5, 5)) - np.eye(5)))
    np.testing.assert_allclose(w @ [0, 1, 2, 3, 10], 3.2)
    np.testing.assert_allclose(g.group_average(np.zeros(5, int)) @ [0, 1, 2, 3, 10], 3.2)


@given(affinities_with_labels(), st.data())
def test_group_average_is_the_weighted_mean_of_the_group(case: Any, data: Any) -> None:
    _, labels = case
    n = len(labels)
    counts = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), dtype=float)
    w = g.group_average(labels, counts)
    np.testing.assert_allclose(w.sum(axis=1), 1.0)
    np.testing.assert_allclose(w @ w, w, atol=1e-12)
    for group in np.unique(labels):
        mine = labels == group
        share = counts[mine] / counts[mine].sum() if counts[mine].sum() else np.full(mine.sum(), 1 / mine.sum())
        np.testing.assert_allclose(w[np.ix_(mine, mine)], np.tile(share, (mine.sum(), 1)))
        assert not w[np.ix_(mine, ~mine)].any()


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
    for mix in (g.metropolis, g.max_degree):
        w = dense(mix(a))
        np.testing.assert_allclose(w, w.T)
        np.testing.assert_allclose(w.sum(axis=0), 1.0)
        np.testing.assert_allclose(dense(mix((a > 0).astype(float))), w)


@given(affinities(least=2))
def test_metropolis_is_its_formula(a: Any) -> None:
    degree = (a > 0).sum(axis=1)
    w = dense(g.metropolis(a))
    for i, j in zip(*np.nonzero(a), strict=True):
        assert w[i, j] == pytest.approx(1 / (1 + max(degree[i], degree[j])))


def test_repeated_mixing_reaches_the_mean() -> None:
    ring = np.roll(np.eye(7), 1, axis=1)
    x = np.arange(7.0)
    for mix in (g.metropolis, g.max_degree):
        w = np.linalg.matrix_power(dense(mix(ring + ring.T)), 200)
        np.testing.assert_allclose(w @ x, x.mean(), atol=1e-6)


@given(symmetric(), st.sampled_from([0.0, 0.1, 1.0, 10.0]))
def test_learned_rows_are_on_the_simplex(s: Any, beta: float) -> None:
    w = g.learned_rows(s, beta)
    np.testing.assert_allclose(w.sum(axis=1), 1.0)
    assert (w >= 0).all()
    for i in range(len(s)):
        np.testing.assert_array_equal(w[i], g.norm_regularised(s[i], beta))
    np.testing.assert_allclose(g.learned_rows(s, beta, scale=np.full(len(s), 2.0)), g.learned_rows(2 * s, beta))


def test_learned_rows_recover_planted_groups_at_any_size() -> None:
    for n in (6, 60, 300):
        labels = np.arange(n) % 2
        w = g.learned_rows(np.where(labels[:, None] == labels, 0.5, 0.0), 0.5)
        assert g.across_share(w, labels) == 0
        assert (w[labels[:, None] == labels] > 0).all()


@given(hnp.arrays(np.float64, (4, 4), elements=st.floats(0, 1e300)))
@example(np.full((4, 4), 5e-324))
def test_row_normalise_of_any_size_of_weight(a: Any) -> None:
    np.testing.assert_allclose(dense(g.row_normalise(a)).sum(axis=1), 1.0)
    np.testing.assert_allclose(dense(g.row_normalise(sp.csr_array(a))), kept_dense(g.row_normalise(a)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.row_normalise([[0, -1], [0, 0]]), "row 0, column 1 is negative"),
        (lambda: g.neighbour_average(np.eye(2), [1]), "expected 2 counts, one per client, got 1"),
        (lambda: g.neighbour_average(np.eye(2), [1, -1]), "row 1 is negative"),
        (lambda: g.neighbour_average(np.eye(2), own=-1.0), "own: expected a weight of at least 0"),
        (lambda: g.laplacian_step(np.eye(2), None, -0.1), "rate: expected a number of at least 0"),
        (lambda: g.laplacian_step(np.eye(2), [0], 0.1), "groups: expected 2 labels"),
        (lambda: g.metropolis([[0, 1], [0, 0]]), "not symmetric"),
        (lambda: g.learned_rows(np.eye(2), -1.0), "b: expected a number of at least 0"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
