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
from graph.strategies import both_kinds, dense, distances, kept_dense, reordered, symmetric

OF_SIMILARITY: dict[str, Callable[..., Any]] = {
    "epsilon": lambda s, **o: g.epsilon(s, 0.4, **o),
    "nonnegative": g.nonnegative,
    "knn": lambda s, **o: g.knn(s, 2, **o),
    "mutual": lambda s, **o: g.knn(s, 2, mutual=True, **o),
}
OF_DISTANCE: dict[str, Callable[..., Any]] = {
    "gamma": g.gamma,
    "gamma 1": lambda d, **o: g.gamma(d, 1.0, **o),
    "soft": g.soft,
}


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
    assert (a == a.T).all()
    assert (a >= 0).all()
    assert not np.diag(a).any()
    assert ((a == 0) | (a == s)).all()
    np.testing.assert_array_equal(s, before)


@pytest.mark.parametrize("name", ["epsilon", "nonnegative", "knn"])
@given(s=symmetric())
def test_twice_is_once(name: str, s: Any) -> None:
    stage = OF_SIMILARITY[name]
    once = dense(stage(s))
    # An edge that one end chose may give the other more than k; a second pass may then drop none of its best.
    twice = dense(stage(once))
    assert ((twice == once) | ((twice == 0) & (name == "knn"))).all()
    if name != "knn":
        np.testing.assert_array_equal(twice, once)


@pytest.mark.parametrize("name", OF_SIMILARITY)
@given(s=symmetric())
def test_self_loops_are_one(name: str, s: Any) -> None:
    for one in both_kinds(s):
        with_loops = dense(OF_SIMILARITY[name](one, self_loops=True))
        np.testing.assert_array_equal(with_loops, dense(OF_SIMILARITY[name](one)) + np.eye(len(s)))


@given(symmetric(), st.permutations(range(8)))
def test_epsilon_is_equivariant(s: Any, order: Any) -> None:
    order = [i for i in order if i < len(s)]
    np.testing.assert_array_equal(g.epsilon(reordered(s, order), 0.4), reordered(g.epsilon(s, 0.4), order))


@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 99))
def test_knn_is_equivariant_without_ties(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    s = g.cosine(rng.normal(size=(n, 3)))
    order = rng.permutation(n)
    for mutual in (False, True):
        a = g.knn(s, k, mutual=mutual)
        np.testing.assert_array_equal(g.knn(reordered(s, order), k, mutual=mutual), reordered(a, order))


@given(st.integers(2, 12), st.integers(1, 11), st.integers(0, 99))
def test_knn_is_sklearns(n: int, k: int, seed: int) -> None:
    k = min(k, n - 1)
    x = np.random.default_rng(seed).normal(size=(n, 3))
    chosen = kneighbors_graph(x, k, metric="cosine").toarray() > 0
    s = g.cosine(x)
    np.testing.assert_array_equal(g.knn(s, k) > 0, (chosen | chosen.T) & (s > 0))
    np.testing.assert_array_equal(g.knn(s, k, mutual=True) > 0, chosen & chosen.T & (s > 0))


@given(symmetric(), st.integers(1, 9))
def test_knn_keeps_at_least_the_best_and_mutual_at_most_k(s: Any, k: int) -> None:
    positive = s.copy()
    np.fill_diagonal(positive, 0.0)
    available = (positive > 0).sum(1)
    assert ((dense(g.knn(s, k)) > 0).sum(1) >= np.minimum(available, k)).all()
    assert ((dense(g.knn(s, k, mutual=True)) > 0).sum(1) <= k).all()


def test_knn_prefers_the_lower_row_among_equals() -> None:
    s = np.ones((4, 4))
    for one in both_kinds(s):
        np.testing.assert_array_equal(dense(g.knn(one, 1))[3], [1, 0, 0, 0])


@pytest.mark.parametrize("name", OF_DISTANCE)
@given(d=distances())
def test_of_distances(name: str, d: Any) -> None:
    a = OF_DISTANCE[name](d)
    assert (a == a.T).all()
    assert (a >= 0).all()
    assert (a <= 1).all()
    assert not np.diag(a).any()
    order = np.arange(len(d))[::-1]
    np.testing.assert_array_equal(OF_DISTANCE[name](reordered(d, order)), reordered(a, order))


@given(distances(least=2))
def test_gamma_links_what_lies_below_the_threshold(d: Any) -> None:
    pairs = ~np.eye(len(d), dtype=bool)
    np.testing.assert_array_equal(g.gamma(d, 3.0)[pairs], (d < 3.0)[pairs])
    assert (np.diag(kept_dense(g.gamma(d, 3.0, self_loops=True))) == 1).all()


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


def test_gap_finds_planted_groups() -> None:
    """FLT's figures: distances within 4-6, across 15-28."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 20)
    same = labels[:, None] == labels
    d = np.triu(np.where(same, rng.uniform(4, 6, same.shape), rng.uniform(15, 28, same.shape)), 1)
    a = g.gamma(d + d.T)
    np.testing.assert_array_equal(a > 0, same & ~np.eye(100, dtype=bool))


@given(distances(least=2))
def test_soft_falls_with_distance(d: Any) -> None:
    a = kept_dense(g.soft(d, 2.0))
    pairs = ~np.eye(len(d), dtype=bool)
    np.testing.assert_allclose(a[pairs], np.exp(-((d[pairs] / 2) ** 2)))


@given(symmetric(elements=st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])))
def test_to_distance_is_one_minus(s: Any) -> None:
    d = g.to_distance(s)
    pairs = ~np.eye(len(s), dtype=bool)
    np.testing.assert_allclose(d[pairs], 1 - s[pairs])
    assert not np.diag(d).any()


def test_one_client() -> None:
    assert kept_dense(g.knn([[1.0]], 3)).tolist() == [[0.0]]
    assert kept_dense(g.gamma([[0.0]])).tolist() == [[0.0]]
    assert kept_dense(g.soft([[0.0]])).tolist() == [[0.0]]
    assert kept_dense(g.epsilon([[1.0]], 0.1, self_loops=True)).tolist() == [[1.0]]


@given(symmetric(elements=st.sampled_from([0.0, 0.5, 1.0])))
def test_symmetrise(s: Any) -> None:
    upper = np.triu(s, 1)
    for one in both_kinds(upper):
        np.testing.assert_array_equal(dense(g.symmetrise(one)), upper + upper.T)
        assert not dense(g.symmetrise(one, mutual=True)).any()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.epsilon(np.eye(2), -0.1), "threshold: expected a number of at least 0"),
        (lambda: g.epsilon(np.eye(2), np.nan), "threshold: expected"),
        (lambda: g.epsilon([[0, 1], [0, 0]], 0.1), r"not symmetric: \(0, 1\) and \(1, 0\) differ by 1"),
        (lambda: g.epsilon(sp.csr_array([[0, 1], [0, 0]]), 0.1), r"not symmetric: \(\d, \d\)"),
        (lambda: g.epsilon([[0, np.inf], [np.inf, 0]], 0.1), "row 0, column 1 is not finite"),
        (lambda: g.knn(np.eye(2), 0), "k: expected a whole number"),
        (lambda: g.knn(np.eye(2), 1.5), "k: expected a whole number"),  # type: ignore[arg-type]
        (lambda: g.knn(np.eye(2), True), "k: expected a whole number"),
        (lambda: g.gamma([[0, -1], [-1, 0]]), "D: the entry in row 0, column 1 is negative"),
        (lambda: g.gamma(np.zeros((2, 2)), np.nan), "threshold: expected a distance"),
        (lambda: g.soft(np.zeros((2, 2)), 0.0), "scale: expected a distance above 0"),
        (lambda: g.to_distance([[1, 2], [2, 1]]), "rows 0 and 1 is 2; expected at most 1"),
        (lambda: g.symmetrise([[0, -1], [0, 0]]), "is negative"),
        (lambda: g.knn(np.zeros((0, 0)), 1), "at least one client"),
        (lambda: g.knn("abc", 1), "square matrix of numbers"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
