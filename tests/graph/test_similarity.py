from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import reordered, symmetric, vectors

OF_VECTORS: dict[str, Callable[[Any], Any]] = {
    "cosine": g.cosine,
    "dot": g.dot,
    "l1": g.negative_l1,
    "l2": g.negative_l2,
    "rbf": g.rbf,
}


@pytest.mark.parametrize("name", OF_VECTORS)
@given(x=vectors(), data=st.data())
def test_symmetric_finite_and_equivariant(name: str, x: Any, data: Any) -> None:
    measure = OF_VECTORS[name]
    s = measure(x)
    assert s.shape == (len(x), len(x))
    assert np.isfinite(s).all()
    assert (s == s.T).all()
    order = np.array(data.draw(st.permutations(range(len(x)))))
    scale = max(1.0, float(np.abs(s).max()))
    np.testing.assert_allclose(measure(x[order]), reordered(s, order), atol=1e-9 * scale)


@given(vectors())
def test_cosine_is_sklearns(x: Any) -> None:
    s = g.cosine(x)
    np.testing.assert_allclose(s, cosine_similarity(x), atol=1e-12)
    assert (np.abs(s) <= 1).all()
    np.testing.assert_allclose(np.diag(s), x.any(axis=1).astype(float), atol=1e-12)


@given(vectors(), st.floats(1e-9, 1e9))
def test_cosine_ignores_positive_scale(x: Any, scale: float) -> None:
    np.testing.assert_allclose(g.cosine(x * scale), g.cosine(x), atol=1e-9)


def test_cosine_of_extreme_lengths() -> None:
    np.testing.assert_allclose(g.cosine([[1e-300, 0], [1e300, 1e300]]), [[1, 0.5**0.5], [0.5**0.5, 1]])


@given(vectors())
def test_l1_l2_and_rbf_are_scipys_and_sklearns(x: Any) -> None:
    np.testing.assert_allclose(g.negative_l1(x), -cdist(x, x, "cityblock"), rtol=1e-9)
    np.testing.assert_allclose(g.negative_l2(x), -cdist(x, x), rtol=1e-9)
    np.testing.assert_allclose(g.rbf(x, gamma=1e-6), rbf_kernel(x, gamma=1e-6), atol=1e-9)


@given(vectors(least=2), st.floats(1e-3, 1e3))
def test_rbf_by_default_ignores_units(x: Any, scale: float) -> None:
    np.testing.assert_allclose(g.rbf(x * scale), g.rbf(x), atol=1e-9)


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


@given(symmetric(least=3))
def test_minmax_twice_is_once(s: Any) -> None:
    once = g.minmax(s)
    if np.ptp(s[np.triu_indices(len(s), 1)]) > 0:
        np.testing.assert_allclose(g.minmax(once), once, atol=1e-12)


def test_minmax_of_one_client_and_of_huge_values() -> None:
    assert g.minmax([[5.0]]).tolist() == [[0.0]]
    huge = g.minmax([[0, 1e308, -1e308], [1e308, 0, 0], [-1e308, 0, 0]])
    np.testing.assert_allclose(huge, [[0.0, 1.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 0.0]])


# -- SFMTL-Graph's two similarities, against loops that read like the paper ------------------------------------


def _cos(a: Any, b: Any) -> float:
    long = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / long if long > 0 else 0.0


def _responses(w: Any, b: Any, h: Any) -> Any:
    """What each linear head says of each anchor, [n, n, C, K]."""
    return np.einsum("kod,lcd->klco", w, h) + b[:, None, None, :]


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
def test_response_similarity_is_the_papers_sum(heads: Any, match: Any) -> None:
    w, b, h, owned = heads
    r = _responses(w, b, h)
    s = g.response_similarity(r, owned, match=match)
    np.testing.assert_allclose(s, _heads_by_loops(w, b, h, owned, match), atol=1e-12)
    assert (s == s.T).all()
    assert (np.abs(s) <= 1).all()
    # The same from one head at a time, for the anchors that are used.
    used = r[:, np.ones_like(owned) if match == "rows" else owned]
    np.testing.assert_array_equal(g.response_similarity(lambda k, at: used[k][at], owned, match=match), s)


@pytest.mark.parametrize("match", ["union", "shared", "rows"])
def test_anchor_similarity_is_the_papers_cosine(heads: Any, match: Any) -> None:
    _, _, h, owned = heads
    s = g.anchor_similarity(h, owned, match=match)
    np.testing.assert_allclose(s, _anchors_by_loops(h, owned, match), atol=1e-12)
    assert (s == s.T).all()
    assert (np.abs(s) <= 1).all()


@pytest.mark.parametrize("match", ["union", "shared"])
def test_what_a_client_does_not_own_is_never_read(heads: Any, match: Any) -> None:
    w, b, h, owned = heads
    spoilt = np.where(owned[:, :, None], h, np.nan)
    one, other = (g.response_similarity(_responses(w, b, each), owned, match=match) for each in (spoilt, h))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        g.anchor_similarity(spoilt, owned, match=match), g.anchor_similarity(h, owned, match=match)
    )


def test_a_head_of_any_kind_by_its_responses(heads: Any) -> None:
    w, b, h, owned = heads
    r = np.stack([np.stack([np.tanh(h[m] @ w[k].T + b[k]) for m in range(len(w))]) for k in range(len(w))])
    s = g.response_similarity(r, owned)
    some = owned.any(axis=1)
    np.testing.assert_allclose(np.diag(s)[some], 1.0)
    assert not s[np.ix_(~some, ~some)].any()


def test_two_one_and_no_common_classes_are_told_apart() -> None:
    """Equal heads and anchors where classes agree: the paper's remark that one shared class gives less than two."""
    owned = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], dtype=bool)
    s = g.anchor_similarity(np.eye(4)[None].repeat(4, 0), owned)
    np.testing.assert_allclose(s[0], [1, 1, 1 / 3, 0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: g.cosine([[1, 2], [np.nan, 0]]), "row 1 is not all finite"),
        (lambda: g.cosine([[1, 2], [3]]), "rows of equal length"),
        (lambda: g.cosine([]), "expected 2 axes"),
        (lambda: g.cosine(np.zeros((0, 3))), "at least one client"),
        (lambda: g.cosine([["a", "b"]]), "expected numbers"),
        (lambda: g.rbf([[1.0], [2.0]], gamma=0), "gamma: expected a number above 0"),
        (lambda: g.minmax([[1, 2], [3, 4]]), "not symmetric"),
        (lambda: g.minmax([[1, 2]]), "square"),
        (lambda: g.response_similarity(np.zeros((2, 3, 1, 1)), np.ones((2, 1), bool)), r"logits \[n, n, C, K\]"),
        (lambda: g.anchor_similarity(np.zeros((2, 3, 1)), np.ones((2, 3))), "owned: expected bool"),
        (lambda: g.anchor_similarity(np.zeros((2, 3, 1)), np.ones((2, 3), bool), match="all"), "match: expected"),  # type: ignore[arg-type]
        (lambda: g.anchor_similarity(np.full((2, 1, 1), np.inf), np.ones((2, 1), bool)), "client 0 has a value"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        call()
