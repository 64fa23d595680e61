from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import dense, vectors


@given(st.integers(1, 40), st.integers(1, 45), st.booleans(), st.integers(0, 9))
def test_the_same_graph_as_from_the_full_matrix(n: int, k: int, mutual: bool, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, 4))
    found = g.knn_graph(x, k, mutual=mutual)
    np.testing.assert_allclose(found.toarray(), dense(g.knn(g.cosine(x), k, mutual=mutual)), atol=1e-12)
    assert abs(found - found.T).nnz == 0


@given(vectors(elements=st.sampled_from([0.0, 1.0])), st.integers(1, 4))
def test_ties_go_to_the_lower_row_also_without_the_matrix(x: Any, k: int) -> None:
    found = g.nearest(x, k).toarray()
    s = g.cosine(x).round(12)
    for row in range(len(x)):
        others = [j for j in range(len(x)) if j != row and s[row, j] > 0]
        best = sorted(others, key=lambda j: (-s[row, j], j))[:k]
        np.testing.assert_allclose(np.sort(found[row][found[row] > 0]), np.sort(s[row, best]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_do_not_show(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, size=(700, 3)).astype(dtype)
    expected = dense(g.knn(g.cosine(x).round(6), 5))
    whole = g.nearest(x, 5)
    assert (np.diff(whole.indptr) <= 5).all()
    monkeypatch.setattr("fedkin.graph.neighbours._ROWS", 50)
    monkeypatch.setattr("fedkin.graph._nearest._COLUMNS", 64)
    again = g.nearest(x, 5)
    np.testing.assert_allclose(again.data, whole.data, atol=1e-6)
    assert ((g.knn_graph(x, 5) > 0).sum() / (expected > 0).sum()) == pytest.approx(1, abs=0.1)


def test_rows_of_zeros_and_opposite_rows_are_alone() -> None:
    found = g.knn_graph([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], 2).toarray()
    assert found.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_single_precision_finds_the_same_neighbours() -> None:
    x = np.random.default_rng(0).normal(size=(500, 16))
    one, two = g.nearest(x, 5), g.nearest(x.astype(np.float32), 5)
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_allclose(one.data, two.data, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "k", "says"),
    [
        (np.array([[1.0], [np.nan]]), 1, "row 1 is not all finite"),
        (np.array([[1.0], [np.nan]], dtype=np.float32), 1, "row 1 is not all finite"),
        (np.zeros((0, 3), dtype=np.float32), 1, "at least one client"),
        (np.zeros(3), 1, "expected 2 axes"),
        (np.ones((2, 2)), 0, "k: expected a whole number"),
        (np.ones((2, 2)), True, "k: expected a whole number"),
    ],
)
def test_errors_name_what_is_wrong(x: Any, k: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        g.nearest(x, k)
