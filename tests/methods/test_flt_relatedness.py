"""FLT: from centres to distances, a graph and groups, against scipy, scikit-learn and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform
from sklearn.decomposition import PCA

from fedkin import graph as g
from fedkin.methods.blocks.clusters import continued
from fedkin.methods.flt import RelatednessSettings, relate, threshold
from methods.flt_world import engine_after, grouped, member, raw


def test_clients_near_enough_are_neighbours() -> None:
    between = np.array([[0.0, 1, 8, 9], [1, 0, 8, 9], [8, 8, 0, 3], [9, 9, 3, 0]])
    labels = np.array([0, 0, 1, 1])
    # Inside: (1 + 3) / 2; to the nearest other group: 8.5 for either.
    assert threshold(between, labels, "groups") == pytest.approx((2 + 8.5) / 2)
    assert threshold(between, labels, "gap") == g.gap_threshold(between)
    assert threshold(between, labels, 4.0) == 4.0
    assert threshold(between, np.zeros(4, dtype=np.int64), "groups") > 9
    assert threshold(between, np.arange(4), "groups") == pytest.approx((1 + 1 + 3 + 3) / 4 / 2)


def oracle(sets: list[Any], distance: str, gamma: float, adjacency: str, cluster: str, linkage: Any) -> Any:
    """Algorithm 2, lines 15 to 19, from the paper's text (matching: from the released code), with scipy and loops."""
    n = len(sets)
    between = np.zeros((n, n))
    for i, one in enumerate(sets):
        for j, other in enumerate(sets):
            apart = np.array([[np.linalg.norm(u - v) for v in other] for u in one])
            if distance == "min":
                between[i, j] = apart.min() if i != j else 0.0
            else:
                row, column = linear_sum_assignment(apart**2)
                between[i, j] = np.sqrt((apart[row, column] ** 2).sum()) / len(one)
    linked = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                linked[i, j] = between[i, j] < gamma if adjacency == "hard" else np.exp(-((between[i, j] / gamma) ** 2))
    if cluster == "rows":
        rows = linked + np.eye(n)
        between = np.array([[np.linalg.norm(a - b) for b in rows] for a in rows])
    tree = hierarchy.linkage(squareform(between, checks=False), linkage)
    return linked, hierarchy.cut_tree(tree, [3]).ravel()


@pytest.mark.parametrize("distance", ["min", "matching"])
@pytest.mark.parametrize("adjacency", ["hard", "soft"])
@pytest.mark.parametrize("cluster", ["distances", "rows"])
@pytest.mark.parametrize("linkage", ["ward", "average"])
@pytest.mark.parametrize("seed", range(2))
def test_the_relatedness_is_the_papers(distance: str, adjacency: str, cluster: str, linkage: str, seed: int) -> None:
    """Against scipy and plain loops; the planted groups overlap, so that no partition is given away."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(3, 4)) * 2.5
    sets = [middle[row % 3] + rng.normal(size=(4, 4)) for row in range(11)]
    gamma = {"min": 2.0, "matching": 1.3}[distance]
    linked, groups = oracle(sets, distance, gamma, adjacency, cluster, linkage)
    assert 0 < (linked > 0.5).sum() < linked.size
    how = {"distance": distance, "adjacency": adjacency, "cluster": cluster, "linkage": linkage, "gamma": gamma}
    chosen = RelatednessSettings.model_validate({**how, "embedding": "none", "groups": 3})
    found = relate(sets, chosen, 0)
    np.testing.assert_allclose(found.adjacency, linked, atol=1e-12)
    assert g.ari(found.groups, groups) == 1
    assert found.gamma == gamma


def test_the_pca_embedding_is_scikit_learns() -> None:
    """Distances are those of the centres on the principal axes of all centres."""
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(3, 5)) * np.array([9, 4, 1, 0.5, 0.1]) for _ in range(6)]
    placed = PCA(2, svd_solver="full").fit_transform(np.concatenate(sets)).reshape(6, 3, 2)
    linked, groups = oracle(list(placed), "min", 2.0, "hard", "distances", "ward")
    found = relate(sets, RelatednessSettings(embedding="pca", gamma=2.0, groups=3, cluster="distances"), 0)
    assert 0 < linked.sum() < 30
    np.testing.assert_array_equal(found.adjacency, linked)
    assert g.ari(found.groups, groups) == 1


@pytest.mark.parametrize("average", ["groups", "neighbours"])
def test_a_newcomers_edges_are_those_that_all_together_would_get(average: Any) -> None:
    """A gamma that does not depend on who is there, and no embedding."""
    late = [member(30 + number, "abc"[number], joins=2) for number in range(3)]
    method = raw(k=3, average=average, graph={"gamma": 1.5})
    engine = engine_after(method, grouped(12, extra=late), 2)
    state = engine.server.state
    assert state["founders"] == 12
    sets = [state["signatures"][id].double().numpy() for id in sorted(state["row"], key=state["row"].__getitem__)]
    np.testing.assert_array_equal(state["adjacency"].double().numpy(), g.gamma(g.matching(sets), 1.5))


@pytest.mark.parametrize(
    ("labels", "before", "expected"),
    [
        ([0, 0, 1], [None, None, None], [(0, None), (1, None)]),
        ([0, 0, 1], [4, 4, 7], [(4, 4), (7, 7)]),
        # A group that splits: the larger part keeps the number, both keep the model.
        ([0, 0, 0, 1, 1], [3, 3, 3, 3, 3], [(3, 3), (4, 3)]),
        # Two that join: the larger one's number; a new one beside them.
        ([0, 0, 0, 1], [1, 1, 0, None], [(1, 1), (2, None)]),
    ],
)  # fmt: skip
def test_groups_keep_their_numbers_and_models_when_made_anew(labels: Any, before: Any, expected: Any) -> None:
    assert continued(labels, before, [old for old in before if old is not None]) == expected
