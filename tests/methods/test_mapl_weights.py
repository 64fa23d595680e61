"""MAPL's rows of weights at its default settings: planted clusters, strangers, equal peers."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.methods.mapl.weights import CollaborationSettings
from support import planted_similarities

DEFAULT = CollaborationSettings()


@pytest.mark.parametrize(("within", "across", "noise"), [(0.5, 0.0, 0.03), (0.9, 0.3, 0.05), (0.9, -0.2, 0.05)])
@pytest.mark.parametrize("m", [5, 10, 20, 100, 1000])
def test_planted_clusters_are_recovered(m: int, within: float, across: float, noise: float) -> None:
    """Disjoint and overlapping classes, unequal sizes: nothing across, the whole cluster kept, self a fair share."""
    s, labels, n = planted_similarities(m, 2, within, across, noise)
    for i in range(0, m, max(1, m // 8)):
        w = DEFAULT.solved(s[i], i, n)
        same = labels == labels[i]
        assert w[~same].sum() < 1e-9
        assert (w[same] > 0.1 / m).all()
        assert 0.5 < w[i] / (n[i] / n[same].sum()) < 2


@pytest.mark.parametrize(("m", "clusters"), [(30, 5), (100, 10), (1000, 20)])
def test_many_clusters_are_recovered(m: int, clusters: int) -> None:
    s, labels, n = planted_similarities(m, clusters, 0.9, 0.0, 0.05)
    for i in range(0, m, m // 7):
        w = DEFAULT.solved(s[i], i, n)
        assert w[labels != labels[i]].sum() < 1e-9
        assert (w[labels == labels[i]] > 0.1 / m).all()


def test_a_peer_among_strangers_keeps_to_itself_but_for_the_logarithm() -> None:
    s, _, n = planted_similarities(50, 50, 0.9, 0.0, 0.05)
    for i in range(0, 50, 7):
        assert 0.9 < DEFAULT.solved(s[i], i, n)[i] < 1.0


@pytest.mark.parametrize(("alike", "strangers", "most"), [
    (0.0, 30, 0.04), (0.2, 1, 0.05), (0.2, 10, 0.07), (0.3, 1, 0.07), (0.3, 10, 0.13), (0.42, 1, 0.11), (0.44, 1, 0.12),
])  # fmt: skip
def test_who_hears_only_strangers_keeps_to_itself(alike: float, strangers: int, most: float) -> None:
    """They are not made alike by being compared with each other. (Ten at .42 do get half of the weight.)"""
    s = np.array([1.0, *[alike] * strangers])
    w = DEFAULT.solved(s, 0, np.full(len(s), 100.0))
    assert 0 < w[1:].sum() < most


def test_equal_peers_get_symmetric_weights_and_trust_shares_by_samples() -> None:
    s, _, n = planted_similarities(20, 2, 0.8, 0.1, 0.0)
    w = np.stack([DEFAULT.solved(s[i], i, np.ones(20)) for i in range(20)])
    np.testing.assert_allclose(w, w.T, atol=1e-12)
    norm_alone = CollaborationSettings(mu2=1e-9, beta=1e9)
    np.testing.assert_allclose(norm_alone.solved(np.ones(20), 0, n), n / n.sum(), atol=1e-6)
