from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedkin import graph as g
from fedkin.errors import GraphError
from fedkin.graph._cells import _top
from fedkin.graph._nearest import as_directions


def clustered(n: int, d: int = 16, clusters: int = 12, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(clusters, d))[rng.integers(0, clusters, n)] + 0.5 * rng.normal(size=(n, d))).astype("f4")


def share_found(found: Any, x: Any, k: int) -> float:
    """The share of the true neighbours among those found."""
    exact = g.nearest(x, k).astype(bool)
    return float(found.astype(bool).multiply(exact).nnz / exact.nnz)


@pytest.mark.parametrize("structure", [True, False])
@pytest.mark.parametrize("recall", [0.8, 0.95])
def test_as_many_are_found_as_asked_for_and_the_stated_share_is_the_true_one(structure: bool, recall: float) -> None:
    x = clustered(4000) if structure else np.random.default_rng(1).normal(size=(4000, 8)).astype("f4")
    found = g.approximate_nearest(x, 10, recall=recall)
    assert found.recall is not None
    assert found.cells[1] < found.cells[0]
    truth = share_found(found.graph, x, 10)
    assert truth >= recall
    assert truth == pytest.approx(found.recall, abs=0.03)
    assert (np.diff(found.graph.indptr) <= 10).all()


def test_what_is_found_has_the_exact_cosines_and_no_row_finds_itself() -> None:
    x = clustered(1500)
    found = g.approximate_nearest(x, 6).graph.tocoo()
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(found.data, (u[found.row] * u[found.col]).sum(axis=1), atol=1e-5)
    assert (found.row != found.col).all()
    assert (found.data > 0).all()


def test_all_are_compared_on_request_and_where_cells_do_not_help() -> None:
    x = np.random.default_rng(0).normal(size=(300, 40))
    exact = g.nearest(x, 5)
    for recall in (1, 0.999):
        found = g.approximate_nearest(x, 5, recall=recall)
        assert found.recall is None
        assert found.cells[0] == found.cells[1]
        np.testing.assert_array_equal(found.graph.toarray() != 0, exact.toarray() != 0)
        np.testing.assert_allclose(found.graph.toarray(), exact.toarray(), atol=1e-12)


def test_the_seed_alone_decides_and_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x = clustered(1200)
    one, two, other = (g.approximate_nearest(x, 4, seed=seed).graph for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_array_equal(one.data, two.data)
    assert share_found(other, x, 4) > 0.95
    monkeypatch.setattr("fedkin.graph._cells._SCORES", 5000)
    small = g.approximate_nearest(x, 4, seed=3).graph
    np.testing.assert_array_equal(small.indices, one.indices)


def test_the_number_of_threads_changes_no_bit() -> None:
    x = clustered(1200)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append((g.approximate_nearest(x, 4).graph, g.closest(x, 4)))
    (one, near), (two, near_too) = found
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_array_equal(one.data, two.data)
    np.testing.assert_array_equal(near.columns, near_too.columns)
    np.testing.assert_array_equal(near.distances, near_too.distances)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 900), st.sampled_from([2, 40, 10**9]))
def test_the_highest_of_each_row_are_found_however_many_are_equal(seed: int, k: int, more: int, kinds: int) -> None:
    rng = np.random.default_rng(seed)
    score = rng.integers(kinds, size=(5, k + more)).astype(float)
    score[rng.random(score.shape) < 0.3] = -np.inf
    top = _top(score.copy(), k)
    assert all(len(set(row)) == k for row in top.tolist())
    highest = np.sort(np.take_along_axis(score, top, axis=1), axis=1)
    np.testing.assert_array_equal(highest, np.sort(score, axis=1)[:, -k:])


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_directions_do_not_depend_on_how_many_are_made_at_a_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(11, 70)).astype(kind)
    x[4] = 0
    whole = as_directions(x)
    monkeypatch.setattr("fedkin.graph._nearest._COLUMNS", 3)
    np.testing.assert_array_equal(as_directions(x), whole)
    assert as_directions(x).dtype == kind


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_rows(n: int) -> None:
    x = np.ones((n, 3)) + np.eye(n, 3) / 10
    np.testing.assert_allclose(g.approximate_nearest(x, 2).graph.toarray(), g.nearest(x, 2).toarray(), atol=1e-12)


def test_rows_of_zeros_and_equal_rows() -> None:
    x = np.concatenate([np.zeros((50, 4)), np.ones((400, 4)), -np.ones((30, 4))])
    found = g.approximate_nearest(x, 3).graph
    count = np.diff(found.indptr)
    assert (count[:50] == 0).all()
    assert (count[50:] == 3).all()
    np.testing.assert_allclose(found.data, 1.0)
    assert (found[450:].indices >= 450).all()


@pytest.mark.parametrize("n", [1, 2, 600])
def test_more_neighbours_than_rows_take_no_more_memory(n: int) -> None:
    x = clustered(n)
    tracemalloc.start()
    many = [g.nearest(x, 10**9), g.approximate_nearest(x, 10**9).graph]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 200 * max(n, 1000) ** 2
    as_many = [find(x, max(n - 1, 1)) for find in (g.nearest, lambda x, k: g.approximate_nearest(x, k).graph)]
    for graph, other in zip(many, as_many, strict=True):
        np.testing.assert_array_equal(graph.toarray(), other.toarray())


def test_a_recall_that_cannot_be_measured_is_nan_and_not_that_of_comparing_all() -> None:
    x = np.zeros((2000, 4), np.float32)
    x[:3] = 1
    seen = [g.approximate_nearest(x, 2, seed=seed) for seed in range(8)]
    some = [found.recall for found in seen if found.cells[1] < found.cells[0]]
    # Whether one of the three rows with neighbours is among those on which the recall is measured depends on the seed.
    assert all(recall is not None for recall in some)
    assert {recall for recall in some if recall == recall} == {1.0}
    assert any(math.isnan(recall) for recall in some if recall is not None)


@pytest.mark.parametrize(
    ("k", "recall", "says"),
    [
        (0, 0.9, "k: expected a whole number"),
        (2, 0.0, "recall: expected a share"),
        (2, 1.5, "recall: expected a share"),
    ],
)
def test_what_cannot_be(k: int, recall: float, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        g.approximate_nearest(np.ones((4, 2)), k, recall=recall)


def test_the_closest_by_distance_are_found_as_often_as_stated_with_their_distances() -> None:
    x = clustered(4000) + 100.0
    found = g.closest(x, 10)
    exact = g.closest(x, 10, recall=1)
    hits = np.mean([len(np.intersect1d(one, two)) for one, two in zip(found.columns, exact.columns, strict=True)]) / 10
    assert found.recall is not None
    assert hits >= 0.95
    assert hits == pytest.approx(found.recall, abs=0.03)
    apart = np.linalg.norm(x[:, None].astype(float) - x[found.columns], axis=2)
    np.testing.assert_allclose(found.distances, apart, atol=1e-9)
    assert (np.diff(found.distances, axis=1) >= 0).all()
    assert (found.columns != np.arange(4000)[:, None]).all()


def test_the_closest_of_some_rows_are_those_of_all() -> None:
    x = np.random.default_rng(0).normal(size=(300, 5))
    truth = np.linalg.norm(x[:, None] - x, axis=2)
    np.fill_diagonal(truth, np.inf)
    some = g.closest(x, 7, rows=[4, 250])
    np.testing.assert_array_equal(some.columns, truth.argsort(axis=1)[[4, 250], :7])
    np.testing.assert_array_equal(g.closest(x, 7, recall=1).columns[[4, 250]], some.columns)


def test_two_far_groups_hide_no_small_distances_inside_them() -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.integers(2, size=1500) == 1, 1000.0, -1000.0)[:, None] + 0.05 * rng.normal(size=(1500, 4))
    truth = np.linalg.norm(x[:, None] - x, axis=2)
    np.fill_diagonal(truth, np.inf)
    true = np.sort(truth, axis=1)[:, :10]
    np.testing.assert_allclose(g.closest(x, 10, recall=1).distances, true, rtol=1e-6)
    np.testing.assert_allclose(g.closest(x, 10, rows=[3, 900]).distances, true[[3, 900]], rtol=1e-6)
    found = g.closest(x, 10)
    assert found.recall is not None
    hits = float((found.distances <= true[:, -1:] * (1 + 1e-9)).mean())
    assert hits == pytest.approx(found.recall, abs=0.03)
    assert hits > 0.93


def test_with_fewer_rows_than_neighbours_all_others_are_the_closest_and_equal_rows_are_at_zero() -> None:
    found = g.closest([[1.0, 2.0], [1.0, 2.0], [4.0, 6.0]], 9)
    assert found.columns.tolist() == [[1, 2], [0, 2], [0, 1]]
    assert found.distances.tolist() == [[0, 5], [0, 5], [5, 5]]
    with pytest.raises(GraphError, match="recall"):
        g.closest([[1.0]], 1, recall=0)


def test_the_best_are_found_beside_rows_of_equal_scores_and_of_none() -> None:
    score = np.random.default_rng(0).normal(size=(5, 4000))
    score[1], score[3] = 7.0, np.nan
    top = _top(score, 6)
    for row in (0, 2, 4):
        assert sorted(top[row]) == sorted(np.argsort(score[row])[-6:])
    for row in (1, 3):
        assert len(set(top[row])) == 6


def test_many_equal_scores_take_no_more_memory_than_a_partition() -> None:
    score = np.zeros((32, 20_000), np.float32)
    tracemalloc.start()
    _top(score, 10)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A copy, its places in int64, and a bool for each.
    assert most < (1 + 2 + 0.25) * score.nbytes + 2**18
