"""Nearest neighbours without the matrix of all pairs, against the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import dense


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
        g.knn_graph(x, k)
