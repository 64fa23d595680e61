"""A control graph put in the place of a learned one changes who is mixed with whom, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedkin import graph as g
from graph.strategies import kept_dense

CONTROLS = ["none", "random", "uniform", "oracle", "shuffled", "self"]


@pytest.fixture
def learned() -> Any:
    """Ids, planted groups and the learned affinity of 18 clients; and values to mix."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(["x", "y", "z"], 6))
    centre = {"x": [5.0, 0, 0], "y": [0, 5.0, 0], "z": [0, 0, 5.0]}
    x = np.array([centre[name] for name in truth]) + rng.normal(size=(18, 3))
    return tuple(f"c{row}" for row in range(18)), truth, g.epsilon(g.cosine(x), 0.4), x


def _round(learned: Any, control: str) -> tuple[g.Graph, Any]:
    ids, truth, a, x = learned
    weights = g.control_stage(control)(a, seed=1, planted=truth)
    labels = g.groups_stage("louvain")(weights, seed=0)
    mixing = g.laplacian_step(weights, labels, 0.05)
    return g.Graph(ids, weights, groups=g.by_id(ids, labels), mixing=mixing), mixing @ x


@pytest.mark.parametrize("control", CONTROLS)
def test_ids_shape_and_input_stay(learned: Any, control: str) -> None:
    ids, _, a, x = learned
    before = a.copy(), x.copy()
    graph, mixed = _round(learned, control)
    assert graph.ids == ids
    assert graph.weights.shape == a.shape
    assert mixed.shape == x.shape
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(x, before[1])
    # A symmetric step inside groups moves clients towards each other and leaves their mean where it was.
    np.testing.assert_allclose(mixed.mean(axis=0), x.mean(axis=0))


def test_each_control_changes_what_it_should(learned: Any) -> None:
    _, truth, a, x = learned
    rounds = {control: _round(learned, control) for control in CONTROLS}
    np.testing.assert_array_equal(rounds["none"][0].weights, a)
    np.testing.assert_array_equal(rounds["self"][1], x)
    assert g.ari(truth, rounds["oracle"][0].labels) == 1
    assert rounds["uniform"][0].labels.max() == 0
    for control in ("random", "shuffled"):
        assert g.edge_scores(rounds[control][0].weights, truth).precision < 0.6
        assert np.sort(kept_dense(rounds[control][0].weights).ravel()) == pytest.approx(np.sort(a.ravel()))
    for control in ("random", "shuffled", "uniform"):
        assert np.asarray(rounds[control][0].weights).sum() == pytest.approx(a.sum())
