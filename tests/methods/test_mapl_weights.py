"""MAPL's rows of weights: what the default settings recover, similarities, edges, the named steps, the graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkin.methods.mapl import CollaborationSettings, learned_graph
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


# -- similarity and rows ------------------------------------------------------------------------------------------


def heads(count: int = 4, seed: int = 0) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [
        {"head.weight": torch.randn(3, 5, generator=draw), "head.bias": torch.randn(3, generator=draw)}
        for _ in range(count)
    ]


def test_the_released_step_moves_by_its_rate_and_prunes_nothing_for_many_peers() -> None:
    """Weights that the released step learns within a run: entries move by 0.1 before the projection."""
    chosen = CollaborationSettings(step="released")
    one, many = heads(1)[0], 130
    named = {f"p{k:03d}": one if k % 2 == 0 else {n: -t for n, t in one.items()} for k in range(many)}
    equal = dict.fromkeys(named, 1 / many)
    start = {name: torch.zeros_like(t) for name, t in one.items()}
    row = chosen.row("p000", named, start, dict.fromkeys(named, 50), equal)
    assert row == pytest.approx(equal)
    few = {id: named[id] for id in sorted(named)[:10]}
    row = chosen.row("p000", few, start, dict.fromkeys(few, 50), dict.fromkeys(few, 0.1))
    assert [row[id] for id in sorted(few)] == pytest.approx([0.2, 0.0] * 5)


def test_the_learned_graph_holds_the_rows_and_finds_groups() -> None:
    rows = {
        "a": {"a": 0.5, "b": 0.5}, "b": {"b": 0.9, "a": 0.1}, "c": {"c": 0.4, "d": 0.6}, "d": {"d": 1.0, "left": 0.3}
    }  # fmt: skip
    graph = learned_graph(rows)
    assert graph.groups == {"a": 0, "b": 0, "c": 1, "d": 1}
    weights = np.asarray(graph.weights)
    assert weights[0, 1] == weights[1, 0] == pytest.approx(0.3)
    assert not weights.diagonal().any()
    assert np.asarray(graph.mixing)[:2].tolist() == [[0.5, 0.5, 0.0, 0.0], [0.1, 0.9, 0.0, 0.0]]
