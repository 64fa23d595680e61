"""Exact nearest neighbours without the matrix of all pairs, against the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import dense, vectors


@given(st.integers(1, 40), st.integers(1, 45), st.booleans(), st.integers(0, 9))
def test_the_same_graph_as_from_the_full_matrix(n: int, k: int, mutual: bool, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, 4))
    found = g.knn_graph(x, k, mutual=mutual)
    np.testing.assert_allclose(found.toarray(), dense(g.knn(g.cosine(x), k, mutual=mutual)), atol=1e-12)
    assert abs(found - found.T).nnz == 0


@given(vectors(elements=st.sampled_from([0.0, 1.0, -1.0])), st.integers(1, 4))
def test_of_equal_cosines_any_are_taken_and_no_row_is_its_own_neighbour(x: Any, k: int) -> None:
    found = g.nearest(x, k).toarray()
    assert not found.diagonal().any()
    s = g.cosine(x).round(12)
    np.fill_diagonal(s, 0.0)
    for row, mine in enumerate(found):
        best = np.sort(s[row][s[row] > 0])[::-1][:k]
        np.testing.assert_allclose(np.sort(mine[mine > 0])[::-1], best, atol=1e-12)


def test_rows_of_zeros_and_opposite_rows_are_alone() -> None:
    found = g.knn_graph([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], 2).toarray()
    assert found.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("rows", [None, [3, 7, 11]])
def test_nearest_points_are_those_of_all_distances(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)) + 1e4
    monkeypatch.setattr("fedkin.graph.neighbours._BLOCK", 50)
    found = g.nearest_points(x, 5, rows=rows)
    distances = cdist(x, x)
    np.fill_diagonal(distances, np.inf)
    wanted = distances if rows is None else distances[rows]
    np.testing.assert_array_equal(found.columns, np.argsort(wanted, axis=1)[:, :5])
    np.testing.assert_allclose(found.distances, np.sort(wanted, axis=1)[:, :5])


def test_equal_points_and_more_neighbours_than_rows() -> None:
    found = g.nearest_points(np.ones((8, 2)), 3)
    assert (found.columns != np.arange(8)[:, None]).all()
    assert not found.distances.any()
    assert g.nearest_points(np.eye(3), 9).columns.shape == (3, 2)
    assert g.nearest_points([[1.0]], 2).columns.shape == (1, 0)
    assert g.nearest([[1.0]], 2).nnz == 0


def test_the_same_bits_twice() -> None:
    x = np.random.default_rng(0).normal(size=(3000, 8))
    one, two = g.nearest(x, 4), g.nearest(x, 4)
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_array_equal(one.data, two.data)


@pytest.mark.parametrize(
    ("x", "k", "says"),
    [
        (np.array([[1.0], [np.nan]]), 1, "row 1 is not all finite"),
        (np.zeros((0, 3)), 1, "at least one client"),
        (np.zeros(3), 1, "expected 2 axes"),
        (np.ones((2, 2)), 0, "k: expected a whole number"),
        (np.ones((2, 2)), True, "k: expected a whole number"),
    ],
)
def test_errors_name_what_is_wrong(x: Any, k: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        g.nearest(x, k)
