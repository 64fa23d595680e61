"""Similarities of clients, distances of sets of centres, embeddings: against scipy, scikit-learn and loops."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel

from fedkin import graph as g
from fedkin.errors import ConfigError
from fedkin.graph import similarity as embedding
from graph.strategies import assert_affinity, reals, symmetric, vectors

ORACLES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "cosine": (g.cosine, cosine_similarity),
    "dot": (g.dot, lambda x: g.minmax(x @ x.T)),
    "l1": (g.negative_l1, lambda x: -cdist(x, x, "cityblock")),
    "l2": (g.negative_l2, lambda x: -cdist(x, x)),
    "rbf": (lambda x: g.rbf(x, gamma=1e-6), lambda x: rbf_kernel(x, gamma=1e-6)),
}


@pytest.mark.parametrize("name", ORACLES)
@given(vectors())
def test_similarities_are_symmetric_and_those_of_scipy_and_sklearn(name: str, x: Any) -> None:
    measure, oracle = ORACLES[name]
    s = measure(x)
    assert (s == s.T).all()
    np.testing.assert_allclose(s, oracle(x), rtol=1e-9, atol=1e-9)


@given(vectors())
def test_cosines_are_at_most_1_and_the_median_scale_is_finite(x: Any) -> None:
    s = g.cosine(x)
    assert (np.abs(s) <= 1).all()
    np.testing.assert_allclose(np.diag(s), x.any(axis=1).astype(float), atol=1e-12)
    assert np.isfinite(g.rbf(x)).all()


@given(symmetric(least=2))
def test_minmax_fills_zero_to_one(s: Any) -> None:
    out = g.minmax(s)
    pairs = ~np.eye(len(s), dtype=bool)
    assert not np.diag(out).any()
    if np.ptp(s[pairs]) > 0:
        assert out[pairs].min() == 0
        assert out[pairs].max() == 1
        low, high = s[pairs].min(), s[pairs].max()
        np.testing.assert_allclose(out[pairs], ((s - low) / (high - low))[pairs], atol=1e-12)
    else:
        assert (out[pairs] == float(s[0, 1] > 0)).all()


# -- SFMTL-Graph's two similarities, against loops that read like the paper ------------------------------------


def _cos(a: Any, b: Any) -> float:
    long = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / long if long > 0 else 0.0


def _similarity_of_heads(w: Any, b: Any, h: Any, owned: Any, match: Any) -> Any:
    used = h[np.ones_like(owned) if match == "rows" else owned]
    return g.response_similarity(lambda k, places: used[places] @ w[k].T + b[k], owned, match=match)


def _heads_by_loops(w: Any, b: Any, h: Any, owned: Any, match: str) -> Any:
    n, classes = owned.shape
    own = np.ones_like(owned) if match == "rows" else owned
    out = np.zeros((n, n))
    for k in range(n):
        for m in range(n):
            terms = []
            for c in range(classes):
                cosines = [_cos(w[k] @ h[i, c] + b[k], w[m] @ h[i, c] + b[m]) for i in (k, m) if own[i, c]]
                if len(cosines) == 2 or (len(cosines) == 1 and match == "union"):
                    terms.append(np.mean(cosines))
            out[k, m] = np.mean(terms) if terms else 0.0
    return out


def _anchors_by_loops(h: Any, owned: Any, match: str) -> Any:
    n, classes = owned.shape
    out = np.zeros((n, n))
    for k in range(n):
        for m in range(n):
            if match == "rows":
                best = [max(_cos(h[k, c], h[m, e]) for e in range(classes)) for c in range(classes)]
                back = [max(_cos(h[m, c], h[k, e]) for e in range(classes)) for c in range(classes)]
                out[k, m] = (np.mean(best) + np.mean(back)) / 2
                continue
            shared = [_cos(h[k, c], h[m, c]) for c in range(classes) if owned[k, c] and owned[m, c]]
            size = (owned[k] | owned[m]).sum() if match == "union" else len(shared)
            out[k, m] = sum(shared) / size if size else 0.0
    return out


@pytest.fixture
def heads() -> Any:
    rng = np.random.default_rng(3)
    n, classes, d = 7, 4, 5
    owned = rng.random((n, classes)) < 0.5
    owned[0] = False
    h = rng.normal(size=(n, classes, d))
    h[1, 2] = 0.0
    return rng.normal(size=(n, classes, d)), rng.normal(size=(n, classes)), h, owned


@pytest.mark.parametrize("match", ["union", "shared", "rows"])
def test_similarities_of_heads_and_of_anchors_are_the_papers(heads: Any, match: Any) -> None:
    w, b, h, owned = heads
    for found, expected in (
        (_similarity_of_heads(w, b, h, owned, match), _heads_by_loops(w, b, h, owned, match)),
        (g.anchor_similarity(h, owned, match=match), _anchors_by_loops(h, owned, match)),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)
        assert (found == found.T).all()
        assert (np.abs(found) <= 1).all()


@pytest.mark.parametrize("match", ["union", "shared"])
def test_what_a_client_does_not_own_is_never_read(heads: Any, match: Any) -> None:
    _, _, h, owned = heads
    spoilt = np.where(owned[:, :, None], h, np.nan)
    np.testing.assert_array_equal(
        g.anchor_similarity(spoilt, owned, match=match), g.anchor_similarity(h, owned, match=match)
    )


# -- distances ---------------------------------------------------------------------------------------------------------


NAMES: dict[str, Any] = {"matching": g.matching, "minimum": g.minimum}


def _sets(*, most: int = 4) -> Any:
    """Two to four sets of one to `most` centres, of one width."""
    sizes = st.lists(st.integers(1, most), min_size=2, max_size=4)
    return st.tuples(sizes, st.integers(1, 3)).flatmap(
        lambda s: st.tuples(*[hnp.arrays(np.float64, (k, s[1]), elements=reals) for k in s[0]]).map(list)
    )


def _match(a: Any, b: Any) -> float:
    """The released code's loop over all permutations, the smaller set into the larger."""
    if len(a) > len(b):
        a, b = b, a
    best = min(sum(float(((x - b[s]) ** 2).sum()) for x, s in zip(a, p, strict=True))
               for p in permutations(range(len(b)), len(a)))  # fmt: skip
    return float(best**0.5) / len(a)


@pytest.mark.parametrize("name", NAMES)
@given(_sets())
def test_distances_are_those_of_the_best_permutation_and_of_scipy(name: str, sets: Any) -> None:
    d = NAMES[name](sets)
    assert_affinity(d)
    for (i, a), (j, b) in permutations(enumerate(sets), 2):
        expected = _match(a, b) if name == "matching" else cdist(a, b).min()
        assert d[i, j] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_newcomers_see_what_members_see(name: str) -> None:
    u = np.random.default_rng(1).normal(size=(9, 3, 2))
    np.testing.assert_array_equal(NAMES[name](u[:2], u[2:]), NAMES[name](u)[:2, 2:])


def test_equal_sets_in_another_order_are_at_exactly_zero() -> None:
    u = np.random.default_rng(1).normal(size=(5, 4)) * 1e6
    assert g.matching([u, u[::-1]])[0, 1] == 0


# -- embedding ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("count", [1, 2, 11])
def test_few_or_equal_points_have_places(count: int) -> None:
    for x in (np.ones((count, 3)), np.random.default_rng(count).normal(size=(count, 3)), np.zeros((count, 1))):
        places = g.pca(x)
        assert places.shape == (count, 2)
        assert np.isfinite(places).all()


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
    assert torch.get_num_threads() == 1  # as before: numba would change it
    centres = np.stack([placed[labels == c].mean(0) for c in range(3)])
    for points, own in ((placed, labels), (new, labels[:6])):
        nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
        np.testing.assert_array_equal(nearest, own)
    # Forgotten, as after a restart, and fitted again: the same bits.
    embedding._fitted.cache_clear()
    np.testing.assert_array_equal(g.umap(x, x[:6] + 0.01, seed=3), new)
    np.testing.assert_array_equal(g.umap(x, seed=3), placed)


def test_a_missing_umap_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    embedding._fitted.cache_clear()
    with pytest.raises(ConfigError, match=r"needs umap .*pip install"):
        g.umap(_blobs()[0])
