"""Overlaps and separations against scipy, scikit-learn and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr
from sklearn.metrics import silhouette_score

from fedkin.analysis import class_overlap, correlation, mean_by_level, separation


@given(classes=st.lists(st.sets(st.sampled_from("abcde"), min_size=0), min_size=2, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_overlap_and_levels_by_a_plain_loop(classes: list[set[str]], seed: int) -> None:
    overlap = class_overlap(classes)
    weights = np.random.default_rng(seed).random((len(classes), len(classes)))
    levels: dict[str, list[float]] = {"none": [], "some": [], "all": []}
    pairs = []
    for i, one in enumerate(classes):
        for j, other in enumerate(classes):
            share = len(one & other) / len(one | other) if one | other else 0.0
            assert overlap[i, j] == pytest.approx(share)
            if i != j:
                pairs.append((weights[i, j], share))
                levels["none" if share == 0 else "all" if share == 1 else "some"].append(weights[i, j])
    means = [np.mean(level) if level else None for level in levels.values()]
    assert list(mean_by_level(weights, overlap)) == [None if m is None else pytest.approx(m) for m in means]
    given_weights, shares = zip(*pairs, strict=True)
    if len(set(np.round(shares, 12))) > 1:
        assert correlation(weights, overlap) == pytest.approx(pearsonr(given_weights, shares)[0])
    else:
        assert correlation(np.ones_like(weights), overlap) is None


@given(seed=st.integers(0, 2**20), n=st.integers(4, 25), kinds=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_separation_is_scikit_learns_silhouette(seed: int, n: int, kinds: int) -> None:
    rng = np.random.default_rng(seed)
    x, labels = rng.normal(size=(n, 3)), rng.integers(0, kinds, n)
    if 2 <= len(set(labels.tolist())) < n:
        assert separation(x, labels.tolist()) == pytest.approx(silhouette_score(x, labels))
    else:
        assert separation(x, labels.tolist()) is None
    assert separation(x, list(range(n))) is None
