from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

from fedkin import graph as g
from fedkin.errors import GraphError
from graph.strategies import (
    affinities,
    affinities_with_labels,
    both_kinds,
    dense,
    labels_for,
    planted,
    reordered,
    same_partition,
    symmetric,
)  # fmt: skip

FINDERS: dict[str, Callable[[Any], Any]] = {
    "louvain": g.louvain,
    "leiden": g.leiden,
    "components": g.components,
    "hierarchical": lambda a: g.hierarchical(dense(a)),
    "hierarchical silhouette": lambda a: g.hierarchical(a, choose="silhouette"),
    "hierarchical ratio": lambda a: g.hierarchical(a, choose="ratio", linkage="ward"),
    "kmeans": lambda a: g.kmeans(dense(a), min(2, a.shape[0])),
}


def _is_canonical(labels: Any) -> bool:
    sizes = np.bincount(labels)
    firsts = [int(np.argmax(labels == group)) for group in range(len(sizes))]
    order = [(-size, first) for size, first in zip(sizes.tolist(), firsts, strict=True)]
    return labels.dtype == np.int64 and bool(sizes.all()) and order == sorted(order)


@pytest.mark.slow
@pytest.mark.parametrize("name", FINDERS)
@given(a=affinities())
def test_labels_are_canonical_and_the_same_for_dense_and_sparse(name: str, a: Any) -> None:
    before = a.copy()
    one, two = (FINDERS[name](kind) for kind in both_kinds(a))
    assert one.shape == (len(a),)
    assert _is_canonical(one)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, FINDERS[name](a))
    np.testing.assert_array_equal(a, before)


@pytest.mark.slow
@given(st.integers(1, 9).flatmap(labels_for))
def test_canonical_keeps_the_partition_and_is_idempotent(labels: Any) -> None:
    once = g.canonical(labels)
    assert _is_canonical(once)
    assert same_partition(once, labels)
    np.testing.assert_array_equal(g.canonical(once), once)
    np.testing.assert_array_equal(g.canonical([f"group {7 - label}" for label in labels]), once)


def test_by_id() -> None:
    assert g.by_id(("c", "a"), np.array([2, 0])) == {"c": 2, "a": 0}
    assert type(g.by_id(("c",), np.array([2]))["c"]) is int
    for ids, labels in ((("a", "b"), [0]), (("a", "a"), [0, 1]), (("a",), ["x"])):
        with pytest.raises(GraphError):
            g.by_id(ids, np.array(labels))


# -- modularity ------------------------------------------------------------------------------------------------


def _partitions(n: int) -> Any:
    """Every partition of n clients, as labels."""
    for labels in product(range(n), repeat=n - 1):
        full = (0, *labels)
        if all(label <= max(full[:i], default=-1) + 1 for i, label in enumerate(full)):
            yield np.array(full)


@pytest.mark.slow
@pytest.mark.parametrize("finder", [g.louvain, g.leiden])
def test_near_the_best_of_all_partitions(finder: Any) -> None:
    """Against brute force on 7 clients: equal nearly always, never far below."""
    rng = np.random.default_rng(0)
    labels = np.stack(list(_partitions(7)))
    together = labels[:, :, None] == labels[:, None, :]
    gaps = []
    for _ in range(15):
        a = np.triu(rng.random((7, 7)) * (rng.random((7, 7)) < 0.6), 1)
        a += a.T
        degree, whole = a.sum(axis=0), a.sum()
        best = (together * (a - np.outer(degree, degree) / whole)).sum(axis=(1, 2)).max() / whole
        gaps.append(best - g.modularity(a, finder(a)))
    assert min(gaps) > -1e-12
    assert max(gaps) < 0.06
    assert np.median(gaps) < 1e-6


@pytest.mark.parametrize("finder", [g.louvain, g.leiden])
@pytest.mark.parametrize("seed", [0, 1, None])
def test_planted_groups_are_found(finder: Any, seed: int | None) -> None:
    a, truth = planted(5, 30, inside=0.5, across=0.02)
    order = np.random.default_rng(1).permutation(len(truth))
    labels = finder(reordered(a, order), seed=seed)
    assert adjusted_rand_score(truth[order], labels) > 0.99


@pytest.mark.parametrize("finder", [g.louvain, g.leiden])
def test_a_seed_fixes_the_groups_whatever_ran_before(finder: Any) -> None:
    a, _ = planted(3, 60, inside=0.12, across=0.1)
    first = [finder(a, seed=seed) for seed in range(4)]
    np.random.default_rng().random(3)
    finder(np.ones((50, 50)), seed=5)
    for seed, labels in enumerate(first):
        np.testing.assert_array_equal(finder(a, seed=seed), labels)
        np.testing.assert_array_equal(finder(sp.csr_array(a), seed=seed), labels)
    assert any(not same_partition(first[0], other) for other in first[1:])


@pytest.mark.parametrize("finder", [g.louvain, g.leiden])
def test_resolution_makes_more_groups(finder: Any) -> None:
    a, _ = planted(6, 20, inside=0.5, across=0.1)
    counts = [finder(a, resolution=r).max() + 1 for r in (0.1, 1.0, 8.0)]
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[2] > 20


@pytest.mark.parametrize("finder", [g.louvain, g.leiden, g.components])
def test_clients_alone_are_groups_of_one(finder: Any) -> None:
    assert finder(np.zeros((4, 4))).tolist() == [0, 1, 2, 3]
    assert finder(np.eye(3)).tolist() == [0, 1, 2]
    assert finder([[0.0]]).tolist() == [0]
    a = np.zeros((5, 5))
    a[1, 3] = a[3, 1] = 0.5
    for kind in both_kinds(a):
        assert finder(kind).tolist() == [1, 0, 2, 0, 3]


@pytest.mark.parametrize("finder", [g.louvain, g.leiden])
@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
def test_units_of_weight_do_not_matter(finder: Any, scale: float) -> None:
    a, _ = planted(3, 10, inside=0.6, across=0.1)
    np.testing.assert_array_equal(finder(a * scale), finder(a))


# -- hierarchical, k-means -------------------------------------------------------------------------------------


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "weighted", "ward"])
@pytest.mark.parametrize("clusters", [1, 2, 5, 12])
def test_hierarchical_is_scipys_cut(linkage: Any, clusters: int) -> None:
    x = np.random.default_rng(0).normal(size=(12, 2))
    d = -g.negative_l2(x)
    expected = hierarchy.fcluster(hierarchy.linkage(squareform(d), linkage), clusters, "maxclust")
    assert same_partition(g.hierarchical(d, clusters, linkage=linkage), expected)


@pytest.mark.parametrize("choose", ["gap", "ratio", "silhouette"])
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_hierarchical_finds_the_number(choose: Any, groups: int) -> None:
    rng = np.random.default_rng(groups)
    truth = rng.permutation(np.repeat(np.arange(groups), 10))
    x = 10 * np.eye(groups)[truth] + rng.normal(size=(len(truth), groups))
    labels = g.hierarchical(-g.negative_l2(x), choose=choose)
    assert same_partition(labels, truth)
    assert g.hierarchical(-g.negative_l2(x), choose=choose, most=2).max() + 1 == 2


@pytest.mark.parametrize("choose", ["gap", "ratio", "silhouette"])
def test_hierarchical_without_structure_is_one_group(choose: Any) -> None:
    assert not g.hierarchical(1 - np.eye(5), choose=choose).any()
    assert not g.hierarchical(np.zeros((4, 4)), choose=choose).any()
    assert g.hierarchical([[0.0, 3.0], [3.0, 0.0]], choose=choose).tolist() == [0, 0]
    assert g.hierarchical([[0.0]], choose=choose).tolist() == [0]


# -- clustered federated learning's bipartition ----------------------------------------------------------------


def _across(s: Any, labels: Any) -> float:
    return float(s[np.ix_(labels == 0, labels != 0)].max())


@given(symmetric(least=2, most=7))
def test_bipartition_has_the_least_largest_similarity_across(s: Any) -> None:
    labels = g.bipartition(s)
    assert labels.max() == 1
    n = len(s)
    best = min(_across(s, np.array([code >> i & 1 for i in range(n)])) for code in range(1, 2**n - 1))
    assert _across(s, labels) == pytest.approx(best)


@given(st.integers(2, 7), st.integers(0, 200), st.sampled_from([0.0, 0.3, 0.8]))
def test_cfl_is_the_papers_rule_with_every_split_tried(count: int, seed: int, gamma_max: float) -> None:
    """Sattler et al. 2020, Algorithm 1, written with loops over all bipartitions."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)) * rng.uniform(0.2, 3, (count, 1))
    counts = rng.integers(1, 9, count).astype(float)
    eps1, eps2 = rng.uniform(0, 2), rng.uniform(0, 3)
    labels = g.cfl(x @ x.T, eps1=eps1, eps2=eps2, counts=counts, gamma_max=gamma_max)

    def across(side: Any) -> float:
        return max(
            float(x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j])))
            for i in range(count)
            for j in range(count)
            if side[i] != side[j]
        )

    mean = sum(n * row for n, row in zip(counts, x, strict=True)) / sum(counts)
    best = min(across((0, *rest)) for rest in product([0, 1], repeat=count - 1) if any(rest))
    longest = max(np.linalg.norm(row) for row in x)
    splits = np.linalg.norm(mean) < eps1 and longest > eps2 and gamma_max < np.sqrt((1 - best) / 2)
    assert labels.max() == int(splits)
    if splits:
        assert across(labels) == pytest.approx(best)


def test_cfl_keeps_groups_of_which_there_is_nothing_to_split() -> None:
    inner = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert g.cfl(inner, eps1=9, eps2=0).max() == 1
    assert g.cfl(inner, eps1=9, eps2=0, counts=[0, 0]).max() == 0
    assert g.cfl(np.ones((2, 2)), eps1=9, eps2=0, gamma_max=1.0).max() == 0
    assert g.cfl(np.zeros((3, 3)), eps1=0.5, eps2=0.5).max() == 0
    assert g.cfl([[1.0]], eps1=9, eps2=0).tolist() == [0]


@given(affinities(), st.integers(0, 3))
def test_leiden_groups_are_connected(a: Any, seed: int) -> None:
    labels = g.leiden(a, seed=seed)
    for group in np.unique(labels):
        rows = labels == group
        assert g.components(reordered(a, np.flatnonzero(rows))).max() == 0


@pytest.mark.parametrize("finder", [g.louvain, g.leiden])
@pytest.mark.parametrize("seed", range(3))
def test_relabelled_clients_get_the_same_groups_on_dense_graphs(finder: Any, seed: int) -> None:
    """Where modularity has many near ties, the finders' result must still not depend on the order of rows."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((14, 14)), 1)
    a = upper + upper.T
    turn = rng.permutation(14)
    assert same_partition(finder(a)[turn], finder(a[turn][:, turn]))


# -- scores of groups -------------------------------------------------------------------------------------------------


def test_ari_and_nmi_need_no_common_names() -> None:
    truth, labels = ["a", "a", "b", "b", "c"], [7, 7, 7, 1, 1]
    assert g.ari(truth, labels) == pytest.approx(0.0909, abs=1e-4)
    assert 0 < g.nmi(truth, labels) < 1
    assert g.ari(truth, [3, 3, 0, 0, 9]) == g.nmi(truth, [3, 3, 0, 0, 9]) == 1
    assert g.ari(["a", "b"], [0, 1]) == g.nmi(["a"], [0]) == 1


def test_ari_of_more_pairs_than_64_bits_hold() -> None:
    labels = np.arange(200_000) % 2
    assert g.ari(labels, labels) == 1.0
    assert abs(g.ari(labels, np.arange(200_000) // 2 % 2)) < 1e-4


@given(affinities_with_labels(), st.sampled_from([0.5, 1.0, 2.0]), st.booleans())
def test_modularity_is_networkxs(case: Any, resolution: float, loops: bool) -> None:
    a, labels = case
    a = a + loops * np.eye(len(a))
    if not a.any():
        assert g.modularity(a, labels) == 0
        return
    parts = [set(np.flatnonzero(labels == group).tolist()) for group in np.unique(labels)]
    theirs = nx.community.modularity(nx.from_numpy_array(a), parts, resolution=resolution)
    for kind in both_kinds(a):
        assert g.modularity(kind, labels, resolution=resolution) == pytest.approx(theirs, abs=1e-12)
