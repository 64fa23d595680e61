"""Embeddings against independent oracles, and newcomers in the space of others."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA

from fedkin import graph as g
from fedkin.errors import GraphError
from fedkin.graph import similarity as embedding


def _blobs(count: int = 30, width: int = 6, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    return rng.normal(size=(3, width))[labels] * 20 + rng.normal(size=(count, width)), labels


@given(st.integers(2, 12), st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
def test_pca_is_that_of_scikit_learn_up_to_signs(count: int, width: int, dims: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(count, width)), rng.normal(size=(3, width))
    kept = min(dims, width, count - 1)
    oracle = PCA(kept).fit(x)
    for mine, theirs in ((g.pca(x, dims=dims), oracle.transform(x)), (g.pca(x, new, dims=dims), oracle.transform(new))):
        assert mine.shape == (len(theirs), dims)
        np.testing.assert_allclose(np.abs(mine[:, :kept]), np.abs(theirs), atol=1e-8)
        assert not mine[:, kept:].any()


def test_pca_of_all_directions_keeps_every_distance() -> None:
    x, _ = _blobs(12, 4)
    np.testing.assert_allclose(pdist(g.pca(x, dims=4)), pdist(x))


def test_pca_does_not_depend_on_the_order_of_the_points() -> None:
    x, _ = _blobs()
    order = np.random.default_rng(1).permutation(len(x))
    np.testing.assert_allclose(g.pca(x)[order], g.pca(x[order]), atol=1e-8)


def test_equal_points_are_all_at_the_centre() -> None:
    assert not g.pca(np.ones((5, 3))).any()
    assert not g.umap(np.ones((5, 3))).any()


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_too_few_points_for_umap_are_laid_out_by_pca(count: int) -> None:
    x, _ = _blobs(count)
    np.testing.assert_array_equal(g.umap(x), g.pca(x))
    np.testing.assert_array_equal(g.umap(x, x[:1] + 1), g.pca(x, x[:1] + 1))


@pytest.mark.slow  # umap compiles for a minute
def test_umap_keeps_groups_apart_and_places_newcomers_with_theirs() -> None:
    pytest.importorskip("umap")
    x, labels = _blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placed = g.umap(x, seed=3)
        new = g.umap(x, x[:6] + 0.01, seed=3)
    centres = np.stack([placed[labels == c].mean(0) for c in range(3)])
    for points, own in ((placed, labels), (new, labels[:6])):
        nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
        np.testing.assert_array_equal(nearest, own)
    # Forgotten, as after a restart, and fitted again: the same bits.
    embedding._FITTED.clear()
    np.testing.assert_array_equal(g.umap(x, x[:6] + 0.01, seed=3), new)
    np.testing.assert_array_equal(g.umap(x, seed=3), placed)


def test_a_missing_umap_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr(embedding, "_FITTED", type(embedding._FITTED)())
    with pytest.raises(GraphError, match=r"needs umap-learn.*pip install"):
        g.umap(_blobs()[0])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: g.pca(np.ones((3, 2)), dims=0), "dims"),
        (lambda: g.pca(np.ones((3, 2)), np.ones((1, 3))), "width 2"),
        (lambda: g.pca([[np.nan]]), "row 0"),
        (lambda: g.umap(np.ones((3, 2)), neighbours=1), "neighbours"),
        (lambda: g.umap(np.ones((3, 2)), min_dist=-0.1), "min_dist"),
    ],
)
def test_what_cannot_be_embedded_is_said(call: Any, match: str) -> None:
    with pytest.raises(GraphError, match=match):
        call()
